"""Sessions of batch queries: merged before the shuffle, with the rows of Spark's plan.

A larger, randomised comparison: `pytest tests/spark/test_spark_batch_sessions.py -m sweep --sweep-cases 300`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import test_spark_sessions as sessions
from marks import second_ones_long
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    ADAPTIVE,
    SCHEMA,
    SECTION,
    SPARK,
    TASK_ERROR,
    Query,
    SessionCase,
    StreamSpec,
    assert_same_rows,
    both_plans,
    condition_of,
    covering,
    leaves,
    row_differences,
    rows_of,
    session_of,
    write,
)

import gpuwin as gw

MERGED = f"1 of 1 {SECTION}\n+ ProtoSessions"

DIMENSIONS = {
    **{d: sessions.DIMENSIONS[d] for d in ("window", "aggregate", "partitions", "time", "zone", "base", "ansi")},
    **{d: sessions.DIMENSIONS[d] for d in ("api", "having", "codegen", "files")},
    "key": [*sessions.DIMENSIONS["key"], "none"],
    "reader": ["columnar", "rows"],
    "adaptive": ["true", "false"],
}


def possible(row: dict[str, str]) -> bool:
    """Whether this Spark can be asked for it: Spark 3.5 asks such a gap for its type before it has one."""
    return not (SPARK < (4, 0) and row["window"] == "interval" and row["api"] == "frame")


ROWS = covering(DIMENSIONS, [("window", "codegen"), ("aggregate", "codegen")], possible)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows around 1970-01-01, some without a time, in three files."""
    at = tmp_path_factory.mktemp("batch") / "stream"
    write(StreamSpec(seed=5, batches=3, rows=70, base="epoch", empty=None), at)
    return at


def assert_case(row: dict[str, str], spark: SparkSession, folder: Path, spec: StreamSpec | None = None) -> None:
    adaptive = row.pop("adaptive")
    case = SessionCase(**row, watermark="none")
    write(spec or case.stream, folder)
    plain, ours = both_plans(spark, folder, case.query, {**case.conf, ADAPTIVE: adaptive})
    assert gw.spark.explain(ours).startswith(MERGED)
    assert_same_rows(plain, ours, some=spec is None)


@pytest.mark.parametrize(
    "row", second_ones_long(ROWS, [f"{r['window']}-{r['key']}-{r['aggregate']}" for r in ROWS], short=4)
)
def test_same_as_spark(row: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    assert_case(dict(row), spark, tmp_path / "rows")


def by_session(*aggregates: str, key: str | None = "short", gap: str = "5 seconds") -> Query:
    grouping = [key] if key else []

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        columns = [F.expr(a).alias(f"c{i}") for i, a in enumerate(aggregates)]
        return frame.groupBy(*grouping, F.session_window("ts", gap)).agg(*columns)

    return query


def sql(text: str) -> Query:
    def query(session: SparkSession, frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("rows")
        return session.sql(text)

    return query


def nested(session: SparkSession, frame: DataFrame) -> DataFrame:
    inner = by_session("count(*)")(session, frame).select(F.expr("session_window.start AS ts"), "short", "c0")
    return by_session("max(c0)", "count(*)", key=None, gap="20 seconds")(session, inner)


def merged_again(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Sessions of sessions: the column of the inner ones is still a session to Spark."""
    return by_session("count(*)", "sum(int)")(session, frame).groupBy("session_window").agg(F.max("c0").alias("n"))


def union(session: SparkSession, frame: DataFrame) -> DataFrame:
    return by_session("sum(long)", "count(*)")(session, frame.union(frame.where("short > 0")))


def joined(session: SparkSession, frame: DataFrame) -> DataFrame:
    sums = by_session("sum(int)", "max(str)")(session, frame.repartition("short"))
    counts = by_session("count(*) AS n")(session, frame).withColumnRenamed("c0", "n")
    return sums.join(counts, ["short", "session_window"]).orderBy("short", "session_window", "n")


def made_before(_: SparkSession, frame: DataFrame) -> DataFrame:
    made = frame.withColumn("w", F.session_window("ts", "5 seconds")).where("short > 0 or short is null")
    return made.groupBy("w", "bool").agg(F.expr("max(cast(w.end as double))").alias("last"), F.sum("long").alias("n"))


#: name -> (query, how many aggregations of it become proto-sessions)
QUERIES: dict[str, tuple[Query, int]] = {
    "bounds": (
        sql(
            "SELECT short, session_window.start s, session_window.end e, session_window w, count(*) n FROM rows "
            "GROUP BY short, session_window(ts, '5 seconds')"
        ),
        1,
    ),
    "condition_on_the_session": (
        lambda s, f: by_session("sum(int)")(s, f).where("session_window.start > timestamp'1970-01-01 00:00:10'"),
        1,
    ),
    "condition_on_its_end_and_a_result": (
        lambda s, f: by_session("count(*)")(s, f).where("session_window.end < timestamp'1970-01-01' or c0 > 2"),
        1,
    ),
    "no_aggregate": (sql("SELECT short, session_window(ts, '5 seconds') w FROM rows GROUP BY 1, 2"), 1),
    "distinct": (by_session("approx_count_distinct(str)", "sum(int)"), 1),
    "code_and_objects": (
        by_session(
            "approx_count_distinct(long) FILTER (WHERE int > 0)",
            "max(str)",
            "bitmap_count(bitmap_construct_agg(bitmap_bit_position(abs(int(short)))))",
        ),
        1,
    ),
    "no_key": (by_session("count(*)", "sum(long)", "min(str)", key=None, gap="700 milliseconds"), 1),
    "nested": (nested, 2),
    "merged_again": (merged_again, 2),
    "union": (union, 1),
    "joined": (joined, 2),
    "made_before": (made_before, 1),
    "no_row": (lambda s, f: by_session("count(*)", "max(str)")(s, f.where("id < 0")), 1),
    "no_row_and_no_key": (lambda s, f: by_session("count(*)", key=None)(s, f.where("id < 0")), 1),
}


def planned_at_once() -> list[Any]:
    """Queries whose plans are tested without adaptive execution as well: those of several shuffles; all in a sweep."""
    several = {"nested", "merged_again", "joined"}
    return [pytest.param(q, "false", marks=() if q in several else pytest.mark.sweep) for q in QUERIES]


@pytest.mark.parametrize(("name", "adaptive"), [*((q, "true") for q in QUERIES), *planned_at_once()])
def test_other_queries(name: str, adaptive: str, spark: SparkSession, folder: Path) -> None:
    query, merged = QUERIES[name]
    conf = {ADAPTIVE: adaptive, "spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.shuffle.partitions": "3"}
    plain, ours = both_plans(spark, folder, query, conf)
    assert gw.spark.explain(ours).startswith(f"{merged} of {merged} {SECTION}\n+ ProtoSessions")
    assert_same_rows(plain, ours, some="no_row" not in name)


def test_a_scan_reads_the_columns_of_the_query_only(spark: SparkSession, folder: Path) -> None:
    for frame in both_plans(spark, folder, by_session("sum(int)"), {}):
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "ReadSchema: struct<ts:timestamp,short:smallint,int:int>" in plan


def test_cached_and_adaptive_plans_and_the_switches(spark: SparkSession, folder: Path) -> None:
    session = session_of(spark, {ADAPTIVE: "true"})
    query = by_session("sum(long)", "min(dec38)")

    def asked() -> DataFrame:
        return query(session, session.read.schema(SCHEMA).parquet(str(folder)))

    frame = asked().cache()
    expected = rows_of(frame)
    assert rows_of(frame) == expected  # the second time from the cache
    frame.unpersist()
    again = asked()
    assert again.count() == len(expected)
    assert gw.spark.explain(again).startswith(MERGED)
    for switch in ("spark.gpuwin.batch.sessions", "spark.gpuwin.enabled"):
        session.conf.set(switch, "false")
        off = asked()
        assert f"because {switch} is false" in gw.spark.explain(off)
        assert list(row_differences(rows_of(off), expected, leaves(off.schema))) == []


def test_a_sum_that_overflows_fails_as_in_spark(spark: SparkSession, folder: Path) -> None:
    conditions = []
    query = by_session("sum(huge)", key=None)
    for frame in both_plans(spark, folder, query, {"spark.sql.ansi.enabled": "true"}):
        with pytest.raises(TASK_ERROR) as caught:
            frame.collect()
        conditions.append(condition_of(caught.value))
    assert conditions == ["ARITHMETIC_OVERFLOW"] * 2


@pytest.mark.parametrize(
    ("grouping", "aggregate", "reason"),
    [
        ("short, session_window(ts, '5 seconds')", "first(id)", "depends on the order of rows"),
        ("short, session_window(ts, '5 seconds')", "max_by(id, int)", "depends on the order of rows"),
        ("short, session_window(ts, '5 seconds')", "collect_list(id)", "only Spark's own code can merge"),
        ("short, session_window(ts, '5 seconds')", "count(DISTINCT int)", "is DISTINCT"),
        pytest.param(
            "map('a', short), session_window(ts, '5 seconds')",
            "count(*)",
            "cannot be a key",
            marks=pytest.mark.skipif(SPARK < (4, 0), reason="Spark 3.5 groups by no map"),
        ),
        ("GROUPING SETS ((short, session_window(ts, '5 seconds')), (short))", "count(*)", "below a Expand"),
    ],
)
def test_what_stays_with_spark(grouping: str, aggregate: str, reason: str, spark: SparkSession, folder: Path) -> None:
    session = session_of(spark, {})
    session.read.schema(SCHEMA).parquet(str(folder)).createOrReplaceTempView("rows")
    text = gw.spark.explain(session.sql(f"SELECT {aggregate} FROM rows GROUP BY {grouping}"))
    assert text.startswith(f"0 of 1 {SECTION}\n- ")
    assert reason in text


# Rows of which hardly any meet: a task merges 65,536 of them, sees that it is no use, and lets the others through

MANY = "key long, ts timestamp, n long, text string"


def many(folder: Path, seconds: np.ndarray) -> Path:
    """One file of rows, 7 keys in turns, at the given seconds."""
    folder.mkdir()
    n = len(seconds)
    table = pa.table(
        {
            "key": np.arange(n) % 7,
            "ts": pa.array(seconds.astype(np.int64) * 1_000_000, pa.timestamp("us", "UTC")),
            "n": np.arange(n),
            "text": pa.array([f"t{i % 1000}" for i in range(n)]),
        }
    )
    pq.write_table(table, folder / "rows.parquet")
    return folder


def rows_of_proto_sessions(spark: SparkSession, frame: DataFrame) -> int:
    """What ProtoSessions handed on in a run of the query."""
    plan = frame._jdf.queryExecution().executedPlan()
    frame.collect()
    while plan.nodeName() != "ProtoSessions":
        plan = plan.children().head()
    return int(plan.metrics().apply("numOutputRows").value())


@pytest.mark.parametrize(
    ("key", "aggregates", "codegen"),
    [
        ("key", ("count(*)", "sum(n)", "max(ts)"), "true"),
        pytest.param("key", ("max(text)", "count(*)"), "false", marks=pytest.mark.sweep),
        pytest.param(None, ("max(text)", "count(*)"), "true", marks=pytest.mark.sweep),
        pytest.param(None, ("count(*)", "sum(n)", "max(ts)"), "false", marks=pytest.mark.long),
    ],
)
def test_rows_that_do_not_meet_pass_through(
    key: str | None, aggregates: tuple[str, ...], codegen: str, spark: SparkSession, tmp_path: Path
) -> None:
    sparse, dense = np.arange(100_000) * 100, 10_000_000 + np.arange(5_000) // 10
    at = many(tmp_path / "rows", np.concatenate([sparse, dense]))
    conf = {"spark.sql.codegen.wholeStage": codegen, ADAPTIVE: "false", "spark.sql.shuffle.partitions": "2"}
    plain, ours = both_plans(spark, at, by_session(*aggregates, key=key), conf, MANY)
    assert gw.spark.explain(ours).startswith(MERGED)
    assert rows_of_proto_sessions(spark, ours) == 105_000
    assert_same_rows(plain, ours)


@pytest.mark.long
def test_rows_that_meet_are_merged_beyond_the_trial(spark: SparkSession, tmp_path: Path) -> None:
    """One row in 16 of the trial meets another, and all those after it: they are merged."""
    sparse = np.repeat(np.arange(61_680), np.where(np.arange(61_680) % 16 == 0, 2, 1))[:70_000] * 100
    at = many(tmp_path / "rows", np.concatenate([sparse, 10_000_000 + np.arange(5_000) // 10]))
    query = by_session("count(*)", "sum(n)", key=None)
    plain, ours = both_plans(spark, at, query, {ADAPTIVE: "false"}, MANY)
    split = len(np.unique(sparse)) // 1024  # a key hands on what it has after so many
    assert 0 <= rows_of_proto_sessions(spark, ours) - len(np.unique(sparse)) - 1 <= split + 1
    assert_same_rows(plain, ours)


@pytest.mark.sweep
def test_random_batch_query(number: int, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--sweep-seed")
    rng = random.Random(f"batch sessions/{seed}/{number}")
    while not possible(row := {d: rng.choice(values) for d, values in DIMENSIONS.items()}):
        pass
    spec = StreamSpec(seed=rng.randrange(1_000_000), rows=rng.choice([3, 40, 150]), base=row["base"], step=40_000_000)
    spec = replace(spec, files=int(row["files"]))
    try:
        assert_case(dict(row), spark, tmp_path / "rows", spec)
    except AssertionError as e:
        raise AssertionError(f"--sweep-seed {seed}, batch {number}: {row!r}, {spec!r}: {e}") from e
