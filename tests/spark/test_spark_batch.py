"""Sliding windows of batch queries, as in a backfill of a streaming job: the rows are Spark's, aggregated by pane."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import AGGREGATES, KEYS, SCHEMA, WINDOWS, StreamSpec, row_differences, rows_of, write


def frame_of(spark: SparkSession, folder: Path, enabled: bool, conf: dict[str, str]) -> DataFrame:
    session = spark.newSession()
    for key, value in {**conf, "spark.gpuwin.enabled": str(enabled).lower()}.items():
        session.conf.set(key, value)
    return session.read.schema(SCHEMA).parquet(str(folder))


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("batch") / "stream"
    write(StreamSpec(seed=5, batches=3, rows=70), at)
    return at


@pytest.mark.parametrize(
    ("window", "key", "aggregate", "adaptive", "by_panes"),
    [
        ("sliding", "string", "integers", "true", True),
        ("sliding_later", "double", "floats", "false", True),
        ("uneven_earlier", "two", "decimals", "true", True),
        ("dense", "none", "results", "true", True),
        ("uneven", "float", "strings", "false", True),
        ("tumbling", "long", "counts", "true", False),
    ],
)
def test_same_as_spark(
    window: str, key: str, aggregate: str, adaptive: str, by_panes: bool, spark: SparkSession, folder: Path
) -> None:
    size, slide, start = WINDOWS[window]

    def query(frame: DataFrame) -> DataFrame:
        grouping = [F.expr(e).alias(n) for n, e in KEYS[key].items()]
        over = F.window("ts", size, slide, start) if slide else F.window("ts", size)
        return frame.groupBy(*grouping, over).agg(*(F.expr(e).alias(n) for n, e in AGGREGATES[aggregate].items()))

    conf = {"spark.sql.adaptive.enabled": adaptive, "spark.sql.shuffle.partitions": "3"}
    plain, device = (query(frame_of(spark, folder, enabled, conf)) for enabled in (False, True))
    assert plain.schema == device.schema
    expected, got = rows_of(plain), rows_of(device)
    names = [c for c in plain.columns if c != "window"]
    at = plain.columns.index("window")
    columns = [*names[:at], "window", "window.start", "window.end", *names[at:]]
    assert len(expected) > 10
    assert list(row_differences(expected, got, columns)) == []
    assert ("PaneWindows" in plan_of(device)) == by_panes
    assert "PaneWindows" not in plan_of(plain)


def test_what_an_operator_above_relies_on(spark: SparkSession, folder: Path) -> None:
    """A join on the key and the window, of two aggregations of which one goes by panes."""

    def query(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy("short", F.window("ts", "2 minutes", "30 seconds"))
        summed, firsts = grouped.agg(F.sum("int").alias("s")), grouped.agg(F.expr("size(collect_list(id))").alias("n"))
        return summed.join(firsts, ["short", "window"]).select("short", "window", "s", "n")

    conf = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.shuffle.partitions": "3"}
    plain, device = (query(frame_of(spark, folder, enabled, conf)) for enabled in (False, True))
    expected, got = rows_of(plain), rows_of(device)
    assert len(expected) > 10
    assert list(row_differences(expected, got)) == []
    assert plan_of(device).count("PaneWindows") in (1, 2)  # adaptive plans are shown as planned and as they ran


@pytest.mark.parametrize("aggregate", ["first(id)", "collect_list(id)", "count(DISTINCT int)", "max(window.end)"])
def test_what_stays_with_spark(aggregate: str, spark: SparkSession, folder: Path) -> None:
    frame = frame_of(spark, folder, True, {})
    grouped = frame.groupBy("short", F.window("ts", "2 minutes", "30 seconds")).agg(F.expr(aggregate))
    assert "PaneWindows" not in plan_of(grouped)
    assert grouped.count() > 10
