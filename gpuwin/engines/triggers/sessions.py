"""Engine of triggers on sessions, with a ledger entry for each session, all rows of a batch at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.timed_rows import NOTHING_DROPPED, Drops, TimedRows
from gpuwin.engines.results import EARLY, LATE, result
from gpuwin.engines.sessions.rows import OpenSessions, SessionRows
from gpuwin.engines.step import Parts, Step
from gpuwin.engines.triggers.cold import Cold
from gpuwin.engines.triggers.emitted import ARRIVAL, Retractions, is_news, no_values, pooled, remembers
from gpuwin.engines.triggers.firings import BatchTime, Firings, Visits, emits, firings_of
from gpuwin.engines.triggers.ledger import Ledger
from gpuwin.engines.triggers.moments import Moments, in_parts
from gpuwin.engines.triggers.rule import TriggerRule
from gpuwin.engines.triggers.triggered_sessions import TriggeredSessions, all_spilled, read_back
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.cells import concat_cells, empty_cells, take_cells
from gpuwin.state.keys.dictionary import Names
from gpuwin.state.sessions.session_state import SessionTrace
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin.state.spill import spill_hot
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.triggers import Every
from gpuwin_kernels.cpu.order import stable_order

Merged = tuple[TriggeredSessions, Drops, list[pa.RecordBatch], tuple[pa.RecordBatch, ...]]
"""State with some rows, the rows that were dropped, the results, and the sessions that became one."""


class SessionTriggerEngine:
    """Engine of sessions with a ledger entry for each (see `gpuwin.choice.keeps_ledger`), for triggers that look at all
    rows of a batch at once. Others are in `triggers.sessions_in_rounds`.
    """

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        self.plan = plan
        self.rule = rule
        self.logic = SessionRows(plan, rule)
        self.bounds = self.logic.bounds
        self.trigger = trigger = TriggerRule.of(plan.spec)
        self.moments = Moments(plan, rule, trigger)
        #: The part of the trigger that fires with rows, and not when the batch ends.
        self.on_rows = trigger.without(Every)
        self.discarding = plan.spec.accumulation == "discarding"
        self.retracting = plan.spec.accumulation == "retracting"
        self.restarts = plan.spec.semantics.trigger_merge == "restart"
        self.remembers = remembers(plan)

    def begin(self, progress: Progress = BEFORE_TIME) -> TriggeredSessions:
        none = np.empty(0, np.int64)
        return TriggeredSessions(self.logic.begin(), none, Ledger.fresh(0, 0), none, none, no_values(self.plan))

    # -- a batch -----------------------------------------------------------------------------------------------------

    def rows(
        self, state: TriggeredSessions, rows: TimedRows, progress: Progress, source: int
    ) -> Step[TriggeredSessions]:
        if self.moments.any and len(rows):
            ends = self.moments.within(state.open.keys, rows, progress, source)
            return in_parts(self._rows, ends, state, rows, progress, source)
        return self._rows(state, rows, progress, source, False)

    def _rows(
        self, state: TriggeredSessions, rows: TimedRows, progress: Progress, source: int, more: bool
    ) -> Step[TriggeredSessions]:
        logic = self.logic
        code = state.open.keys.encode(rows.keys(self.plan), len(rows))
        after, each = logic.watermarks(state.open, rows, code, progress, source)
        closes_by = replace(self.rule.closing_progress(progress, after), before=progress.watermark)
        state = self._reached(state, code, closes_by)
        kept, code, each, drops = logic.admitted(rows, code, each)
        state, late, results, merges = self._with_rows(state, kept, code, each, progress)
        state, emitted = self._advanced(state, closes_by, more)
        return Step(state, after, results + emitted, drops + late, merges)

    def _with_rows(
        self, state: TriggeredSessions, rows: TimedRows, code: np.ndarray, each: int | np.ndarray, progress: Progress
    ) -> Merged:
        """State with the rows of a batch, of the keys `code`. `each`: the watermark that they are tested against, or
        one for each.
        """
        return self._merged(state, rows, code, each, progress) if len(rows) else (state, NOTHING_DROPPED, [], ())

    def advance(self, state: TriggeredSessions, progress: Progress) -> Step[TriggeredSessions]:
        progress = self.rule.followed(progress, progress)
        state = self._reached(state, np.empty(0, np.int32), progress)
        state, results = self._advanced(state, progress, False)
        return Step(state, progress, results)

    def _merged(
        self, state: TriggeredSessions, rows: TimedRows, code: np.ndarray, each: int | np.ndarray, progress: Progress
    ) -> Merged:
        """State with these rows, whose visits to a session count as one."""
        arrived = rows.seq
        opened, trace, rows, session, late = self.logic.merged(state.open, rows, code, each)
        if isinstance(each, np.ndarray) and len(rows) != len(arrived):
            each = each[np.searchsorted(arrived, rows.seq)]
        assert trace is None or isinstance(trace, SessionTrace)
        if trace is None or not len(session):
            return state, late, [], ()
        sessions = trace.sessions
        by_session = stable_order(session)
        size = np.bincount(session, minlength=len(sessions))
        first = np.concatenate(([0], np.cumsum(size)))
        # Sessions have closed by the watermark that rows are tested against, not by one that waits for the batch's end.
        waits = self.rule.by_previous and not self.rule.per_key
        reached = replace(progress, watermark=progress.before) if waits else progress
        then = reached.of_keys(len(opened.keys))[sessions.code]
        if isinstance(each, np.ndarray) and self.rule.per_row:
            then = each[by_session[first[:-1]]]
        state, back = self._inherited(replace(state, open=opened), trace, then)
        places = np.searchsorted(state.id, sessions.id)
        ledger = state.ledger.take(places)
        closed = ledger.closed != 0
        first_row = by_session[first[:-1]]
        now = each[first_row] if isinstance(each, np.ndarray) else np.full(len(size), each)
        opened_late = ~closed & self._closes_at_once(sessions, now)
        visits = Visits(by_session, first, np.where(closed, 0, size), opened_late, opened_late)
        # Late timers run from the watermark on; they, too, fire when the batch ends.
        after_end = closed | opened_late
        first_time = rows.time[first_row]
        begins = np.where(after_end, np.maximum(first_time, self.rule.to_user_each(then)), first_time)
        firings, ledger = self._fired(ledger, visits, begins, sessions.end, progress.now)
        state = replace(state, ledger=state.ledger.written(places, ledger))
        last_row = by_session[first[1:] - 1]
        state, results = self._in_turn(state, sessions, firings, back, self._arrival(rows.seq[last_row]))
        return state, late, results, self.logic.merges(state.open.keys, trace.bridges)

    def _closes_at_once(self, sessions: SessionBatch, now: np.ndarray) -> np.ndarray:
        """Whether new sessions close with their first row, bool[n]. `now`: the watermark when it comes."""
        closes: np.ndarray = sessions.end <= self.bounds.closing_each(now)
        return closes

    def _fired(
        self, ledger: Ledger, visits: Visits, first_time: np.ndarray, end: np.ndarray, now: int
    ) -> tuple[Firings, Ledger]:
        """Firings that rows bring about, and the ledger after them. `first_time`, `end`: see `firings_of`."""
        never = np.full(len(end), INT64_MIN)
        return firings_of(
            self.on_rows, ledger, visits, first_time, first_time, end, never, BatchTime(now, per_row=False)
        )

    def _arrival(self, seq: np.ndarray) -> np.ndarray | None:
        """Arrival of the last row of each session, where results are put in the order of rows."""
        return None

    def _inherited(
        self, state: TriggeredSessions, trace: SessionTrace, now: np.ndarray
    ) -> tuple[TriggeredSessions, Retractions]:
        """State with the ledger after a merge, at the watermark `now` of each session: sessions inherit the entries of
        those that they replace. Second, the results that no longer hold.
        """
        new, old, offsets = trace.sessions, trace.replaced, trace.offsets
        replaced = np.searchsorted(state.id, old.id)
        into = np.repeat(np.arange(len(new)), np.diff(offsets))
        was = state.ledger.take(replaced)
        changed = (old.start != new.start[into]) | (old.end != new.end[into])
        was_closed = np.zeros(len(new), np.int64)
        np.maximum.at(was_closed, into, was.closed)
        closed = was_closed * (new.end <= self.bounds.closing_each(now))
        # A session that opens again is early again: counts and times of its ended parts were for late firings.
        ended = was.closed > closed[into]
        fresh = ended & (not self.trigger.carries)
        count = np.zeros(len(new), np.int64)
        np.add.at(count, into, np.where(fresh | (changed & self.restarts), 0, was.count))
        timed_from, next_time = np.full(len(new), INT64_MAX), np.full(len(new), INT64_MAX)
        np.minimum.at(timed_from, into, np.where(ended | (was.timed_from == INT64_MIN), INT64_MAX, was.timed_from))
        np.minimum.at(next_time, into, np.where(ended, INT64_MAX, was.next_time))
        timed_from = np.where(timed_from == INT64_MAX, INT64_MIN, timed_from)
        last = np.full(len(new), -1)
        emitted_start, emitted_end = new.start.copy(), self.logic.result_end(new).copy()
        same = np.flatnonzero(~changed)
        last[into[same]] = was.last[same]
        # The last event may have moved, though the end did not.
        emitted_end[into[same]] = state.emitted_end[replaced[same]]
        lost = np.flatnonzero(changed & (was.last >= 0))
        outdated = Retractions(
            was.last[lost],
            old.code[lost],
            state.emitted_start[replaced[lost]],
            state.emitted_end[replaced[lost]],
            np.where(closed[into[lost]] != 0, LATE, EARLY),
        )
        opened = Ledger(count, timed_from, next_time, closed, np.full(len(new), INT64_MIN), last)
        keep = np.ones(len(state.id), bool)
        keep[replaced] = False
        inherited = replace(state, id=new.id, ledger=opened, emitted_start=emitted_start, emitted_end=emitted_end)
        return inherited.joined(state.entries(np.flatnonzero(keep))), outdated

    # -- the end of a batch ------------------------------------------------------------------------------------------

    def _advanced(
        self, state: TriggeredSessions, progress: Progress, more: bool
    ) -> tuple[TriggeredSessions, list[pa.RecordBatch]]:
        """State and results at the end of a batch, or of a part of it (`more`): timers, closing and eviction."""
        if not len(state.id):
            return state, []
        everything = state.open.sessions.ending(None, None)
        watermark = progress.of_keys(len(state.open.keys))[everything.code]
        waits = self.rule.waits(progress)
        state, results = self._timed(state, self.trigger, everything, watermark, progress.now, waits, more)
        return self._without(state, *self.logic.evicted(state.open, progress)), results

    def _without(self, state: TriggeredSessions, opened: OpenSessions, evicted: SessionBatch) -> TriggeredSessions:
        state = replace(state, open=opened)
        return state.kept(np.flatnonzero(~np.isin(state.id, evicted.id))) if len(evicted) else state

    def _timed(
        self,
        state: TriggeredSessions,
        rule: TriggerRule,
        sessions: SessionBatch,
        watermark: np.ndarray,
        now: int,
        waits: bool = False,
        more: bool = False,
    ) -> tuple[TriggeredSessions, list[pa.RecordBatch]]:
        """State and results after the firings of sessions, where the watermark of each is at `watermark`. waits, more:
        whether timers of event time wait, and whether more of the batch follows.
        """
        if not len(sessions):
            return state, []
        places = np.searchsorted(state.id, sessions.id)
        stated = np.full(len(sessions), INT64_MIN) if waits else self.rule.to_user_each(watermark)
        ledger = state.ledger.take(places)
        ended = (sessions.end <= self.bounds.closing_each(watermark)) | (watermark == INT64_MAX)
        none = np.zeros(len(sessions), np.int64)
        nobody = np.zeros(len(sessions) + 1, np.int64)
        visits = Visits(np.empty(0, np.int64), nobody, none, ended & (ledger.closed == 0), none.astype(bool))
        later = sessions.end > self.bounds.evicting_each(watermark) if more else None
        firings, ledger = firings_of(
            rule, ledger, visits, none, none, sessions.end, stated, BatchTime(now, False, later)
        )
        state = replace(state, ledger=state.ledger.written(places, ledger))
        return self._in_turn(state, sessions, firings, None)

    # -- results -----------------------------------------------------------------------------------------------------

    def _in_turn(
        self,
        state: TriggeredSessions,
        sessions: SessionBatch,
        firings: Firings,
        back: Retractions | None,
        arrival: np.ndarray | None = None,
    ) -> tuple[TriggeredSessions, list[pa.RecordBatch]]:
        """State and results of the first firing of each session, then of the second, and so on: each retracts the
        result of the one before it, or has the contents that it left. arrival: int64[sessions], the last row of each,
        where results are put in the order of rows.
        """
        places = np.arange(len(firings))
        again = np.zeros(len(firings), bool)
        again[1:] = firings.window[1:] == firings.window[:-1]
        if not again.any():
            return self._emitted(state, sessions, firings, back, arrival)
        turn = places - np.maximum.accumulate(np.where(again, 0, places))
        by_turn = stable_order(turn)
        ends = np.cumsum(np.bincount(turn))
        results: list[pa.RecordBatch] = []
        for at in np.split(by_turn, ends[:-1]):
            state, emitted = self._emitted(state, sessions, firings.take(at), back, arrival)
            results += emitted
            back = None
            if self.discarding:
                sessions = replace(sessions, filled=np.zeros_like(sessions.filled))
        return state, results

    def _emitted(
        self,
        state: TriggeredSessions,
        sessions: SessionBatch,
        firings: Firings,
        back: Retractions | None,
        arrival: np.ndarray | None = None,
    ) -> tuple[TriggeredSessions, list[pa.RecordBatch]]:
        """State and results of firings, at most one of each session."""
        firings = firings.take(np.flatnonzero(emits(self.trigger, firings, sessions.filled[firings.window])))
        emitted, timing = sessions.take(firings.window), firings.timing
        if self.trigger.empty_on_time:
            emitted = self._with_nothing_where_empty(emitted)
        retracted = Retractions.none() if back is None or not self.retracting else back
        if not len(emitted) and not len(retracted.row):
            return state, []
        values = self.logic.values(state.open, emitted)
        pool = pooled(state.results, values) if self.remembers else values
        new = np.arange(len(emitted)) + (len(pool[0]) - len(emitted) if self.remembers else 0)
        places = np.searchsorted(state.id, emitted.id)
        previous = state.ledger.last[places]
        if self.trigger.only_updated:
            kept = np.flatnonzero(is_news(pool, new, previous))
            if not len(kept) and not len(retracted.row):
                return state, []  # with the pool as it was: of thousands of firings in turn most bring no news
            emitted = emitted.take(kept)
            timing, new, places, previous = (a[kept] for a in (timing, new, places, previous))
        own = np.flatnonzero(previous >= 0) if self.retracting else np.empty(0, np.int64)
        end = self.logic.result_end(emitted)
        row = np.concatenate((retracted.row, previous[own], new))
        code = np.concatenate((retracted.code, emitted.code[own], emitted.code)).astype(np.int32)
        starts = np.concatenate((retracted.start, emitted.start[own], emitted.start))
        ends = np.concatenate((retracted.end, state.emitted_end[places[own]], end))
        timings = np.concatenate((retracted.timing, timing[own], timing))
        retraction = np.arange(len(row)) < len(retracted.row) + len(own)
        at = pa.array(row)
        batch = result(self.plan, state.open.keys, code, starts, ends, [c.take(at) for c in pool], timings, retraction)
        if arrival is not None:
            row_of = np.zeros(len(state.open.keys), np.int64)
            np.maximum.at(row_of, sessions.code, arrival)  # of each key, only its last row may fire
            batch = batch.append_column(ARRIVAL, pa.array(row_of[code]))
        if self.remembers:
            state = state.with_last(places, new, (emitted.start, end), pool)
        if self.discarding and len(emitted):
            opened = state.open
            rows = self.logic.without_rows(opened.rows, emitted)
            state = replace(state, open=replace(opened, sessions=opened.host.emptied(emitted), rows=rows))
        return state, [batch]

    def _with_nothing_where_empty(self, emitted: SessionBatch) -> SessionBatch:
        """Sessions, with the cells of no rows where their contents were discarded."""
        if emitted.filled.all():
            return emitted
        both = concat_cells([emitted.columns, empty_cells(self.plan.layout, 1)])
        at = np.where(emitted.filled != 0, np.arange(len(emitted)), len(emitted))
        return replace(emitted, columns=take_cells(both, at))

    # -- what it takes -----------------------------------------------------------------------------------------------

    def size(self, state: TriggeredSessions) -> tuple[int, int]:
        cells, size = self.logic.sizes(state.open)
        size += sum(a.nbytes for a in state.ledger.arrays()) + 3 * state.id.nbytes
        return cells, size + sum(c.nbytes for c in state.results)

    def cells(self, state: TriggeredSessions) -> int:
        return self.size(state)[0]

    def tidied(self, state: TriggeredSessions) -> TriggeredSessions:
        opened = self.logic.tidied(state.open)
        return state if opened is state.open else replace(state, open=opened)

    def names(self, state: TriggeredSessions) -> Names:
        return Names(state.open.keys, state.open.heap)

    def renamed(self, state: TriggeredSessions, names: Names) -> TriggeredSessions:
        return replace(state, open=self.logic.renamed(state.open, names))

    def spilled(self, state: TriggeredSessions, excess: int, folder: str) -> TriggeredSessions:
        hot = self.size(state)[1] - self.logic.sizes(state.open)[1] + state.open.sessions.nbytes
        rows, chosen = spill_hot(state.open.rows, hot, excess, folder)
        state = replace(state, open=replace(state.open, rows=rows))
        if not chosen or not len(state.id):
            return state
        return all_spilled(state, self.begin(), self.trigger, self.bounds.lateness, folder)

    def _reached(self, state: TriggeredSessions, codes: np.ndarray, progress: Progress) -> TriggeredSessions:
        """State with the sessions of these keys, and those that time has reached, back from disk."""
        keys = len(state.open.keys)
        reached = progress.of_keys(keys) if self.rule.per_key else progress.watermark
        cold, back = state.open.cold.taken(codes, reached, progress.now)
        return state if back is None else read_back(self.plan.layout, state, cold, back)

    def open_windows(self, state: TriggeredSessions, progress: Progress) -> int:
        return state.open.sessions.cells + len(state.open.cold)

    def save(self, state: TriggeredSessions) -> Parts:
        state = read_back(self.plan.layout, state, Cold(), state.open.cold.everything())
        arrays = [state.id, state.emitted_start, state.emitted_end, *state.ledger.arrays()]
        ledger = pa.record_batch([pa.array(a) for a in arrays], names=[f"a{k}" for k in range(len(arrays))])
        results = pa.record_batch(state.results, names=[o.name for o in self.plan.outputs])
        return self.logic.parts(state.open) | {"ledger": ledger, "results": results}

    def load(self, parts: Parts) -> TriggeredSessions:
        arrays = [np.asarray(column) for column in parts["ledger"].columns]
        results = [c.cast(o.type) for c, o in zip(parts["results"].columns, self.plan.outputs, strict=True)]
        ledger = Ledger(*arrays[3:])
        return TriggeredSessions(self.logic.from_parts(parts), arrays[0], ledger, arrays[1], arrays[2], results)
