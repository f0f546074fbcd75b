"""The driver of windows on a grid: which windows a batch emits, by mode and frontier."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpuwin.drivers.grid_windows import Frontier, GridDriver
from gpuwin.grid import WindowGrid
from gpuwin.state import PaneState, Run
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

LAYOUT = CellLayout((CellColumn("n", "sum", "int64"),))
SLIDING = WindowGrid(2, 1)  # window k is panes k and k + 1
NONE = -(1 << 63)


def run(*cells: tuple[int, int]) -> Run:
    """Cells (pane, value) of the key with code 0."""
    pane, value = (np.array(column, np.int64) for column in zip(*cells, strict=True))
    return Run.from_cells(LAYOUT, pane, np.zeros(len(pane), np.int32), (CellArrays((value,), None),))


def state(*cells: tuple[int, int]) -> PaneState:
    empty = PaneState.empty(LAYOUT, [pa.int64()])
    empty.keys.encode([pa.array([7])], 1)
    return empty.add(run(*cells))


def emitted(driver: GridDriver, before: PaneState, batch: Run | None, at: Frontier) -> dict[int, int]:
    after = before if batch is None else before.add(batch)
    found = [b for b in driver.emitted(before, after, batch, at)[1] if len(b.code)]
    assert all(len(b.code) <= driver.most for b in found)
    windows = [int(w) for b in found for w in b.window]
    assert len(set(windows)) == len(windows)
    return dict(zip(windows, [int(v) for b in found for v in b.columns[0].values[0]], strict=True))


@pytest.mark.parametrize("most", [1, 100])
def test_modes(most: int) -> None:
    before, batch = state((0, 1), (1, 10)), run((1, 100), (2, 1000))
    at = Frontier(late=NONE, emitted=NONE, closed=0, evicted=0)
    assert emitted(GridDriver(SLIDING, "append", most), before, batch, at) == {-1: 1, 0: 111}
    assert emitted(GridDriver(SLIDING, "update", most), before, batch, at) == {0: 111, 1: 1110, 2: 1000}
    assert emitted(GridDriver(SLIDING, "complete", most), before, batch, at) == {-1: 1, 0: 111, 1: 1110, 2: 1000}


def test_windows_that_were_emitted_are_not_emitted_again() -> None:
    driver = GridDriver(SLIDING, "append", 100)
    assert emitted(driver, state((0, 1), (1, 10)), None, Frontier(0, 0, 1, 1)) == {1: 10}
    assert emitted(driver, state((0, 1), (1, 10)), None, Frontier(0, 1, 1, 1)) == {}
    assert emitted(driver, state((0, 1), (1, 10)), None, Frontier(0, 0, None, None)) == {1: 10}


def test_windows_reopen_until_they_are_evicted() -> None:
    before, batch = state((0, 1), (1, 10)), run((1, 100))
    at = Frontier(late=NONE, emitted=0, closed=0, evicted=NONE)
    assert emitted(GridDriver(SLIDING, "append", 100, reopens=True), before, batch, at) == {0: 111}
    assert emitted(GridDriver(SLIDING, "append", 100), before, batch, at) == {}


def test_one_watermark_filters_a_batch_and_closes_windows() -> None:
    """Window 0 is late for the batch, whose cell in pane 1 is of window 1, too: it closes with what it held before."""
    before, batch = state((0, 1), (1, 10)), run((1, 100))
    at = Frontier(late=0, emitted=NONE, closed=1, evicted=1)
    both = GridDriver(SLIDING, "append", 100, one_watermark=True)
    assert emitted(both, before, batch, at) == {-1: 1, 0: 11, 1: 110}
    assert emitted(GridDriver(SLIDING, "append", 100), before, batch, at) == {-1: 1, 0: 111, 1: 110}


def test_late_cells() -> None:
    driver = GridDriver(WindowGrid(3, 1), "append", 100)
    gone, pairs = driver.late(np.array([0, 1, 2, 3, 4]), 1)
    assert gone is not None
    assert gone.tolist() == [True, True, False, False, False]
    assert pairs == 3 + 3 + 2 + 1
    assert driver.late(np.array([4, 5]), 1) == (None, 0)
    assert driver.late(np.array([4, 5]), NONE) == (None, 0)
    gone, pairs = driver.late(np.array([4, 5]), None)
    assert gone is not None
    assert gone.all()
    assert pairs == 6


def test_eviction() -> None:
    driver = GridDriver(SLIDING, "append", 100)
    held = state((0, 1), (1, 10), (2, 100))
    assert driver.evicted(held, NONE) is held
    assert driver.evicted(held, -1).first_pane == 0
    assert driver.evicted(held, 0).first_pane == 1
    assert driver.evicted(held, None).cells == 0
    assert driver.first_kept(3) == 4
    assert GridDriver(WindowGrid(1, 1, endless=True), "append", 1).first_kept(-1) is None
