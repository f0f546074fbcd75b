"""Engine of windows on a grid that are emitted once, when they close. Nothing reads a cell before that: so rows of
small batches wait in a log until a kernel is worth its start, and an oversized batch is taken part by part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import numpy as np
import pyarrow as pa

from gpuwin.batch.pane_cells import AT_ONCE, rows_to_run
from gpuwin.batch.parts import Ends, is_oversized, joined_ends, part_ends, parts_of, step_ends
from gpuwin.batch.row_log import RowLog
from gpuwin.batch.row_panes import RowPanes, TimedPanes
from gpuwin.batch.timed_rows import NOTHING_DROPPED, TimedRows
from gpuwin.engines.panes import PaneEngine, PaneWindows
from gpuwin.engines.step import Parts, Step
from gpuwin.errors import OverflowError
from gpuwin.planning.plan import Plan
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.state.panes.runs import CellRun
from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin.vocabulary.limits import Limits
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.extremes import ends_of


class ClosingPaneEngine(PaneEngine):
    """`PaneEngine` for specifications that `emits_once` tells, on the host."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        #: Whether an oversized batch may be cut.
        self.cuts = not (self.grid.endless or self.grid.inherited or rule.system or rule.per_row)
        #: Whether rows may wait. Limits are tested on cells, after each batch.
        self.logs = plan.spec.limits == Limits()

    def rows(self, state: PaneWindows, rows: TimedRows, progress: Progress, source: int) -> Step[PaneWindows]:
        ends: Ends | None = None
        if self.cuts and is_oversized(len(rows)):
            steps = step_ends(rows.time)
            ends = joined_ends(steps)
            after = self.rule.after_newest(progress, ends[1], source)
            step = self._in_parts(state, rows, steps, progress, after)
            if step is not None:
                return step
        after, kept, pane, drops = self.admitted(rows, progress, source, ends)
        run: CellRun | None = None
        if self.logs:
            state = self._logged(state, kept, pane, self.rule.closing_progress(progress, after).watermark)
        else:
            state, run = self.added(state, kept, pane)
        return self._stepped(state, run, progress, after, drops)

    # -- parts of a batch --------------------------------------------------------------------------------------------

    def _in_parts(
        self, state: PaneWindows, rows: TimedRows, steps: list[Ends], progress: Progress, after: Progress
    ) -> Step[PaneWindows] | None:
        """Step of an oversized batch in parts, each of which emits the windows that no later row of the batch lies in.
        None where a cut would show, or where nothing closes between the rows. `steps`: the ends of its steps.
        """
        tested, closes_by = self.rule.tested_against(progress), self.rule.closing_progress(progress, after).watermark
        drops = NOTHING_DROPPED
        if not self.admission.all_on_time(joined_ends(steps)[0], tested):
            rows, _, drops = self.admission.admitted(rows, tested)
            steps = step_ends(rows.time) if is_oversized(len(rows)) else []
        if closes_by == INT64_MAX or not len(rows):
            return None
        parts = parts_of(rows.time, lambda rest: cast("int", self._closed_by(min(closes_by, rest))), 1, steps)
        if len(parts) == 1:
            return None
        results: list[pa.RecordBatch] = []
        divides = self.grid.divides(*joined_ends(steps))
        state = self.in_cells(state)
        # Keys stay till the end of the batch, so that they have the codes that they have without parts.
        code = state.panes.keys.coded(rows.keys(self.plan), len(rows))
        try:
            for lo, hi, rest in parts:
                part = rows.part(lo, hi)
                ends = part_ends(steps, lo, hi - lo)
                pane: RowPanes = TimedPanes(self.grid, part.time, ends) if divides else self.grid.panes(part.time)
                run = rows_to_run(self.plan, state.panes, pane, code[lo:hi], part)
                raw_rows = self.raw_rows.added(state.rows, part, code[lo:hi])
                state = replace(state, panes=state.panes.add(run), rows=raw_rows)
                if hi < len(rows):
                    upto = min(closes_by, rest)
                    state, found = self._windows(state, None, tested, upto, self._closed_by(upto))
                    results += found
                    state = self.evicted(state, upto, keep_keys=True)
            step = self._stepped(state, None, progress, after, drops)
        except OverflowError:  # in a part; later rows of the batch may bring the sum back
            return None
        return replace(step, results=[*results, *step.results])

    def _closed_by(self, watermark: int) -> int | None:
        """Last window that this watermark closes, as in a frontier."""
        return self.grid.last_closed(self.bounds.closing(watermark))

    # -- the log -----------------------------------------------------------------------------------------------------

    def _logged(self, state: PaneWindows, kept: TimedRows, pane: RowPanes, closes_by: int) -> PaneWindows:
        """State with these rows, as `added`. Rows of a small batch wait in the log, and so do those of a batch of
        fewer rows than there are keys that closes no window, once the stream has paid for a kernel that takes them all.
        """
        rows, keys = len(kept), len(state.panes.keys)
        if not rows:
            return state
        waits = rows <= tuning.LOG_BATCH or (rows < keys and not self._closes_some(state, closes_by))
        log = None
        if waits and kept.newest_seq >= AT_ONCE:
            ends = pane.ends if isinstance(pane, TimedPanes) else None
            log = state.log.with_rows(self.plan, state.panes, kept, ends or ends_of(kept.time))
        if log is None:
            return self.added(self.in_cells(state), kept, pane)[0]
        state = PaneWindows(state.panes, state.rows, state.emitted, log)
        return self.in_cells(state) if log.is_full(keys) else state

    def _closes_some(self, state: PaneWindows, closes_by: int) -> bool:
        """Whether a window closes by this watermark that did not before."""
        closed = self._closed_by(closes_by)
        return closed is None or closed > state.emitted

    def in_cells(self, state: PaneWindows, closed: int | None = None) -> PaneWindows:
        """State with the rows of the log in cells, at least those of windows up to `closed` (None: all of them)."""
        log, rest = state.log, RowLog()
        if not log.rows:
            return state
        if closed is not None:
            later = self.grid.panes(log.newest_rows().at) > self.grid.panes_of(closed, closed)[1]
            log, rest = log.split(self.plan, later, INT64_MAX if self.grid.inherited else self.grid.end_of(closed))
            if rest.rows:
                state.log.enter_keys(self.plan, state.panes.keys)
        if log.rows:
            rows = log.joined()
            pane: RowPanes
            if self.grid.divides(*log.ends):
                pane = TimedPanes(self.grid, rows.time, log.ends)
            else:
                pane = self.grid.panes(rows.at)
            state = self.added(state, rows, pane)[0]
        return PaneWindows(state.panes, state.rows, state.emitted, rest)

    # -- what reads cells --------------------------------------------------------------------------------------------

    def _windows(
        self, state: PaneWindows, run: CellRun | None, tested: int, closes_by: int, closed: int | None
    ) -> tuple[PaneWindows, list[pa.RecordBatch]]:
        state = self.in_cells(state, None if self.grid.endless else closed)
        return super()._windows(state, run, tested, closes_by, closed)

    def evicted(
        self,
        state: PaneWindows,
        closes_by: int,
        *,
        keep_keys: bool = False,
        waiting: Iterable[np.ndarray] = (),
    ) -> PaneWindows:
        if state.log.rows:
            waiting = state.log.codes(self.plan, state.panes.keys)
        return super().evicted(state, closes_by, keep_keys=keep_keys, waiting=waiting)

    def size(self, state: PaneWindows) -> tuple[int, int]:
        held = super().size(state)[1] + state.log.held_bytes
        return super().size(self.in_cells(state))[0], held

    def cells(self, state: PaneWindows) -> int:
        return super().cells(self.in_cells(state))

    def spilled(self, state: PaneWindows, excess: int, folder: str) -> PaneWindows:
        return super().spilled(self.in_cells(state), excess, folder)

    def open_windows(self, state: PaneWindows, progress: Progress) -> int:
        return super().open_windows(self.in_cells(state), progress)

    def save(self, state: PaneWindows) -> Parts:
        return super().save(self.in_cells(state))
