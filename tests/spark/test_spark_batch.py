"""Sliding windows of batch queries, as in a backfill of a streaming job: made of panes, with the rows of Spark's plan.

A larger, randomised comparison: `pytest tests/spark/test_spark_batch.py -m sweep --sweep-cases 300 --sweep-seed 2`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import test_spark_differential as windows
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    ADAPTIVE,
    HAS_CORR_OF_CONSTANT,
    SECTION,
    SPARK,
    TASK_ERROR,
    WINDOWS,
    Case,
    Query,
    StreamSpec,
    assert_same_rows,
    batch_queries,
    condition_of,
    leaves,
    row_differences,
    rows_of,
    session_of,
    static,
    write,
)

import gpuwin as gw

BY_PANES = f"1 of 1 {SECTION}\n+ PaneWindows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows around 1970-01-01, some without a time, in three files."""
    at = tmp_path_factory.mktemp("batch") / "stream"
    write(StreamSpec(seed=5, batches=3, rows=70, base="epoch", empty=None), at)
    return at


def both_plans(spark: SparkSession, folder: Path, query: Query, conf: dict[str, str]) -> tuple[DataFrame, DataFrame]:
    """The query left to Spark, and by panes, also where a row lies in two windows only."""
    return batch_queries.both_plans(spark, folder, query, {"spark.gpuwin.batch.overlap": "2", **conf})


def sliding(*aggregates: str, key: str | None = "short") -> Query:
    grouping = [key] if key else []

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        over = F.window("ts", "2 minutes", "30 seconds")
        return frame.groupBy(*grouping, over).agg(*(F.expr(a).alias(f"c{i}") for i, a in enumerate(aggregates)))

    return query


CASES = [
    Case("sliding", key="string", aggregate="integers", watermark="none", partitions="3", codegen="on"),
    Case("sliding_later", key="double", aggregate="floats", having="yes", partitions="2"),
    Case(
        "uneven_earlier",
        key="two",
        aggregate="decimals",
        api="sql",
        time="ntz",
        watermark="none",
        partitions="3",
        codegen="on",
    ),
    Case("dense", key="none", aggregate="results", base="ancient"),
    Case("uneven", key="float", aggregate="strings", base="epoch", reader="rows", partitions="2", codegen="on"),
    Case("millis", key="three", aggregate="filters", api="sql", having="yes", ansi="false", base="epoch"),
    Case("days", key="computed", aggregate="moments", zone="America/New_York", partitions="2", codegen="on"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_as_spark(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    write(case.stream, tmp_path / "rows")
    conf = {**case.conf, ADAPTIVE: str(case.partitions != "2").lower()}
    plain, panes = both_plans(spark, tmp_path / "rows", case.query, conf)
    assert gw.spark.explain(panes).startswith(BY_PANES)
    assert_same_rows(plain, panes)


def test_functions_that_are_code_and_other_buffers(spark: SparkSession, folder: Path) -> None:
    query = sliding(
        "approx_count_distinct(str)", "bit_xor(long)", "corr(short, double)", "kurtosis(short)", "bool_or(bool)",
        "regr_slope(short, byte)", "sum(make_dt_interval(0, 0, 0, short))", "approx_count_distinct(id) + count(*)",
        "bitmap_construct_agg(bitmap_bit_position(id))", "bitmap_or_agg(bin)",
    )  # fmt: skip
    plain, panes = both_plans(spark, folder, query, {"spark.sql.ansi.enabled": str(HAS_CORR_OF_CONSTANT).lower()})
    assert gw.spark.explain(panes).startswith(BY_PANES)
    assert_same_rows(plain, panes)


def test_lists_and_percentiles(spark: SparkSession, folder: Path) -> None:
    """Their buffers stay in pieces, which Spark's code merges once a window."""
    query = sliding(
        "to_json(named_struct('l', sort_array(collect_list(id))))", "concat_ws(',', sort_array(collect_set(str)))",
        "median(double)", "percentile_approx(int, 0.3)", "count(*)", "max(str)",
        "size(collect_list(struct(id, str)) FILTER (WHERE bool))", "sum(int)",
    )  # fmt: skip
    plain, panes = both_plans(spark, folder, query, {"spark.sql.shuffle.partitions": "3"})
    assert gw.spark.explain(panes).startswith(BY_PANES)
    assert_same_rows(plain, panes)


@pytest.mark.long
def test_lists_of_windows_of_many_panes(spark: SparkSession) -> None:
    """600 panes of 8 KB a window: a task keeps them once, and not a list for each pane of what follows it."""
    session = session_of(spark, {})
    text = F.concat(F.col("id").cast("string"), F.expr("repeat('x', 8000)"))
    rows = session.range(0, 1200, 1, 1).select(F.timestamp_seconds("id").alias("ts"), text.alias("text"))
    lists = rows.groupBy(F.window("ts", "600 seconds", "1 second")).agg(F.collect_list("text").alias("texts"))
    assert gw.spark.explain(lists).startswith(BY_PANES)
    sizes = lists.select(F.size("texts").alias("n")).agg(F.count("*"), F.sum("n"))
    assert tuple(sizes.collect()[0]) == (1200 + 599, 1200 * 600)


def test_around_the_aggregation(spark: SparkSession, folder: Path) -> None:
    """A join of two aggregations, of which one is by panes; a condition on the window; windows of windows; no row."""

    def joined(session: SparkSession, frame: DataFrame) -> DataFrame:
        summed = sliding("sum(int)", "max(str)")(session, frame.repartition("short"))
        listed = sliding("size(histogram_numeric(id, 3)) AS n")(session, frame).withColumnRenamed("c0", "n")
        both = summed.join(listed, ["short", "window"]).where("window.start > timestamp'1970-01-01 00:00:30'")
        return both.orderBy("short", "window", "n")

    def nested(session: SparkSession, frame: DataFrame) -> DataFrame:
        inner = sliding("count(*)")(session, frame).select(F.window_time("window").alias("ts"), "c0")
        return sliding("sum(c0)", "count(*)", key=None)(session, inner)

    conf = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.shuffle.partitions": "3"}
    plain, panes = both_plans(spark, folder, joined, conf)
    assert gw.spark.explain(panes).startswith("1 of 2 aggregations by window")
    assert_same_rows(plain, panes)
    plain, panes = both_plans(spark, folder, nested, {})
    assert gw.spark.explain(panes).startswith("2 of 2 aggregations by window")
    assert_same_rows(plain, panes)
    nothing = [
        q.where("c0 < 0 AND window.end < timestamp'1969-01-01'")
        for q in both_plans(spark, folder, sliding("count(*)"), {})
    ]
    assert_same_rows(*nothing, some=False)


def test_cached_and_adaptive_plans_and_the_switch(spark: SparkSession, folder: Path) -> None:
    session = session_of(spark, {ADAPTIVE: "true"})
    query = sliding("sum(long)", "min(dec38)")
    frame = query(session, static(session, folder)).cache()
    expected = rows_of(frame)
    assert rows_of(frame) == expected  # the second time from the cache
    frame.unpersist()
    again = query(session, static(session, folder))
    assert again.count() == len(expected)
    assert gw.spark.explain(again).startswith(BY_PANES)
    session.conf.set("spark.gpuwin.enabled", "false")
    off = query(session, static(session, folder))
    assert "because spark.gpuwin.enabled is false" in gw.spark.explain(off)
    assert list(row_differences(rows_of(off), expected, leaves(off.schema))) == []


def test_a_sum_that_overflows_fails_as_in_spark(spark: SparkSession, folder: Path) -> None:
    conditions = []
    for frame in both_plans(spark, folder, sliding("sum(huge)", key=None), {"spark.sql.ansi.enabled": "true"}):
        with pytest.raises(TASK_ERROR) as caught:
            frame.collect()
        conditions.append(condition_of(caught.value))
    assert conditions == ["ARITHMETIC_OVERFLOW"] * 2


@pytest.mark.parametrize("starts", [(30,), (-20,), (-20, 10, 30)], ids=str)
def test_what_a_condition_on_the_window_drops_does_not_fail(
    starts: tuple[int, ...], spark: SparkSession, tmp_path: Path
) -> None:
    """A row that only dropped windows have: a division by zero at 5 s. And the sum of a dropped window, that at 20 s.

    Spark copies the row at 5 s for the window from -20 s to 5 s, too, in which it does not lie.
    """
    rows = [(4, 1, 1), (5, 0, 1), (24, 1, 9 * 10**18), (36, 1, 9 * 10**18)]
    pq.write_table(
        pa.Table.from_pylist([dict(zip("tdv", row, strict=True)) for row in rows]), tmp_path / "rows.parquet"
    )

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        windows = frame.withColumn("w", F.window(F.timestamp_seconds("t"), "25 seconds", "10 seconds"))
        totals = windows.withColumn("q", F.expr("10 DIV d")).groupBy("w").agg(F.sum("q"), F.sum("v"))
        return totals.where(F.unix_timestamp("w.start").isin(*starts))

    conf = {"spark.sql.ansi.enabled": "true", "spark.gpuwin.batch.overlap": "2"}
    plain, panes = batch_queries.both_plans(spark, tmp_path, query, conf, "t long, d long, v long")
    assert gw.spark.explain(panes).startswith(BY_PANES)
    assert_same_rows(plain, panes)


@pytest.mark.parametrize(
    ("grouping", "aggregate", "reason"),
    [
        ("short, window(ts, '2 minutes', '30 seconds')", "first(id)", "depends on the order of the rows"),
        ("short, window(ts, '2 minutes', '30 seconds')", "histogram_numeric(id, 3)", "only Spark's own code can merge"),
        ("short, window(ts, '2 minutes', '30 seconds')", "count(DISTINCT int)", "is DISTINCT"),
        ("short, window(ts, '2 minutes', '30 seconds')", "max(window.end)", "aggregates the window itself"),
        ("short, window(ts, '2 minutes')", "count(*)", "one window only"),
        (
            "short, window(ts, '2 minutes', '1 minute')",
            "count(*)",
            "2 windows only, fewer than spark.gpuwin.batch.overlap",
        ),
        ("short, window(ts, '2 minutes', '119999 milliseconds')", "count(*)", "panes, more than"),
        ("short, window(ts, '100000000 days', '54000000 days')", "count(*)", "leave 64 bits"),
        pytest.param(
            "map('a', short), window(ts, '2 minutes', '30 seconds')",
            "count(*)",
            "cannot be a key",
            marks=pytest.mark.skipif(SPARK < (4, 0), reason="Spark 3.5 groups by no map"),
        ),
        ("GROUPING SETS ((short, window(ts, '2 minutes', '30 seconds')), (short))", "count(*)", "leaves the window"),
    ],
)
def test_what_stays_with_spark(grouping: str, aggregate: str, reason: str, spark: SparkSession, folder: Path) -> None:
    session = session_of(spark, {})
    static(session, folder).createOrReplaceTempView("rows")
    text = gw.spark.explain(session.sql(f"SELECT {aggregate} FROM rows GROUP BY {grouping}"))
    assert text.startswith(f"0 of 1 {SECTION}\n- ")
    assert reason in text


def test_what_each_copy_of_a_row_has_by_itself_stays_with_spark(spark: SparkSession, folder: Path) -> None:
    """Columns and conditions that are not the same for each window of a row, computed above the windows."""
    rows = static(session_of(spark, {}), folder).withColumn("w", F.window("ts", "2 minutes", "30 seconds"))
    for frame in (
        rows.withColumn("m", F.monotonically_increasing_id()).groupBy("short", "w").agg(F.max("m")),
        rows.where(F.rand(1) < 0.5).groupBy("short", "w").count(),
    ):
        text = gw.spark.explain(frame)
        assert text.startswith(f"0 of 1 {SECTION}\n- ")
        assert "is another one for each window of a row" in text


def test_sliding_windows_that_something_is_computed_from(spark: SparkSession, folder: Path) -> None:
    """Its windows are those of Spark's copies of a row: they are no panes, and it stays with Spark."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        rows = frame.withColumn("w", F.window("ts", "2 minutes", "30 seconds"))
        return rows.groupBy("w", F.col("w.start").alias("begin")).agg(F.count("*"), F.sum("int"))

    plain, ours = both_plans(spark, folder, query, {})
    assert "another column is computed from the window" in gw.spark.explain(ours)
    assert_same_rows(plain, ours)


def test_grouping_sets_that_all_have_the_window(spark: SparkSession, folder: Path) -> None:
    def query(session: SparkSession, frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("rows")
        rows = "(SELECT *, window(ts, '2 minutes', '30 seconds') AS w FROM rows)"
        sets = "GROUP BY w, CUBE(short, bool) HAVING w.start > timestamp'1970-01-01 00:00:30'"
        return session.sql(f"SELECT w, short, bool, grouping_id() AS g, count(*), sum(int) FROM {rows} {sets}")

    plain, panes = both_plans(spark, folder, query, {})
    assert gw.spark.explain(panes).startswith(BY_PANES)
    assert_same_rows(plain, panes)


@pytest.mark.sweep
def test_random_batch_query(number: int, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--sweep-seed")
    rng = random.Random(f"batch/{seed}/{number}")
    while True:
        row = {d: rng.choice(values) for d, values in windows.DIMENSIONS.items()}
        if windows.possible(row) and WINDOWS[row["window"]][1]:
            break
    case = Case(**row)
    spec = replace(case.stream, seed=rng.randrange(1_000_000), rows=rng.choice([3, 40, 150]), empty=None)
    write(spec, tmp_path / "rows")
    conf = {**case.conf, ADAPTIVE: rng.choice(["true", "false"])}
    plain, panes = both_plans(spark, tmp_path / "rows", case.query, conf)
    try:
        overlapping = not case.window.startswith("tumbling")
        assert gw.spark.explain(panes).startswith(BY_PANES) == overlapping
        assert_same_rows(plain, panes, some=False)
    except AssertionError as e:
        raise AssertionError(f"--sweep-seed {seed}, batch {number}: {case!r}, {spec!r}: {e}") from e
