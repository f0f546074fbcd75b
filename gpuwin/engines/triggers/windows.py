"""Engine of triggers on windows of a grid, with a state per (key, window)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.assignment import Assigned, assign_windows
from gpuwin.batch.pane_cells import unit_cells
from gpuwin.batch.timed_rows import NOTHING_DROPPED, TimedRows
from gpuwin.bounds import Bounds
from gpuwin.engines.raw_rows import first_time_after, times_of
from gpuwin.engines.results import finished, result
from gpuwin.engines.saved import cell_columns, cells_of, key_part, keys_of, number, row_parts, rows_of, with_numbers
from gpuwin.engines.step import Parts, Step
from gpuwin.engines.triggers.cold import Cold, wake_times
from gpuwin.engines.triggers.contents import Contents, at_firings, in_turn, reach_of, until_of, upto
from gpuwin.engines.triggers.emitted import emitted_rows, no_values, pooled, remembers
from gpuwin.engines.triggers.firings import BatchTime, Firings, Visits, emits, firings_of
from gpuwin.engines.triggers.ledger import Ledger, without_unused
from gpuwin.engines.triggers.moments import Moments, in_parts
from gpuwin.engines.triggers.rule import TriggerRule
from gpuwin.engines.triggers.triggered_windows import TriggeredWindows, all_spilled, read_back
from gpuwin.grid import WindowGrid
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.cells import (
    cells_nbytes,
    empty_cells,
    take_cells,
)
from gpuwin.state.dead_texts import smaller
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary, Names
from gpuwin.state.panes.runs import order_of_cells
from gpuwin.state.rows.row_state import RowState
from gpuwin.state.spill import memory_of_rows, spill_hot
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.cells import group_cells
from gpuwin_kernels.cpu.distinct_codes import distinct_codes


class TriggerEngine:
    """Engine of windows on a grid with a ledger entry for each (key, window): see `gpuwin.choice.keeps_ledger`."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        spec = plan.spec
        self.plan = plan
        self.rule = rule
        self.grid = WindowGrid.of(spec.window)
        self.bounds = Bounds.of(spec)
        self.trigger = TriggerRule.of(spec)
        self.moments = Moments(plan, rule, self.trigger)
        self.discarding = spec.accumulation == "discarding"
        self.retracting = spec.accumulation == "retracting"
        self.remembers = remembers(plan)
        self.key_types = (*plan.key_types, pa.int64()) if self.grid.inherited else plan.key_types

    def begin(self, progress: Progress = BEFORE_TIME) -> TriggeredWindows:
        none = np.empty(0, np.int64)
        return TriggeredWindows(
            KeyDictionary(self.key_types),
            BytesHeap(),
            none.astype(np.int32),
            none,
            Contents(empty_cells(self.plan.layout, 0), none.astype(np.uint8)),
            Ledger.fresh(0, 0),
            no_values(self.plan),
            self.plan.no_rows(),
        )

    # -- a batch -----------------------------------------------------------------------------------------------------

    def rows(self, state: TriggeredWindows, rows: TimedRows, progress: Progress, source: int) -> Step[TriggeredWindows]:
        if self.moments.any and len(rows):
            ends = self.moments.within(state.keys, rows, progress, source)
            return in_parts(self._rows, ends, state, rows, progress, source)
        return self._rows(state, rows, progress, source, False)

    def _rows(
        self, state: TriggeredWindows, rows: TimedRows, progress: Progress, source: int, more: bool
    ) -> Step[TriggeredWindows]:
        code = state.keys.encode(rows.keys(self.plan), len(rows))
        after, each = self._watermarks(progress, rows, code, len(state.keys), source)
        if self.rule.per_key and not self.rule.per_row:
            each = progress.of_keys(len(state.keys))[code]
        elif not self.rule.per_row:
            each = np.full(len(rows), self.rule.tested_against(progress))
        rows, each, assigned, drops = assign_windows(self.grid, self.bounds, self.rule, rows, code, each)
        closes_by = replace(self.rule.closing_progress(progress, after), before=progress.watermark)
        new, results = self._applied(state, rows, each, assigned, closes_by, more)
        return Step(new, self.rule.followed(progress, after), results, drops)

    def advance(self, state: TriggeredWindows, progress: Progress) -> Step[TriggeredWindows]:
        progress = self.rule.followed(progress, progress)
        none = np.empty(0, np.int64)
        nobody = TimedRows({}, none, 0)
        assigned = Assigned(none, none.astype(np.int32), none)
        new, results = self._applied(state, nobody, none, assigned, progress, False)
        return Step(new, progress, results, NOTHING_DROPPED)

    def _watermarks(
        self, progress: Progress, rows: TimedRows, code: np.ndarray, keys: int, source: int
    ) -> tuple[Progress, np.ndarray]:
        """Progress after the batch, and the watermark after each row."""
        if self.rule.per_key:
            return self.rule.after_rows_by_key(progress, rows.time, code, keys)
        if self.rule.per_row:
            return self.rule.after_each_row(progress, rows.time, source)
        return self.rule.after_rows(progress, rows.time, source), rows.time

    def _applied(
        self,
        state: TriggeredWindows,
        rows: TimedRows,
        each: np.ndarray,
        assigned: Assigned,
        progress: Progress,
        more: bool,
    ) -> tuple[TriggeredWindows, list[pa.RecordBatch]]:
        """State with these rows, with time at `progress`, and the results. more: whether more of the batch follows."""
        reached = progress.of_keys(len(state.keys)) if self.rule.per_key else progress.watermark
        cold, back = state.cold.taken(assigned.code, reached, progress.now, self.rule.per_key)
        state = read_back(self.plan.layout, replace(state, cold=cold), back)
        state, visits = self._opened(state, rows, each, assigned, progress)
        if not len(state):
            return state, []
        keys_at = progress.of_keys(len(state.keys))
        watermark = keys_at[state.code] if self.rule.per_key else np.full(len(state), progress.watermark)
        end = self.grid.ends(state.window)
        stated = np.full(len(state), INT64_MIN) if self.rule.waits(progress) else self.rule.to_user_each(watermark)
        none = np.zeros(len(state), np.int64)
        first_time = late_time = none
        if len(visits.row):
            first_row = visits.row[np.minimum(visits.first[:-1], len(visits.row) - 1)]
            ended = (state.ledger.closed != 0) | visits.after_end
            before = np.where(visits.closing & ~visits.after_end, visits.before_close, 0)
            late_row = visits.row[np.minimum(visits.first[:-1] + before, len(visits.row) - 1)]
            then = np.where(ended | visits.closing, each[late_row], INT64_MIN)
            first_time = rows.time[first_row]
            late_time = np.maximum(rows.time[late_row], self.rule.to_user_each(then))
        time = BatchTime(progress.now, self.rule.per_row, ~self._over(watermark, end) if more else None)
        firings, ledger = firings_of(self.trigger, state.ledger, visits, first_time, late_time, end, stated, time)
        units = unit_cells(self.plan, rows, state.heap)
        at_each, contents = at_firings(self.plan, state.contents, units, visits, firings, self.discarding, state.heap)
        kept = emits(self.trigger, firings, at_each.held)
        if not kept.all():
            some = np.flatnonzero(kept)
            at_each = Contents(take_cells(at_each.cells, some), at_each.held[some])
            firings = firings.take(some)
        until = until_of(firings, visits, rows)
        reach = reach_of(firings, visits, rows, until) if self.rule.per_row else until
        state = replace(state, contents=contents, ledger=ledger)
        state, results = self._emitted(state, firings, at_each, until, reach, end)
        if self.discarding and len(firings):
            since = state.ledger.since.copy()
            since[firings.window] = np.where(until == INT64_MAX, self._next_seq(state, rows), until + 1)
            state = replace(state, ledger=replace(state.ledger, since=since))
        return self._evicted(state, watermark, end, progress), results

    def _next_seq(self, state: TriggeredWindows, rows: TimedRows) -> int:
        """Arrival above that of every row so far, and at most that of the next."""
        if len(rows):
            return int(rows.seq[-1]) + 1
        newest = [int(run.seq.max()) for run in state.rows.runs] if state.rows is not None else []
        return max(newest, default=-1) + 1

    def _opened(
        self, state: TriggeredWindows, rows: TimedRows, each: np.ndarray, assigned: Assigned, progress: Progress
    ) -> tuple[TriggeredWindows, Visits]:
        """State with the windows that rows visit, and the visits by window."""
        visits = len(assigned.row)
        code = np.concatenate((state.code, assigned.code))
        window = np.concatenate((state.window, assigned.window))
        if not len(code):
            none = np.empty(0, np.int64)
            return state, self._timed(
                state, none.astype(bool), assigned.row, np.zeros(1, np.int64), none, each, progress
            )
        order = order_of_cells(window, code)  # stable: open windows come first, then visits as they came
        group, windows, codes = np.empty(len(order), np.int64), np.empty(len(order), np.int64), np.empty_like(code)
        total = group_cells(window, code, order, group, windows, codes)
        old, visited = group[: len(state)], group[len(state) :]
        opened = np.full(total, -1, np.int64)
        opened[old] = np.arange(len(state))
        if total != len(state):
            state = state.grown(self.plan.layout, codes[:total].copy(), windows[:total].copy(), opened)
        new_rows = state.rows
        if new_rows is not None and len(rows):
            when = rows.time if rows.end is None else rows.end
            row_code = np.zeros(len(rows), np.int32)
            row_code[assigned.row] = assigned.code
            values = [rows.columns[n] for n in self.plan.row_names]
            # A firing within the batch takes some of its rows; one that discards, some of all rows of the window.
            cells = None if self.discarding else self.grid.cells
            state = replace(state, rows=new_rows.add(row_code, when, rows.seq, values, cells, each_row=True))
        row = assigned.row[order[order >= len(old)] - len(old)]
        size = np.bincount(visited, minlength=total) if visits else np.zeros(total, np.int64)
        first = np.concatenate(([0], np.cumsum(size)))
        return state, self._timed(state, opened < 0, row, first, size, each, progress)

    def _timed(
        self,
        state: TriggeredWindows,
        opened: np.ndarray,
        row: np.ndarray,
        first: np.ndarray,
        size: np.ndarray,
        each: np.ndarray,
        progress: Progress,
    ) -> Visits:
        """Visits of windows, with the place in the batch at which each closed. `opened`: bool, the windows that had no
        row before it.
        """
        end = self.grid.ends(state.window)
        now = progress.of_keys(len(state.keys))[state.code] if self.rule.per_key else progress.watermark
        closing = self.bounds.closing_each(np.broadcast_to(np.asarray(now), end.shape))
        was = state.ledger.closed != 0
        shut = ~was & ((end <= closing) | (np.asarray(now) == INT64_MAX))
        before, after_end = size.copy(), np.zeros(len(size), bool)
        before[was] = 0
        if len(row) and shut.any():
            if self.rule.per_row:
                window = np.repeat(np.arange(len(size)), size)
                open_then = end[window] > self.bounds.closing_each(each[row])
                early = np.bincount(window, weights=open_then, minlength=len(size)).astype(np.int64)
                before[shut] = early[shut]
            # A window whose first row comes after its end fires on time with that row, or with all of the batch.
            new = np.flatnonzero(shut & (size > 0) & opened)
            new = new[end[new] <= self.bounds.closing_each(each[row[first[new]]])]
            before[new] = 1 if self.trigger.late_by_row else size[new]
            after_end[new] = True
        return Visits(row, first, before, shut, after_end)

    # -- results -----------------------------------------------------------------------------------------------------

    def _emitted(
        self,
        state: TriggeredWindows,
        firings: Firings,
        at_each: Contents,
        until: np.ndarray,
        reach: np.ndarray,
        end: np.ndarray,
    ) -> tuple[TriggeredWindows, list[pa.RecordBatch]]:
        if not len(firings):
            return state, []
        code, window = state.code[firings.window], state.window[firings.window]
        start = self._starts(state, code, window)
        slices = None
        if state.rows is not None:
            least, past = times_of(self.grid, start, end[firings.window])
            slices = upto(state.rows.select(code, least, past, self._since(state, firings, until)), reach)
        values = finished(self.plan, at_each.cells, state.heap, slices)
        previous = np.full(len(firings), -1, np.int64)
        pool, kept_before = values, 0
        if self.remembers:
            pool = pooled(state.results, values)
            kept_before = len(pool[0]) - len(firings) if pool else 0
            previous = state.ledger.last[firings.window]
            follows = np.flatnonzero(firings.window[1:] == firings.window[:-1]) + 1
            previous[follows] = kept_before + follows - 1
        number_of = kept_before + np.arange(len(firings))
        out = emitted_rows(pool, number_of, previous, self.trigger.only_updated, self.retracting)
        if self.remembers:
            last = state.ledger.last.copy()
            last[firings.window] = number_of
            state = replace(state, ledger=replace(state.ledger, last=last), results=pool)
        at = out.subject
        sequence = in_turn(until[at])  # by the row that brings a firing about, then by window
        at, rows = at[sequence], pa.array(out.value[sequence])
        batch = result(
            self.plan,
            state.keys,
            code[at],
            start[at],
            end[firings.window][at],
            [column.take(rows) for column in out.pool],
            firings.timing[at],
            out.retraction[sequence],
        )
        return state, [batch]

    def _since(self, state: TriggeredWindows, firings: Firings, until: np.ndarray) -> np.ndarray | None:
        if not self.discarding:
            return None
        since: np.ndarray = state.ledger.since[firings.window]
        follows = np.flatnonzero(firings.window[1:] == firings.window[:-1]) + 1
        since[follows] = until[follows - 1] + (until[follows - 1] != INT64_MAX)
        return since

    def _starts(self, state: TriggeredWindows, code: np.ndarray, window: np.ndarray) -> np.ndarray:
        if self.grid.inherited:
            return np.asarray(state.keys.take(code)[-1])
        return self.grid.starts(window)

    # -- eviction ------------------------------------------------------------------------------------------------------

    def _over(self, watermark: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether the allowed lateness of windows is over, bool[n]."""
        over: np.ndarray = (end <= self.bounds.evicting_each(watermark)) | (watermark == INT64_MAX)
        return over

    def _evicted(
        self, state: TriggeredWindows, watermark: np.ndarray, end: np.ndarray, progress: Progress
    ) -> TriggeredWindows:
        evicted = self._over(watermark, end)
        if evicted.any():
            kept = np.flatnonzero(~evicted)
            rows = self._without_dead_rows(state, kept) if self.rule.per_key else state.rows
            state = replace(state.taken(kept), rows=rows)
        if self.remembers:
            ledger, results = without_unused(state.ledger, state.results)
            state = replace(state, ledger=ledger, results=results)
        if state.rows is not None:
            state = replace(state, rows=self._needed_rows(state, state.rows, progress))
        if evicted.any() and not self.rule.per_key:  # else keys without windows have watermarks
            return state.with_fewer_keys()
        return state

    def _needed_rows(self, state: TriggeredWindows, rows: RowState, progress: Progress) -> RowState:
        if len(state) == 0 and progress.watermark == INT64_MAX:
            return rows.evict(INT64_MAX)
        passed = self.grid.last_closed(self.bounds.evicting(progress.watermark))
        if self.grid.endless or self.rule.per_key or passed is None or passed == INT64_MIN:
            return rows
        return rows.evict(first_time_after(self.grid, passed))

    def _without_dead_rows(self, state: TriggeredWindows, kept: np.ndarray) -> RowState | None:
        """Raw rows without those of evicted windows that no open window of the key needs."""
        rows = state.rows
        if rows is None:
            return None
        evicted = np.ones(len(state), bool)
        evicted[kept] = False
        needed = np.full(len(state.keys), INT64_MAX)
        starts = self._starts(state, state.code[kept], state.window[kept])
        np.minimum.at(needed, state.code[kept], self.grid.least_times(starts))
        codes = distinct_codes(state.code[evicted])
        return rows.evict_windows(codes, np.full(len(codes), INT64_MIN), needed[codes])

    def tidied(self, state: TriggeredWindows) -> TriggeredWindows:
        """State without dead texts, and without the keys of late rows where no rows are kept, which may have others."""
        if state.rows is None and not self.rule.per_key:
            state = state.with_fewer_keys()
        if not self.plan.layout.uses_heap or len(state.cold):  # windows on disk have their codes
            return state
        found = smaller(self.plan.layout, state.heap, [state.contents.cells])
        if found is None:
            return state
        heap, (cells,) = found
        return replace(state, heap=heap, contents=replace(state.contents, cells=cells))

    # -- what it takes -----------------------------------------------------------------------------------------------

    def size(self, state: TriggeredWindows) -> tuple[int, int]:
        rows = 0 if state.rows is None else state.rows.cells
        size = self._hot(state) + state.keys.nbytes + state.heap.nbytes + memory_of_rows(state.rows)
        return len(state) + len(state.cold) + rows, size + state.cold.nbytes

    def _hot(self, state: TriggeredWindows) -> int:
        """Bytes of the windows that are in memory."""
        arrays = (state.code, state.window, state.contents.held, *state.ledger.arrays(), *state.results)
        return int(sum(a.nbytes for a in arrays)) + cells_nbytes(state.contents.cells)

    def cells(self, state: TriggeredWindows) -> int:
        return self.size(state)[0]

    def names(self, state: TriggeredWindows) -> Names:
        return Names(state.keys, state.heap)

    def renamed(self, state: TriggeredWindows, names: Names) -> TriggeredWindows:
        return replace(state, keys=names.keys, heap=names.heap)

    def spilled(self, state: TriggeredWindows, excess: int, folder: str) -> TriggeredWindows:
        rows, chosen = spill_hot(state.rows, self._hot(state), excess, folder)
        state = replace(state, rows=rows)
        if not chosen or not len(state):
            return state
        wake = wake_times(self.trigger, state.ledger, self.grid.ends(state.window), self.bounds.lateness)
        return all_spilled(state, self.begin(), wake, folder)

    def open_windows(self, state: TriggeredWindows, progress: Progress) -> int:
        return len(state) + len(state.cold)

    def save(self, state: TriggeredWindows) -> Parts:
        state = read_back(self.plan.layout, replace(state, cold=Cold()), state.cold.everything())
        arrays, names = cell_columns(self.plan.layout, state.contents.cells, state.heap)
        ledger = [pa.array(a) for a in state.ledger.arrays()]
        windows = pa.record_batch(
            [pa.array(state.code), pa.array(state.window), pa.array(state.contents.held), *ledger, *arrays],
            names=["code", "window", "held", *(f"ledger.{k}" for k in range(len(ledger))), *names],
        )
        results = pa.record_batch(state.results, names=[o.name for o in self.plan.outputs])
        parts = {"keys": key_part(state.keys), "windows": with_numbers(windows, triggers=1), "results": results}
        return parts | row_parts(state.rows)

    def load(self, parts: Parts) -> TriggeredWindows:
        empty, windows = self.begin(), parts["windows"]
        number(windows, "triggers")
        keys = keys_of(self.key_types, parts["keys"])
        cells = cells_of(self.plan.layout, windows, empty.heap)
        ledger = Ledger(*(np.asarray(windows.column(f"ledger.{k}")) for k in range(len(empty.ledger.arrays()))))
        contents = Contents(cells, np.asarray(windows.column("held")))
        results = [column.cast(o.type) for column, o in zip(parts["results"].columns, self.plan.outputs, strict=True)]
        code, window = (np.asarray(windows.column(name)) for name in ("code", "window"))
        return TriggeredWindows(keys, empty.heap, code, window, contents, ledger, results, rows_of(self.plan, parts))
