"""The map side on the device service (`spark.gpuwin.mapside=device`): rows, late rows and errors are plain Spark's.

Each test looks at the plan, so that none passes because Spark's own partial aggregate ran.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
    SPARK,
    SPARK_SESSIONS,
    Both,
    Case,
    Query,
    Run,
    ServiceKills,
    Stream,
    StreamSpec,
    assert_below,
    assert_equal,
    explained,
    isolated,
    last_plan,
    map_side_metric,
    on,
    run,
    run_switching,
    run_with_failures,
    write,
    write_tables,
)

ARRIVING = {
    "f": "first(long)", "fi": "first(str, true)", "la": "last(bin)", "li": "last(int, true)",
    "mx": "max_by(str, double)",
    "mn": "min_by(dec10, date)", "ff": "first(int) FILTER (WHERE bool)", "any": "any_value(short)",
}  # fmt: skip


@pytest.mark.parametrize("window", ["1 minute", "2 minutes"])
def test_what_arrived_first_and_last(window: str, both: Both, tmp_path: Path) -> None:
    """Rows of a window come from several tasks and batches; each says which of all it was."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        grouped = frame.withWatermark("ts", "10 seconds").groupBy("bool", F.window("ts", window, "1 minute"))
        return grouped.agg(*(F.expr(e).alias(n) for n, e in ARRIVING.items()))

    stream = write(StreamSpec(files=3, rows=200), tmp_path / "stream")
    conf = {"spark.sql.files.openCostInBytes": "1g", **DEVICE}  # a task for each file
    _, device = both(query, stream, Run("append", "processing", conf=conf))
    assert_below(device)


MORE = {
    "bits": "bit_and(long)", "bits_or": "bit_or(int)", "bits_xor": "bit_xor(short)", "cov": "covar_samp(double, short)",
    "corr": "corr(int, byte)", "slope": "regr_slope(short, byte)", "kurt": "kurtosis(byte)", "skew": "skewness(short)",
    "some": "bool_or(bool)", "every": "every(bool)", "n_if": "count_if(bool)", "s_float": "sum(float)",
}  # fmt: skip


@pytest.mark.long
def test_more_aggregates(both: Both, tmp_path: Path) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        usual = frame.withWatermark("ts", "10 seconds").where("double < 100 or double is null")
        grouped = usual.groupBy("str", F.window("ts", "2 minutes", "30 seconds"))
        return grouped.agg(*(F.expr(e).alias(n) for n, e in MORE.items()))

    conf = {"spark.sql.ansi.enabled": str(HAS_CORR_OF_CONSTANT).lower(), **DEVICE}
    _, device = both(query, write(StreamSpec(rows=400), tmp_path / "stream"), Run("append", "processing", conf=conf))
    assert_below(device)


def _sum_of_huge(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.groupBy("bool", F.window("ts", "1 minute")).agg(F.sum("huge").alias("s"))


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_sums_that_overflow(ansi: str, both: Both, tmp_path: Path) -> None:
    """With ANSI both fail, in Spark's words; without, both wrap."""
    conf = {"spark.sql.ansi.enabled": ansi, "spark.sql.shuffle.partitions": "1", **DEVICE}
    stream = write(StreamSpec(batches=1, empty=None), tmp_path / "stream")
    fails = ansi == "true"
    plain, device = both(_sum_of_huge, stream, Run("update", conf=conf), late=None, fails=fails)
    assert_below(device)
    if fails:
        assert plain.error is not None
        assert "ARITHMETIC_OVERFLOW" in (plain.error.condition or plain.error.message)


@pytest.mark.parametrize(("values", "fails"), [([2**63 - 1, 1, -1], True), ([2**63 - 1, -1, 1], False)])
def test_a_sum_overflows_at_the_row_at_which_sparks_does(
    values: list[int], fails: bool, both: Both, tmp_path: Path
) -> None:
    """The totals are the same, and fit."""
    columns = {
        "huge": pa.array(values),
        "ts": pa.array([1_700_000_000_000_000] * 3, pa.timestamp("us", "UTC")),
        "bool": pa.array([True] * 3),
    }
    stream = write_tables([[pa.table(columns)]], tmp_path / "stream")
    conf = {"spark.sql.ansi.enabled": "true", **DEVICE}
    _, device = both(_sum_of_huge, stream, Run("update", conf=conf), late=None, fails=fails)
    assert_below(device)


@pytest.mark.parametrize(("when", "fails"), [("id < 0", False), ("bool", True)])
def test_a_constant_that_cannot_be_computed_fails_with_a_row(
    when: str, fails: bool, both: Both, tmp_path: Path
) -> None:
    """Where no row needs it, nothing fails."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        divided = F.expr(f"sum(case when {when} then 1 div 0 else 2 end)").alias("s")
        return frame.groupBy("bool", F.window("ts", "1 minute")).agg(divided)

    conf = {"spark.sql.ansi.enabled": "true", **DEVICE}
    stream = write(StreamSpec(batches=1, empty=None), tmp_path / "stream")
    plain, device = both(query, stream, Run("update", conf=conf), late=None, fails=fails)
    assert_below(device)
    assert not fails or "DIVIDE_BY_ZERO" in str(plain.error)


SWITCHED = [
    Case("sliding", "append", "three", "integers", partitions="5"),
    pytest.param(Case("tumbling", "update", "double", "floats", partitions="3"), marks=pytest.mark.sweep),
    pytest.param(Case("tumbling", "append", "none", "counts", partitions="4"), marks=pytest.mark.sweep),
    pytest.param(
        Case("uneven", "append", "none", "strings", partitions="2", provider="rocksdb_changelog"),
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize("case", SWITCHED, ids=str)
def test_the_side_may_change_between_starts(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    """A key is in the same partition of the state either way: each start finds what the other left."""
    stream = write(StreamSpec(batches=6, rows=120), tmp_path / "stream")
    plain = run(spark, case.query, stream, replace(case.how, trigger="once"), tmp_path / "plain", enabled=False)
    found = run_switching(spark, case, stream, tmp_path / "device")
    assert_equal(plain, found)


def test_auto_goes_by_the_batch_before(spark: SparkSession, tmp_path: Path) -> None:
    """Batches of many cells are made by the service, and so is the first; a small one is seen in the batch after it."""
    case = Case("sliding", "append", "three", "integers", trigger="processing", partitions="2", idle_batch="off")
    sizes = [400, 400, 400, 4, 4, 400, 400]
    stream = Stream([write(StreamSpec(seed=9, batches=len(sizes), rows=n, empty=None), tmp_path / str(n)).batches[i]
                     for i, n in enumerate(sizes)])  # fmt: skip
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    sides: list[bool] = []

    def look(_: int, query: StreamingQuery | None) -> None:
        if query is not None:
            sides.append("DeviceCells" in last_plan(query).toString())

    how = on({"spark.gpuwin.mapside": "auto", "spark.gpuwin.mapside.cells": "150"}, case.how)
    found = run(spark, case.query, stream, how, tmp_path / "device", enabled=True, before_batch=look)
    assert_equal(plain, found)
    assert sides == [True, True, True, True, False, False], "the first batch of a run has none to go by"
    assert_below(found)


def test_auto_wants_cells_in_each_payload(spark: SparkSession, tmp_path: Path) -> None:
    """Of few cells for each partition the heads of the payloads would be the most."""
    case = Case("tumbling", "update", "three", "counts", trigger="processing", partitions="5", idle_batch="off")
    stream = write(StreamSpec(batches=3, rows=200, empty=None), tmp_path / "stream")
    how = on({"spark.gpuwin.mapside": "auto", "spark.gpuwin.mapside.cells": "1"}, case.how)
    found = run(spark, case.query, stream, how, tmp_path / "device", enabled=True)
    assert_below(found, JVM)


@pytest.mark.parametrize("window", ["tumbling", pytest.param("sliding", marks=pytest.mark.long)])
def test_a_gpu_makes_the_cells_of_any_batch(window: str, spark: SparkSession, tmp_path: Path) -> None:
    """Small ones, too. One task at a time, in the simulator: two threads are too many for it."""
    case = Case(window, "append", "three", "integers", trigger="processing", partitions="1", idle_batch="off")
    stream = write(StreamSpec(batches=3, rows=40, empty=None), tmp_path / "stream")
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    parts: list[int] = []

    def look(_: int, query: StreamingQuery | None) -> None:
        if query is not None:
            parts.append(map_side_metric(query, "gpuwinPartsOnCuda"))

    how = on({"spark.gpuwin.device": "cuda", "spark.gpuwin.mapside": "auto"}, case.how)
    found = run(spark, case.query, stream, how, tmp_path / "device", enabled=True, before_batch=look)
    assert_equal(plain, found)
    assert parts == [1, 1], "of the batches before the last"
    assert_below(found)


def test_payloads_of_many_tasks_are_few_streams_in_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """Each task sends each partition a payload; the head of an Arrow stream is written once for all of them."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.withWatermark("ts", "1 hour").groupBy("bool", F.window("ts", "1 minute")).count()

    stream = write(StreamSpec(batches=2, rows=240, files=12, empty=None), tmp_path / "stream")
    conf = {"spark.sql.files.openCostInBytes": "1g", "spark.sql.shuffle.partitions": "1"}  # a task for each file
    how = Run("update", "processing", conf=conf)
    plain = run(spark, query, stream, how, tmp_path / "plain", enabled=False)
    written: list[int] = []

    def look(_: int, query: StreamingQuery | None) -> None:
        of = [] if query is None else [p["stateOperators"] for p in query.recentProgress if p["stateOperators"]]
        written.extend(o[0]["customMetrics"]["gpuwinLogBytesWritten"] for o in of)

    found = run(spark, query, stream, on(DEVICE, how), tmp_path / "device", enabled=True, before_batch=look)
    assert_equal(plain, found, late=None)
    assert_below(found)
    assert 0 < written[0] < 6_000, "12 streams would be 7,584 bytes"


def test_killed_service_is_started_again_below_the_shuffle(spark: SparkSession, tmp_path: Path) -> None:
    """The service is stopped before a batch begins, so that the map stage waits for it, and then killed."""
    case = Case("sliding", "append", "string", "decimals", trigger="processing", partitions="2", idle_batch="off")
    stream = write(StreamSpec(seed=11, batches=5, rows=80, empty=None), tmp_path / "stream")
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    restarts: list[int] = []
    kills = ServiceKills(spark)

    def before(batch: int, query: StreamingQuery | None) -> None:
        if query is not None:
            restarts.append(map_side_metric(query, "gpuwinServiceRestarts"))
        kills.before_batch(batch, query)

    how = on(DEVICE, case.how)
    device = run(spark, case.query, stream, how, tmp_path / "device", enabled=True, before_batch=before)
    kills.join()
    assert_equal(plain, device)
    assert_below(device)
    assert len(kills.killed) == 2
    assert [n > 0 for n in restarts] == [False, True, False, True], "the map side lost the service in batches 1 and 3"


def test_rows_beyond_the_memory_are_aggregated_in_parts(spark: SparkSession, tmp_path: Path) -> None:
    """A part a few rows, and cells that are handed on before all rows have come: the rows are the same."""
    rng = np.random.default_rng(7)

    def rows(first: int) -> pa.Table:
        n = 8_000
        key = rng.integers(0, 2_000, n)
        return pa.table(
            {
                "str": pa.array([f"key {k} {'x' * (k % 90)}" for k in key.tolist()]),
                "ts": pa.array(
                    1_700_000_000_000_000 + (first + rng.integers(0, 90, n)) * 1_000_000, pa.timestamp("us", "UTC")
                ),
                "long": rng.integers(-1000, 1000, n),
            }
        )

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        grouped = frame.withWatermark("ts", "5 seconds").groupBy("str", F.window("ts", "1 minute"))
        return grouped.agg(F.count("*").alias("n"), F.sum("long").alias("s"), F.max("str").alias("max_str"))

    stream = write_tables([[rows(60 * i)] for i in range(3)], tmp_path / "stream")
    idle = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
    plain = run(spark, query, stream, Run("append", "processing", conf=idle), tmp_path / "plain", enabled=False)
    small = {"spark.gpuwin.mapside.bytes": "65536", "spark.gpuwin.chunk.bytes": "8192", **idle, **DEVICE}
    told: list[tuple[int, ...]] = []

    def look(batch: int, query: StreamingQuery | None) -> None:
        if query is not None:
            told.append(tuple(map_side_metric(query, m) for m in ("gpuwinParts", "gpuwinRowsIn", "gpuwinCellsOut")))

    how = Run("append", "processing", conf=small)
    device = run(spark, query, stream, how, tmp_path / "device", enabled=True, before_batch=look)
    assert_equal(plain, device, late=None)
    assert_below(device)
    for parts, rows_in, cells_out in told:
        assert parts > 3
        assert rows_in == 8_000
        assert cells_out > 4_000, "some cells were handed on before all rows had come, and came again"


@pytest.mark.long
def test_tasks_that_fail_leave_nothing_and_are_repeated_under_encryption(tmp_path: Path) -> None:
    """An application of its own, whose shuffle is encrypted, and in which the first attempt of each map task fails."""
    case = Case("sliding", "append", "string", "integers", trigger="processing", partitions="2")
    plain, _, device, failures, left = isolated(
        run_with_failures, tmp_path, case, StreamSpec(batches=4, rows=80, files=2)
    )
    device.plan_schema = plain.plan_schema
    assert_equal(plain, device)
    assert_below(device)
    assert failures >= 3
    assert left == ["s"], "the folder of the service has its socket, and nothing else"


DISTINCT = {
    **{f"n_{c}": f"approx_count_distinct({c})" for c in (
        "bool", "byte", "short", "int", "long", "float", "double", "dec10", "dec38", "str", "bin", "date", "ts", "nval",
    )},
    "total": "sum(long % 1000)",
    "rough": "approx_count_distinct(long, 0.2)", "fine": "approx_count_distinct(str, 0.04)",
    "some": "approx_count_distinct(long) FILTER (WHERE int > 0)", "one": "approx_count_distinct(7)",
    "none": "approx_count_distinct(null)", "zeros": "approx_count_distinct(if(bool, -0.0D, 0.0D))",
    "nans": "approx_count_distinct(if(bool, double('NaN'), -double('NaN')))",
}  # fmt: skip


@pytest.mark.parametrize("window", [("2 minutes", "1 minute"), None], ids=["windows", "sessions"])
def test_registers_of_distinct_values(window: tuple[str, str] | None, both: Both, tmp_path: Path) -> None:
    """Hashes of values of every type, in place of the registers of a row."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        place = F.window("ts", *window) if window else F.session_window("ts", "5 seconds")
        grouped = frame.withWatermark("ts", "10 seconds").groupBy("bool", place)
        return grouped.agg(*(F.expr(e).alias(n) for n, e in DISTINCT.items()))

    stream = write(StreamSpec(files=3, rows=200), tmp_path / "stream")
    more: dict[str, Any] = {} if window else {"spark_operators": SPARK_SESSIONS}
    # By their number the few cells of a batch would become cells in the JVM in the next one.
    side = {"spark.gpuwin.mapside": "auto"} if window else DEVICE
    _, device = both(query, stream, Run("append", conf={"spark.sql.files.openCostInBytes": "1g", **side}), **more)
    assert_below(device)


def test_large_registers_are_raised_in_the_jvm_by_auto(spark: SparkSession) -> None:
    """An error of 0.01 takes 1,639 words; the default, of 0.05, takes 52."""

    def query(error: float) -> Query:
        return lambda _, f: f.groupBy("bool", F.window("ts", "1 minute")).agg(F.approx_count_distinct("int", error))

    assert "its registers are 1639 words a cell" in explained(spark, query(0.01), "auto")
    assert "words a cell" not in explained(spark, query(0.05), "auto")


REASONS: list[tuple[Query, str]] = [
    (
        lambda _, f: f.groupBy("bool", F.window("ts", "1 minute")).agg(
            F.expr("bitmap_construct_agg(bitmap_bit_position(int))").alias("n")
        ),
        "only Spark's own code adds rows to the buffer of bitmap_construct_agg",
    ),
    (
        lambda _, f: f.groupBy("bool", F.window("ts", "1 minute")).agg(
            F.approx_count_distinct(F.struct("int", "bool")).alias("n")
        ),
        "only Spark's own code adds rows to the buffer of approx_count_distinct",
    ),
]
if SPARK >= (4, 0):
    # Of variants that are not null Spark's function fails.
    REASONS.append(
        (
            lambda _, f: f.groupBy("bool", F.window("ts", "1 minute")).agg(
                F.expr("approx_count_distinct(try_parse_json('{'))").alias("n")
            ),
            "only Spark's own code adds rows to the buffer of approx_count_distinct",
        )
    )


@pytest.mark.parametrize(("query", "reason"), REASONS)
def test_what_cannot_stays_in_the_jvm_and_says_why(
    query: Query, reason: str, both: Both, spark: SparkSession, tmp_path: Path
) -> None:
    stream = write(StreamSpec(), tmp_path / "stream")
    _, device = both(query, stream, Run("update", conf=DEVICE), late=None)
    assert_below(device, JVM)
    assert reason in explained(spark, query, "device")


def test_explain_says_where_rows_become_cells(spark: SparkSession) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.groupBy("bool", F.window("ts", "1 minute")).count()

    assert "its rows become cells in the device service" in explained(spark, query, "device")
    assert "because spark.gpuwin.mapside is jvm" in explained(spark, query, "jvm")
    assert "its rows become cells in the device service" in explained(spark, query, "auto")
