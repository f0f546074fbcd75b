"""Large walks are shared by threads, by keys: to the bit what one thread makes of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpuwin import OverflowError
from gpuwin.grid import WindowGrid
from gpuwin.state import PaneState, Run
from gpuwin.state.panes import walks as windows
from gpuwin_kernels import tuning
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

COLUMNS = (
    CellColumn("count", "sum", "int64"),
    CellColumn("sum", "sum", "int64", nullable=True),
    CellColumn("float", "sum", "float64", nullable=True),
    CellColumn("wide", "sum", "int128"),
    CellColumn("least", "min", "int64", nullable=True),
    CellColumn("plain", "sum", "float64"),
)
GRIDS = [WindowGrid(1, 1), WindowGrid(5, 1), WindowGrid(12, 4), WindowGrid(2, 3), WindowGrid(6, 1, cumulative=True)]
KEYS, PANES = 300, 40


def column_of(column: CellColumn, n: int, rng: np.random.Generator) -> CellArrays:
    valid = rng.integers(0, 3, n).astype(bool).astype(np.uint8) if column.nullable else None
    if column.dtype == "float64":
        values = rng.normal(size=n) * 10.0 ** rng.integers(-12, 12, n)
        values[rng.integers(0, n, 5)] = [np.nan, np.inf, -np.inf, -0.0, 1e300]
        return CellArrays((values,), valid)
    whole = rng.integers(-(1 << 40), 1 << 40, n)
    return CellArrays((whole >> 20, whole.view(np.uint64)) if column.dtype == "int128" else (whole,), valid)


def state_of(layout: CellLayout, seed: int, skewed: bool) -> PaneState:
    """Cells of two runs that have panes in common, with gaps between panes."""
    rng = np.random.default_rng(seed)
    state = PaneState.empty(layout, [pa.int64()])
    state.keys.encode([pa.chunked_array([pa.array(range(KEYS))])], KEYS)
    for _ in range(2):
        cells = np.unique(rng.integers(0, PANES * KEYS, 2500))
        pane, code = cells // KEYS * 2 - PANES, (cells % KEYS).astype(np.int32)
        if skewed:
            code[code > 9] = 7
        columns = tuple(column_of(column, len(pane), rng) for column in layout.columns)
        state = state.add(Run.from_cells(layout, pane, code, columns, state.heap))
    return state


def words(state: PaneState, grid: WindowGrid) -> list[bytes]:
    batch = state.closing(grid, None, None)
    arrays = [batch.code, batch.window]
    for cells in batch.columns:
        valid = np.ones(len(batch.code), bool) if cells.valid is None else cells.valid != 0
        arrays += [valid, *(np.where(valid, word, 0) for word in cells.values)]
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("skewed", [False, True])
def test_threads_make_what_one_does(monkeypatch: pytest.MonkeyPatch, threads: int, skewed: bool) -> None:
    layout = CellLayout(COLUMNS)
    alone = [words(state_of(layout, 3, skewed), grid) for grid in GRIDS]
    shared = 0
    each = windows.each

    def counted(function, parts):  # type: ignore[no-untyped-def]
        nonlocal shared
        shared += len(parts)
        return each(function, parts)

    monkeypatch.setattr(windows, "each", counted)
    monkeypatch.setattr(tuning, "SPLIT_ROWS", 8)
    monkeypatch.setattr(tuning, "threads", lambda: threads)
    assert [words(state_of(layout, 3, skewed), grid) for grid in GRIDS] == alone
    assert shared > len(GRIDS) * threads  # walks, and rows that were listed in halves


def test_an_overflow_in_one_share_is_that_of_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = CellLayout((CellColumn("sum", "sum", "int64"),))
    state = PaneState.empty(layout, [pa.int64()])
    state.keys.encode([pa.chunked_array([pa.array(range(KEYS))])], KEYS)
    for pane in range(2):
        value = np.zeros(KEYS, np.int64)
        value[KEYS - 1] = 1 << 62
        arrays = (CellArrays((value,), None),)
        state = state.add(Run(np.full(KEYS, pane), np.arange(KEYS, dtype=np.int32), arrays))
    monkeypatch.setattr(tuning, "SPLIT_ROWS", 8)
    monkeypatch.setattr(tuning, "threads", lambda: 2)
    assert len(state.closing(WindowGrid(1, 1), None, None).code) == 2 * KEYS
    with pytest.raises(OverflowError):
        state.closing(WindowGrid(2, 1), None, None)
