"""Running totals between calls: the same windows as from the cells, and costs that follow what enters and leaves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwin.grid import WindowGrid
from gpuwin.state import PaneState, Run, WindowBatch
from gpuwin.state.panes import pane_state as panes_module
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

LAYOUT = CellLayout(
    (
        CellColumn("n", "sum", "int64"),
        CellColumn("s", "sum", "int64", nullable=True),
        CellColumn("f", "sum", "float64", nullable=True),
        CellColumn("w", "sum", "int128", nullable=True),
    )
)
Cell = tuple[int, int, int | None, float | None]


def run_of(cells: list[Cell]) -> Run:
    pane = np.array([c[0] for c in cells], np.int64)
    code = np.array([c[1] for c in cells], np.int32)
    ints = np.array([5 if c[2] is None else c[2] for c in cells], np.int64)
    floats = np.array([5.0 if c[3] is None else c[3] for c in cells], np.float64)
    valid_i = np.array([c[2] is not None for c in cells], np.uint8)
    valid_f = np.array([c[3] is not None for c in cells], np.uint8)
    columns = (
        CellArrays((np.ones(len(cells), np.int64),), None),
        CellArrays((ints,), valid_i),
        CellArrays((floats,), valid_f),
        CellArrays((ints, ints.view(np.uint64)), valid_i),
    )
    return Run.from_cells(LAYOUT, pane, code, columns)


def rows_of(batch: WindowBatch) -> list[tuple[object, ...]]:
    columns = []
    for cells in batch.columns:
        valid = [1] * len(batch.code) if cells.valid is None else cells.valid.tolist()
        words = zip(*(w.tolist() for w in cells.values), strict=True)
        columns.append([w if ok else None for w, ok in zip(words, valid, strict=True)])
    return list(zip(batch.window.tolist(), batch.code.tolist(), *columns, strict=True))


def same(a: list[tuple[object, ...]], b: list[tuple[object, ...]], size: float) -> None:
    assert [(*r[:4], r[5]) for r in a] == [(*r[:4], r[5]) for r in b]
    for x, y in zip(a, b, strict=True):
        if x[4] is None or y[4] is None:
            assert x[4] is y[4]
            continue
        (mine,), (its,) = x[4], y[4]  # type: ignore[misc]
        if math.isnan(its) or math.isinf(its):
            assert repr(mine) == repr(its)
        else:
            assert abs(mine - its) <= 1e-12 * size


values = st.sampled_from([0.1, -2.5, 1e300, -1e300, 1e-200, math.inf, -math.inf, math.nan, 3.0])
cells = st.tuples(
    st.integers(-30, 30), st.integers(0, 3), st.none() | st.integers(-100, 100), st.none() | values | st.floats(-9, 9)
)
grids = st.one_of(
    st.builds(WindowGrid, st.integers(5, 12), st.integers(1, 3)),
    st.builds(WindowGrid, st.integers(6, 12), st.just(1), st.just(True)),
)


@settings(max_examples=200, deadline=None)
@given(
    grid=grids,
    steps=st.lists(st.tuples(st.lists(cells, max_size=6), st.integers(0, 2), st.booleans()), min_size=1, max_size=12),
    start=st.integers(-30, -10),
)
@example(  # the cell of pane -5 is inf by the time it leaves, and 0.1 of it had entered
    grid=WindowGrid(5, 1),
    steps=[([(-5, 0, None, 0.1)], 4, False), ([(-1, 0, None, 0.1), (-5, 0, None, math.inf)], 2, False)],
    start=-10,
)
def test_closing_a_few_windows_at_a_time(
    grid: WindowGrid, steps: list[tuple[list[Cell], int, bool]], start: int
) -> None:
    state = PaneState.empty(LAYOUT, [pa.int64()])
    state.keys.encode([pa.array(range(4))], 4)
    upto = start
    for batch, windows, retry in steps:
        # What is left behind for good by the windows that have closed does not matter to the ones that follow.
        state = state.add(run_of(batch))
        size = sum(
            float(np.abs(v[np.isfinite(v)]).sum())
            for r in state.runs
            for v in [r.columns[2].values[0][r.columns[2].valid != 0]]
        )
        first, last = upto + 1, upto + windows
        before = state
        got = rows_of(state.closing(grid, first, last))
        same(got, rows_of(replace(state, carry=None).closing(grid, first, last)), size)
        if retry:  # a task that is repeated finds the state as it was
            same(rows_of(before.closing(grid, first, last)), got, size)
        upto = last
        state = state.evict(grid.first_pane(upto + 1))


def test_the_cost_is_what_enters_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = WindowGrid(10_080, 1)
    keys, panes = 50, 10_200
    state = PaneState.empty(LAYOUT, [pa.int64()])
    state.keys.encode([pa.array(range(keys))], keys)
    pane = np.repeat(np.arange(panes), keys)
    code = np.tile(np.arange(keys, dtype=np.int32), panes)
    ones = np.ones(len(pane), np.int64)
    some = np.ones(len(pane), np.uint8)
    columns = (
        CellArrays((ones,), None),
        CellArrays((ones * 3,), some),
        CellArrays((np.full(len(pane), 0.1),), some),
        CellArrays((ones - 1, ones.view(np.uint64)), some),
    )
    state = state.add(Run.from_cells(LAYOUT, pane, code, columns))
    state.closing(grid, 0, 0)
    calls = []
    walk = panes_module.walk_windows
    monkeypatch.setattr(panes_module, "walk_windows", lambda *a: calls.append(a) or walk(*a))
    for window in range(1, 100):
        batch = state.closing(grid, window, window)
        assert len(batch.code) == keys
        assert (batch.columns[1].values[0] == 3 * 10_080).all()
        assert np.abs(batch.columns[2].values[0] - 1008.0).max() < 1e-9
        state = state.evict(window + 1)
    assert not calls  # the cells of the windows were never read again
