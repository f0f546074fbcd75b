"""Minima, last values and variances between calls: the same windows as from the cells, which are seldom read again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin.grid import WindowGrid
from gpuwin.state import PaneState, Run, WindowBatch
from gpuwin.state.panes import pane_state as panes_module
from gpuwin.state.panes.kept_stacks import KeptStacks
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

LAYOUT = CellLayout(
    (
        CellColumn("n", "sum", "int64"),
        CellColumn("high", "max", "int64", nullable=True),
        CellColumn("low", "min", "float64"),
        CellColumn("newest", "last", "int64", nullable=True),
        CellColumn("spread", "moments", "float64", nullable=True),
    )
)
Cell = tuple[int, int, int | None]


def run_of(cells: list[Cell], seq: int) -> Run:
    pane = np.array([c[0] for c in cells], np.int64)
    code = np.array([c[1] for c in cells], np.int32)
    value = np.array([7 if c[2] is None else c[2] for c in cells], np.int64)
    valid = np.array([c[2] is not None for c in cells], np.uint8)
    ones, floats = np.ones(len(cells), np.int64), value.astype(np.float64)
    columns = (
        CellArrays((ones,), None),
        CellArrays((value,), valid),
        CellArrays((floats,), None),
        CellArrays((pane, seq + np.arange(len(cells)), value), valid),
        CellArrays((np.ones(len(cells)), floats, np.zeros(len(cells))), valid),
    )
    return Run.from_cells(LAYOUT, pane, code, columns)


def rows_of(batch: WindowBatch) -> list[tuple[object, ...]]:
    """One tuple for each window; variances rounded, since they depend on the order of merging."""
    columns = []
    for cells in batch.columns:
        valid = [1] * len(batch.code) if cells.valid is None else cells.valid.tolist()
        words = zip(*([float(f"{round(v, 6):.9g}") for v in w.tolist()] for w in cells.values), strict=True)
        columns.append([w if ok else None for w, ok in zip(words, valid, strict=True)])
    return list(zip(batch.window.tolist(), batch.code.tolist(), *columns, strict=True))


def empty(keys: int) -> PaneState:
    state = PaneState.empty(LAYOUT, [pa.int64()])
    state.keys.encode([pa.array(range(keys))], keys)
    return state


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from([16, 20, 33]),
    cumulative=st.booleans(),
    batches=st.lists(
        st.lists(st.tuples(st.integers(-18, 2), st.integers(0, 3), st.none() | st.integers(-9, 9)), max_size=5),
        min_size=1,
        max_size=50,
    ),
)
def test_closing_one_window_at_a_time(size: int, cumulative: bool, batches: list[list[Cell]]) -> None:
    grid, state, upto = WindowGrid(size, 1, cumulative), empty(4), -40
    for seq, batch in enumerate(batches):
        state = state.add(run_of([(upto + pane + size, code, value) for pane, code, value in batch], 100 * seq))
        upto += 1
        got = rows_of(state.closing(grid, upto, upto))
        assert got == rows_of(replace(state, carry=None).closing(grid, upto, upto))
        state = state.evict(grid.first_pane(upto + 1))


@pytest.mark.parametrize("late", [False, True])
def test_the_cells_of_a_window_are_read_again_once_in_a_windows_length(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    grid, keys, state = WindowGrid(1_000, 1), 20, empty(20)
    walks, begun = [], []
    walk, begin = panes_module.walk_windows, KeptStacks.begin
    monkeypatch.setattr(panes_module, "walk_windows", lambda *a: walks.append(a) or walk(*a))
    monkeypatch.setattr(KeptStacks, "begin", lambda *a: begun.append(a) or begin(*a))
    for pane in range(3_000):
        cells: list[Cell] = [(pane, code, (pane * 7 + code) % 1_001) for code in range(keys)]
        if late and pane > 500 and pane % 10 == 0:
            cells.append((pane - 400, pane % keys, 2_000 + pane))
        state = state.add(run_of(cells, pane))
        window = pane - 999
        batch = state.closing(grid, window, window)
        if pane % 500 == 499:
            assert rows_of(batch) == rows_of(replace(state, carry=None).closing(grid, window, window))
        state = state.evict(window + 1)
    assert len(walks) < 20
    assert len(begun) < 20 * 4
