"""Cells of rows, and the number of open windows of a state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwin.batch.row_panes import RowPanes, TimedPanes, panes_array
from gpuwin.batch.timed_rows import TimedRows
from gpuwin.grid import WindowGrid
from gpuwin.planning.inputs import Known
from gpuwin.planning.plan import Plan
from gpuwin.state.cells import Columns, copied_cells, empty_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import Run
from gpuwin.state.rows.row_state import RowState
from gpuwin.state.stores import PaneStore
from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels.cpu.aliases import alias_of
from gpuwin_kernels.cpu.found_codes import Codes, codes_array
from gpuwin_kernels.cpu.open_windows import count_windows
from gpuwin_kernels.cpu.rows import RowInput, SumOverflow, aggregate_rows

AT_ONCE = 1 << 15
"""Rows of a stream from which a kernel made for its columns pays for being compiled ..."""

ANYWAY_AT_ONCE = 1 << 9
"""... and rows of a batch from which it is then faster than one kernel a column."""


def unit_cells(plan: Plan, rows: TimedRows, heap: BytesHeap) -> Columns:
    """Cells of n rows, one each."""
    if not len(rows):
        return empty_cells(plan.layout, 0)
    return tuple(part.cells(rows, heap) for part in plan.inputs)


def rows_to_run(plan: Plan, panes: PaneStore, pane: RowPanes, code: Codes, rows: TimedRows) -> Run:
    """Run of cells, one for each (pane, key) of the rows. Raises gw.OverflowError if an exact sum leaves its type."""
    if len(rows) >= AT_ONCE or (len(rows) >= ANYWAY_AT_ONCE and rows.newest_seq >= AT_ONCE):
        run = _at_once(plan, pane, code, rows, len(panes.keys))
        if run is not None:
            return run
    units = unit_cells(plan, rows, panes.heap)
    run = Run.from_cells(plan.layout, panes_array(pane), codes_array(code), units, panes.heap)
    if run.columns is not units:
        return run
    # Rows that are cells of their own may still lie in the memory of the batch, which its owner may write to.
    return Run(run.pane.copy(), run.code, copied_cells(units))


def feeds_of(plan: Plan, rows: TimedRows) -> list[RowInput] | None:
    """Inputs of the kernels that aggregate rows at once, one for each partial column; None if a column has no such
    input.
    """
    known: Known = {}
    feeds = [part.feed(rows, known) for part in plan.inputs]
    return None if any(feed is None for feed in feeds) else feeds  # type: ignore[return-value]


def _at_once(plan: Plan, pane: RowPanes, code: Codes, rows: TimedRows, codes: int) -> Run | None:
    """Run made in one pass by a kernel for this set of columns; None if it cannot hold them, or a sum overflowed on its
    way.
    """
    feeds = feeds_of(plan, rows)
    if feeds is None:
        return None
    try:
        if isinstance(pane, TimedPanes):
            by, time = pane.grid, alias_of(pane.time)
            cells = aggregate_rows(plan.layout, feeds, code, time, by.width, by.origin, codes=codes, ends=pane.ends)
        else:
            cells = aggregate_rows(plan.layout, feeds, code, pane, 1, codes=codes)
    except SumOverflow:  # the other way sums in 128 bits before it gives up
        return None
    return Run(cells.pane, cells.code, cells.columns)


def recoded_rows(rows: RowState, old: KeyDictionary, new: KeyDictionary) -> RowState:
    """Rows with the codes of a new dictionary, after the old one was compacted."""
    moved = np.full(max(len(old), 1), -1, np.int32)
    if len(old):
        moved[:] = new.lookup(old.take(np.arange(len(old), dtype=np.int32)), len(old))
    return rows.recoded(moved)


def count_open(grid: WindowGrid, panes: PaneState, passed: int) -> int:
    """Number of (key, window) pairs with a cell, of the windows after `passed`. Costs a look at the cells of all runs
    but the largest where a window is one pane, else at all cells.
    """
    if not panes.runs or passed == INT64_MAX:
        return 0
    if grid.is_panes:
        later = [run.between(passed + 1, None) for run in panes.runs]
        return replace(panes, runs=tuple(run for run in later if len(run))).distinct_cells
    starts = [np.flatnonzero(np.concatenate([[True], run.pane[1:] != run.pane[:-1]])) for run in panes.runs]
    pane = np.concatenate([run.pane[start] for run, start in zip(panes.runs, starts, strict=True)])
    before = np.cumsum([0, *(len(run) for run in panes.runs[:-1])])
    start = np.concatenate([n + at for n, at in zip(before, starts, strict=True)])
    end = np.append(start[1:], panes.cells)
    order = np.argsort(pane, kind="stable")
    first, last = grid.windows_of(pane[order])
    code = panes.runs[0].code if len(panes.runs) == 1 else np.concatenate([run.code for run in panes.runs])
    upto = np.full(len(panes.keys), passed)
    return int(count_windows(code, start[order], end[order], first, last, upto))
