"""Engine of triggers on sessions in rounds, of a few rows of each key: where what a row does to its session, or to its
trigger, depends on those before it in the batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.timed_rows import NOTHING_DROPPED, TimedRows
from gpuwin.bounds import Bounds
from gpuwin.engines.results import EARLY, LATE
from gpuwin.engines.sessions.rows import reaches_back
from gpuwin.engines.triggers.emitted import as_they_came
from gpuwin.engines.triggers.firings import Firings, Visits
from gpuwin.engines.triggers.ledger import Ledger
from gpuwin.engines.triggers.rounds import Waiting
from gpuwin.engines.triggers.rule import TriggerRule
from gpuwin.engines.triggers.sessions import Merged, SessionTriggerEngine
from gpuwin.engines.triggers.triggered_sessions import TriggeredSessions
from gpuwin.planning.plan import Plan
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.triggers import Every, EveryEventTime, EveryRow, EveryRows

_FEW_SESSIONS = 4  # of a key, for each of which a round may take several rows


class SessionTriggerEngineInRounds(SessionTriggerEngine):
    """`SessionTriggerEngine` for plans that `needs_rounds` tells: by rows, with a round for one row of each key, or by
    closing, with a round for the rows of each key until a session closes.
    """

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        super().__init__(plan, rule)
        trigger = self.trigger
        self.by_row = fires_by_row(trigger)
        self.reaches_back = reaches_back(plan)
        self.each_row = isinstance(plan.spec.emit, EveryRow)
        self.in_order = self.each_row or (self.by_row and not rule.per_row)
        self.on_time = replace(trigger, early=None, late=None)
        # Until its rows are as many as a firing takes, nothing happens to a session that is open and stays so, unless
        # a row takes a result back.
        alone = rule.per_row or self.reaches_back or self.restarts or self.retracting
        by_time = isinstance(trigger.late, EveryEventTime)
        early = trigger.early
        self.fires_at = early.rows if isinstance(early, EveryRows) and not (alone or by_time) else 1
        if not self.by_row:  # a session may close and open again: what fires when a batch ends waits
            self.on_rows = trigger.without(Every, EveryRows)

    # -- a batch -----------------------------------------------------------------------------------------------------

    def _with_rows(
        self, state: TriggeredSessions, rows: TimedRows, code: np.ndarray, each: int | np.ndarray, progress: Progress
    ) -> Merged:
        drops, results, merges = NOTHING_DROPPED, list[pa.RecordBatch](), tuple[pa.RecordBatch, ...]()
        waiting = Waiting.of(code)
        others = None
        if self.by_row and not self.reaches_back and len(waiting) < len(code):
            # A round copies the ledger; so in many rounds of few keys it has the entries of these keys only.
            state, others = state.of_ids(state.open.host.of_codes(waiting.code).id)
        hasty = code[:0]
        if self.fires_at > 1:
            hasty = code[self.logic.own_ends(rows) <= self.bounds.closing_each(np.broadcast_to(each, len(rows)))]
        while len(waiting):
            state, emitted, stop = self._round(state, rows, each, waiting, hasty, progress)
            results += emitted
            at, waiting = waiting.taken(stop)
            part = rows if len(at) == len(code) else rows.take(at)
            part_each = each[at] if isinstance(each, np.ndarray) else each
            state, late, emitted, found = self._merged(state, part, code[at], part_each, progress)
            drops += late
            results += emitted
            merges += found
        if others is not None:
            state = state.joined(others)
        if not self.by_row:
            state, emitted = self._counted(state, state.open.sessions.ending(None, None))
            results += emitted
        return state, drops, as_they_came(results) if self.in_order else results, merges

    def _round(
        self,
        state: TriggeredSessions,
        rows: TimedRows,
        each: int | np.ndarray,
        waiting: Waiting,
        hasty: np.ndarray,
        progress: Progress,
    ) -> tuple[TriggeredSessions, list[pa.RecordBatch], np.ndarray]:
        """State after the sessions closed that close before the next row of each key, their results, and the end of the
        round of these rows. `hasty`: see `_rows_to_firing`.
        """
        if not (self.rule.per_row and isinstance(each, np.ndarray)):
            if self.by_row:
                return state, [], waiting.some_each(self._rows_to_firing(state, waiting, hasty))
            closing = self.bounds.closing_each(np.broadcast_to(np.asarray(each), len(rows)))
            return state, [], waiting.until_closing(self.logic.own_ends(rows), closing, None)
        next_rows = waiting.next_rows
        there = state.open.host.of_codes(waiting.code)
        watermark = each[next_rows][np.searchsorted(waiting.code, there.code)]
        passed = there.end <= self.bounds.closing_each(watermark)
        ended = np.flatnonzero(passed)
        results: list[pa.RecordBatch] = []
        if len(ended) and not self.by_row:
            last_chance = (state.ledger.closed[np.searchsorted(state.id, there.id)] == 0) & (not self.trigger.once)
            if self.reaches_back:
                last_chance |= there.end <= self.bounds.evicting_each(watermark)
            state, results = self._counted(state, there.take(np.flatnonzero(passed & last_chance)))
            there = state.open.host.of_codes(waiting.code)  # firings may have discarded contents
        emitted: list[pa.RecordBatch] = []
        if not self.trigger.once:  # else they are emitted when they are evicted, or at the end of the batch
            state, emitted = self._timed(state, self.on_time, there.take(ended), watermark[ended], progress.now)
        if self.reaches_back and len(ended):  # their raw rows go with them
            upto = np.full(len(state.open.keys), INT64_MIN)
            upto[waiting.code] = self.bounds.evicting_each(each[next_rows])
            state = self._without(state, *self.logic.evicted_by_key(state.open, upto))
        if self.by_row:
            return state, results + emitted, waiting.one_each()
        closing, ends = self.bounds.closing_each(each), self.logic.own_ends(rows)
        stop = waiting.until_closing(ends, closing, there.take(np.flatnonzero(~passed)))
        if self.reaches_back and self.bounds.lateness:  # those that have closed are evicted later
            evicting = self.bounds.evicting_each(each)
            held = there.take(np.flatnonzero(passed & (there.end > self.bounds.evicting_each(watermark))))
            stop = np.minimum(stop, waiting.until_closing(np.full_like(ends, INT64_MAX), evicting, held))
        return state, results + emitted, stop

    def _rows_to_firing(self, state: TriggeredSessions, waiting: Waiting, hasty: np.ndarray) -> np.ndarray:
        """Rows of each key, at least one, of which the last, and none before it, may fire, whichever of the key's
        sessions they come to and become one by it: int64[keys]. `hasty`: codes of keys of which a row may close.
        """
        if self.fires_at == 1 or len(state.id) > _FEW_SESSIONS * len(waiting):
            return np.ones(len(waiting), np.int64)  # of many sessions all together have rows enough
        there = state.open.host.of_codes(waiting.code)
        ledger = state.ledger.take(np.searchsorted(state.id, there.id))
        key = np.searchsorted(waiting.code, there.code)
        count = np.bincount(key, ledger.count, len(waiting)).astype(np.int64)
        one = np.isin(waiting.code, hasty)
        one[key[ledger.closed != 0]] = True
        some: np.ndarray = np.where(one, 1, np.maximum(self.fires_at - count, 1))
        return some

    def _counted(
        self, state: TriggeredSessions, sessions: SessionBatch
    ) -> tuple[TriggeredSessions, list[pa.RecordBatch]]:
        """State and results after the firings by number of rows that a batch brought in rounds."""
        places = np.searchsorted(state.id, sessions.id)
        ledger = state.ledger.take(places)
        hit = np.zeros(len(sessions), bool)
        for schedule, late in ((self.trigger.early, 0), (self.trigger.late, 1)):
            if isinstance(schedule, EveryRows):
                hit |= (ledger.closed == late) & (ledger.count >= schedule.rows)
        at = np.flatnonzero(hit)
        if not len(at):
            return state, []
        count = state.ledger.count.copy()
        count[places[at]] = 0
        state = replace(state, ledger=replace(state.ledger, count=count))
        timing = np.where(ledger.closed[at] != 0, LATE, EARLY)
        return self._emitted(
            state, sessions, Firings(at, np.zeros(len(at), np.int64), timing, np.ones(len(at), bool)), None
        )

    # -- rows of a round -----------------------------------------------------------------------------------------------

    def _closes_at_once(self, sessions: SessionBatch, now: np.ndarray) -> np.ndarray:
        if self.by_row or self.trigger.late_by_row:
            return super()._closes_at_once(sessions, now)
        return np.zeros(len(sessions), bool)

    def _fired(
        self, ledger: Ledger, visits: Visits, first_time: np.ndarray, end: np.ndarray, now: int
    ) -> tuple[Firings, Ledger]:
        firings, ledger = super()._fired(ledger, visits, first_time, end, now)
        if not self.by_row:  # see `_counted`
            ledger = replace(ledger, count=ledger.count + visits.size - visits.closing)
        return firings, ledger

    def _arrival(self, seq: np.ndarray) -> np.ndarray | None:
        return seq if self.in_order else None


def fires_by_row(trigger: TriggerRule) -> bool:
    """Whether a trigger may fire after each row."""
    return (
        (trigger.early_by_row and isinstance(trigger.early, EveryRows))
        or (trigger.late_by_row and isinstance(trigger.late, EveryRows))
        or isinstance(trigger.early, EveryEventTime)  # sessions that merge keep the earliest of their first rows'
    )


def needs_rounds(plan: Plan, rule: WatermarkRule) -> bool:
    """Whether the trigger may fire after each row, or a session that closes within a batch be opened again by it."""
    trigger = TriggerRule.of(plan.spec)
    fires_again = (rule.per_row or trigger.late_by_row) and Bounds.of(plan.spec).lateness > 0 and not trigger.once
    return fires_by_row(trigger) or reaches_back(plan) or fires_again
