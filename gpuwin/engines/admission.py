"""Admission of rows to the windows of a grid: late rows and rows in gaps are dropped, the others get their panes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwin.batch.row_panes import RowPanes, TimedPanes
from gpuwin.batch.timed_rows import NOTHING_DROPPED, Drops, TimedRows, late_by_time, without
from gpuwin.bounds import Bounds
from gpuwin.drivers.grid_windows import GridDriver
from gpuwin.grid import WindowGrid
from gpuwin.vocabulary.durations import INT64_MIN


@dataclass(frozen=True, slots=True)
class GridAdmission:
    """Rule for the rows of a batch. `tests`: whether a row may be late at all."""

    grid: WindowGrid
    bounds: Bounds
    driver: GridDriver
    tests: bool

    def at_once(
        self, rows: TimedRows, ends: tuple[int, int] | None, tested: int
    ) -> tuple[TimedRows, RowPanes, Drops] | None:
        """All rows, as of `admitted`, with panes that nobody has to write down, where the oldest and the newest time
        (`ends`) show that no row is late. None where they do not.
        """
        if ends is None or self.grid.gaps or not self.grid.divides(*ends):
            return None
        if self.tests and not self.all_on_time(ends[0], tested):
            return None
        return rows, TimedPanes(self.grid, rows.time, ends), NOTHING_DROPPED

    def all_on_time(self, oldest: int, tested: int) -> bool:
        """Whether the oldest time of rows shows that no row is late for any of its windows, or in no window."""
        if self.grid.gaps or self.grid.inherited:
            return False
        if self.bounds.by_time:
            return tested == INT64_MIN or oldest >= tested - self.bounds.lateness
        passed = self.grid.last_closed(self.bounds.evicting(tested))
        if passed is None or self.grid.endless:
            return passed is not None
        return passed == INT64_MIN or oldest >= self.grid.end_of(passed)

    def admitted(self, rows: TimedRows, watermark: int | np.ndarray) -> tuple[TimedRows, np.ndarray, Drops]:
        """Rows that are not late and lie in a window, their panes (int64[n]), and what was dropped. `watermark`: one
        for the batch, or one for each row (int64[n]).
        """
        grid = self.grid
        pane = grid.panes(rows.at)
        unassigned = grid.in_gap(pane) if grid.gaps else None
        late, pairs = None, 0
        if self.tests:
            late, pairs = self._late(rows.time, pane, watermark)
            if late is not None and unassigned is not None:
                late = late & ~unassigned
        kept, drops = without(rows, late, unassigned)
        if pairs:
            drops = replace(drops, window_rows_late=pairs)
        if len(kept) != len(rows):
            dropped = np.zeros(len(rows), bool)
            for mask in (late, unassigned):
                if mask is not None:
                    dropped |= mask
            pane = pane[~dropped]
        return kept, pane, drops

    def _late(self, time: np.ndarray, pane: np.ndarray, watermark: int | np.ndarray) -> tuple[np.ndarray | None, int]:
        """Rows that are dropped, bool[n] (None: none is), and the number of (row, window) pairs that are late."""
        if not self.bounds.by_time and not isinstance(watermark, np.ndarray):
            return self.driver.late(pane, self.grid.last_closed(self.bounds.evicting(watermark)))
        late = late_by_time(time, watermark, self.bounds.lateness) if self.bounds.by_time else None
        if not self.bounds.by_time or self.grid.inherited:  # a row may lie outside of the window that it brings along
            shut = self.grid.ends(self.grid.windows_of(pane)[1]) <= self.bounds.evicting_each(np.asarray(watermark))
            late = shut if late is None else late | shut
        if late is None or not late.any():
            return None, 0
        return late, self.driver.pairs(pane[late], None)
