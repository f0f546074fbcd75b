"""`gw.spark.aggregate` on a stream gives the rows of the operator on the same Arrow batches, whatever happens to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import arrow_of
from spark_harness.processes import service

import gpuwin as gw

START = 1_700_000_000_000_000
SCHEMA = "ts timestamp, ntz timestamp_ntz, day date, `k.``1` string, v double, place int, cents decimal(21,2)"


def batch(number: int, rows: int = 150) -> pa.Table:
    """Rows of six minutes, out of order, that overlap those of the batch before by a minute."""
    rng = np.random.default_rng(number)
    micros = START + (number * 300 + rng.integers(0, 360, rows)) * 1_000_000
    return pa.table(
        {
            "ts": pa.array(micros, mask=rng.random(rows) < 0.02).cast(pa.timestamp("us", "UTC")),
            "ntz": pa.array(micros).cast(pa.timestamp("us")),
            "day": pa.array((micros // 1_000_000 * 864) // 864_000 - 19_000, pa.int32()).cast(pa.date32()),
            "k.`1": pa.array(rng.choice(["a", "b", "ç", None], rows)),
            "v": pa.array(rng.integers(-50, 50, rows).astype(float), mask=rng.random(rows) < 0.1),
            "cents": pa.array(rng.integers(0, 10**6, rows)).cast(pa.decimal128(21, 2)),
            "place": pa.array(rng.integers(0, 10**6, rows), pa.int32()),
        }
    )


def append(folder: Path, number: int) -> None:
    aside = folder / f".{number}.parquet"
    pq.write_table(batch(number), aside)
    os.utime(aside, (1_000_000_000 + number, 1_000_000_000 + number))
    aside.rename(folder / f"{number}.parquet")


class Job:
    """A query over the files of a folder, with its checkpoint and what its sink was given."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.source = folder / "source"
        self.source.mkdir()

    def frame(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.source))

    @contextmanager
    def running(self, spec: gw.WindowedAggregation, frame: DataFrame | None = None) -> Iterator[StreamingQuery]:
        result = gw.spark.aggregate(self.frame() if frame is None else frame, spec)
        sink = result.writeStream.format("parquet").option("path", str(self.folder / "sink"))
        query = sink.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        try:
            yield query
        finally:
            query.stop()

    def feed(self, query: StreamingQuery, *numbers: int) -> None:
        for number in numbers:
            append(self.source, number)
            query.processAllAvailable()

    def rows(self, like: pa.Table) -> pa.Table:
        return arrow_of(self.spark.read.parquet(str(self.folder / "sink"))).select(like.column_names).cast(like.schema)


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def on_arrow(spec: gw.WindowedAggregation, *numbers: int) -> pa.Table:
    operator = spec.start(device="cpu")
    return pa.concat_tables([operator.process(batch(n)) for n in numbers])


def in_order(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


@gw.accumulation
class Product:
    state = {"product": 1.0}  # noqa: RUF012 - as documented

    def add(product, x):  # type: ignore[no-untyped-def]
        return (product * (1.0 + x / 1000.0),)

    def merge(product, other):  # type: ignore[no-untyped-def]
        return (product * other,)

    def result(product):  # type: ignore[no-untyped-def]
        return product


KEYED: dict[str, Any] = {"keys": ["k.`1"], "time": "ts"}
SPECIFICATIONS = {
    "sessions that fire early and late": gw.WindowedAggregation(
        window=gw.SessionWindow("4 seconds"),
        aggregates={"n": gw.count(), "values": gw.collect_list("v"), "product": Product("v")},
        watermark=gw.BoundedOutOfOrderness("10 seconds"),
        allowed_lateness="2 minutes",
        emit=gw.Trigger(early=gw.EveryRows(3), late=gw.EveryRows(1)),
        accumulation="retracting",
        **KEYED,
    ),
    "changes of a sliding window": gw.WindowedAggregation(
        window=gw.SlidingWindow("2 minutes", "30 seconds"),
        aggregates={"cents": gw.sum("cents"), "n": gw.count("v")},
        emit=gw.OnChange(),
        **KEYED,
    ),
    "no keys, row by row, without a zone": gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"),
        time="ntz",
        aggregates={"n": gw.count(), "first": gw.first("v"), "kinds": gw.count_distinct("k.`1")},
        semantics=gw.Semantics.FLINK,
    ),
    "a watermark per key": gw.WindowedAggregation(
        window=gw.CumulativeWindow("5 minutes", "1 minute"),
        aggregates={"n": gw.count(), "most": gw.max("v"), "last": gw.last("v")},
        semantics=gw.Semantics(watermark_scope="key", watermark_advance="row"),
        **KEYED,
    ),
    "days": gw.WindowedAggregation(
        window=gw.CalendarWindow("1 week", "America/New_York"),
        keys=["k.`1"],
        time="day",
        aggregates={"n": gw.count(), "first": gw.first("place")},
        emit=gw.OnUpdate(),
    ),
}


#: With these marks: what others cover in part.
LONGER = {"sessions that fire early and late": "long", "no keys, row by row, without a zone": "sweep", "days": "sweep"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[getattr(pytest.mark, LONGER[n])] if n in LONGER else []) for n in SPECIFICATIONS],
)
def test_rows_of_the_operator(name: str, job: Job) -> None:
    spec = SPECIFICATIONS[name]
    expected = on_arrow(spec, 0, 1, 2)
    with job.running(spec) as query:
        job.feed(query, 0)
        assert "+ operator 0: GpuWindowOperator" in gw.spark.explain(query)
    with job.running(spec) as query:  # from its checkpoint
        job.feed(query, 1, 2)
        operator = next(p for p in reversed(query.recentProgress) if p["numInputRows"])["stateOperators"][0]
        assert operator["operatorName"] == "gpuwin"
        assert operator["customMetrics"]["gpuwinResidentHits"] == 2
    assert len(expected) > 10
    assert in_order(job.rows(expected)) == in_order(expected)


@pytest.mark.long
def test_the_service_is_killed_and_the_watermark_is_the_stream_s(spark: SparkSession, job: Job) -> None:
    """The stream's watermark has another delay than the specification's, and the service dies between batches."""
    spec = SPECIFICATIONS["sessions that fire early and late"]
    expected = on_arrow(spec, 0, 1, 2)
    with job.running(spec, job.frame().withWatermark("ts", "30 seconds")) as query:
        job.feed(query, 0, 1)
        os.kill(service(spark), signal.SIGKILL)
        job.feed(query, 2)
        rebuilt = [p["stateOperators"][0]["customMetrics"]["gpuwinResidentHits"] < 2 for p in query.recentProgress]
    assert rebuilt.count(True) == 2  # the first batch, and that after the loss
    assert in_order(job.rows(expected)) == in_order(expected)


def test_time_passes_without_rows(job: Job) -> None:
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 second"), keys=["k.`1"], aggregates={"n": gw.count()}, watermark=gw.SystemClock()
    )
    with job.running(spec) as query:
        append(job.source, 0)
        deadline = time.monotonic() + 60
        while not any(p["stateOperators"][0]["numRowsRemoved"] for p in query.recentProgress if p["stateOperators"]):
            assert query.exception() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
    rows = arrow_of(job.spark.read.parquet(str(job.folder / "sink")))
    assert sum(rows["n"].to_pylist()) == 150
    assert len(set(rows["window_start"].to_pylist())) == 1


def test_of_the_windows_of_another_operator(job: Job) -> None:
    """They come out when the watermark moves, all older than it, and in batches that have no data."""
    lower = gw.WindowedAggregation(
        window=gw.TumblingWindow("5 seconds"),
        keys=["k"],
        time="ts",
        aggregates={"n": gw.count()},
        watermark=gw.BoundedOutOfOrderness("10 seconds"),
        semantics=gw.Semantics.SPARK,
    )
    upper = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"),
        keys=["k"],
        time="ts",
        aggregates={"n": gw.sum("n"), "windows": gw.count()},
        watermark=gw.ExplicitWatermark(),
    )
    first, second = lower.start(device="cpu"), upper.start(device="cpu")
    emitted = []
    for number in (0, 1, 2):
        rows = first.process(
            batch(number).rename_columns(["k" if c == "k.`1" else c for c in batch(number).column_names])
        )
        times = pc.subtract(rows["window_end"].cast(pa.int64()), 1).cast(rows["window_end"].type)
        emitted.append(second.process(pa.table({"k": rows["k"], "ts": times, "n": rows["n"]})))
        emitted.append(second.advance_watermark(first.watermark))
    expected = pa.concat_tables(emitted)
    renamed = job.frame().withColumnRenamed("k.`1", "k")
    last = (F.col("window_end") - F.expr("INTERVAL 1 MICROSECOND")).alias("ts")
    windows = gw.spark.aggregate(renamed, lower).select("k", last, "n")
    with job.running(upper, windows) as query:
        job.feed(query, 0, 1, 2)
        assert [o["operatorName"] for o in query.lastProgress["stateOperators"]] == ["gpuwin", "gpuwin"]
    assert len(expected) > 10
    assert in_order(job.rows(expected)) == in_order(expected)


def test_a_checkpoint_belongs_to_its_specification(job: Job) -> None:
    spec = SPECIFICATIONS["changes of a sliding window"]
    with job.running(spec) as query:
        job.feed(query, 0)
    others = [
        (SPECIFICATIONS["a watermark per key"], job.frame()),
        # Its log has decimals, and Spark has kept a watermark that is not an hour behind.
        (spec, job.frame().withColumn("cents", F.col("cents").cast("double")).withWatermark("ts", "1 hour")),
    ]
    for number, (other, frame) in enumerate(others):
        with job.running(other, frame) as query, pytest.raises(StreamingQueryException, match="to another query") as e:
            job.feed(query, 1)
        assert number == 0 or all(w in str(e.value) for w in ("cents: double", "withWatermark: 3600000 ms"))
    expected = on_arrow(spec, 0, 1)
    with job.running(spec) as query:
        query.processAllAvailable()
    assert in_order(job.rows(expected)) == in_order(expected)


def test_wrong_use(spark: SparkSession, job: Job) -> None:
    spec = SPECIFICATIONS["changes of a sliding window"]
    frame = job.frame()
    with pytest.raises(gw.SchemaError, match="no column 'v' in the input"):
        gw.spark.aggregate(frame.drop("v"), spec)
    with pytest.raises(gw.spark.SparkSetupError, match="leave withWatermark out"):
        gw.spark.aggregate(frame.withColumn("seen", frame.ts).withWatermark("seen", "1 minute"), spec)
    above = gw.spark.aggregate(frame, spec).withWatermark("window_end", "1 minute").dropDuplicates(["window_end"])
    with pytest.raises(Exception, match="neither would ever move"):
        gw.spark.explain(above)
    two = gw.MultipleInputs([gw.BoundedOutOfOrderness("1 second"), gw.BoundedOutOfOrderness("2 seconds")])
    several = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"), aggregates={"n": gw.count()}, watermark=two, **KEYED
    )
    with pytest.raises(gw.spark.SparkSetupError, match="unite the streams"):
        gw.spark.aggregate(frame, several)
    bounds = frame.withColumn("window_start", frame.ts).withColumn("window_end", frame.ts)
    with pytest.raises(gw.spark.SparkSetupError, match="name one by time="):
        gw.spark.aggregate(bounds, gw.WindowedAggregation(window=gw.InheritedWindow(), aggregates={"n": gw.count()}))
    spark.conf.set("spark.gpuwin.enabled", "false")
    try:
        with (
            job.running(spec) as query,
            pytest.raises(StreamingQueryException, match=r"spark\.gpuwin\.enabled is false"),
        ):
            job.feed(query, 0)
    finally:
        spark.conf.set("spark.gpuwin.enabled", "true")
