"""Rows to cells, by every way there is, against a plain dictionary."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwin.state import Run
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.rows import NO_MASK, Cells, RowInput, SumOverflow, aggregate_rows
from gpuwin_kernels.layout import CellColumn, CellLayout

MIN, MAX = -(1 << 63), (1 << 63) - 1
COLUMNS = (
    ("rows", "sum", "int64", "count", False),
    ("count", "sum", "int64", "present", False),
    ("sum_i", "sum", "int64", "i", True),
    ("sum_f", "sum", "float64", "f", True),
    ("sum_w", "sum", "int128", "w", True),
    ("sum_iw", "sum", "int128", "i", True),
    ("min_i", "min", "int64", "i", True),
    ("max_i", "max", "int64", "i", True),
    ("min_f", "min", "float64", "f", True),
    ("max_f", "max", "float64", "f", True),
    ("min_w", "min", "int128", "w", True),
    ("max_w", "max", "int128", "w", True),
    ("moments", "moments", "float64", "f", True),
    ("first", "first", "float64", "f", True),
    ("last", "last", "int64", "i", True),
    ("last_w", "last", "int128", "w", True),
)
LAYOUT = CellLayout(tuple(CellColumn(n, m, d, nullable=null) for n, m, d, _, null in COLUMNS))
Row = dict[str, Any]


def bitmap_of(values: list[Any], offset: int) -> np.ndarray:
    bits = [0] * offset + [v is not None for v in values]
    return np.packbits(bits, bitorder="little") if bits else np.zeros(1, np.uint8)


def inputs_of(rows: list[Row], offset: int, plain: str) -> list[RowInput]:
    time = np.array([r["time"] for r in rows], np.int64)
    seq = np.arange(len(rows), dtype=np.int64)

    def made(name: str) -> RowInput:
        values = [r[name] for r in rows]
        if name == "w":
            words = [v or 0 for v in values]
            array = np.array([[x & (1 << 64) - 1, (x >> 64) & (1 << 64) - 1] for x in words], np.uint64).view(np.int64)
            array = array.reshape(-1, 2)
        else:
            array = np.array([99 if v is None else v for v in values], np.int64 if name == "i" else np.float64)
        if name in plain:
            return RowInput(array, time=time, seq=seq)
        return RowInput(array, bitmap_of(values, offset), offset, time, seq)

    shared = {name: made(name) for name in "ifw"}
    out: list[RowInput] = []
    for _, _, _, source, _ in COLUMNS:
        if source == "count":
            out.append(RowInput(None))
        elif source == "present":
            out.append(RowInput(None, bitmap_of([r["i"] for r in rows], offset), offset))
        else:
            out.append(shared[source])
    return out


def float_key(x: float) -> tuple[int, float, float]:
    return (1, 0.0, 0.0) if math.isnan(x) else (0, x, math.copysign(1.0, x))


def merged(merge: str, dtype: str, source: str, rows: list[Row]) -> Any:
    if source == "count":
        return len(rows)
    if source == "present":
        return sum(r["i"] is not None for r in rows)
    rows = [r for r in rows if r[source] is not None]
    values = [r[source] for r in rows]
    if not values:
        return None
    if merge == "sum":
        return sum(values)
    if merge == "moments":
        mean = sum(values) / len(values)
        return len(values), mean, sum((x - mean) ** 2 for x in values)
    if merge == "first":
        return min(rows, key=lambda r: (r["time"], r["seq"]))[source]
    if merge == "last":
        return max(rows, key=lambda r: (r["time"], r["seq"]))[source]
    return (min if merge == "min" else max)(values, key=float_key if dtype == "float64" else None)


def rows_of(run: Cells) -> dict[tuple[int, int], list[Any]]:
    assert all(a < b for a, b in zip(cells(run)[:-1], cells(run)[1:], strict=True))
    out = []
    for (_, merge, dtype, _, _), cell in zip(COLUMNS, run.columns, strict=True):
        words = [w.tolist() for w in cell.values]
        if dtype == "int128":
            value: list[Any] = [(h << 64) + x for h, x in zip(*words[-2:], strict=True)]
        elif merge == "moments":
            value = list(zip(*words, strict=True))
        else:
            value = words[-1]
        valid = [1] * len(value) if cell.valid is None else cell.valid.tolist()
        out.append([v if ok else None for v, ok in zip(value, valid, strict=True)])
    return {at: list(row) for at, row in zip(cells(run), zip(*out, strict=True), strict=True)}


def cells(run: Run) -> list[tuple[int, int]]:
    return list(zip(run.pane.tolist(), run.code.tolist(), strict=True))


def same(a: Any, b: Any, name: str) -> bool:
    if name == "sum_f" and a is not None and b is not None:
        return (math.isnan(a) and math.isnan(b)) or a == b or abs(a - b) <= 1e-9 * max(1.0, abs(b))
    if name == "moments" and a is not None and b is not None:
        return a[0] == b[0] and all(
            not math.isfinite(y) or x == pytest.approx(y, rel=1e-9, abs=1e-6) for x, y in zip(a[1:], b[1:], strict=True)
        )
    return repr(a) == repr(b)


@pytest.fixture(params=["dense", "partitioned", "sorted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    limits: dict[str, dict[str, int]] = {
        "dense": {},
        "partitioned": {"DENSE_BYTES": 0, "SORT_ROWS": 0, "PART_SPARSITY": 1 << 40, "PART_BYTES": 1 << 12},
        "sorted": {"DENSE_BYTES": 0, "SORT_ROWS": 1 << 40},
    }
    for name, value in limits[request.param].items():
        monkeypatch.setattr(tuning, name, value)
    return str(request.param)


def check(rows: list[Row], width: int, origin: int, offset: int, masked: bool, plain: str = "") -> None:
    """Compares cells with a dictionary; the columns in `plain` have no nulls, and no bitmap."""
    for i, r in enumerate(rows):
        r["seq"] = i
        r.update({name: 1.0 if name == "f" else 1 for name in plain if r[name] is None})
    want: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for r in rows:
        if not masked or r["kept"]:
            want[(r["time"] - origin) // width, r["code"]].append(r)
    run = aggregate_rows(
        LAYOUT,
        inputs_of(rows, offset, plain),
        np.array([r["code"] for r in rows], np.int32),
        np.array([r["time"] for r in rows], np.int64),
        width,
        origin,
        codes=7,
        mask=np.array([r["kept"] for r in rows], np.uint8) if masked else NO_MASK,
    )
    got = rows_of(run)
    assert got.keys() == want.keys()
    for at, some in want.items():
        for (name, merge, dtype, source, _), value in zip(COLUMNS, got[at], strict=True):
            its = merged(merge, dtype, source, some)
            assert same(value, its, name), (at, name, value, its)


floats = st.sampled_from([0.0, -0.0, 1.5, -2.5, 0.1, math.inf, -math.inf, math.nan, 1e18])


def row(times: st.SearchStrategy[int]) -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries(
        {
            "time": times,
            "code": st.integers(0, 6),
            "kept": st.booleans(),
            "i": st.none() | st.integers(-(1 << 50), 1 << 50) | st.just(MAX >> 8),
            "f": st.none() | floats | st.floats(-100, 100),
            "w": st.none() | st.integers(-(1 << 120), 1 << 120),
        }
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(row(st.integers(-40, 40)), max_size=40),
    width=st.integers(1, 9),
    origin=st.integers(-20, 20),
    offset=st.integers(0, 9),
    masked=st.booleans(),
    plain=st.sampled_from(["", "i", "ifw"]),  # each is a kernel of its own
)
def test_rows_against_a_dictionary(
    way: str, rows: list[Row], width: int, origin: int, offset: int, masked: bool, plain: str
) -> None:
    check(rows, width, origin, offset, masked, plain)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(row(st.sampled_from([MIN, MIN + 1, -1, 0, MAX - 1, MAX])), max_size=12),
    width=st.sampled_from([1, 3, 60_000_000, 1 << 61]),
    origin=st.sampled_from([0, 7]),
)
def test_times_at_the_ends_of_int64(rows: list[Row], width: int, origin: int) -> None:
    for r in rows:
        r["time"] = max(r["time"], MIN + origin)  # below that the engine saturates
    check(rows, width, origin, 0, masked=False)


def test_threads_agree_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    n = 300_000
    time, code = rng.integers(0, 3_600_000_000, n), rng.integers(0, 50_000, n).astype(np.int32)
    value = rng.integers(-1000, 1000, n)
    layout = CellLayout(
        (CellColumn("n", "sum", "int64"), CellColumn("s", "sum", "int64"), CellColumn("m", "min", "int64"))
    )
    shared = RowInput(value)
    inputs = [RowInput(None), shared, shared]
    runs = []
    for limits in ({}, {"DENSE_BYTES": 0}, {"DENSE_BYTES": 0, "SORT_ROWS": 1 << 40}):
        with monkeypatch.context() as patched:
            for name, number in limits.items():
                patched.setattr(tuning, name, number)
            for codes in (50_000, 60_000):
                runs.append(aggregate_rows(layout, inputs, code, time, 600_000_000, codes=codes))
    cell = time // 600_000_000 * 50_000 + code
    _, inverse = np.unique(cell, return_inverse=True)
    for run in runs:
        assert (run.pane * 50_000 + run.code == np.unique(cell)).all()
        assert (run.columns[0].values[0] == np.bincount(inverse)).all()
        assert (run.columns[1].values[0] == np.bincount(inverse, value)).all()
        least = np.full(len(run.pane), 5000)
        np.minimum.at(least, inverse, value)
        assert (run.columns[2].values[0] == least).all()


def test_a_sum_that_leaves_its_type_on_the_way_is_refused(way: str) -> None:
    """The caller sums such rows in 128 bits, where it may come back."""
    layout = CellLayout((CellColumn("s", "sum", "int64"), CellColumn("t", "sum", "int64")))
    code, time = np.zeros(3, np.int32), np.zeros(3, np.int64)

    def total(values: list[int]) -> list[int]:
        item = RowInput(np.array(values, np.int64))
        cells = aggregate_rows(layout, [item, item], code, time, 10, codes=1)
        return [int(c.values[0][0]) for c in cells.columns]

    for values in ([MAX, 1, 0], [MIN, -1, 0]):
        with pytest.raises(SumOverflow):
            total(values)
    assert total([1, 2, 3]) == [6, 6]  # nothing is left of the batches that failed


def test_inputs_that_do_not_fit() -> None:
    layout = CellLayout((CellColumn("f", "sum", "float64"),))
    code, time = np.zeros(2, np.int32), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="cannot be fed"):
        aggregate_rows(layout, [RowInput(None)], code, time, 10, codes=1)
    with pytest.raises(ValueError, match="3 values for 2 rows"):
        aggregate_rows(layout, [RowInput(np.zeros(3))], code, time, 10, codes=1)


@pytest.mark.parametrize("ends", [(10, 29), (0, 19), (29, 10)], ids=["before", "after", "reversed"])
def test_a_time_outside_of_its_ends_is_refused(way: str, ends: tuple[int, int]) -> None:
    """It has no record: it would be written to somebody else's memory."""
    layout = CellLayout((CellColumn("n", "sum", "int64"),))
    code, time = np.zeros(3, np.int32), np.array([5, 15, 25])
    with pytest.raises(ValueError, match="outside of the ends"):
        aggregate_rows(layout, [RowInput(None)], code, time, 10, codes=1, ends=ends)
    assert len(aggregate_rows(layout, [RowInput(None)], code, time, 10, codes=1, ends=(5, 25)).pane) == 3
