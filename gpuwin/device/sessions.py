"""Engine of sessions on CUDA: `engines.sessions` with the open sessions in device memory.

Rows move to the device once. Only the sessions that are emitted come back, and a few numbers for each batch. The open
sessions stay on the host where an aggregate needs its rows whole (a median, a list), or where the user asks which
sessions became one: then the host has to know the session of each row, and only proto-sessions come from the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpuwin.batch.timed_rows import Drops, TimedRows
from gpuwin.device.closing import watermark_of
from gpuwin.device.outgrown import or_on_host
from gpuwin.device.rows import cells_of_rows
from gpuwin.device.session_batch import SessionTaker
from gpuwin.engines.sessions.engine import SessionEngine
from gpuwin.engines.sessions.rows import OpenSessions, SessionRows
from gpuwin.engines.step import Parts, Step
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.cells import Columns, cell_arrays
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin.state.device.runs import columns_like
from gpuwin.state.device.sessions import DeviceSessionState
from gpuwin.state.sessions.assignment import Assignment
from gpuwin.state.stores import Trace
from gpuwin.vocabulary.durations import INT64_MIN
from gpuwin_kernels.cpu.rows import SumOverflow
from gpuwin_kernels.cuda.cells import TooFarApart
from gpuwin_kernels.cuda.ranges import RangeOverflow
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.rows import PlacedRows
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, to_device, zeros
from gpuwin_kernels.cuda.sessions import cut
from gpuwin_kernels.cuda.watermark import Watermark

log = logging.getLogger("gpuwin")


class DeviceSessionRows(SessionRows):
    """Logic of sessions for specifications that do not depend on the order of arrival: see `order_matters`."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        self.sessions_on_host = plan.keeps_rows or self.collects_merges

    def limits(self, tested: int) -> tuple[int, int]:
        """(before, passed): rows earlier than `before` are late, and so are those that end at or before `passed`. The
        smallest int64: none is.
        """
        if self.never_late:
            return INT64_MIN, INT64_MIN
        if not self.bounds.by_time:
            return INT64_MIN, self.bounds.evicting(tested)
        before = INT64_MIN if tested == INT64_MIN else max(INT64_MIN, tested - self.bounds.lateness)
        return before, INT64_MIN

    def cut(self, state: OpenSessions, rows: TimedRows, code: np.ndarray) -> tuple[Assignment, Columns]:
        """Proto-sessions of rows and their cells, cut on the device where the host has to know the sessions of rows.
        The host cuts what fits no device.
        """
        if not self.sessions_on_host or self.plan.layout.uses_heap:  # texts that are kept on the host are merged there
            return super().cut(state, rows, code)
        gap = self.gap_of(rows)
        try:
            protos = cut(
                to_device(code),
                to_device(rows.time),
                to_device(gap) if isinstance(gap, np.ndarray) else gap,
                self.touch == "split",
                len(state.keys),
            )
            pane = zeros(len(rows), np.int64)  # a session number is the code, so there is one pane
            placed = PlacedRows(protos.slot, len(protos.code), pane, (0, 0))
            cells = cells_of_rows(self.plan, state.heap, rows, placed)
            found = read(protos.code, protos.start, protos.last, protos.end, *cell_arrays(cells.columns))
        except OutOfDeviceMemory as error:
            log.warning("gpuwin cut a batch into sessions on the CPU: %s", error)
            return super().cut(state, rows, code)
        except (SumOverflow, RangeOverflow, TooFarApart):  # the host sums exactly, and takes any times
            return super().cut(state, rows, code)
        # The device has put rows into their sessions. The number of the session is not needed here.
        code, start, last, end, *columns = found
        assignment = Assignment(np.empty(0, np.int32), code, start, last, end, self.touch)
        return assignment, columns_like(cells.columns, columns)

    def with_fewer_keys(self, state: OpenSessions) -> OpenSessions:
        try:
            return super().with_fewer_keys(state)
        except OutOfDeviceMemory:  # they are dropped to save memory, which can wait
            return state

    def _joined(
        self, state: OpenSessions, rows: TimedRows, code: np.ndarray, protos: Assignment, cells: Columns
    ) -> tuple[OpenSessions, Trace, np.ndarray]:
        if not isinstance(state.sessions, DeviceSessionState):
            return super()._joined(state, rows, code, protos, cells)
        sessions, trace = state.sessions.merge(protos, cells)
        return replace(state, sessions=sessions), trace, np.empty(0, np.int64)


class DeviceSessionEngine(SessionEngine):
    """`SessionEngine` with its sessions in device memory."""

    logic: DeviceSessionRows

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        self.logic = DeviceSessionRows(plan, rule)
        self.taker = SessionTaker(plan, self.logic.gap, self.logic.touch == "split")

    def begin(self, progress: Progress = BEFORE_TIME) -> OpenSessions:
        return self._moved(super().begin(progress))

    def _moved(self, state: OpenSessions) -> OpenSessions:
        if self.logic.sessions_on_host:
            return state
        try:
            sessions = DeviceSessionState.of(state.sessions.on_host())
            keys, heap = DeviceKeyDictionary.of(state.keys), state.heap if sessions.heap is None else sessions.heap
            return replace(state, keys=keys, heap=heap, sessions=sessions)
        except OutOfDeviceMemory as error:
            log.warning("gpuwin left %d open sessions on the CPU: %s", state.sessions.cells, error)
            return state

    # -- a batch -----------------------------------------------------------------------------------------------------

    def rows(self, state: OpenSessions, rows: TimedRows, progress: Progress, source: int) -> Step[OpenSessions]:
        """Step of a batch. The host does not look at rows."""
        if isinstance(state.sessions, DeviceSessionState) and len(rows):
            try:
                return self._taken(state, state.sessions, rows, progress, source)
            except OutOfDeviceMemory:  # rows that the host cuts take less
                self.taker.reset()
                log.info("gpuwin: a batch of %d rows does not fit the device", len(rows))
        by_engine = super().rows
        return self._or_on_host(state, lambda there: by_engine(there, rows, progress, source))

    def _taken(
        self, state: OpenSessions, sessions: DeviceSessionState, rows: TimedRows, progress: Progress, source: int
    ) -> Step[OpenSessions]:
        logic = self.logic
        limits = logic.limits(self.rule.tested_against(progress))

        def by_host(some: TimedRows, code: np.ndarray) -> tuple[Assignment, Columns]:
            return logic.cut(state, some, code)

        closing = self._closes_by(sessions, progress, source)
        taken = self.taker.take(sessions, state.keys, rows, *limits, by_host, closing)
        late: tuple[np.ndarray, ...] = ()
        if taken.late and self.plan.spec.collect_late:
            at = taken.late_places()
            late = (at if rows.index is None else rows.index[at],)
        drops = Drops(taken.late, taken.late, taken.free, late)
        after = self.rule.followed(progress, self.rule.after_newest(progress, taken.newest, source))
        closes_by = self.rule.closing_progress(progress, after)
        return self._stepped(replace(state, sessions=taken.sessions), taken.trace, after, closes_by, drops)

    def _closes_by(self, sessions: DeviceSessionState, progress: Progress, source: int) -> Watermark | None:
        """Watermark that sessions are expected to close by with the next batch; None if none is expected to close."""
        if not self.closes or self.bounds.lateness:
            return None
        watermark = watermark_of(self.bounds, self.rule, progress)
        if watermark is None:
            return None
        reached = self.rule.after_newest(progress, self.taker.pace.next, source) if watermark.moves else progress
        return watermark if sessions.first_end <= self.bounds.evicting(reached.watermark) else None

    def advance(self, state: OpenSessions, progress: Progress) -> Step[OpenSessions]:
        advance = super().advance
        return self._or_on_host(state, lambda there: advance(there, progress))

    def _or_on_host(
        self, state: OpenSessions, step: Callable[[OpenSessions], Step[OpenSessions]]
    ) -> Step[OpenSessions]:
        """The step; where the device has no room for it, with the state moved to the host, where it stays."""
        return or_on_host(state, step, self._host, lambda of: f"{of.sessions.cells} open sessions")

    # -- what it takes -----------------------------------------------------------------------------------------------

    def _host(self, state: OpenSessions) -> OpenSessions:
        keys = state.keys.on_host() if isinstance(state.keys, DeviceKeyDictionary) else state.keys
        sessions = state.sessions.on_host()
        heap = state.heap if sessions.heap is None else sessions.heap
        return replace(state, keys=keys, heap=heap, sessions=sessions)

    def spilled(self, state: OpenSessions, excess: int, folder: str) -> OpenSessions:
        return super().spilled(self._host(state), excess, folder)

    def load(self, parts: Parts) -> OpenSessions:
        return self._moved(super().load(parts))
