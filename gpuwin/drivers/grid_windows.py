"""Driver of windows on a grid: late cells, the windows that a batch emits, and the panes that it evicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from gpuwin.grid import WindowGrid
from gpuwin.state.cells import take_cells
from gpuwin.state.panes.runs import CellRun
from gpuwin.state.panes.walks import WindowBatch
from gpuwin.state.stores import PaneStore
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN

Mode = Literal["append", "update", "complete"]
"""Append: a window is emitted when it closes. Update: when a batch touched it. Complete: with each batch."""

S = TypeVar("S", bound=PaneStore)


@dataclass(frozen=True, slots=True)
class Frontier:
    """Progress of windows at a batch, as the number of the last window that is late, emitted, closed or evicted. The
    smallest int64 stands for none of them, and None for all.

    late: windows that take no more cells. emitted: windows that were emitted because they closed. closed: windows that
    are closed after the batch. evicted: windows whose state is not needed after it.
    """

    late: int | None
    emitted: int
    closed: int | None
    evicted: int | None


@dataclass(frozen=True, slots=True)
class GridDriver:
    """Driver of the windows of a grid, emitted by a mode.

    reopens: closed windows that get cells are emitted again, until they are evicted (allowed lateness). one_watermark:
    one watermark filters the cells of a batch and closes windows with it, so that windows close which the cells of this
    batch come too late for (Spark with statefulOperator.allowMultiple=false). most: windows in an emitted batch.
    """

    grid: WindowGrid
    mode: Mode
    most: int
    reopens: bool = False
    one_watermark: bool = False

    # -- late cells ----------------------------------------------------------------------------------------------------

    def late(self, pane: np.ndarray, late: int | None) -> tuple[np.ndarray | None, int]:
        """Late cells, bool[n], and the number of late (cell, window) pairs. A cell is late if all windows of its pane
        (int64[n]) are; None: none is. `late`: the last late window, as in a frontier.
        """
        passed = INT64_MAX - 1 if late is None else late
        oldest = INT64_MIN if passed == INT64_MIN else self.grid.last_pane(passed)
        if not len(pane) or int(pane.min()) > oldest:
            return None, 0
        all_late = pane < self.grid.first_pane(passed + 1)
        return (all_late if all_late.any() else None), self.pairs(pane[pane <= oldest], passed)

    def pairs(self, pane: np.ndarray, last: int | None) -> int:
        """Number of (cell, window) pairs of cells in these panes and windows up to `last` (None: all)."""
        first, newest = self.grid.windows_of(pane)
        if last is not None:
            newest = np.minimum(newest, last)
        return int(np.maximum(newest - first + 1, 0).sum())

    # -- emission ------------------------------------------------------------------------------------------------------

    def emitted(self, before: S, after: S, run: CellRun | None, at: Frontier) -> tuple[S, Iterator[WindowBatch]]:
        """`after`, and an iterator over the windows that a batch emits, by (window, code). `run`: the cells of the
        batch; with them `before` became `after`. Costs what is emitted. Raises gpuwin.OverflowError as the windows are
        read.
        """
        pane = self.first_kept(at.evicted)
        if pane is not None and self.mode != "complete":
            after = after.expecting_eviction(pane)
        return after, self._windows(before, after, run, at)

    def _windows(self, before: S, after: S, run: CellRun | None, at: Frontier) -> Iterator[WindowBatch]:
        if self.mode == "complete":
            yield from after.closing_chunks(self.grid, None, None, self.most)
            return
        if run is not None and (self.mode == "update" or (self.reopens and at.emitted != INT64_MIN)):
            yield from self._touched(after, run, at)
        if self.mode == "append":
            yield from self._closed(before, after, at)

    def _touched(self, store: S, run: CellRun, at: Frontier) -> Iterator[WindowBatch]:
        """Windows that got cells: all of them, or, in append mode, those that were emitted before."""
        first = None if at.late == INT64_MIN or at.late is None else at.late + 1
        batch = store.touched(self.grid, run, first)
        if self.mode == "append":
            again = np.flatnonzero(batch.window <= at.emitted)
            batch = WindowBatch(batch.code[again], batch.window[again], take_cells(batch.columns, again))
        for lo in range(0, len(batch.code), self.most):
            rows = slice(lo, lo + self.most)
            yield WindowBatch(batch.code[rows], batch.window[rows], take_cells(batch.columns, rows))

    def _closed(self, before: S, after: S, at: Frontier) -> Iterator[WindowBatch]:
        """Windows that close with this batch."""
        emitted = at.emitted
        last = INT64_MAX if at.closed is None else at.closed
        if self.one_watermark and at.late is not None and emitted < at.late:
            upto = min(at.late, last)  # their totals are those from before this batch, whose cells share their panes
            yield from before.closing_chunks(self.grid, _after(emitted), upto, self.most)
            emitted = at.late
        if emitted < last:
            yield from after.closing_chunks(self.grid, _after(emitted), at.closed, self.most)

    # -- eviction ------------------------------------------------------------------------------------------------------

    def first_kept(self, evicted: int | None) -> int | None:
        """First pane that is still needed once windows up to `evicted` are evicted, as in a frontier; None: all panes
        are needed.
        """
        if evicted == INT64_MIN or (self.grid.endless and evicted is not None):
            return None
        return INT64_MAX if evicted is None else self.grid.first_pane(evicted + 1)

    def evicted(
        self, store: S, evicted: int | None, *, keep_keys: bool = False, waiting: Iterable[np.ndarray] = ()
    ) -> S:
        """Store without the panes that no window after `evicted` needs, as in a frontier. `keep_keys`, `waiting`: see
        `PaneState.evict_panes` and `PaneState.evict`.
        """
        pane = self.first_kept(evicted)
        first = None if pane is None else store.first_pane
        if pane is None or first is None or first >= pane:
            return store
        return store.evict_panes(pane) if keep_keys else store.evict(pane, waiting=waiting)


def _after(window: int) -> int | None:
    """Number of the next window; None where there is no window before it."""
    return None if window == INT64_MIN else window + 1
