"""Ways of writing and running a windowed aggregation that the covering design has no dimension for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from marks import second_ones_long
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import (
    SCHEMA,
    Both,
    Case,
    Query,
    Run,
    Stream,
    StreamSpec,
    assert_equal,
    row_differences,
    rows_of,
    run,
    write,
)

CONF = {"spark.sql.shuffle.partitions": "2"}
APPEND = Run("append", "processing", conf=CONF)
UPDATE = Run("update", "processing", conf=CONF)
COMPLETE = Run("complete", "processing", conf=CONF)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=21, batches=3, rows=60, empty=None), tmp_path_factory.mktemp("queries") / "stream")


def marked(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds")


def query(build: Callable[[DataFrame], DataFrame]) -> Query:
    return lambda _, frame: build(frame)


def window_made_before(frame: DataFrame) -> DataFrame:
    made = marked(frame).withColumn("w", F.window("ts", "2 minutes", "1 minute"))
    return (
        made.where("short > 0 or short is null").groupBy("w", "bool").agg(F.sum("long"), F.max("str").alias("max_str"))
    )


def only_the_start(frame: DataFrame) -> DataFrame:
    counted = marked(frame).groupBy(F.window("ts", "1 minute").alias("w"), "short").agg(F.count("*").alias("n"))
    return counted.select("w.start", "n")


def no_aggregate(frame: DataFrame) -> DataFrame:
    """Groups and nothing else: which keys were there."""
    return marked(frame).groupBy(F.window("ts", "1 minute"), "short").agg(F.lit(1).alias("one"))


def key_is_a_constant(frame: DataFrame) -> DataFrame:
    return marked(frame).groupBy(F.lit("all").alias("k"), F.window("ts", "1 minute", "20 seconds")).agg(F.sum("int"))


def filter_on_the_key(frame: DataFrame) -> DataFrame:
    return (
        marked(frame)
        .groupBy("short", F.window("ts", "1 minute"))
        .agg(F.sum("int"))
        .where("short = 12 or short is null")
    )


def same_aggregate_twice(frame: DataFrame) -> DataFrame:
    grouped = marked(frame).groupBy("bool", F.window("ts", "1 minute"))
    return grouped.agg(
        F.sum("int").alias("a"), F.sum("int").alias("b"), F.avg("int").alias("c"), F.max("bool").alias("d")
    )


def nested_columns(frame: DataFrame) -> DataFrame:
    nested = marked(frame).select(F.struct("short", "double").alias("s"), "ts")
    return nested.groupBy("s.short", F.window("ts", "1 minute", "30 seconds")).agg(F.sum("s.double"), F.min("s.short"))


def union_of_two(frame: DataFrame) -> DataFrame:
    both = marked(frame.where("bool")).union(marked(frame.where("not bool")))
    return both.groupBy("bool", F.window("ts", "1 minute", "30 seconds")).agg(F.count("*"), F.sum("dec10"))


def udf_below_and_above(frame: DataFrame) -> DataFrame:
    half = F.udf(lambda v: None if v is None else v // 2, "long")
    summed = marked(frame).groupBy("short", F.window("ts", "1 minute")).agg(F.sum(half("long")).alias("s"))
    return summed.select("window", "short", half("s").alias("h"))


SHAPES = {
    "window_made_before": (window_made_before, UPDATE),
    "only_the_start": (only_the_start, APPEND),
    "no_aggregate": (no_aggregate, APPEND),
    "key_is_a_constant": (key_is_a_constant, APPEND),
    "filter_on_the_key": (filter_on_the_key, APPEND),
    "same_aggregate_twice": (same_aggregate_twice, UPDATE),
    "nested_columns": (nested_columns, APPEND),
    "union_of_two": (union_of_two, APPEND),
    "udf_below_and_above": (udf_below_and_above, APPEND),
    "intervals": (
        lambda f: (
            marked(f)
            .selectExpr("*", "make_dt_interval(0, 0, 0, cast(dec10 / 1000 as decimal(18,6))) AS d")
            .selectExpr("*", "make_ym_interval(0, cast(short as int)) AS y")
            .groupBy("bool", F.window("ts", "1 minute", "30 seconds"))
            .agg(F.sum("d"), F.min("d"), F.max("d"), F.min("y").alias("min_y"), F.max("y").alias("max_y"))
        ),
        APPEND,
    ),
    "sorted": (
        lambda f: f.groupBy("short", F.window("ts", "1 minute")).agg(F.sum("int")).orderBy("window", "short"),
        COMPLETE,
    ),
}


@pytest.mark.parametrize("shape", second_ones_long(list(SHAPES), list(SHAPES)))
def test_shape_of_query(shape: str, both: Both, stream: Stream) -> None:
    build, how = SHAPES[shape]
    both(query(build), stream, how, late=None)


def test_order_of_complete_mode_is_kept(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """The columns come out of a device, but the sort above is Spark's."""
    recording = run(spark, query(SHAPES["sorted"][0]), stream, COMPLETE, tmp_path, enabled=True)
    rows = recording.batches[-1].rows or ()
    keys = [(r[2], r[0] is not None, r[0]) for r in rows]
    assert len(keys) > 5
    assert keys == sorted(keys)


def test_stream_joined_with_a_table(both: Both, stream: Stream) -> None:
    def build(spark: SparkSession, frame: DataFrame) -> DataFrame:
        names = spark.createDataFrame([(12, "twelve"), (-7, "minus seven"), (0, "zero")], "short short, name string")
        return (
            marked(frame)
            .join(names, "short")
            .groupBy("name", F.window("ts", "1 minute"))
            .agg(F.sum("long"), F.count("*"))
        )

    both(build, stream, APPEND, late=None)


def test_streams_without_a_row(both: Both, tmp_path: Path) -> None:
    """Every batch is empty, or has no row with a time."""
    case = Case("sliding", "update", "none", "counts", trigger="processing", watermark="none")
    empty = write(StreamSpec(batches=2, rows=0, empty=None), tmp_path / "empty")
    plain, device = both(case.query, empty, case.how, check=False)
    assert_equal(plain, device, late=None, rows=None)
    assert plain.all_rows() == []


@pytest.mark.parametrize("mode", ["append", "update"])
def test_batch_that_is_evaluated_several_times(mode: str, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """A foreachBatch function that does several things with its DataFrame runs the stateful plan several times."""
    case = Case("sliding", mode, "string", "integers", partitions="2")
    once = run(spark, case.query, stream, Run(mode, "available", conf=case.conf), tmp_path / "once", enabled=False)
    session = spark.newSession()
    for key, value in case.conf.items():
        session.conf.set(key, value)
    seen: dict[int, tuple[object, ...]] = {}

    def often(frame: DataFrame, batch: int) -> None:
        counted = frame.count()
        rows = rows_of(frame)
        assert len(rows) == counted
        assert list(row_differences(rows, rows_of(frame))) == []
        seen[batch] = rows

    source = tmp_path / "once" / "source" / "*"
    frame = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    started = (
        case.query(session, frame)
        .writeStream.foreachBatch(often)
        .outputMode(mode)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    progress = [json.loads(p.json()) for p in started._jsq.recentProgress()]
    assert {o["operatorName"] for p in progress for o in p["stateOperators"]} == {"gpuwin"}
    assert list(seen) == [b.id for b in once.batches]
    for b in once.batches:
        assert list(row_differences(b.rows or (), seen[b.id], once.columns)) == []
    assert any(seen.values())
    hits = [p["stateOperators"][0]["customMetrics"]["gpuwinResidentHits"] for p in progress if p["stateOperators"]]
    assert min(hits[2:]) == 3 * 2, "three times on each of two partitions"


@pytest.mark.long
def test_state_does_not_pile_up(spark: SparkSession, tmp_path: Path) -> None:
    """Windows that have closed leave the state, the log and the metrics."""
    stream = write(StreamSpec(seed=3, batches=16, rows=30, empty=None), tmp_path / "stream")
    case = Case("tumbling", "append", "short", "counts", trigger="processing", partitions="1")
    how = Run("append", "processing", "foreach", {**case.conf, "spark.gpuwin.log.maxSegments": "4"})
    rows: list[int] = []
    segments: list[int] = []

    def look(batch: int, query: object) -> None:
        last = query._jsq.lastProgress() if isinstance(query, StreamingQuery) else None
        if last is not None:
            operator = json.loads(last.json())["stateOperators"][0]
            assert all(v >= 0 for v in operator.values() if isinstance(v, int | float)), operator
            assert operator["memoryUsedBytes"] > 0
            rows.append(operator["numRowsTotal"])
            segments.append(operator["customMetrics"]["gpuwinSegments"])

    run(spark, case.query, stream, how, tmp_path / "device", enabled=True, before_batch=look)
    assert len(rows) == 15
    # Three or four windows are open at any time, with at most seven keys each.
    assert 0 < max(rows) <= 4 * 7
    assert max(segments) <= 4 + 1
