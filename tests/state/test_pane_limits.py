"""What a state refuses, forgets, and does not copy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpuwin.errors import OverflowError
from gpuwin.grid import WindowGrid
from gpuwin.state import PaneState, Run
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout, UserMerge

MAX = (1 << 63) - 1
SUM = CellLayout((CellColumn("s", "sum", "int64"),))
WIDE = CellLayout((CellColumn("s", "sum", "int128"),))
PANES = WindowGrid(1, 1)


def run_of(layout: CellLayout, cells: list[tuple[int, int, int]]) -> Run:
    pane = np.array([c[0] for c in cells], np.int64)
    code = np.array([c[1] for c in cells], np.int32)
    if layout.columns[0].dtype == "int128":
        words = tuple(
            np.array([f(c[2]) for c in cells], t)
            for f, t in ((lambda v: v >> 64, np.int64), (lambda v: v & (1 << 64) - 1, np.uint64))
        )
    else:
        words = (np.array([c[2] for c in cells], np.int64),)
    return Run.from_cells(layout, pane, code, (CellArrays(words, None),))


def state_of(layout: CellLayout, keys: int = 2000) -> PaneState:
    state = PaneState.empty(layout, [pa.int64()])
    state.keys.encode([pa.array(range(keys))], keys)
    return state


def sums(state: PaneState, grid: WindowGrid = PANES) -> list[int]:
    return [int(v) for v in state.closing(grid, None, None).columns[0].values[0]]


def test_a_cell_that_overflows_is_refused_whatever_tier_it_lies_in() -> None:
    state = state_of(SUM).add(run_of(SUM, [(0, c, MAX) for c in range(1000)]))
    state = state.add(run_of(SUM, [(0, 0, -5)]))
    assert len(state.runs) == 2
    with pytest.raises(OverflowError, match="'s'"):
        state.add(run_of(SUM, [(0, 7, 1)]))
    state = state.add(run_of(SUM, [(0, 0, 5), (1, 7, 1)]))
    assert sums(state) == [MAX] * 1000 + [1]
    assert sums(state.compacted()) == [MAX] * 1000 + [1]
    with pytest.raises(OverflowError):
        state.add(run_of(SUM, [(0, 0, 1)]))


def test_parts_that_only_fit_together_are_merged_together() -> None:
    state = state_of(SUM).add(run_of(SUM, [(0, c, -9) for c in range(1000)]))
    for value in (MAX, 5, -1, 3, -2):
        state = state.add(run_of(SUM, [(0, 1, value)]))
    assert sums(state)[1] == MAX - 4
    assert sums(state.compacted())[1] == MAX - 4


def test_a_window_that_overflows() -> None:
    grid = WindowGrid(3, 1)
    state = state_of(SUM).add(run_of(SUM, [(0, 0, MAX), (1, 0, -1), (2, 0, 1)]))
    assert sums(state, grid) == [MAX, MAX - 1, MAX, 0, 1]
    with pytest.raises(OverflowError, match="64 bits"):
        sums(state.add(run_of(SUM, [(1, 0, 2)])), grid)
    state = state_of(WIDE).add(run_of(WIDE, [(0, 0, (1 << 127) - 1), (1, 0, 1)]))
    with pytest.raises(OverflowError, match="128 bits"):
        sums(state, grid)
    with pytest.raises(OverflowError):
        state.touched(grid, state.runs[0], None)


def test_wrapping_sums_wrap() -> None:
    layout = CellLayout((CellColumn("s", "sum", "int64", wrap=True),))
    state = state_of(layout).add(run_of(layout, [(0, 0, MAX)])).add(run_of(layout, [(0, 0, 1)]))
    assert sums(state) == [-(1 << 63)]


def test_a_run_of_another_dictionary_is_refused() -> None:
    with pytest.raises(ValueError, match="dictionary"):
        state_of(SUM, keys=3).add(run_of(SUM, [(0, 3, 1)]))


def test_dead_keys_are_evicted() -> None:
    state = PaneState.empty(SUM, [pa.int64()])
    for batch in range(60):
        keys = pa.array(np.arange(batch * 1000, batch * 1000 + 1000))
        code = state.keys.encode([keys], 1000)
        cells = (CellArrays((np.full(1000, batch),), None),)
        state = state.add(Run.from_cells(SUM, np.full(1000, batch), code, cells)).evict(batch - 1)
        assert state.cells == min(batch + 1, 2) * 1000
    assert len(state.keys) < 12_000
    last = state.closing(PANES, 59, 59)
    assert state.keys.take(last.code)[0].to_pylist() == list(range(59_000, 60_000))
    shared = state.evict_panes(1000)
    assert shared.keys is state.keys
    assert shared.cells == 0


def test_few_keys_leave_nothing_of_what_is_evicted() -> None:
    """A stream of few keys goes on for weeks; its dictionary is never searched for dead ones."""
    state = state_of(SUM)
    for batch in range(200):
        state = state.add(run_of(SUM, [(batch, c, 1) for c in range(50)]))
        state = state.evict(batch)
        if batch == 20:
            size = state.nbytes
    assert state.nbytes <= size
    assert not state.gone


def test_dead_strings_are_evicted() -> None:
    layout = CellLayout((CellColumn("name", "max", "bytes"),))
    state = PaneState.empty(layout, [pa.int64()])
    for batch in range(60):
        code = state.keys.encode([pa.array(np.arange(batch * 1000, batch * 1000 + 1000))], 1000)
        names = state.heap.put(pa.array([f"{batch} {i}" for i in range(1000)]))
        state = state.add(Run.from_cells(layout, np.full(1000, batch), code, (CellArrays((names,), None),), state.heap))
        state = state.evict(batch).with_smaller_heap()
    assert state.heap.used < 3 << 20  # a mebibyte, and twice what was alive when it was looked at last
    closed = state.closing(PANES, None, None)
    names = state.heap.take(closed.columns[0].values[0], None, pa.string())
    assert names.to_pylist() == [f"59 {i}" for i in range(1000)]


def test_a_small_batch_does_not_copy_a_large_state() -> None:
    cells = [(p, c, 1) for p in range(100) for c in range(2000)]
    state = state_of(SUM).add(run_of(SUM, cells))
    large = state.runs[0]
    for i in range(50):
        state = state.add(run_of(SUM, [(i, i, 1)]))
    assert state.runs[0] is large
    assert len(state.runs) < 10
    assert len(state.touched(WindowGrid(60, 1), run_of(SUM, [(50, 3, 1)]), None).code) == 60


def test_an_accumulation_of_the_user() -> None:
    user = UserMerge(("float64", "int64"), lambda p, n, q, m: (p * q, n + m))
    layout = CellLayout((CellColumn("product", "user", "float64", nullable=True, user=user),))
    state = state_of(layout)
    for pane, factor in ((0, 2.0), (1, 3.0), (2, 5.0), (2, 0.5)):
        columns = (CellArrays((np.array([factor]), np.array([1])), np.ones(1, np.uint8)),)
        state = state.add(Run.from_cells(layout, np.array([pane]), np.zeros(1, np.int32), columns))
    batch = state.closing(WindowGrid(2, 1), None, None)
    assert batch.columns[0].values[0].tolist() == [2.0, 6.0, 7.5, 2.5]
    assert batch.columns[0].values[1].tolist() == [1, 2, 3, 2]


@pytest.mark.parametrize("panes", [100, 50_000])
def test_what_is_left_of_a_run_does_not_keep_its_memory(panes: int) -> None:
    """Of arrays of the process's own, and of those in kept memory, which are large."""
    state = state_of(SUM).add(run_of(SUM, [(p, c, 1) for p in range(panes) for c in range(2)]))
    (run,) = state.evict(panes - 5).runs
    assert len(run) == run.shares == 10
    (run,) = state.evict(panes // 2 - 5).runs
    assert run.shares == 2 * panes
