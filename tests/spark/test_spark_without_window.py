"""Groups without a window, whose state nothing evicts: on gpuwin where `spark.gpuwin.withoutWindow` asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import SCHEMA, Both, Query, Run, StateMoves, Stream, StreamSpec, run, write

import gpuwin as gw

SAVE = ("stateStoreSave",)
HOW = {"spark.sql.shuffle.partitions": "2", "spark.gpuwin.withoutWindow": "true"}
RESULTS = """count(*) n, sum(int) s, avg(double) a, max(long) most, min(str) least, max_by(id, ts) newest,
             approx_count_distinct(str) d, stddev(id) sd"""
LISTS = "sort_array(collect_list(int)) ints, percentile(long, 0.5) middle, count(*) n"


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=31, batches=5, rows=80), tmp_path_factory.mktemp("whole") / "stream")


def grouped(by: str, results: str = RESULTS, watermark: bool = False, more: str = "") -> Query:
    def build(spark: SparkSession, frame: DataFrame) -> DataFrame:
        rows = frame.withWatermark("ts", "10 seconds") if watermark else frame
        rows.createOrReplaceTempView("stream")
        return spark.sql(f"SELECT {by}, {results} FROM stream GROUP BY {by} {more}")

    return build


def how(mode: str, **conf: str) -> Run:
    return Run(mode, "processing", conf=HOW | conf)


@pytest.mark.parametrize(
    ("query", "mode", "conf"),
    [
        pytest.param(grouped("short"), "update", {}, id="update"),
        pytest.param(grouped("str", more="HAVING count(*) > 2 ORDER BY n, str"), "complete", {}, id="complete_ordered"),
        pytest.param(grouped("short, date_trunc('minute', ts)", watermark=True), "update",
                     {"spark.gpuwin.mapside": "device"}, id="function_of_the_event_time"),
        pytest.param(grouped("struct(short, bool)", LISTS), "update", {}, id="lists"),
        pytest.param(grouped("double, str", "count(*) n"), "update",
                     {"spark.gpuwin.mapside": "device", "spark.gpuwin.log.maxSegments": "2"}, id="merged_segments"),
        pytest.param(grouped("short", "max(ts) m"), "update", {"spark.sql.shuffle.partitions": "5"}, id="one_maximum"),
    ],
)  # fmt: skip
def test_rows_equal_those_of_plain_spark(
    query: Query, mode: str, conf: dict[str, str], both: Both, stream: Stream
) -> None:
    both(query, stream, how(mode, **conf), late=None)


def test_rows_that_are_distinct(both: Both, stream: Stream) -> None:
    """An aggregation without a function."""

    def distinct(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.select("short", "bool").groupBy("short", "bool").agg(F.lit(1).alias("one"))

    both(distinct, stream, how("update"), late=None)


def test_it_stays_with_spark_where_nobody_asked(spark: SparkSession, stream: Stream) -> None:
    frame = spark.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent))
    said = gw.spark.explain(frame.groupBy("short").count(), output_mode="update")
    assert "neither by a window(...) nor by the event time, and spark.gpuwin.withoutWindow is false" in said


def test_groups_by_nothing_stay_with_spark(both: Both, stream: Stream) -> None:
    def total(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.groupBy().agg(F.count("*"), F.sum("int"))

    both(total, stream, how("complete"), late=None, operators=SAVE)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_state_is_shown_rescaled_given_back_and_adopted(
    mode: str, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    def look(state: DataFrame) -> None:
        assert state.columns[:5] == ["str", "short", "n", "s", "most"], "no bounds of a window"
        rows = {(r["str"], r["short"]): (r.n, r.s, r.most) for r in state.collect()}
        frame = spark.read.schema(SCHEMA).parquet(*map(str, stream.head(2).files))
        wanted = frame.groupBy("str", "short").agg(F.count("*"), F.sum("int"), F.max("long")).collect()
        assert rows == {(r[0], r[1]): tuple(r[2:]) for r in wanted}

    query = grouped("str, short", "count(*) n, sum(int) s, max(long) most")
    StateMoves(spark, query, stream, how(mode), tmp_path).assert_equal(look)


def test_a_query_goes_on_with_gpuwin_alone(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    first = run(spark, grouped("short"), stream.head(2), how("update"), tmp_path, enabled=True, schema=SCHEMA)
    assert first.error is None
    conf = how("update", **{"spark.gpuwin.withoutWindow": "false"})
    second = run(spark, grouped("short"), stream, conf, tmp_path, enabled=True, schema=SCHEMA)
    assert second.error is not None
    assert "spark.gpuwin.withoutWindow is false" in str(second.error)
