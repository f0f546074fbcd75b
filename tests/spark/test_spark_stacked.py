"""Several stateful operators in one query: windows of windows, unions of two watermarks, joins, deduplication, limits.

A few of them on every run; all of them, on both state store providers and with every trigger, by
`pytest tests/spark/test_spark_stacked.py -m sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import PROVIDERS, SPARK_SESSIONS, Both, Run, Stream, StreamSpec, assert_equal, write

Build = Callable[[DataFrame], DataFrame]

GPUWIN = ("gpuwin",)
IN_JVM = {"spark.gpuwin.mapside": "jvm"}
SAVE = ("stateStoreSave",)


@dataclass(frozen=True)
class Stacked:
    """A query, and its stateful operators with and without the plugin, the last one first.

    rocksdb: whether Spark itself can run it there.
    """

    build: Build
    device: tuple[str, ...]
    spark: tuple[str, ...]
    mode: str = "append"
    conf: Mapping[str, str] = field(default_factory=dict)
    always: bool = False
    rocksdb: bool = True


def counted() -> Column:
    return F.count("*").alias("n")


def marked(frame: DataFrame, delay: str = "10 seconds") -> DataFrame:
    return frame.withWatermark("ts", delay)


def five_seconds(frame: DataFrame) -> DataFrame:
    return marked(frame).groupBy("short", F.window("ts", "5 seconds")).agg(counted(), F.sum("int").alias("s"))


def minute_of(column: str, *more: str) -> Column:
    return F.window(F.window_time(column), "1 minute", *more)


def again(lower: DataFrame, *grouping: str | Column) -> DataFrame:
    """A second aggregation, over the counts of the first."""
    return lower.groupBy(*grouping).agg(
        F.sum("n").alias("sum_n"), F.max("n").alias("max_n"), F.count("*").alias("rows")
    )


def thrice(frame: DataFrame) -> DataFrame:
    twice = again(five_seconds(frame), "short", F.window(F.window_time("window"), "20 seconds"))
    return twice.groupBy(minute_of("window")).agg(F.sum("sum_n"), F.sum("rows"))


def by_two(frame: DataFrame, one: Column, other: Column, turned: bool) -> tuple[DataFrame, DataFrame]:
    """Two aggregations of one frame, whose columns have other names each, so that nothing else tells them apart."""
    short, frame = F.col("short"), marked(frame)
    first = frame.groupBy(one.alias("w1"), short.alias("k1")).agg(F.count("*").alias("n1"))
    keys = [short.alias("k2"), other.alias("w2")] if turned else [other.alias("w2"), short.alias("k2")]
    second = frame.groupBy(*keys).agg(F.count("*").alias("n2"))
    return first, second.select("w2", "k2", "n2")


def of_one_pane(frame: DataFrame) -> DataFrame:
    first, second = by_two(
        frame, F.window("ts", "1 minute", "20 seconds"), F.window("ts", "40 seconds", "20 seconds"), False
    )
    return first.union(second)


def of_one_pane_joined(frame: DataFrame) -> DataFrame:
    first, second = by_two(
        frame, F.window("ts", "1 minute", "20 seconds"), F.window("ts", "40 seconds", "20 seconds"), False
    )
    return first.join(second, F.expr("k1 = k2 AND w1.end = w2.end"))


def sessions_in_two_orders(frame: DataFrame) -> DataFrame:
    first, second = by_two(frame, F.session_window("ts", "7 seconds"), F.session_window("ts", "7 seconds"), True)
    return first.union(second)


def sliding(frame: DataFrame) -> DataFrame:
    """Windows that are no whole number of slides."""
    return marked(frame).groupBy("short", F.window("ts", "35 seconds", "10 seconds")).agg(counted())


def hot_items(frame: DataFrame) -> DataFrame:
    """Nexmark's fifth query: the groups of each window that have most rows."""
    most = sliding(frame).groupBy("window").agg(F.max("n").alias("most"))
    return sliding(frame).withColumnRenamed("window", "w").join(most, F.expr("w = window AND n >= most"))


def sliding_twice(frame: DataFrame) -> DataFrame:
    lower = marked(frame).groupBy("short", F.window("ts", "20 seconds", "10 seconds")).agg(counted())
    return again(lower, "short", minute_of("window", "20 seconds"))


def sliding_then_tumbling_twice(frame: DataFrame) -> DataFrame:
    """Spark tests below the lowest one that the time of a window of its windows is not null."""
    lower = marked(frame).groupBy("short", F.window("ts", "20 seconds", "10 seconds")).agg(counted())
    twice = again(lower, "short", F.window(F.window_time("window"), "30 seconds"))
    return twice.groupBy("short", minute_of("window")).agg(F.sum("sum_n"), F.sum("rows"))


def minutes_of_sessions(frame: DataFrame) -> DataFrame:
    lower = marked(frame).groupBy("short", F.session_window("ts", "10 seconds")).agg(counted())
    return again(lower, "short", minute_of("session_window"))


def twice_in_sql(frame: DataFrame) -> DataFrame:
    marked(frame).createOrReplaceTempView("stream")
    return frame.sparkSession.sql(
        "SELECT window(window_time(window), '1 minute') w, sum(n) s, count(*) c FROM "
        "(SELECT short, window, count(*) n FROM stream GROUP BY short, window(ts, '5 seconds')) "
        "GROUP BY window(window_time(window), '1 minute')"
    )


def windows_of_histograms(frame: DataFrame) -> DataFrame:
    bins = F.histogram_numeric("id", F.lit(3)).alias("l")
    lower = marked(frame).groupBy("short", F.window("ts", "5 seconds")).agg(bins)
    return lower.groupBy(minute_of("window")).agg(F.sum(F.size("l")))


def histogram_of_windows(frame: DataFrame) -> DataFrame:
    return five_seconds(frame).groupBy(minute_of("window")).agg(F.size(F.histogram_numeric("n", F.lit(3))).alias("l"))


def windows_of_listed(frame: DataFrame) -> DataFrame:
    lower = marked(frame).groupBy("short", F.window("ts", "5 seconds")).agg(F.collect_list("id").alias("l"))
    return lower.groupBy(minute_of("window")).agg(F.sort_array(F.flatten(F.collect_list("l"))).alias("l"))


def pivoted(frame: DataFrame, window: Column, values: tuple[object, ...] = (-7, 12, None)) -> DataFrame:
    """Two aggregations in Spark's plan, since it pivots the results of one: by the pivoted column too."""
    negative_zero = F.max(F.when(F.col("bool"), F.lit(-0.0)).otherwise(F.lit(float("nan"))))
    results = (
        F.count("id").alias("n"),
        F.sum("dec10").alias("s"),
        F.max("bool").alias("b"),
        F.avg("short").alias("a"),
        negative_zero,
    )
    return marked(frame).groupBy("str", window).pivot("short", list(values)).agg(*results)


def union(frame: DataFrame, *window: str) -> DataFrame:
    """Two streams of two watermarks, so that the policy decides when a window closes."""
    slow = frame.where("not bool").withWatermark("ts", "2 minutes")
    grouped = marked(frame.where("bool")).union(slow).groupBy("short", F.window("ts", *window))
    return grouped.agg(F.count("*"), F.sum("int"))


def counted_sides(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    slow = frame.where("not bool").withWatermark("ts", "1 minute")
    left = marked(frame.where("bool")).groupBy("short", F.window("ts", "20 seconds")).agg(counted())
    right = slow.groupBy("short", F.window("ts", "20 seconds")).agg(F.sum("int").alias("s"))
    return left, right


def joined(frame: DataFrame, how: str) -> DataFrame:
    left, right = counted_sides(frame)
    return left.join(right, ["short", "window"], how)


def joined_by_other_names(frame: DataFrame) -> DataFrame:
    left, right = counted_sides(frame)
    renamed = right.select(F.col("short").alias("k"), F.col("window").alias("w"), "s")
    return left.join(renamed, F.expr("short = k AND window = w"), "left").groupBy("w").agg(F.sum("n"), F.sum("s"))


def of_a_join(frame: DataFrame, time: str, how: str, *window: str) -> DataFrame:
    left = marked(frame.where("bool")).select(F.col("short").alias("k"), F.col("ts").alias("t"), "id")
    right = frame.where("not bool").withWatermark("ts", "30 seconds").select("short", "ts", "int")
    near = F.expr("k = short AND t BETWEEN ts - INTERVAL 5 SECONDS AND ts + INTERVAL 5 SECONDS")
    value = F.count("id") if how == "left_semi" else F.sum("int")
    return left.join(right, near, how).groupBy("k", F.window(time, *window)).agg(F.count("*"), value)


def windowed(frame: DataFrame, *window: str) -> DataFrame:
    return marked(frame).withColumn("w", F.window("ts", *window))


def exploded_after(frame: DataFrame) -> DataFrame:
    rows = windowed(frame, "5 seconds").withColumn("e", F.explode(F.array("short", "byte")))
    return rows.groupBy("e", "w").agg(F.count("*"), F.max("int").alias("max_int"))


def two_grids(frame: DataFrame) -> DataFrame:
    other = windowed(frame, "30 seconds").select("byte", "w")
    return windowed(frame, "1 minute").select("short", "w").union(other).groupBy("short", "w").agg(F.count("*"))


def deduplicated_between(frame: DataFrame) -> DataFrame:
    once = five_seconds(frame).dropDuplicates(["n", "window"]).select("n", "window")
    return again(once, F.window("window", "1 minute"))


DEDUPE, WITHIN, JOIN = ("dedupe",), ("dedupeWithinWatermark",), ("symmetricHashJoin",)
LIMIT = ("globalLimit",)
MAX_POLICY = {"spark.sql.streaming.multipleWatermarkPolicy": "max"}

QUERIES: dict[str, Stacked] = {
    "window_time": Stacked(
        lambda f: again(five_seconds(f), "short", minute_of("window")), GPUWIN * 2, SAVE * 2, always=True
    ),
    "window_of_window": Stacked(lambda f: again(five_seconds(f), F.window("window", "1 minute")), GPUWIN * 2, SAVE * 2),
    "where_between": Stacked(
        lambda f: again(five_seconds(f).where("n > 1"), minute_of("window")), GPUWIN * 2, SAVE * 2
    ),
    "same_window": Stacked(lambda f: again(five_seconds(f), "window"), GPUWIN * 2, SAVE * 2, always=True),
    "same_grouping": Stacked(lambda f: again(five_seconds(f), "short", "window"), GPUWIN * 2, SAVE * 2),
    "thrice": Stacked(thrice, GPUWIN * 3, SAVE * 3),
    "sliding_over_tumbling": Stacked(
        lambda f: again(five_seconds(f), "short", minute_of("window", "20 seconds")), GPUWIN * 2, SAVE * 2
    ),
    "sliding_then_tumbling_twice": Stacked(sliding_then_tumbling_twice, GPUWIN * 3, SAVE * 3, always=True),
    "sliding_twice": Stacked(sliding_twice, GPUWIN * 2, SAVE * 2),
    "in_sql": Stacked(twice_in_sql, GPUWIN * 2, SAVE * 2),
    "sessions_of_windows": Stacked(
        lambda f: again(five_seconds(f), "short", F.session_window(F.window_time("window"), "10 seconds")),
        GPUWIN * 2,
        (*SPARK_SESSIONS, *SAVE),
    ),
    "windows_of_sessions": Stacked(minutes_of_sessions, GPUWIN * 2, (*SAVE, *SPARK_SESSIONS)),
    "lower_on_spark": Stacked(windows_of_histograms, (*GPUWIN, *SAVE), SAVE * 2),
    "upper_on_spark": Stacked(histogram_of_windows, (*SAVE, *GPUWIN), SAVE * 2),
    "lists_of_lists": Stacked(windows_of_listed, GPUWIN * 2, SAVE * 2),
    "union_sliding_min": Stacked(lambda f: union(f, "1 minute", "30 seconds"), GPUWIN, SAVE),
    "union_sliding_max": Stacked(lambda f: union(f, "1 minute", "30 seconds"), GPUWIN, SAVE, conf=MAX_POLICY),
    "union_tumbling_min": Stacked(lambda f: union(f, "1 minute"), GPUWIN, SAVE),
    "union_tumbling_max": Stacked(lambda f: union(f, "1 minute"), GPUWIN, SAVE, conf=MAX_POLICY, always=True),
    "union_update_max": Stacked(lambda f: union(f, "20 seconds"), GPUWIN, SAVE, "update", MAX_POLICY),
    "union_of_aggregations": Stacked(lambda f: counted_sides(f)[0].union(counted_sides(f)[1]), GPUWIN * 2, SAVE * 2),
    "windows_of_a_union_of_aggregations": Stacked(
        lambda f: again(counted_sides(f)[0].union(counted_sides(f)[1]), minute_of("window")), GPUWIN * 3, SAVE * 3
    ),
    "union_of_two_grids": Stacked(two_grids, SAVE, SAVE),
    "join_above": Stacked(lambda f: joined(f, "inner"), JOIN + GPUWIN * 2, JOIN + SAVE * 2),
    "left_join_above": Stacked(lambda f: joined(f, "left"), JOIN + GPUWIN * 2, JOIN + SAVE * 2),
    "full_join_above": Stacked(lambda f: joined(f, "full"), JOIN + GPUWIN * 2, JOIN + SAVE * 2),
    "aggregation_of_a_join_of_aggregations": Stacked(
        lambda f: joined(f, "inner").groupBy("window").agg(F.sum("n"), F.sum("s")),
        GPUWIN + JOIN + GPUWIN * 2,
        SAVE + JOIN + SAVE * 2,
        always=True,
    ),
    "one_grouping_all_the_way": Stacked(
        lambda f: (
            joined(f, "inner")
            .groupBy("short", "window")
            .agg(F.sum("n"), F.sum("s"))
            .dropDuplicates(["short", "window"])
        ),
        DEDUPE + GPUWIN + JOIN + GPUWIN * 2,
        DEDUPE + SAVE + JOIN + SAVE * 2,
        rocksdb=False,
    ),
    # An outer join may put a null for the window, which lies in no pane.
    "window_that_may_be_null": Stacked(joined_by_other_names, SAVE + JOIN + GPUWIN * 2, SAVE + JOIN + SAVE * 2),
    "join_below": Stacked(lambda f: of_a_join(f, "t", "inner", "1 minute"), GPUWIN + JOIN, SAVE + JOIN),
    "join_below_sliding": Stacked(
        lambda f: of_a_join(f, "ts", "inner", "1 minute", "20 seconds"), GPUWIN + JOIN, SAVE + JOIN
    ),
    "left_join_below": Stacked(lambda f: of_a_join(f, "t", "left", "1 minute"), GPUWIN + JOIN, SAVE + JOIN),
    "semi_join_below": Stacked(lambda f: of_a_join(f, "t", "left_semi", "1 minute"), GPUWIN + JOIN, SAVE + JOIN),
    "deduplication_below": Stacked(
        lambda f: (
            marked(f).dropDuplicates(["short", "ts"]).groupBy("short", F.window("ts", "5 seconds")).agg(F.count("*"))
        ),
        GPUWIN + DEDUPE,
        SAVE + DEDUPE,
    ),
    "deduplication_by_window_below": Stacked(
        lambda f: windowed(f, "5 seconds").dropDuplicates(["short", "w"]).groupBy("short", "w").agg(F.count("*")),
        GPUWIN + DEDUPE,
        SAVE + DEDUPE,
    ),
    "deduplication_within_watermark_below": Stacked(
        lambda f: (
            marked(f)
            .dropDuplicatesWithinWatermark(["short", "int", "ts"])
            .groupBy("short", F.window("ts", "5 seconds"))
            .agg(F.count("*"))
        ),
        GPUWIN + WITHIN,
        SAVE + WITHIN,
    ),
    "deduplication_above": Stacked(
        lambda f: five_seconds(f).dropDuplicates(["short", "window"]), DEDUPE + GPUWIN, DEDUPE + SAVE, rocksdb=False
    ),
    # Which of the duplicates stays is up to the order of rows; which values there are is not.
    "deduplication_within_watermark_above": Stacked(
        lambda f: five_seconds(f).dropDuplicatesWithinWatermark(["short"]).select("short"),
        WITHIN + GPUWIN,
        WITHIN + SAVE,
    ),
    "deduplication_between": Stacked(deduplicated_between, GPUWIN + DEDUPE + GPUWIN, SAVE + DEDUPE + SAVE),
    "limit_above": Stacked(lambda f: five_seconds(f).limit(10_000), LIMIT + GPUWIN, LIMIT + SAVE),
    "limit_below": Stacked(
        lambda f: marked(f).limit(10_000).groupBy("short", F.window("ts", "5 seconds")).agg(F.count("*")),
        GPUWIN + LIMIT,
        SAVE + LIMIT,
    ),
    "sorted_and_limited": Stacked(
        lambda f: five_seconds(f).orderBy(F.desc("n"), "window", "short").limit(7), GPUWIN, SAVE, "complete"
    ),
    # Cells of these are alike, and must not be shuffled once for both.
    "two_windows_of_one_pane": Stacked(of_one_pane, GPUWIN * 2, SAVE * 2, conf=IN_JVM),
    "two_windows_of_one_pane_joined": Stacked(of_one_pane_joined, JOIN + GPUWIN * 2, JOIN + SAVE * 2),
    "sessions_in_two_orders": Stacked(sessions_in_two_orders, GPUWIN * 2, SPARK_SESSIONS * 2),
    "exploded_after_the_window": Stacked(exploded_after, GPUWIN, SAVE, always=True),
    "condition_on_the_window": Stacked(
        lambda f: windowed(f, "5 seconds").where("minute(w.end) % 2 = 0").groupBy("short", "w").agg(F.count("*")),
        GPUWIN,
        SAVE,
    ),
    "column_of_the_window": Stacked(
        lambda f: windowed(f, "5 seconds").groupBy("w", F.minute("w.end").alias("m")).agg(F.count("*")), GPUWIN, SAVE
    ),
    # Rows that bring one of their sliding windows along.
    "condition_on_a_sliding_window": Stacked(
        lambda f: (
            windowed(f, "1 minute", "20 seconds").where("minute(w.end) % 2 = 0").groupBy("short", "w").agg(F.count("*"))
        ),
        GPUWIN,
        SAVE,
    ),
    "pivot": Stacked(lambda f: pivoted(f, F.window("ts", "20 seconds")), GPUWIN * 2, SAVE * 2, always=True),
    "pivot_of_sliding_windows": Stacked(
        lambda f: pivoted(f, F.window("ts", "20 seconds", "8 seconds")), GPUWIN * 2, SAVE * 2
    ),
    "pivot_of_sessions": Stacked(
        lambda f: pivoted(f, F.session_window("ts", "5 seconds")), SPARK_SESSIONS + GPUWIN, SPARK_SESSIONS * 2
    ),
    "pivot_of_one_value_twice": Stacked(
        lambda f: pivoted(f, F.window("ts", "20 seconds"), (12, 12)), SAVE + GPUWIN, SAVE * 2
    ),
    "same_sliding_window": Stacked(lambda f: again(sliding(f), "window"), GPUWIN * 2, SAVE * 2),
    "same_sliding_grouping": Stacked(lambda f: again(sliding(f), "window", "short"), GPUWIN * 2, SAVE * 2),
    "hot_items": Stacked(hot_items, JOIN + GPUWIN * 3, JOIN + SAVE * 3, always=True),
    "sliding_deduplicated": Stacked(
        lambda f: windowed(f, "1 minute", "25 seconds").dropDuplicates(["short", "w"]).groupBy("w").agg(F.sum("int")),
        GPUWIN + DEDUPE,
        SAVE + DEDUPE,
    ),
}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=2, batches=3, rows=60, empty=None), tmp_path_factory.mktemp("stacked") / "stream")


def check(name: str, both: Both, stream: Stream, provider: str, trigger: str) -> None:
    """Compares the two; a query that Spark cannot run on RocksDB with what it yields on the other provider."""
    query = QUERIES[name]
    runs = query.rocksdb or not provider.startswith("rocksdb")
    conf = {"spark.sql.shuffle.partitions": "2", **PROVIDERS[provider], **query.conf}

    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        return query.build(frame)

    how = Run(query.mode, trigger, conf=conf)
    placed = {"operators": query.device, "spark_operators": query.spark}
    plain, device = both(build, stream, how, check=runs, late=None, **placed)
    if not runs:
        assert plain.error is not None
        assert "Can only upgrade readStore to writeStore with the same stateStoreId" in plain.error.message
        how = replace(how, conf={"spark.sql.shuffle.partitions": "2", **query.conf})
        plain, _ = both(build, stream, how, folder="hdfs", late=None, **placed)
        assert_equal(plain, device, late=None, **placed)


@pytest.mark.parametrize("name", [n for n, q in QUERIES.items() if q.always])
def test_stacked(name: str, both: Both, stream: Stream) -> None:
    check(name, both, stream, "hdfs", "available")


ALIKE = ["two_windows_of_one_pane", "two_windows_of_one_pane_joined", "sessions_in_two_orders"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n.endswith("joined") else ()) for n in ALIKE]
)
def test_cells_are_shuffled_for_one_operator(name: str, both: Both, tmp_path: Path) -> None:
    check(name, both, write(StreamSpec(seed=29, batches=4, rows=30, empty=2), tmp_path / "rows"), "hdfs", "available")


@pytest.mark.sweep
@pytest.mark.parametrize("trigger", ["available", "once"])  # two sources may see a file at different times else
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb", "rocksdb_changelog"])
@pytest.mark.parametrize("name", QUERIES)
def test_stacked_everywhere(name: str, provider: str, trigger: str, both: Both, tmp_path: Path) -> None:
    stream = write(StreamSpec(seed=5, batches=4, rows=70), tmp_path / "stream")
    check(name, both, stream, provider, trigger)
