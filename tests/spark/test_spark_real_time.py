"""Real-Time Mode: a query in it has the plan and the rows that it has without the plugin, sliding windows and
deduplications included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import SPARK, await_until, isolated, start_plain_session

import gpuwin as gw

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(SPARK < (4, 2), reason="PySpark before 4.2 cannot start Real-Time Mode"),
]
aggregates = pytest.mark.skipif(SPARK < (4, 3), reason="Spark before 4.3 aggregates nothing in Real-Time Mode")

SECONDS = (5, 65, 125, 3605, 70)
#: How many windows a row lies in.
OVERLAP = 10
REAL_TIME = {"realTime": "10 seconds"}
CHANCE = re.compile(r"#\d+L?|plan_id=\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|@[0-9a-f]{5,}")


class Source:
    """A stream of seconds since 1970, which Real-Time Mode can read."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = spark._jvm
        assert jvm is not None
        sources = jvm.org.apache.spark.sql.execution.streaming.sources
        numbers = jvm.org.apache.spark.sql.Encoders.INT()
        self._to_seq = jvm.PythonUtils.toSeq
        self._stream = sources.LowLatencyMemoryStream.singlePartition(spark._jsparkSession, numbers)
        self.frame = DataFrame(self._stream.toDF(), spark).select(F.timestamp_seconds("value").alias("ts"), "value")

    def add(self, *seconds: int) -> None:
        self._stream.addData(self._to_seq(list(seconds)))


def windows(frame: DataFrame) -> DataFrame:
    """A row for each window, and nothing aggregated."""
    return frame.select(F.window("ts", "10 minutes", "1 minute"), "value")


def counts(frame: DataFrame) -> DataFrame:
    grouped = frame.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "10 minutes", "1 minute"))
    return grouped.agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def once(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds").dropDuplicates(["value", "ts"])


#: Each query, and how many rows come of one.
QUERIES = {"windows": (windows, OVERLAP), "counts": (counts, OVERLAP), "once": (once, 1)}
#: What Spark runs in Real-Time Mode: windows before 4.3, and since then aggregates of them, and deduplications.
NAMES = ["counts", "once"] if SPARK >= (4, 3) else ["windows"]


def started(source: Source, frame: DataFrame, folder: Path, **trigger: str) -> StreamingQuery:
    """A query that appends its rows to the file `rows`. Its checkpoint is in the same folder."""
    folder.mkdir(exist_ok=True)
    place = str(folder / "rows")

    def append(row: object) -> None:
        with open(place, "a") as f:
            print(row, file=f)

    writer = (
        frame.writeStream.foreach(append).outputMode("update").option("checkpointLocation", str(folder / "checkpoint"))
    )
    query = writer.trigger(**trigger).start()
    source.add(*SECONDS)
    return query


def played(spark: SparkSession, name: str, folder: Path) -> tuple[str, list[str], StreamingQuery]:
    """The physical plan of the query's first batch, its rows, and the query, stopped."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set("spark.gpuwin.deduplicate", "true")
    source = Source(spark)
    build, times = QUERIES[name]
    query = started(source, build(source.frame), folder, **REAL_TIME)
    try:
        await_until(lambda: len(rows(query, folder)) == times * len(SECONDS), "all rows")
        plan = query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    finally:
        query.stop()
    return CHANCE.sub("*", plan.replace(str(folder), "*")), sorted(rows(query, folder)), query


def rows(query: StreamingQuery, folder: Path) -> list[str]:
    if (error := query.exception()) is not None:
        raise AssertionError(str(error))
    return (folder / "rows").read_text().splitlines() if (folder / "rows").exists() else []


def _without_plugin(names: list[str], folder: Path) -> dict[str, tuple[str, list[str]]]:
    spark = start_plain_session(folder)
    try:
        return {name: played(spark, name, folder / name)[:2] for name in names}
    finally:
        spark.stop()


@pytest.fixture(scope="module")
def without_plugin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str]]]:
    """The plan and the rows of each query in an application that knows nothing of gpuwin."""
    return isolated(_without_plugin, NAMES, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_without_the_plugin(
    name: str, without_plugin: dict[str, tuple[str, list[str]]], spark: SparkSession, tmp_path: Path
) -> None:
    plan, expected = without_plugin[name]
    ours, same, query = played(spark.newSession(), name, tmp_path / "plugin")
    assert ("Expand" in plan) == (name != "once")
    assert ours == plan
    assert same == expected
    if name != "windows":
        assert "because Real-Time Mode processes rows one by one" in gw.spark.explain(query)


@aggregates
def test_specification_in_real_time_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    source = Source(own)
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"),
        keys=[],
        time="ts",
        aggregates={"n": gw.count()},
        watermark=gw.BoundedOutOfOrderness("10 seconds"),
        emit=gw.OnClose(),
    )
    query = started(source, gw.spark.aggregate(source.frame, spec), tmp_path, **REAL_TIME)
    with pytest.raises(PySparkException, match=r"gw\.spark\.aggregate works on micro-batches"):
        query.awaitTermination(60)
