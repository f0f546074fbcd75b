"""Engine of windows on a grid with rows and cells in device memory: `engines.panes` over a `DevicePaneState`.

Rows move to the device once, whole columns at a time, and the host does not look at them one by one. Only the windows
that are emitted come back, and a few numbers for each batch. Holistic aggregates (a median, a list) keep their rows on
the host, which then finds the late ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpuwin.batch.row_panes import RowPanes, panes_array
from gpuwin.batch.timed_rows import NOTHING_DROPPED, Drops, TimedRows
from gpuwin.device.admission import admission
from gpuwin.device.batch import BatchTaker, Taken
from gpuwin.device.closing import panes_of, watermark_of
from gpuwin.device.outgrown import or_on_host
from gpuwin.device.rows import rows_to_device_run
from gpuwin.engines.panes import CHUNK, PaneEngine, PaneWindows
from gpuwin.engines.step import Parts, Step
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.device.closing_ahead import WindowsToEmit
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin.state.device.panes import DevicePaneState
from gpuwin.state.panes.runs import CellRun
from gpuwin.vocabulary.durations import INT64_MIN
from gpuwin_kernels.cuda.cells import TooFarApart
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, Scratch, in_arena

log = logging.getLogger("gpuwin")

FEWEST_ROWS = 1 << 16
"""A batch that does not fit the device is halved down to this; then the state moves to the host."""


class DevicePaneEngine(PaneEngine):
    """`PaneEngine` with its cells in device memory."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        self.taker = BatchTaker(plan, self.grid)
        self.merging = Scratch()

    def begin(self, progress: Progress = BEFORE_TIME) -> PaneWindows:
        return self._moved(super().begin(progress))

    def _moved(self, state: PaneWindows) -> PaneWindows:
        panes = state.panes.on_host()
        try:
            if state.rows is None and not (self.grid.inherited and self.rule.per_row):
                # the host has to know the codes of rows that it looks at
                panes = panes.with_names(DeviceKeyDictionary.of(panes.keys), panes.heap)
            return replace(state, panes=DevicePaneState.of(panes))
        except OutOfDeviceMemory as error:
            log.warning("gpuwin left a state of %d cells on the CPU: %s", state.panes.cells, error)
            return state

    # -- a batch -----------------------------------------------------------------------------------------------------

    def rows(self, state: PaneWindows, rows: TimedRows, progress: Progress, source: int) -> Step[PaneWindows]:
        return self._or_on_host(state, lambda there: self._rows(there, rows, progress, source))

    def advance(self, state: PaneWindows, progress: Progress) -> Step[PaneWindows]:
        advance = super().advance
        return self._or_on_host(state, lambda there: advance(there, progress))

    def _rows(self, state: PaneWindows, rows: TimedRows, progress: Progress, source: int) -> Step[PaneWindows]:
        """Step of a batch. Where the device can find late rows and ranges of times, the host does not look at rows."""
        tested = progress.watermark if self.rule.per_row else self.rule.tested_against(progress)
        panes = state.panes
        if not isinstance(panes, DevicePaneState) or state.rows is not None or not len(rows):
            return super().rows(state, rows, progress, source)
        admitted = admission(self.grid, self.bounds, self.rule, progress, tested, self.keeps_all)
        if admitted is None:
            return super().rows(state, rows, progress, source)
        ends_merge = panes.merging is not None
        try:
            to_emit = self._windows_to_emit(state, progress, source)
            taken = self.taker.take(panes, rows, admitted, to_emit)
            drops = self._drops(taken, rows, tested, admitted.closed)
            added = replace(state, panes=taken.panes)
        except TooFarApart:  # to find late rows
            return super().rows(state, rows, progress, source)
        except OutOfDeviceMemory:  # the other way takes less at a time
            self.taker.expected = None
            log.info("gpuwin: a batch of %d rows does not fit the device at once", len(rows))
            return super().rows(state, rows, progress, source)
        after = self.rule.after_newest(progress, taken.newest, source)
        step = self._stepped(added, taken.run, progress, after, drops)
        if not isinstance(step.state.panes, DevicePaneState):
            return step
        emitted = taken.panes.closed is not None
        panes = step.state.panes.with_closed(None)  # what was found ahead has been emitted
        step = replace(step, state=replace(step.state, panes=panes))
        if emitted and ends_merge:  # the next merge is for the next batch
            return step
        try:
            with in_arena(self.merging):  # by itself: it stays until the next batch has read a number
                return replace(step, state=replace(step.state, panes=panes.with_merge_begun()))
        except OutOfDeviceMemory:  # runs need not be merged now
            return step

    def _windows_to_emit(self, state: PaneWindows, progress: Progress, source: int) -> WindowsToEmit | None:
        """Windows that the next batch is expected to emit; None if it is expected to emit none."""
        watermark = None if self.grid.endless else watermark_of(self.bounds, self.rule, progress)
        if self.keeps_all:
            return WindowsToEmit(self.grid, None, None, panes_of(self.grid), CHUNK)
        if self.updates:
            passed = self.grid.last_closed(self.bounds.evicting(self.rule.tested_against(progress)))
            first = None if passed is None or passed == INT64_MIN else passed + 1
            return WindowsToEmit(self.grid, first, watermark, panes_of(self.grid), CHUNK, touched=True)
        if watermark is None or self.bounds.lateness:
            return None
        reached = self.rule.after_newest(progress, self.taker.pace.next, source) if watermark.moves else progress
        closed = self.grid.last_closed(self.bounds.closing(reached.watermark))
        held = [pane for pane in (state.panes.first_pane, self.taker.first_expected) if pane is not None]
        if closed is None or closed <= state.emitted or not held or min(held) > self.grid.last_pane(closed):
            return None
        first = None if state.emitted == INT64_MIN else state.emitted + 1
        return WindowsToEmit(self.grid, first, watermark, panes_of(self.grid), CHUNK)

    def _drops(self, taken: Taken, rows: TimedRows, tested: int, closed: int) -> Drops:
        """Counts of dropped rows. Reads their places from the device, if they are needed."""
        if not taken.late and not taken.before and not taken.unassigned:
            return NOTHING_DROPPED
        pairs = taken.late
        if self.grid.overlaps:
            late_alone = self.bounds.by_time
            at = taken.late_places() if late_alone else taken.places_before(closed)
            passed = None if late_alone else self.grid.last_closed(self.bounds.evicting(tested))
            pairs = self.driver.pairs(self.grid.panes(rows.time[at]), passed)
        places: tuple[np.ndarray, ...] = ()
        if taken.late and self.plan.spec.collect_late:
            at = taken.late_places()
            places = (at if rows.index is None else rows.index[at],)
        return Drops(taken.late, pairs, taken.unassigned, places)

    def added(self, state: PaneWindows, kept: TimedRows, pane: RowPanes) -> tuple[PaneWindows, CellRun | None]:
        if not len(kept):
            return state, None
        pane = panes_array(pane)
        panes = state.panes
        if not isinstance(panes, DevicePaneState):  # it outgrew the device before
            return super().added(state, kept, pane)
        try:
            code = panes.keys.encode(kept.keys(self.plan), len(kept))
            run = rows_to_device_run(self.plan, panes, pane, code, kept)
            return replace(state, panes=panes.add(run), rows=self.raw_rows.added(state.rows, kept, code)), run
        except OutOfDeviceMemory:
            if len(kept) > FEWEST_ROWS and not self.updates and not self.bounds.lateness:
                return self._in_halves(state, kept, pane), None
            raise

    def _in_halves(self, state: PaneWindows, kept: TimedRows, pane: np.ndarray) -> PaneWindows:
        """State with the batch in two parts, one after the other; not for windows that are emitted again, which need it
        whole.
        """
        middle = len(kept) // 2
        for part in (np.arange(middle), np.arange(middle, len(kept))):
            state, _ = self.added(state, kept.take(part), pane[part])
        return state

    def _or_on_host(self, state: PaneWindows, step: Callable[[PaneWindows], Step[PaneWindows]]) -> Step[PaneWindows]:
        """The step; where the device has no room for it, with the state moved to the host, where it stays."""
        return or_on_host(state, step, _on_host, lambda of: f"state of {of.panes.nbytes} bytes")

    def load(self, parts: Parts) -> PaneWindows:
        return self._moved(super().load(parts))


def _on_host(state: PaneWindows) -> PaneWindows:
    panes = state.panes
    return replace(state, panes=panes.off_device()) if isinstance(panes, DevicePaneState) else state
