"""Engine of sessions that are emitted when they close, when they change, or all of them with each batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.parts import is_oversized, parts_of
from gpuwin.batch.timed_rows import Drops, TimedRows
from gpuwin.drivers.grid_windows import Mode
from gpuwin.drivers.sessions import SessionDriver, SessionFrontier
from gpuwin.engines.results import result
from gpuwin.engines.sessions.rows import OpenSessions, SessionRows
from gpuwin.engines.step import Parts, Step
from gpuwin.errors import OverflowError
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.keys.dictionary import Names
from gpuwin.state.sessions.tiers import SessionBatch, sorted_sessions
from gpuwin.state.stores import Trace
from gpuwin.vocabulary.durations import INT64_MIN
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.triggers import Complete, OnClose, OnUpdate


class SessionUpkeep:
    """Upkeep that the engines of sessions share: size, spilling, snapshots."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        self.plan = plan
        self.rule = rule
        self.logic = SessionRows(plan, rule)

    def begin(self, progress: Progress = BEFORE_TIME) -> OpenSessions:
        return self.logic.begin()

    def size(self, state: OpenSessions) -> tuple[int, int]:
        return self.logic.sizes(state)

    def cells(self, state: OpenSessions) -> int:
        return self.size(state)[0]

    def tidied(self, state: OpenSessions) -> OpenSessions:
        return self.logic.tidied(state)

    def names(self, state: OpenSessions) -> Names:
        return Names(state.keys, state.heap)

    def renamed(self, state: OpenSessions, names: Names) -> OpenSessions:
        return self.logic.renamed(state, names)

    def spilled(self, state: OpenSessions, excess: int, folder: str) -> OpenSessions:
        return self.logic.spilled(state, excess, folder)

    def open_windows(self, state: OpenSessions, progress: Progress) -> int:
        return state.open

    def save(self, state: OpenSessions) -> Parts:
        return self.logic.parts(state)

    def load(self, parts: Parts) -> OpenSessions:
        return self.logic.from_parts(parts)


class SessionEngine(SessionUpkeep):
    """Engine of sessions, for `OnClose`, `OnUpdate` and `Complete`."""

    on_host = True  # large batches are cut

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        self.bounds = self.logic.bounds
        self.closes = isinstance(plan.spec.emit, OnClose)
        self.updates = isinstance(plan.spec.emit, OnUpdate)
        self.keeps_all = isinstance(plan.spec.emit, Complete)
        mode: Mode = "complete" if self.keeps_all else "update" if self.updates else "append"
        self.driver = SessionDriver(mode, reopens=bool(self.bounds.lateness))
        at_once = self.closes and not self.bounds.lateness  # what closes is evicted
        self.cuts = self.on_host and at_once and not (rule.per_key or plan.keeps_rows)
        # Only limits read the state after each batch.
        self.tables = self.cuts and plan.spec.limits == Limits() and not plan.layout.uses_heap

    def rows(self, state: OpenSessions, rows: TimedRows, progress: Progress, source: int) -> Step[OpenSessions]:
        logic = self.logic
        code = state.keys.encode(rows.keys(self.plan), len(rows))
        after, each = logic.watermarks(state, rows, code, progress, source)
        kept, code, each, drops = logic.admitted(rows, code, each)
        closes_by = logic.rule.closing_progress(progress, after)
        if self.cuts and not logic.in_order(each):
            parted = self._in_parts(state, kept, code, closes_by) if is_oversized(len(kept)) else None
            if parted is not None:
                return Step(parted[0], after, parted[1], drops)
            if self.tables and len(kept):
                state, tabled = logic.tabled(state, kept, code)
                if tabled:
                    state, results = self._emitted(state, None, closes_by)
                    return Step(state, after, results, drops)
        state, trace, _, _, late = logic.merged(state, kept, code, each)
        merges = logic.merges(state.keys, trace.bridges) if trace is not None else ()
        return self._stepped(state, trace, after, closes_by, drops + late, merges)

    def _stepped(
        self,
        state: OpenSessions,
        trace: Trace | None,
        after: Progress,
        closes_by: Progress,
        drops: Drops,
        merges: tuple[pa.RecordBatch, ...] = (),
    ) -> Step[OpenSessions]:
        """Step of a batch whose rows are in the state. `after`: time after its rows; `closes_by`: time that sessions
        close by.
        """
        if self.keeps_all:
            everything = self.driver.step(state.sessions, trace, None)[1]
            return Step(state, after, self._finish(state, everything), drops, merges)
        state, results = self._emitted(state, trace, closes_by)
        return Step(state, after, results, drops, merges)

    def _in_parts(
        self, state: OpenSessions, kept: TimedRows, code: np.ndarray, closes_by: Progress
    ) -> tuple[OpenSessions, list[pa.RecordBatch]] | None:
        """State with these rows, and the results, of a batch that is cut where sessions close that its later rows
        cannot reach; None where there are no such sessions. All sessions are emitted at the end, in order, and no key
        leaves before.
        """
        logic, upto = self.logic, self.bounds.evicting(closes_by.watermark)
        gap = logic.gap if kept.gap is None else None
        if gap is None:
            return None
        parts = parts_of(kept.time, lambda rest: min(upto, rest - 1), 2 * gap)
        if len(parts) == 1:
            return None
        emitted = []
        after = state
        try:
            for lo, hi, rest in parts:
                after, closed = self._with_part(
                    after, kept.part(lo, hi), code[lo:hi], upto if hi == len(kept) else min(upto, rest - 1)
                )
                emitted.append(closed)
        except OverflowError:  # in a part; later rows of the batch may bring the sum back
            return None
        results = self._finish(after, [sorted_sessions(emitted)])
        return (logic.with_fewer_keys(after) if results else after), results

    def _with_part(
        self, state: OpenSessions, rows: TimedRows, code: np.ndarray, upto: int
    ) -> tuple[OpenSessions, SessionBatch]:
        """State with the rows of a part, without the sessions that end by `upto`; and these. All keys stay."""
        logic, tabled = self.logic, False
        if self.tables:
            state, tabled = logic.tabled(state, rows, code)
        if not tabled:
            state = logic.merged(state.without_table(), rows, code, INT64_MIN)[0]
        if state.table is not None:
            closed, table = state.table.closed(upto)
            return state.with_table(table), closed
        closed, sessions = state.sessions.close(upto)
        return replace(state, sessions=sessions), closed

    def advance(self, state: OpenSessions, progress: Progress) -> Step[OpenSessions]:
        progress = self.logic.rule.followed(progress, progress)
        state, results = self._emitted(state, None, progress)
        return Step(state, progress, results)

    def _emitted(
        self, state: OpenSessions, trace: Trace | None, progress: Progress
    ) -> tuple[OpenSessions, list[pa.RecordBatch]]:
        if self.keeps_all:
            return state, []
        logic = self.logic
        if state.table is not None:  # it holds all sessions, which are evicted as they close
            after, closed = logic.evicted(state, progress)
            return after, self._finish(state, [closed])
        closing = self.bounds.closing(progress.watermark)
        at = SessionFrontier(state.emitted, closing, logic.evicts_until(state, progress))
        sessions, emitted, evicted = self.driver.step(state.sessions, trace, at)
        results = self._finish(state, emitted)
        if self.driver.reopens and self.closes and closing > state.emitted:
            state = replace(state, emitted=closing)
        return logic.without(state, sessions, evicted), results

    def _finish(self, state: OpenSessions, batches: Iterable[SessionBatch]) -> list[pa.RecordBatch]:
        """Results of sessions, whose rows and texts are in `state`."""
        return [
            result(self.plan, state.keys, batch.code, batch.start, self.logic.result_end(batch),
                   self.logic.values(state, batch))
            for batch in batches if len(batch)
        ]  # fmt: skip
