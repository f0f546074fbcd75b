"""Sessions whose rows are put together in the device service, below the shuffle (`spark.gpuwin.mapside=device`): rows,
late rows and errors are plain Spark's.

Each test looks at the plan, so that none passes because the JVM put them together.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import (
    DEVICE,
    HAS_CORR_OF_CONSTANT,
    JVM,
    SPARK_SESSIONS,
    Both,
    Run,
    ServiceKills,
    SessionCase,
    StreamSpec,
    assert_below,
    assert_equal,
    explained,
    isolated,
    map_side_metric,
    on,
    run,
    run_switching,
    run_with_failures,
    write,
    write_tables,
)
from test_spark_sessions import MOST, SCHEMA, events

MORE = {
    "bits": "bit_and(long)", "bits_or": "bit_or(int)", "bits_xor": "bit_xor(short)", "cov": "covar_samp(double, short)",
    "corr": "corr(int, byte)", "slope": "regr_slope(short, byte)", "kurt": "kurtosis(byte)", "skew": "skewness(short)",
    "some": "bool_or(bool)", "every": "every(bool)", "n_if": "count_if(bool)", "s_float": "sum(float)",
}  # fmt: skip


@pytest.mark.long
def test_more_aggregates(both: Both, tmp_path: Path) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        usual = frame.withWatermark("ts", "10 seconds").where("double < 100 or double is null")
        grouped = usual.groupBy("str", F.session_window("ts", "20 seconds"))
        return grouped.agg(*(F.expr(e).alias(n) for n, e in MORE.items()))

    conf = {"spark.sql.ansi.enabled": str(HAS_CORR_OF_CONSTANT).lower(), **DEVICE}
    stream = write(StreamSpec(rows=400), tmp_path / "stream")
    _, device = both(query, stream, Run("append", "processing", conf=conf), spark_operators=SPARK_SESSIONS)
    assert_below(device)


# Sessions whose rows are known one by one


def ten_seconds(_: SparkSession, frame: DataFrame) -> DataFrame:
    marked = frame.withWatermark("ts", "20 seconds")
    return marked.groupBy(F.session_window("ts", "10 seconds"), "key").agg(F.sum("n").alias("n"))


@pytest.mark.parametrize("codegen", ["true", "false"])
def test_late_rows_are_dropped_one_by_one_and_counted(codegen: str, both: Both, tmp_path: Path) -> None:
    batches = [
        [events(("a", 0), ("a", 10), ("b", 25), ("e", 21), ("e", 33))],
        # The watermark is 13 s. Late: b at 2 and 3, which end at it, or before. e at 28 bridges two open sessions.
        [events(("b", 2), ("b", 3), ("b", 3.000001), ("e", 28), ("f", 48))],
        # Now it is 28 s: b at 18 is late by itself, though b at 19 meets it, and a session that is open.
        [events(("b", 18), ("b", 19), ("b", 30), ("z", 1000))],
        [events(("z", 2000))],
    ]
    stream = write_tables(batches, tmp_path / "stream")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.codegen.wholeStage": codegen, **DEVICE}
    how = Run("append", "processing", conf=conf)
    plain, device = both(ten_seconds, stream, how, schema=SCHEMA, spark_operators=SPARK_SESSIONS)
    assert_below(device)
    assert [b.dropped for b in device.batches] == [b.dropped for b in plain.batches]
    assert sum(b.dropped for b in plain.batches) == 3


@pytest.mark.parametrize(("late", "fails"), [(1000, True), (0, True)], ids=["a_row_in_time", "a_row_that_is_late"])
def test_a_row_that_cannot_be_computed_fails_as_in_spark(late: int, fails: bool, both: Both, tmp_path: Path) -> None:
    """Late rows, too: Spark finds them late above the shuffle, and computes its buffers below."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        marked = frame.withWatermark("ts", "20 seconds")
        return marked.groupBy(F.session_window("ts", "10 seconds"), "key").agg(F.expr("sum(10 div n)").alias("n"))

    batches = [[events(("a", 500))], [events(("a", late, 0), ("a", 510))], [events(("a", 2000))]]
    stream = write_tables(batches, tmp_path / "stream")
    how = Run("append", "processing", conf={"spark.sql.ansi.enabled": "true", **DEVICE})
    plain, device = both(query, stream, how, schema=SCHEMA, fails=fails, spark_operators=SPARK_SESSIONS)
    assert_below(device)
    assert "DIVIDE_BY_ZERO" in str(plain.error)


OVERFLOWS: list[tuple[list[tuple[str, float, int]], bool]] = [
    ([("a", 0, MOST), ("a", 1, 1), ("a", 2, -1)], True),  # the totals of these three are the same, and fit
    ([("a", 0, MOST), ("a", 1, -1), ("a", 2, 1)], False),
    ([("a", 0, MOST), ("a", 2, 1), ("a", 1, -1)], False),  # Spark adds in order of time
    ([("a", 0, MOST), ("a", 2, -1), ("a", 1, 1)], True),
    ([("a", 0, MOST), ("a", 0, 1), ("a", 5, -1)], True),
    ([("a", 0, MOST), ("b", 0, 1), ("a", 11, 1)], False),
    ([("a", 0, MOST), ("a", 5, 1)], True),
]


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(("rows", "fails"), OVERFLOWS, ids=range(len(OVERFLOWS)))
def test_a_sum_overflows_at_the_row_at_which_sparks_does(
    rows: list[tuple[str, float, int]], fails: bool, ansi: str, both: Both, tmp_path: Path
) -> None:
    """With ANSI both fail, or neither; without, both wrap."""
    stream = write_tables([[events(*rows)], [events(("z", 2000))]], tmp_path / "stream")
    conf = {"spark.sql.ansi.enabled": ansi, "spark.sql.shuffle.partitions": "1", **DEVICE}
    fails = fails and ansi == "true"
    plain, device = both(
        ten_seconds, stream, Run("append", "processing", conf=conf), schema=SCHEMA, late=None, fails=fails,
        spark_operators=SPARK_SESSIONS,
    )  # fmt: skip
    assert_below(device)
    assert not fails or "ARITHMETIC_OVERFLOW" in str(plain.error)


# The map side in a run: other sides, lost services, parts, tasks that fail

SWITCHED = [
    pytest.param(
        SessionCase(window="by_row", key="three", aggregate="integers", partitions="5"), marks=pytest.mark.long
    ),
    pytest.param(
        SessionCase(window="filtered", key="double", aggregate="floats", partitions="3"), marks=pytest.mark.sweep
    ),
    pytest.param(
        SessionCase(window="fixed", key="string", aggregate="strings", partitions="2", provider="rocksdb_changelog"),
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize("case", SWITCHED, ids=str)
def test_the_side_may_change_between_starts(case: SessionCase, spark: SparkSession, tmp_path: Path) -> None:
    """A key is in the same partition of the state either way: each start finds what the other left."""
    stream = write(replace(case.stream, batches=6), tmp_path / "stream")
    plain = run(spark, case.query, stream, replace(case.how, trigger="once"), tmp_path / "plain", enabled=False)
    found = run_switching(spark, case, stream, tmp_path / "device")
    assert_equal(plain, found, spark_operators=case.spark_operators)


@pytest.mark.long
def test_killed_service_is_started_again_below_the_shuffle(spark: SparkSession, tmp_path: Path) -> None:
    """The service is stopped before a batch begins, so that the map stage waits for it, and then killed. Late rows are
    counted once.
    """
    case = SessionCase(window="fixed", key="string", aggregate="decimals", partitions="2", trigger="processing",
                       idle_batch="off")  # fmt: skip
    stream = write(replace(case.stream, seed=11, batches=5, empty=None), tmp_path / "stream")
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    jvm = run(spark, case.query, stream, on(JVM, case.how), tmp_path / "jvm", enabled=True)
    restarts: list[int] = []
    kills = ServiceKills(spark)

    def before(batch: int, query: StreamingQuery | None) -> None:
        if query is not None:
            restarts.append(map_side_metric(query, "gpuwinServiceRestarts"))
        kills.before_batch(batch, query)

    how = on(DEVICE, case.how)
    device = run(spark, case.query, stream, how, tmp_path / "device", enabled=True, before_batch=before)
    kills.join()
    assert_equal(plain, device, spark_operators=case.spark_operators)
    assert_below(device)
    assert [b.dropped for b in device.batches] == [b.dropped for b in jvm.batches]
    assert len(kills.killed) == 2
    assert [n > 0 for n in restarts] == [False, True, False, True], "the map side lost the service in batches 1 and 3"


def test_rows_beyond_the_memory_are_put_together_in_parts(spark: SparkSession, tmp_path: Path) -> None:
    """A part a few rows, and sessions that are handed on before all rows have come: the rows are the same."""
    rng = np.random.default_rng(7)

    def rows(first: int) -> pa.Table:
        n = 8_000
        key = rng.integers(0, 2_000, n)
        micros = 1_714_521_600_000_000 + (first + rng.integers(-60, 90, n)) * 1_000_000
        return pa.table(
            {
                "key": pa.array([f"key {k} {'x' * (k % 90)}" for k in key.tolist()]),
                "ts": pa.array(micros, pa.timestamp("us", "UTC")),
                "n": rng.integers(-1000, 1000, n),
            }
        )

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        grouped = frame.withWatermark("ts", "5 seconds").groupBy("key", F.session_window("ts", "10 seconds"))
        return grouped.agg(F.count("*").alias("rows"), F.sum("n").alias("s"), F.max("key").alias("max_key"))

    stream = write_tables([[rows(60 * i)] for i in range(4)], tmp_path / "stream")
    idle = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
    how = Run("append", "processing", conf=idle)
    plain = run(spark, query, stream, how, tmp_path / "plain", enabled=False, schema=SCHEMA)
    small = {"spark.gpuwin.mapside.bytes": "65536", "spark.gpuwin.chunk.bytes": "8192", **DEVICE}
    told: list[tuple[int, ...]] = []

    def look(batch: int, query: StreamingQuery | None) -> None:
        if query is not None:
            told.append(tuple(map_side_metric(query, m) for m in ("gpuwinParts", "gpuwinRowsIn", "gpuwinCellsOut")))

    folder = tmp_path / "device"
    device = run(spark, query, stream, on(small, how), folder, enabled=True, before_batch=look, schema=SCHEMA)
    assert_equal(plain, device, spark_operators=SPARK_SESSIONS)
    assert_below(device)
    dropped = [b.dropped for b in device.batches][: len(told)]
    assert [rows_in + late for (_, rows_in, _), late in zip(told, dropped, strict=True)] == [8_000] * 3
    assert any(dropped)
    for parts, rows_in, sessions_out in told:
        assert parts > 3
        assert rows_in > sessions_out > 4_000, "some were handed on before all rows had come, and came again"


def test_rows_are_put_together_below_the_shuffle(spark: SparkSession, tmp_path: Path) -> None:
    rows = events(*((f"k{i % 5}", i * 0.01) for i in range(2000)))
    stream = write_tables([[rows], [events(("z", 100))]], tmp_path / "stream")
    told: list[int] = []

    def look(batch: int, query: StreamingQuery | None) -> None:
        if query is not None:
            told.append(query.lastProgress["stateOperators"][0]["customMetrics"]["gpuwinCellsIn"])

    idle = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
    how = on(DEVICE, Run("append", "processing", conf=idle))
    device = run(spark, ten_seconds, stream, how, tmp_path / "c", enabled=True, before_batch=look, schema=SCHEMA)
    assert_below(device)
    assert told == [5]


@pytest.mark.sweep  # the same loop as of windows on a grid, which is in every run
def test_tasks_that_fail_leave_nothing_and_are_repeated_under_encryption(tmp_path: Path) -> None:
    """An application of its own, whose shuffle is encrypted, and in which the first attempt of each map task fails.
    Late rows are counted once.
    """
    case = SessionCase(window="fixed", key="string", aggregate="integers", trigger="processing", partitions="2")
    spec = replace(case.stream, batches=4, files=2)
    plain, jvm, device, failures, left = isolated(run_with_failures, tmp_path, case, spec)
    device.plan_schema = plain.plan_schema
    assert_equal(plain, device, spark_operators=SPARK_SESSIONS)
    assert_below(device)
    assert [b.dropped for b in device.batches] == [b.dropped for b in jvm.batches]
    assert failures >= 3
    assert left == ["s"], "the folder of the service has its socket, and nothing else"


# Where rows are put together, in words


def test_where_spark_merges_sessions_itself_its_operators_stay(both: Both, spark: SparkSession, tmp_path: Path) -> None:
    case = SessionCase(local_merge="true", trigger="processing")
    stream = write(case.stream, tmp_path / "stream")
    _, device = both(case.query, stream, on(DEVICE, case.how), spark_operators=case.spark_operators)
    assert_below(device, JVM)

    def query(session: SparkSession, frame: DataFrame) -> DataFrame:
        session.conf.set("spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition", "true")
        return _of_sessions(session, frame)

    reason = "because spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition is true"
    assert reason in explained(spark, query, "device")


def _of_sessions(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds").groupBy("bool", F.session_window("ts", "30 seconds")).count()


def test_explain_says_where_sessions_are_put_together(spark: SparkSession) -> None:
    assert "its rows become cells in the device service" in explained(spark, _of_sessions, "device")
    assert "because spark.gpuwin.mapside is jvm" in explained(spark, _of_sessions, "jvm")
