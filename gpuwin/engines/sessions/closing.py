"""Engine of sessions that are emitted once, when they close, and evicted with that. Nothing reads an open session
before: hence a few of them are one table, and an oversized batch is taken part by part.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.parts import is_oversized, parts_of
from gpuwin.batch.timed_rows import Drops, TimedRows
from gpuwin.bounds import Bounds
from gpuwin.engines.sessions.engine import SessionEngine
from gpuwin.engines.sessions.rows import OpenSessions
from gpuwin.engines.step import Step
from gpuwin.errors import OverflowError
from gpuwin.planning.plan import Plan
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.state.sessions.tiers import SessionBatch, sorted_sessions
from gpuwin.state.stores import Trace
from gpuwin.vocabulary.durations import INT64_MIN
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.triggers import OnClose


def emits_once(plan: Plan, rule: WatermarkRule) -> bool:
    """Whether sessions are emitted when they close, at no other time, and leave no raw rows behind."""
    at_once = isinstance(plan.spec.emit, OnClose) and not Bounds.of(plan.spec).lateness
    return at_once and not (rule.per_key or plan.keeps_rows)


class ClosingSessionEngine(SessionEngine):
    """`SessionEngine` for plans that `emits_once` tells, on the host."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        #: Whether there may be a table. Limits read the state after each batch.
        self.tables = plan.spec.limits == Limits() and not plan.layout.uses_heap

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
        if not self.logic.in_order(each):
            parted = self._in_parts(state, kept, code, closes_by) if is_oversized(len(kept)) else None
            if parted is not None:
                return Step(parted[0], after, parted[1], drops)
            if self.tables and len(kept):
                state, tabled = self.logic.tabled(state, kept, code)
                if tabled:
                    state, results = self._emitted(state, None, closes_by)
                    return Step(state, after, results, drops)
        return super()._with_rows(state, kept, code, each, after, closes_by, drops)

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

    def _emitted(
        self, state: OpenSessions, trace: Trace | None, progress: Progress
    ) -> tuple[OpenSessions, list[pa.RecordBatch]]:
        if state.table is None:
            return super()._emitted(state, trace, progress)
        after, closed = self.logic.evicted(state, progress)  # the table holds all sessions
        return after, self._finish(state, [closed])
