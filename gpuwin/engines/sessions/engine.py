"""Engine of sessions that are emitted when they close, when they change, or all of them with each batch.

It serves `OnClose`, `OnUpdate` and `Complete`; `engines.sessions.closing` is faster at sessions that are emitted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.timed_rows import Drops, TimedRows
from gpuwin.drivers.grid_windows import Mode
from gpuwin.drivers.sessions import SessionDriver, SessionFrontier
from gpuwin.engines.results import result
from gpuwin.engines.sessions.rows import OpenSessions, SessionRows
from gpuwin.engines.step import Parts, Step
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.keys.dictionary import Names
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin.state.stores import Trace
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

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        self.bounds = self.logic.bounds
        self.closes = isinstance(plan.spec.emit, OnClose)
        self.updates = isinstance(plan.spec.emit, OnUpdate)
        self.keeps_all = isinstance(plan.spec.emit, Complete)
        mode: Mode = "complete" if self.keeps_all else "update" if self.updates else "append"
        self.driver = SessionDriver(mode, reopens=bool(self.bounds.lateness))

    def rows(self, state: OpenSessions, rows: TimedRows, progress: Progress, source: int) -> Step[OpenSessions]:
        logic = self.logic
        code = state.keys.encode(rows.keys(self.plan), len(rows))
        after, each = logic.watermarks(state, rows, code, progress, source)
        kept, code, each, drops = logic.admitted(rows, code, each)
        return self._with_rows(state, kept, code, each, after, logic.rule.closing_progress(progress, after), drops)

    def _with_rows(
        self,
        state: OpenSessions,
        kept: TimedRows,
        code: np.ndarray,
        each: int | np.ndarray,
        after: Progress,
        closes_by: Progress,
        drops: Drops,
    ) -> Step[OpenSessions]:
        """Step of a batch, of which these rows are not late: keys `code`, tested against the watermark `each`."""
        state, trace, _, _, late = self.logic.merged(state, kept, code, each)
        merges = self.logic.merges(state.keys, trace.bridges) if trace is not None else ()
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
