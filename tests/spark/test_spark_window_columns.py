"""Windows that are a column before they are grouped by, which Spark may fold away in a batch without data, and columns
that look like one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import Both, Run, Stream, StreamSpec, assert_equal, new_session, rows_of, run, write

import gpuwin as gw

Unite = Callable[[DataFrame, DataFrame], DataFrame]
Rows = tuple[tuple[object, ...], ...]
RENAMED = {"pane_start": "window_start", "pane_end": "window_end"}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=2, batches=2, rows=60, empty=None), tmp_path_factory.mktemp("columns") / "stream")


def column(frame: DataFrame, shift: str = "0 seconds") -> DataFrame:
    return frame.withColumn("w", F.window("ts", "20 seconds", "20 seconds", shift))


def marked(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds")


def summed(frame: DataFrame, *keys: str | Column) -> DataFrame:
    return frame.groupBy(*keys).agg(F.count("*").alias("n"), F.sum("int").alias("s"))


def by_column(frame: DataFrame) -> DataFrame:
    return summed(marked(column(frame, "7 seconds")), "short", "w")


def by_a_renamed_column(frame: DataFrame) -> DataFrame:
    renamed = marked(column(frame)).withColumnRenamed("w", "v").withColumnRenamed("v", "u")
    return summed(renamed, "u", "bool")


def of_two_streams(frame: DataFrame) -> DataFrame:
    even, odd = (column(frame.where(f"pmod(int, 2) = {k}")) for k in (0, 1))
    return summed(marked(even.union(odd)), "w")


def deduplicated(frame: DataFrame) -> DataFrame:
    return summed(marked(column(frame)).dropDuplicates(["id", "ts"]), "w")


def joined(frame: DataFrame) -> DataFrame:
    names = frame.sparkSession.range(5).selectExpr("cast(id as short) as short", "concat('n', id) as name")
    return summed(marked(column(frame)).join(F.broadcast(names), "short", "left"), "name", "w")


def exploded(frame: DataFrame) -> DataFrame:
    return summed(marked(column(frame)).withColumn("part", F.explode(F.array(F.lit(1), F.lit(2)))), "part", "w")


def marked_by_the_window(frame: DataFrame) -> DataFrame:
    windowed = frame.select(F.window("ts", "20 seconds").alias("w"), "int", "short")
    return summed(windowed.withWatermark("w", "10 seconds"), "short", "w")


def sliding(frame: DataFrame, *shift: str) -> DataFrame:
    return frame.withColumn("w", F.window("ts", "25 seconds", "10 seconds", *shift))


def below_the_watermark(frame: DataFrame) -> DataFrame:
    return summed(marked(sliding(frame, "3 seconds")), "short", "w")


def some_of_a_row(frame: DataFrame) -> DataFrame:
    """Values in pieces, and values that depend on the order of rows."""
    some = sliding(marked(frame)).where("second(w.start) % 20 < 10")
    return some.groupBy("w").agg(
        F.percentile_approx("int", 0.5).alias("p"),
        F.sort_array(F.collect_list("short")).alias("l"),
        F.first("id").alias("f"),
        F.max_by("id", "ts").alias("m"),
    )


def cubed(frame: DataFrame) -> DataFrame:
    marked(frame).createOrReplaceTempView("marked")
    return frame.sparkSession.sql(
        "SELECT w, short, bool, grouping_id() AS g, count(*) AS n, sum(int) AS s FROM "
        "(SELECT *, window(ts, '25 seconds', '10 seconds') AS w FROM marked WHERE id > 3) "
        "GROUP BY w, CUBE(short, bool)"
    )


def read_by_aggregates(frame: DataFrame) -> DataFrame:
    """Where in its window a row lies, and the window itself: of each, a value, a condition and a part of a struct."""
    return frame.groupBy("short", "w").agg(
        F.expr("max(unix_micros(ts) - unix_micros(w.start))").alias("offset"),
        F.expr("count_if(ts < w.start + INTERVAL 5 SECONDS)").alias("early"),
        F.expr("sum(int) FILTER (WHERE second(w.end) % 20 = 0)").alias("even"),
        F.expr("max(struct(int, w.end))").alias("most"),
        F.expr("min(w)").alias("w2"),
        F.expr("collect_set(w.start)").alias("starts"),
    )


def read_a_tumbling_window(frame: DataFrame) -> DataFrame:
    return read_by_aggregates(column(marked(frame), "7 seconds"))


def read_a_sliding_window(frame: DataFrame) -> DataFrame:
    return read_by_aggregates(sliding(marked(frame), "3 seconds"))


def read_a_window_below_the_watermark(frame: DataFrame) -> DataFrame:
    return read_by_aggregates(marked(sliding(frame)))


QUERIES = [
    read_a_tumbling_window,
    read_a_sliding_window,
    read_a_window_below_the_watermark,
    cubed,
    below_the_watermark,
    some_of_a_row,
    by_column,
    by_a_renamed_column,
    of_two_streams,
    deduplicated,
    joined,
    exploded,
    marked_by_the_window,
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.__name__)
def test_batches_without_data_go_on(query: Callable[[DataFrame], DataFrame], both: Both, stream: Stream) -> None:
    operators = ("gpuwin", "dedupe") if query is deduplicated else ("gpuwin",)
    spark = ("stateStoreSave", "dedupe") if query is deduplicated else ("stateStoreSave",)

    def built(_: SparkSession, frame: DataFrame) -> DataFrame:
        return query(frame)

    how = Run("update", "processing")
    plain, _ = both(built, stream, how, late=None, operators=operators, spark_operators=spark)
    assert any(not batch.rows for batch in plain.batches)


def test_a_column_of_another_grid_for_each_side_stays_with_spark(both: Both, stream: Stream, tmp_path: Path) -> None:
    def of_two_grids(_: SparkSession, frame: DataFrame) -> DataFrame:
        sides = column(frame.where("bool")), column(frame.where("not bool"), "5 seconds")
        return summed(marked(sides[0].union(sides[1])), "w")

    spark = ("stateStoreSave",)
    both(of_two_grids, stream, Run("update"), late=None, operators=spark, spark_operators=spark)


def test_another_query_of_the_frame_leaves_this_one_as_it_is(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """The other one unites the column with one of another grid. This one then has a batch without data."""
    frames: list[DataFrame] = []
    others: list[StreamingQuery] = []

    def of_one_grid(_: SparkSession, frame: DataFrame) -> DataFrame:
        frames.append(column(frame))
        return summed(marked(frames[-1]), "w")

    def start_another(batch: int, _: StreamingQuery | None) -> None:
        if batch == 1:
            two = frames[-1].union(column(frames[-1].drop("w"), "5 seconds"))
            writer = summed(marked(two), "w").writeStream.outputMode("update").format("noop")
            others.append(writer.option("checkpointLocation", str(tmp_path / "other")).start())
            others[-1].processAllAvailable()

    how = Run("update", "processing")
    plain = run(spark, of_one_grid, stream, how, tmp_path / "plain", enabled=False)
    try:
        ours = run(spark, of_one_grid, stream, how, tmp_path / "ours", enabled=True, before_batch=start_another)
    finally:
        for other in others:
            other.stop()
    assert_equal(plain, ours, late=None)
    assert not plain.batches[-1].rows


def of_two_sources(
    spark: SparkSession, folder: Path, enabled: bool, query_of: Unite, order: str
) -> tuple[list[Rows], str]:
    """The results of each batch, and where the query ran. Each batch has a file of one source only, and Spark folds the
    other side of a union.
    """
    session = new_session(spark, {}, enabled=enabled)
    for source in "ab":
        (folder / source).mkdir(parents=True)

    def feed(batch: int) -> None:
        path = folder / f"{batch}.parquet"
        pq.write_table(pa.table({"ts": pa.array([41 + 10 * batch], pa.timestamp("s", "UTC")), "int": [batch]}), path)
        path.rename(folder / order[batch] / path.name)

    one, other = (session.readStream.schema("ts timestamp, int long").parquet(str(folder / source)) for source in "ab")
    found: list[Rows] = []
    writer = query_of(one, other).writeStream.outputMode("update")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    feed(0)
    query = writer.foreachBatch(lambda frame, _: found.append(tuple(sorted(rows_of(frame))))).start()
    try:
        query.processAllAvailable()
        for batch in range(1, len(order)):
            feed(batch)
            query.processAllAvailable()
        return found, gw.spark.explain(query)
    finally:
        query.stop()


def rebuilt(frame: DataFrame, *shift: str) -> DataFrame:
    """The window put together from its bounds, as only the optimizer sees."""
    for bound in ("start", "end"):
        frame = column(frame, *shift).withColumn(bound, F.col(f"w.{bound}")).drop("w")
    return frame.select("ts", "int", F.struct("start", "end").alias("w"))


def of_sets(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("united")
    return frame.sparkSession.sql(
        "SELECT w, coalesce(int % 2, 2) AS odd, count(*) AS n FROM united GROUP BY w, CUBE(int % 2)"
    )


NO_WINDOW = "cast(null AS struct<start:timestamp,end:timestamp>)"
A_UNION = "a union whose sides have sliding windows, or windows of different grids"
UNKNOWN = "below a watermark, a union or a join, in a way that gpuwin does not know"
MIXED: dict[str, tuple[Unite, str]] = {
    "grids": (lambda one, other: summed(column(one).union(column(other, "5 seconds")), "w"), A_UNION),
    "grids_below_a_watermark": (
        lambda one, other: summed(marked(column(one).union(column(other, "5 seconds"))), "w"),
        A_UNION,
    ),
    "sliding": (lambda one, other: summed(sliding(one).union(sliding(other)), "w"), A_UNION),
    "sets_of_sliding": (lambda one, other: of_sets(sliding(one).union(sliding(other))), A_UNION),
    "no_window_in_one": (
        lambda one, other: summed(column(one).union(other.withColumn("w", F.expr(NO_WINDOW))), "w"),
        A_UNION,
    ),
    "rebuilt": (lambda one, other: summed(rebuilt(one).union(rebuilt(other, "5 seconds")), "w"), UNKNOWN),
}


def united_above(first: bool) -> Unite:
    """A union of the results of an aggregation and other rows, in which the column of its windows is another's, too."""

    def build(one: DataFrame, other: DataFrame) -> DataFrame:
        results = summed(marked(sliding(one)), "w")
        others = column(other, "5 seconds").selectExpr("w", "1L AS n", "int AS s")
        assert len(results.columns) == len(others.columns)
        return results.union(others) if first else others.union(results)

    return build


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_a_union_above_leaves_the_aggregation_as_it_is(first: bool, spark: SparkSession, tmp_path: Path) -> None:
    plain, _ = of_two_sources(spark, tmp_path / "plain", False, united_above(first), "aba")
    ours, explained = of_two_sources(spark, tmp_path / "ours", True, united_above(first), "aba")
    assert ours == plain
    assert "one window of sliding" in explained


def test_the_state_says_the_windows(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    found = run(spark, lambda _, f: below_the_watermark(f), stream, Run("update"), tmp_path, enabled=True)
    assert found.error is None, found.error
    windows = gw.spark.read_state(spark, str(tmp_path / "checkpoint"), windows=True)
    for state in (windows, gw.spark.read_state(spark, str(tmp_path / "checkpoint")).withColumnsRenamed(RENAMED)):
        lasting = state.selectExpr("unix_micros(window_end) - unix_micros(window_start) AS us", "window_start", "n")
        assert [row.us for row in lasting.select("us").distinct().collect()] == [25_000_000]
        assert lasting.where("(unix_seconds(window_start) - 3) % 10 <> 0").count() == 0
        assert state.selectExpr("sum(n)").collect() == windows.selectExpr("sum(n)").collect()


def test_a_condition_on_the_window_is_said(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """The optimizer moves it below the aggregation, where it costs the copies, and makes other state of the query."""

    def some(_: SparkSession, frame: DataFrame) -> DataFrame:
        return summed(sliding(marked(frame)), "w").where("w.start >= '2020-01-01'")

    def every(_: SparkSession, frame: DataFrame) -> DataFrame:
        return summed(sliding(marked(frame)), "w")

    copied = "each row is copied into its windows, as on Spark"
    rate = spark.readStream.format("rate").load().selectExpr("timestamp AS ts", "value AS int")
    assert [copied in gw.spark.explain(query(spark, rate), "update") for query in (some, every)] == [True, False]
    assert run(spark, every, stream.head(1), Run("update"), tmp_path, enabled=True).error is None
    refused = run(spark, some, stream.head(2), Run("update"), tmp_path, enabled=True).error
    assert refused is not None
    assert "What differs is a condition on the window" in refused.message


@pytest.mark.parametrize("name", MIXED)
def test_a_union_stays_with_spark_while_one_side_has_no_rows(name: str, spark: SparkSession, tmp_path: Path) -> None:
    query, reason = MIXED[name]
    plain, _ = of_two_sources(spark, tmp_path / "plain", False, query, "aba")
    ours, explained = of_two_sources(spark, tmp_path / "ours", True, query, "aba")
    assert ours == plain
    assert reason in explained


CAP = "timestamp_seconds(1700000060)"  # within the times of the stream
#: The start and the end of a group, of windows of 20 seconds; the end of the column that is named last.
BOUNDS = {
    "of_two_times": ("w.start", "w.end", "tval"),
    "an_inclusive_end": ("w.start", "w.end - INTERVAL 1 SECOND", "ts"),
    "the_time_of_the_window": ("w.start", "window_time(w)", "ts"),
    "an_end_at_most": ("w.start", f"least(w.end, {CAP})", "ts"),
    "a_start_at_least": (f"greatest(w.start, {CAP})", "w.end", "ts"),
    "of_the_row": ("w.start", "if(bool, w.end, tval)", "ts"),
}


def bounded(start: str, end: str, time: str) -> Callable[[SparkSession, DataFrame], DataFrame]:
    """Groups by a struct of a start and an end, each of a window of its own, so that Spark puts all into one struct."""

    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        for name, bound, of in (("start", start, "ts"), ("end", end, time)):
            frame = frame.withColumn("w", F.window(of, "20 seconds")).withColumn(name, F.expr(bound)).drop("w")
        return summed(frame, F.struct("start", "end").alias("w"), "short")

    return build


@pytest.mark.parametrize("name", BOUNDS)
def test_a_struct_of_other_bounds_stays_with_spark(name: str, both: Both, stream: Stream) -> None:
    spark = ("stateStoreSave",)
    both(bounded(*BOUNDS[name]), stream, Run("update"), late=None, operators=spark, spark_operators=spark)


def test_a_struct_of_the_bounds_of_a_window_is_one(both: Both, stream: Stream) -> None:
    both(bounded("w.start", "w.end", "ts"), stream, Run("update"), late=None)
