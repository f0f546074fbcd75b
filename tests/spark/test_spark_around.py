"""What stands around an aggregation: functions in Python, other kinds of time, several sinks, ways to run the code.

Elsewhere: the trigger `Once` and whole-stage code generation off (the covering design of `test_spark_differential.py`),
text and CSV (`test_spark_sources.py`), a service that is killed between batches (`test_spark_recovery.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    FAST,
    SCHEMA,
    SPARK,
    SPARK_SESSIONS,
    Both,
    Query,
    Run,
    Stream,
    StreamSpec,
    condition_of,
    last_plan,
    row_differences,
    rows_of,
    write,
)

import gpuwin as gw

CONF = {"spark.sql.shuffle.partitions": "2"}
SPARK_STATE = ("stateStoreSave",)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=12, batches=3, rows=60, empty=None), tmp_path_factory.mktemp("around") / "stream")


def marked(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds")


def window(kind: str, time: str = "ts") -> Column:
    if kind == "session":
        return F.session_window(time, "10 seconds")
    return F.window(time, "1 minute", "20 seconds") if kind == "sliding" else F.window(time, "1 minute")


def state_of(kind: str) -> tuple[str, ...]:
    return SPARK_SESSIONS if kind == "session" else SPARK_STATE


def halving() -> dict[str, Callable[[Column], Column]]:
    """Half of a number, rounded down, by each kind of function. They are local, so that they travel with their code."""

    def halved(values: pd.Series) -> pd.Series:
        return values // 2

    def shifted(values: pa.Array) -> pa.Array:
        return pc.shift_right(values.cast(pa.int64()), 1)

    kinds = {
        "python": F.udf(lambda v: None if v is None else int(v) // 2, "long"),
        "python_by_arrow": F.udf(lambda v: None if v is None else int(v) // 2, "long", useArrow=True),
        "pandas": F.pandas_udf(halved, "long"),  # type: ignore[call-overload]
    }
    if SPARK >= (4, 1):  # earlier ones have none
        kinds["arrow"] = F.arrow_udf(shifted, "long")  # type: ignore[call-overload]
    return kinds


KINDS_OF_FUNCTIONS = ["python", "python_by_arrow", "pandas", "arrow" if SPARK >= (4, 1) else "python"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "functions"),
    [
        ("sliding", KINDS_OF_FUNCTIONS),
        ("tumbling", KINDS_OF_FUNCTIONS[::-1]),
        ("session", KINDS_OF_FUNCTIONS),
        *(("sliding", [f] * 4) for f in dict.fromkeys(KINDS_OF_FUNCTIONS)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(dict.fromkeys(value)),
)
def test_functions_in_python_above_and_below(kind: str, functions: list[str], both: Both, stream: Stream) -> None:
    """As the input of an aggregate, as a key, in a condition on results, and over results: one of each kind."""

    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        summed, key, condition, result = (halving()[f] for f in functions)
        rows = marked(frame.where("id is not null"))
        third = (key(F.col("id")) % 3).alias("k_third")
        found = rows.groupBy(third, window(kind)).agg(F.sum(summed(F.col("id"))).alias("s"), F.max("id").alias("m"))
        return found.where(condition(F.col("m")) > 0).select(
            "k_third", found.columns[1], "m", result(F.col("s")).alias("half")
        )

    both(build, stream, Run("append", "available", conf=CONF), late=None, spark_operators=state_of(kind))


def test_whole_frames_in_python_above_and_below(both: Both, stream: Stream) -> None:
    def below(batches: object) -> object:
        for frame in batches:  # type: ignore[attr-defined]
            yield frame.assign(v=frame["v"] * 2)

    def above(batches: object) -> object:
        for batch in batches:  # type: ignore[attr-defined]
            yield batch.filter(pc.greater(batch["n"], 1))

    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        doubled = (
            frame.selectExpr("ts", "short k", "id v")
            .where("k is not null")
            .mapInPandas(below, "ts timestamp, k short, v long")
        )
        counted = marked(doubled).groupBy("k", window("sliding")).agg(F.sum("v").alias("s"), F.count("*").alias("n"))
        flat = counted.selectExpr("k", "window.start start", "s", "n")
        return flat.mapInArrow(above, "k short, start timestamp, s long, n long")

    both(build, stream, Run("append", "available", conf=CONF), late=None)


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_windows_over_times_without_a_zone(kind: str, both: Both, stream: Stream) -> None:
    """Of such a time Spark makes no watermark, so append mode is refused."""
    both(
        lambda _, frame: frame.groupBy("short", window(kind, "ntz")).agg(F.count("*"), F.max("str").alias("max_str")),
        stream,
        Run("complete", "available", conf={**CONF, "spark.sql.session.timeZone": "America/New_York"}),
        late=False,
        spark_operators=state_of(kind),
    )


def summed(frame: DataFrame) -> DataFrame:
    return marked(frame).groupBy("short", window("sliding")).agg(F.count("*").alias("n"), F.sum("long").alias("s"))


def test_one_frame_to_several_sinks(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Three queries of one DataFrame at once: each has its state, and all have the rows of plain Spark."""

    def ran(enabled: bool) -> dict[str, list[tuple[object, ...]]]:
        session = spark.newSession()
        for key, value in {**FAST, **CONF, "spark.gpuwin.enabled": str(enabled).lower()}.items():
            session.conf.set(key, value)
        source = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = summed(source.parquet(str(stream.files[0].parent)))
        folder = tmp_path / str(enabled)
        found: dict[str, list[tuple[object, ...]]] = {"foreach": [], "update": []}

        def seeing(name: str) -> Callable[[DataFrame, int], None]:
            return lambda batch, _: found[name].extend(rows_of(batch))

        def writer(name: str, mode: str) -> object:
            made = frame.writeStream.outputMode(mode).trigger(availableNow=True)
            return made.option("checkpointLocation", str(folder / f"{name}-checkpoint"))

        queries = [
            writer("foreach", "append").foreachBatch(seeing("foreach")).start(),  # type: ignore[attr-defined]
            writer("update", "update").foreachBatch(seeing("update")).start(),  # type: ignore[attr-defined]
            writer("files", "append").format("parquet").start(str(folder / "files")),  # type: ignore[attr-defined]
        ]
        for query in queries:
            query.awaitTermination()
            operators = {o["operatorName"] for p in query.recentProgress for o in p["stateOperators"]}
            assert operators == {"gpuwin" if enabled else "stateStoreSave"}
        found["files"] = list(rows_of(session.read.schema(frame.schema).parquet(str(folder / "files"))))
        return found

    plain, device = ran(False), ran(True)
    for sink in ("foreach", "update", "files"):
        assert len(plain[sink]) > 10
        assert list(row_differences(plain[sink], device[sink])) == [], sink
    assert list(row_differences(device["foreach"], device["files"])) == []


@pytest.mark.parametrize("codegen", ["true", pytest.param("false", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("kind", ["sliding", "tumbling", "session"])
def test_a_sort_merge_join_above(kind: str, codegen: str, both: Both, stream: Stream) -> None:
    """Its tasks hold the plan below it, and ask that to free what it took."""

    def joined(spark: SparkSession, frame: DataFrame) -> DataFrame:
        names = spark.range(-300, 300).select(F.col("id").cast("short").alias("short"), F.hex("id").alias("name"))
        return marked(frame).groupBy("short", window(kind)).agg(F.count("*").alias("n")).join(names, "short")

    conf = {**CONF, "spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.codegen.wholeStage": codegen}
    both(joined, stream, Run("append", "available", conf=conf), spark_operators=state_of(kind))


def none_of(batch: DataFrame) -> DataFrame:
    return batch.sparkSession.range(0)


READ_IN_PART: dict[str, Callable[[DataFrame], object]] = {
    "isEmpty": lambda batch: batch.isEmpty(),
    "first": lambda batch: batch.first() is None,
    "limit": lambda batch: batch.limit(2).count(),
    "a join with nothing": lambda batch: batch.hint("merge").join(none_of(batch), F.expr("n = id")).count(),
}


@pytest.mark.parametrize("kind", ["sliding", pytest.param("session", marks=pytest.mark.long)])
def test_a_batch_that_is_read_in_part_is_committed(
    kind: str, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """A function of foreachBatch reads some rows of two batches, and all rows of the others, which have their state."""

    def ran(read: Callable[[DataFrame], object], enabled: bool, folder: Path) -> list[object]:
        session = spark.newSession()
        conf = {**FAST, "spark.sql.shuffle.partitions": "1", "spark.gpuwin.enabled": str(enabled).lower()}
        for key, value in conf.items():
            session.conf.set(key, value)
        source = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        rows = marked(source.parquet(str(stream.files[0].parent)))
        counts = rows.groupBy("short", window(kind).alias("w")).agg(F.count("*").alias("n"))
        found: list[object] = []

        def see(batch: DataFrame, number: int) -> None:
            found.append(read(batch) if number < 2 else sorted(rows_of(batch), key=str))

        writer = counts.writeStream.outputMode("complete").trigger(availableNow=True).foreachBatch(see)
        query = writer.option("checkpointLocation", str(folder)).start()
        query.awaitTermination()
        operators = {o["operatorName"] for p in query.recentProgress for o in p["stateOperators"]}
        assert operators == ({"gpuwin"} if enabled else set(state_of(kind)))
        return found

    for name, read in READ_IN_PART.items():
        plain, device = (ran(read, enabled, tmp_path / f"{name} {enabled}") for enabled in (False, True))
        assert len(plain) > 2
        assert plain == device, name


def test_a_continuous_trigger_is_refused_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    refused = []
    for enabled in ("false", "true"):
        session = spark.newSession()
        session.conf.set("spark.gpuwin.enabled", enabled)
        rate = session.readStream.format("rate").load().withWatermark("timestamp", "1 second")
        counted = rate.groupBy(F.window("timestamp", "1 minute")).count()
        writer = counted.writeStream.format("console").outputMode("update").trigger(continuous="1 second")
        with pytest.raises(PySparkException) as caught:
            writer.option("checkpointLocation", str(tmp_path / enabled)).start()
        refused.append((type(caught.value).__name__, condition_of(caught.value), str(caught.value).split(";")[0]))
    assert refused[0] == refused[1]
    assert "Continuous processing does not support" in refused[0][2]


INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}
CODE = {
    "whole_stage_off": {"spark.sql.codegen.wholeStage": "false"},
    "no_factory": {"spark.sql.codegen.factoryMode": "NO_CODEGEN"},
    "interpreted": INTERPRETED,
}


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
@pytest.mark.parametrize("code", ["interpreted", *(pytest.param(c, marks=pytest.mark.sweep) for c in list(CODE)[:2])])
def test_without_generated_code(code: str, kind: str, both: Both, stream: Stream) -> None:
    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        aggregates = (
            "sum(long)",
            "avg(dec10)",
            "max(str)",
            "min(double)",
            "stddev(short)",
            "count(*) FILTER (WHERE bool)",
        )
        grouped = marked(frame).groupBy("str", window(kind))
        return grouped.agg(*(F.expr(a).alias(f"c{i}") for i, a in enumerate(aggregates)))

    how = Run("append", "available", conf={**CONF, **CODE[code]})
    both(build, stream, how, late=None, spark_operators=state_of(kind))


def test_panes_of_a_batch_query_without_generated_code(spark: SparkSession, stream: Stream) -> None:
    sides = []
    for enabled in ("false", "true"):
        session = spark.newSession()
        conf = {**INTERPRETED, "spark.gpuwin.enabled": enabled, "spark.gpuwin.batch.overlap": "2"}
        for key, value in conf.items():
            session.conf.set(key, value)
        frame = summed(session.read.schema(SCHEMA).parquet(str(stream.files[0].parent)))
        assert ("PaneWindows" in gw.spark.explain(frame)) == (enabled == "true")
        sides.append(rows_of(frame))
    assert len(sides[0]) > 10
    assert list(row_differences(sides[0], sides[1])) == []


@pytest.mark.parametrize("kind", ["sliding", "session"])
def test_aggregates_by_sorting(kind: str, both: Both, stream: Stream) -> None:
    """A buffer of text fits no hash aggregate, and the one for objects is off."""

    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        grouped = marked(frame).groupBy("double", window(kind))
        return grouped.agg(F.max("str").alias("max_str"), F.count("*").alias("n"), F.min("bin").alias("min_bin"))

    conf = {
        **CONF,
        "spark.sql.execution.useObjectHashAggregateExec": "false",
        "spark.sql.execution.replaceHashWithSortAgg": "true",
    }
    plain, device = both(
        build, stream, Run("append", "available", conf=conf), late=None, spark_operators=state_of(kind)
    )
    assert "SortAggregate" in plain.plan
    assert "SortAggregate" in device.plan or kind == "session"


def test_rows_that_are_exploded_below(both: Both, stream: Stream) -> None:
    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        made = marked(frame).withColumn("part", F.explode(F.expr("sequence(0, id % 4)")))
        return made.groupBy("part", window("sliding")).agg(F.count("*").alias("n"), F.sum("short").alias("s"))

    both(build, stream, Run("append", "available", conf=CONF), late=None)


def test_a_condition_on_a_sliding_window(both: Both, stream: Stream) -> None:
    """The optimizer tests it before the aggregation, so rows come with those of their windows that are left."""

    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        return summed(frame).where("minute(window.start) % 2 = 0")

    both(build, stream, Run("append", "available", conf=CONF), late=None)


@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
def test_a_condition_on_the_window_and_the_results(kind: str, both: Both, stream: Stream) -> None:
    """It cannot be moved below the aggregation, so it stays above an aggregation on gpuwin."""
    query: Query = lambda _, frame: (  # noqa: E731
        marked(frame)
        .groupBy("short", window(kind))
        .agg(F.count("*").alias("n"))
        .where("n > 1 or minute(window.start) % 2 = 0")
    )
    both(query, stream, Run("update", "available", conf=CONF), late=None)


def _of_any_time(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key", F.window("ts", "5 minutes", "10 seconds")).count()


def _conditions_above_the_window(frame: DataFrame) -> DataFrame:
    windowed = frame.withColumn("w", F.window("ts", "5 minutes", "10 seconds"))
    return windowed.where("number = 2 and part > 0 and rand(7) >= 0").groupBy("key", "w").count()


@pytest.mark.parametrize(
    ("query", "used"),
    [
        (_of_any_time, ["PushedFilters: [IsNotNull(ts)]"]),
        (_conditions_above_the_window, ["EqualTo(number,2)", "IsNotNull(ts)", "PartitionFilters: [isnotnull(part"]),
    ],
)
def test_a_scan_uses_the_conditions_that_it_uses_in_spark(
    query: Callable[[DataFrame], DataFrame], used: list[str], spark: SparkSession, tmp_path: Path
) -> None:
    """Files that have only rows that are in no window, or are filtered out above it, are not read."""
    for i, seconds in enumerate([[1], [None], [2, 3], [400]]):
        table = pa.table(
            {
                "ts": pa.array([s and s * 1_000_000 for s in seconds], pa.timestamp("us", "UTC")),
                "key": ["a"] * len(seconds),
                "number": [i] * len(seconds),
            }
        )
        folder = tmp_path / "rows" / f"part={i % 2 + (i == 2)}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"{i}.parquet")
    rows, read, plans = {}, {}, {}
    for enabled in ("false", "true"):
        session = spark.newSession()
        session.conf.set("spark.gpuwin.enabled", enabled)
        session.conf.set("spark.sql.shuffle.partitions", "1")
        frame = session.readStream.schema("ts timestamp, key string, number long, part int").parquet(
            str(tmp_path / "rows")
        )
        name = f"conditions_{enabled}"
        writer = query(frame).writeStream.format("memory").queryName(name).outputMode("complete")
        started = writer.trigger(availableNow=True).start()
        started.awaitTermination()
        rows[enabled] = rows_of(session.table(name))
        read[enabled] = [p["numInputRows"] for p in started.recentProgress if p["numInputRows"]]
        plans[enabled] = str(last_plan(started).toString())
    assert rows["true"]
    assert not list(row_differences(rows["false"], rows["true"]))
    assert read["true"] == read["false"]
    assert "GpuWindow" in plans["true"]
    for condition in used:
        assert condition in plans["true"]
