"""The comparison of the differential suite finds what it is there to find."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from spark_harness import (
    OTHER_PROVIDER,
    Batch,
    Failure,
    NotOffloaded,
    Recording,
    Row,
    StreamSpec,
    Vacuous,
    assert_equal,
    covering,
    differences,
    row_differences,
    write,
)
from test_spark_differential import CASES, DIMENSIONS, PAIRS, possible
from test_spark_sessions import CASES as SESSIONS

COLUMNS = ("k_key", "window.start", "n", "sum", "min_double", "text")
PLAN = "*(2) Project [a]\n+- {} [key], tumbling 1 min\n   +- Exchange hashpartitioning(key, 2)\n"


def recording(operator: str) -> Recording:
    rows = (("a", 0, 2, 0.1 + 0.2, 0.0, "x"), (None, 0, 1, math.nan, math.nan, None), ("a", 60, 1, -1.5, -1.5, "y"))
    later = (("a", 0, 3, 1e9, 5e-324, "x"),)
    batches = [
        Batch(0, rows, "1970-01-01T00:00:00.000Z", 4, 0, (operator,)),
        Batch(1, (), "1970-01-01T00:01:00.000Z", 0, 0, (operator,)),
        Batch(2, later, "1970-01-01T00:01:00.000Z", 3, 2, (operator,)),
    ]
    node = "GpuWindow" if operator == "gpuwin" else "StateStoreSave"
    return Recording(schema="s", columns=COLUMNS, plan_schema="p", plan=PLAN.format(node), batches=batches)


@pytest.fixture
def plain() -> Recording:
    return recording("stateStoreSave")


@pytest.fixture
def device() -> Recording:
    return recording("gpuwin")


def test_equal_recordings_pass(plain: Recording, device: Recording) -> None:
    assert_equal(plain, device)
    device.batches[0] = replace(device.batches[0], rows=tuple(reversed(device.batches[0].rows or ())))
    assert_equal(plain, device)


def test_sum_of_doubles_may_differ_in_the_last_digits(plain: Recording, device: Recording) -> None:
    rows = device.batches[0].rows
    assert rows is not None
    device.batches[0] = replace(device.batches[0], rows=(("a", 0, 2, 0.3, 0.0, "x"), *rows[1:]))
    assert_equal(plain, device)


ROW = ("a", 0, 2, 0.1 + 0.2, 0.0, "x")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (0, "b"),
        (0, None),
        (1, 1),
        (2, 3),
        (2, 2.0),
        (2, None),
        (2, True),
        (3, 0.3 * (1 + 2e-09)),
        (3, math.nan),
        (3, math.inf),
        (3, None),
        (4, 5e-324),
        (4, None),
        (5, "X"),
        (5, ""),
        (5, b"x"),
        (5, None),
    ],
)
def test_each_planted_value_is_found(column: int, value: object) -> None:
    changed = (*ROW[:column], value, *ROW[column + 1 :])
    assert list(row_differences([ROW], [ROW], COLUMNS)) == []
    assert list(row_differences([ROW], [changed], COLUMNS))


def test_zero_has_a_sign_in_a_key_only() -> None:
    assert list(row_differences([(0.0,)], [(-0.0,)], ["k_double"]))
    assert not list(row_differences([(0.0,)], [(-0.0,)], ["min_double"]))
    assert not list(row_differences([(0.0,)], [(-0.0,)], ["sum_double"]))


def test_minimum_is_compared_to_the_bit() -> None:
    assert list(row_differences([(1.0,)], [(math.nextafter(1.0, 2.0),)], ["min_double"]))
    assert not list(row_differences([(1.0,)], [(math.nextafter(1.0, 2.0),)], ["sum_double"]))


def test_rows_are_a_multiset() -> None:
    assert not list(row_differences([(1, 0.5), (1, 0.25)], [(1, 0.25), (1, 0.5)]))
    assert list(row_differences([(1, 0.5), (1, 0.5)], [(1, 0.5)]))
    assert list(row_differences([(1, 0.5)], [(1, 0.5), (1, 0.5)]))
    assert list(row_differences([(1, 0.5), (1, 0.25)], [(1, 0.5), (1, 0.5)]))
    assert not list(row_differences([(Decimal("1.0"),)], [(Decimal("1.0"),)]))
    assert list(row_differences([(Decimal("1.0"),)], [(Decimal("1.1"),)]))


def _move_row(r: Recording) -> None:
    rows = r.batches[0].rows or ()
    r.batches[0], r.batches[1] = replace(r.batches[0], rows=rows[1:]), replace(r.batches[1], rows=rows[:1])


def _batch(index: int, **changes: object) -> object:
    def change(r: Recording) -> None:
        r.batches[index] = replace(r.batches[index], **changes)  # type: ignore[arg-type]

    return change


def _field(name: str, value: object) -> object:
    return lambda r: setattr(r, name, value)


@pytest.mark.parametrize(
    "change",
    [
        _move_row,
        lambda r: r.batches.pop(),
        lambda r: r.batches.pop(0),
        lambda r: r.batches.append(replace(r.batches[-1], id=3)),
        lambda r: r.batches.reverse(),
        _batch(2, rows=()),
        _batch(2, rows=None),
        _batch(1, watermark="1970-01-01T00:01:00.001Z"),
        _batch(1, watermark=None),
        _batch(2, dropped=0),
        _batch(1, dropped=1),
        _batch(1, input_rows=1),
        _field("schema", "t"),
        _field("plan_schema", "t"),
        _field("error", Failure("ArithmeticException", "ARITHMETIC_OVERFLOW", "22003", "long overflow")),
    ],
)
def test_each_planted_difference_is_found(plain: Recording, device: Recording, change: object) -> None:
    change(device)  # type: ignore[operator]
    with pytest.raises(AssertionError, match="gpuwin differs from Spark"):
        assert_equal(plain, device)


@pytest.mark.parametrize("name", ["kind", "condition", "state", "message"])
def test_each_part_of_an_error_is_compared(plain: Recording, device: Recording, name: str) -> None:
    plain.error = device.error = Failure("ArithmeticException", "ARITHMETIC_OVERFLOW", "22003", "long overflow")
    assert_equal(plain, device, fails=True)
    device.error = replace(plain.error, **{name: "other"})
    with pytest.raises(AssertionError, match="error: expected"):
        assert_equal(plain, device, fails=True)


def test_a_failure_must_be_expected(plain: Recording, device: Recording) -> None:
    with pytest.raises(AssertionError, match="expected a failure"):
        assert_equal(plain, device, fails=True)
    plain.error = device.error = Failure("ArithmeticException", None, None, "long overflow")
    with pytest.raises(AssertionError, match="expected no failure"):
        assert_equal(plain, device)


def test_plan_that_was_not_offloaded_fails(plain: Recording, device: Recording) -> None:
    with pytest.raises(NotOffloaded):
        assert_equal(plain, recording("stateStoreSave"))
    with pytest.raises(NotOffloaded):
        assert_equal(device, recording("gpuwin"))
    for batch in range(3):
        half = recording("gpuwin")
        half.batches[batch] = replace(half.batches[batch], operators=("stateStoreSave",))
        with pytest.raises(NotOffloaded):
            assert_equal(plain, half)
    device.plan = plain.plan
    with pytest.raises(NotOffloaded):
        assert_equal(plain, device)


def test_vacuous_run_fails(plain: Recording, device: Recording) -> None:
    for r in (plain, device):
        r.batches[2] = replace(r.batches[2], dropped=0)
    with pytest.raises(Vacuous, match="0 rows were late"):
        assert_equal(plain, device)
    assert_equal(plain, device, late=False)
    for r in (plain, device):
        r.batches = [replace(b, rows=(), dropped=1) for b in r.batches]
    with pytest.raises(Vacuous, match="no row"):
        assert_equal(plain, device)


def test_differences_name_the_batch(plain: Recording, device: Recording) -> None:
    device.batches[2] = replace(device.batches[2], rows=())
    assert differences(plain, device) == ["batch 2: missing ('a', 0, 3, 1000000000.0, '0x0.0000000000001p-1022', 'x')"]


def test_the_cases_cover_what_they_should() -> None:
    rows = [{d: getattr(c, d) for d in DIMENSIONS} for c in CASES]
    assert all(map(possible, rows))
    for d, values in DIMENSIONS.items():
        assert {r[d] for r in rows} == set(values), d
    modes = {(r["mode"], r["aggregate"]) for r in rows}
    assert len(modes) == len(DIMENSIONS["mode"]) * len(DIMENSIONS["aggregate"])
    assert len({(r["mode"], r["provider"]) for r in rows}) == 12
    assert len({(r["mode"], r["window"]) for r in rows}) == 30
    assert ("mode", "provider") in PAIRS


def test_every_kind_of_window_and_mode_is_there_on_both_providers() -> None:
    """In CI; the sweep on the other provider has each window for itself."""
    two = {"hdfs", "rocksdb"}
    windows = {(c.window.startswith("tumbling"), c.mode, c.provider.partition("_")[0]) for c in CASES}
    assert windows == set(itertools.product((False, True), DIMENSIONS["mode"], two))
    assert {(c.mode, c.provider.partition("_")[0]) for c in SESSIONS} == set(
        itertools.product(("append", "complete"), two)
    )
    everything = [*CASES, *(replace(c, provider=OTHER_PROVIDER[c.provider]) for c in CASES)]
    assert len({(c.window, c.mode, c.provider.partition("_")[0]) for c in everything}) == 10 * 3 * 2


def test_covering_leaves_out_what_is_impossible() -> None:
    dimensions = {"a": ["1", "2"], "b": ["1", "2"], "c": ["1", "2", "3"]}

    def allowed(row: Row) -> bool:
        return row["a"] != row["b"]

    rows = covering(dimensions, [("a", "b"), ("b", "c")], allowed)
    assert {(r["a"], r["b"]) for r in rows} == {("1", "2"), ("2", "1")}
    assert {(r["b"], r["c"]) for r in rows} == {(b, c) for b in "12" for c in "123"}
    assert rows == covering(dimensions, [("a", "b"), ("b", "c")], allowed)


def test_generated_streams_hold_what_they_promise(tmp_path: Path) -> None:
    spec = StreamSpec(seed=3, base="epoch", files=3)
    stream = write(spec, tmp_path / "a")
    again = write(spec, tmp_path / "b")
    tables = [pq.read_table(f) for f in stream.files]
    assert [f.read_bytes() for f in stream.files] == [f.read_bytes() for f in again.files], "a seed gives one stream"
    assert [f.stat().st_mtime for f in stream.files] == sorted({f.stat().st_mtime for f in stream.files})
    batches = [sum(pq.read_table(f).num_rows for f in b) for b in stream.batches]
    assert batches == [90, 90, 0, 90]
    times = [t for table in tables for t in table.column("ts").cast("int64").to_pylist()]
    known = [t for t in times if t is not None]
    assert None in times
    assert min(known) < 0 < max(known)
    assert len(set(known)) < len(known)
    for name in tables[0].column_names[3:]:
        assert any(t.column(name).null_count for t in tables), name
