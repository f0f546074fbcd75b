"""Raw rows of windows on a grid, for holistic aggregates (a median, a list): how engines keep, read and evict them.
A state without such aggregates has None in their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.batch.timed_rows import TimedRows
from gpuwin.grid import WindowGrid
from gpuwin.planning.plan import Plan
from gpuwin.state.panes.walks import WindowBatch
from gpuwin.state.rows.row_state import RowState
from gpuwin.state.rows.slices import RowSlices
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.found_codes import Codes, codes_array


@dataclass(frozen=True, slots=True)
class RawRows:
    """Rule for the raw rows of one specification.

    waits: a window is emitted once, when it closes; rows are left as they came until then. by_pane: rows that wait are
    put together by pane, each of which is one window.
    """

    plan: Plan
    grid: WindowGrid
    waits: bool
    by_pane: bool

    @staticmethod
    def of(plan: Plan, grid: WindowGrid, waits: bool) -> RawRows:
        return RawRows(plan, grid, waits, waits and grid.is_panes and not (grid.endless or grid.inherited))

    def added(self, rows: RowState | None, kept: TimedRows, code: Codes) -> RowState | None:
        """Raw rows with those of a batch, of the keys `code`."""
        if rows is None:
            return None
        values = [kept.columns[name] for name in self.plan.row_names]
        return rows.add(codes_array(code), kept.at, kept.seq, values, self.grid.cells, waits=self.waits)

    def sorted_upto(self, rows: RowState | None, closed: int | None) -> RowState | None:
        """Raw rows, of which those of windows up to `closed` (None: of all windows) can be read."""
        if rows is None or (self.by_pane and not rows.runs):
            return rows
        if self.grid.endless or self.grid.inherited:
            return rows.in_runs()
        if closed is None:
            return rows.in_runs(INT64_MAX)
        return rows.in_runs(self.grid.end_of(closed)) if closed > INT64_MIN else rows

    def of_windows(
        self, rows: RowState | None, windows: WindowBatch, start: np.ndarray, end: np.ndarray
    ) -> RowSlices | None:
        """Raw rows of windows with these starts and ends (int64 each)."""
        if rows is None:
            return None
        least, past = times_of(self.grid, start, end)
        if self.by_pane:
            return rows.select_panes(windows.code, windows.window, least, past, self.grid.panes)
        return rows.select(windows.code, least, past)

    def evicted(self, rows: RowState | None, passed: int | None) -> RowState | None:
        """Raw rows without those that only windows up to `passed` (None: all windows) need."""
        if rows is None:
            return None
        return rows.evict(INT64_MAX if passed is None else first_time_after(self.grid, passed))


def times_of(grid: WindowGrid, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times of the raw rows of windows with these starts and ends, from and before: int64 each. Rows that carry their
    window are kept under its end.
    """
    if grid.inherited:
        return end, end + 1
    if grid.endless:
        return np.full(len(end), INT64_MIN), end
    return grid.least_times(start), end


def first_time_after(grid: WindowGrid, window: int) -> int:
    """Least time, as of `times_of`, of the raw rows of windows after this one."""
    return window + 1 if grid.inherited else grid.start_of(window + 1)
