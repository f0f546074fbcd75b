"""Panes, windows and eviction against a plain dictionary of cells."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin.grid import WindowGrid
from gpuwin.state import BytesHeap, PaneState, Run, WindowBatch
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

MIN, MAX = -(1 << 63), (1 << 63) - 1
LAYOUT = CellLayout(
    (
        CellColumn("count", "sum", "int64"),
        CellColumn("sum", "sum", "int64", nullable=True),
        CellColumn("float", "sum", "float64", nullable=True),
        CellColumn("wide", "sum", "int128"),
        CellColumn("least", "min", "int64", nullable=True),
        CellColumn("most", "max", "float64"),
        CellColumn("most_wide", "max", "int128", nullable=True),
        CellColumn("first_name", "min", "bytes", nullable=True),
        CellColumn("last_name", "max", "bytes"),
        CellColumn("moments", "moments", "float64"),
        CellColumn("first", "first", "float64", nullable=True),
        CellColumn("last", "last", "bytes"),
    )
)
Cell = tuple[int, int, tuple[Any, ...]]  # pane, code, one value per column


def float_key(x: float) -> tuple[int, float, float]:
    return (1, 0.0, 0.0) if math.isnan(x) else (0, x, math.copysign(1.0, x))


def merged(column: CellColumn, values: list[Any]) -> Any:
    values = [v for v in values if v is not None]
    if not values:
        return None
    if column.merge == "sum":
        return plain_sum(values)
    if column.merge == "moments":
        flat = [x for v in values for x in v]
        mean = sum(flat) / len(flat)
        return len(flat), mean, sum((x - mean) ** 2 for x in flat)
    if column.merge in ("first", "last"):
        return (min if column.merge == "first" else max)(values, key=lambda v: (v[0], v[1]))
    key = float_key if column.dtype == "float64" else None
    return (min if column.merge == "min" else max)(values, key=key)


def plain_sum(values: list[Any]) -> Any:
    if isinstance(values[0], int):
        return sum(values)
    if any(math.isnan(v) or math.isinf(v) for v in values):
        return sum(values)
    return math.fsum(values)


def windows_of(grid: WindowGrid, pane: int) -> list[int]:
    size, slide = grid.panes_per_window, grid.panes_per_slide
    if grid.cumulative:
        return list(range(pane, pane - pane % size + size))
    return list(range(-((size - 1 - pane) // slide), pane // slide + 1))


@dataclass
class Oracle:
    cells: dict[tuple[int, int], list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, cells: list[Cell]) -> None:
        for pane, code, values in cells:
            self.cells[pane, code].append(values)

    def evict(self, pane: int) -> None:
        for at in [at for at in self.cells if at[0] < pane]:
            del self.cells[at]

    def windows(self, grid: WindowGrid, first: int | None, last: int | None) -> dict[tuple[int, int], tuple[Any, ...]]:
        rows: dict[tuple[int, int], list[tuple[Any, ...]]] = defaultdict(list)
        for (pane, code), values in self.cells.items():
            for window in windows_of(grid, pane):
                if MIN <= window <= MAX and (first is None or window >= first) and (last is None or window <= last):
                    rows[window, code].extend(values)
        return {at: total(values) for at, values in rows.items()}


def total(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(merged(c, [r[i] for r in rows]) for i, c in enumerate(LAYOUT.columns))


def arrays_of(cells: list[Cell], heap: BytesHeap) -> tuple[np.ndarray, np.ndarray, tuple[CellArrays, ...]]:
    pane = np.array([c[0] for c in cells], np.int64)
    code = np.array([c[1] for c in cells], np.int32)
    columns = []
    for i, column in enumerate(LAYOUT.columns):
        values = [c[2][i] for c in cells]
        valid = np.array([v is not None for v in values], np.uint8) if column.nullable else None
        columns.append(CellArrays(words_of(column, values, heap), valid))
    return pane, code, tuple(columns)


def words_of(column: CellColumn, values: list[Any], heap: BytesHeap) -> tuple[np.ndarray, ...]:
    if column.merge == "moments":
        triples = [merged(column, [v]) for v in values]
        return tuple(np.array([t[k] for t in triples], np.float64) for k in range(3))
    if column.merge in ("first", "last"):
        times = [(0, 0, None) if v is None else v for v in values]
        time, seq = (np.array([t[k] for t in times], np.int64) for k in range(2))
        return time, seq, *plain_words(column.dtype, [t[2] for t in times], heap)
    return plain_words(column.dtype, values, heap)


def plain_words(dtype: str, values: list[Any], heap: BytesHeap) -> tuple[np.ndarray, ...]:
    if dtype == "bytes":
        return (heap.put(pa.array(values, pa.binary())),)
    if dtype == "int128":
        numbers = [v or 0 for v in values]
        return np.array([v >> 64 for v in numbers], np.int64), np.array([v & (1 << 64) - 1 for v in numbers], np.uint64)
    return (np.array([7 if v is None else v for v in values], np.dtype(dtype)),)


def rows_of(batch: WindowBatch, heap: BytesHeap) -> dict[tuple[int, int], tuple[Any, ...]]:
    columns = []
    for column, cells in zip(LAYOUT.columns, batch.columns, strict=True):
        *lead, value = list_of(column, cells, heap)
        values = [tuple(v) for v in zip(*lead, value, strict=True)] if lead else value
        valid = [1] * len(values) if cells.valid is None else cells.valid.tolist()
        columns.append([v if ok else None for v, ok in zip(values, valid, strict=True)])
    out = {}
    for i, at in enumerate(zip(batch.window.tolist(), batch.code.tolist(), strict=True)):
        assert at not in out
        out[at] = tuple(c[i] for c in columns)
    return out


def list_of(column: CellColumn, cells: CellArrays, heap: BytesHeap) -> list[list[Any]]:
    words = list(cells.values)
    if column.dtype == "bytes":
        return [*(w.tolist() for w in words[:-1]), heap.take(words[-1], cells.valid, pa.binary()).to_pylist()]
    if column.dtype == "int128":
        hi, lo = (w.tolist() for w in words[-2:])
        return [*(w.tolist() for w in words[:-2]), [(h << 64) + x for h, x in zip(hi, lo, strict=True)]]
    return [w.tolist() for w in words]


def close(a: Any, b: Any, scale: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= 1e-12 * scale


def check(got: dict[Any, Any], want: dict[Any, Any], oracle: Oracle) -> None:
    assert got.keys() == want.keys()
    size = sum(abs(v[2]) for vs in oracle.cells.values() for v in vs if v[2] is not None and math.isfinite(v[2]))
    for at, row in want.items():
        for column, mine, its in zip(LAYOUT.columns, got[at], row, strict=True):
            if column.merge == "moments":
                assert mine[0] == its[0]
                assert mine[1] == pytest.approx(its[1], rel=1e-9, abs=1e-9)
                assert mine[2] == pytest.approx(its[2], rel=1e-9, abs=1e-6)
            elif column.name == "float" and its is not None:
                assert mine is not None
                assert close(mine, its, size), (at, mine, its)
            else:
                assert repr(mine) == repr(its), (at, column.name, mine, its)


numbers = st.integers(-(1 << 40), 1 << 40)
floats = st.sampled_from([0.0, -0.0, 1.5, -3.25, 1e300, -1e300, 1e-9, 0.1, math.inf, -math.inf, math.nan])
names = st.binary(max_size=12)
seqs = st.integers(0, 1 << 40)


@st.composite
def cell_values(draw: st.DrawFn) -> tuple[Any, ...]:
    def maybe(s: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | s)

    times = st.integers(-3, 3)
    return (
        1,
        maybe(numbers),
        maybe(floats.filter(lambda x: abs(x) != 1e300) | st.floats(-1e3, 1e3)),
        draw(st.integers(-(1 << 100), 1 << 100)),
        maybe(st.sampled_from([MIN, MAX, 0, -1, 5])),
        draw(floats),
        maybe(st.integers(-(1 << 127), (1 << 127) - 1)),
        maybe(names),
        draw(names),
        draw(st.lists(st.floats(-100, 100), min_size=1, max_size=3)),
        draw(st.none() | st.tuples(times, seqs, st.floats(-9, 9))),
        draw(st.tuples(times, seqs, names)),
    )


def batches_of(panes: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[Cell]]]:
    # Ties of (time, seq) have no answer: each row of a stream has a seq of its own.
    cell = st.tuples(panes, st.integers(0, 4), cell_values())
    return st.lists(st.lists(cell, max_size=8), min_size=1, max_size=5).map(with_own_seqs)


def with_own_seqs(batches: list[list[Cell]]) -> list[list[Cell]]:
    seq = 0
    out = []
    for batch in batches:
        cells = []
        for pane, code, values in batch:
            seq += 1
            first, last = values[10], values[11]
            first = None if first is None else (first[0], seq, first[2])
            cells.append((pane, code, (*values[:10], first, (last[0], seq, last[2]))))
        out.append(cells)
    return out


grids = st.one_of(
    st.builds(WindowGrid, st.integers(1, 7), st.integers(1, 9)),
    st.builds(WindowGrid, st.integers(1, 5), st.just(1), st.just(True)),
)


def empty_state() -> PaneState:
    state = PaneState.empty(LAYOUT, [pa.int64()])
    state.keys.encode([pa.array(range(5))], 5)
    return state


@settings(max_examples=150, deadline=None)
@given(batches_of(st.integers(-12, 12)), grids, st.data())
def test_any_stream_against_a_dictionary(batches: list[list[Cell]], grid: WindowGrid, data: st.DataObject) -> None:
    state, oracle = empty_state(), Oracle()
    bounds = st.none() | st.integers(-15, 15)
    for batch in batches:
        run = Run.from_cells(LAYOUT, *arrays_of(batch, state.heap), state.heap)
        before = state
        state = state.add(run)
        check_state(before, oracle, grid, None, None)
        oracle.add(batch)
        first, last = data.draw(bounds), data.draw(bounds)
        check_state(state, oracle, grid, first, last)
        touched = {(w, c) for p, c, _ in batch for w in windows_of(grid, p) if first is None or w >= first}
        want = {at: row for at, row in oracle.windows(grid, first, None).items() if at in touched}
        check(rows_of(state.touched(grid, run, first), state.heap), want, oracle)
        if data.draw(st.booleans()):
            pane = data.draw(st.integers(-13, 13))
            state = state.evict(pane)
            oracle.evict(pane)
            check_state(state, oracle, grid, None, None)
    whole = state.compacted()
    assert len(whole.runs) <= 1
    assert whole.cells == len(oracle.cells)
    check_state(whole, oracle, grid, None, None)


def check_state(state: PaneState, oracle: Oracle, grid: WindowGrid, first: int | None, last: int | None) -> None:
    batch = state.closing(grid, first, last)
    check(rows_of(batch, state.heap), oracle.windows(grid, first, last), oracle)
    order = list(zip(batch.window.tolist(), batch.code.tolist(), strict=True))
    assert order == sorted(order)
    panes = [p for p, _ in oracle.cells]
    assert state.first_pane == min(panes, default=None)


@settings(max_examples=60, deadline=None)
@given(batches_of(st.sampled_from([MIN, MIN + 1, MIN + 2, -1, 0, MAX - 2, MAX - 1, MAX])), grids)
def test_panes_at_the_ends_of_int64(batches: list[list[Cell]], grid: WindowGrid) -> None:
    state, oracle = empty_state(), Oracle()
    for batch in batches:
        state = state.add(Run.from_cells(LAYOUT, *arrays_of(batch, state.heap), state.heap))
        oracle.add(batch)
    want = {at: row for at, row in oracle.windows(grid, None, None).items() if in_range(grid, at[0])}
    got = {at: row for at, row in rows_of(state.closing(grid, None, None), state.heap).items() if in_range(grid, at[0])}
    check(got, want, oracle)


def in_range(grid: WindowGrid, window: int) -> bool:
    """Its panes fit int64; the smallest id is not given out."""
    return window > MIN and grid.first_pane(window) >= MIN and grid.last_pane(window) <= MAX


@settings(max_examples=60, deadline=None)
@given(batches_of(st.integers(-12, 12)), grids, st.integers(1, 9))
def test_chunks_are_the_whole(batches: list[list[Cell]], grid: WindowGrid, max_rows: int) -> None:
    state = empty_state()
    for batch in batches:
        state = state.add(Run.from_cells(LAYOUT, *arrays_of(batch, state.heap), state.heap))
    chunks = list(state.closing_chunks(grid, None, None, max_rows))
    assert all(0 < len(c.code) <= max_rows for c in chunks)
    rows = [row for c in chunks for row in rows_of(c, state.heap).items()]
    assert repr(rows) == repr(list(rows_of(state.closing(grid, None, None), state.heap).items()))
