"""Firings of triggers: when one fires for a window, early, on time or late, and the results that it emits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa

from gpuwin.engines.results import EARLY, LATE, ON_TIME
from gpuwin.errors import LimitExceeded
from gpuwin.planning.plan import Plan
from gpuwin.state.rows.sortable import equality_keys
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN, micros
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Every, EveryEventTime, EveryRow, EveryRows, OnClose, OnUpdate, Schedule, Trigger

_NEVER = INT64_MAX
_MOST_FIRINGS = 1 << 26  # of one batch


@dataclass(frozen=True)
class TriggerRule:
    """Trigger of a specification, in the form that engines use. `early`, `late`: schedules, by rows or by time (None:
    never). `early_by_row`, `late_by_row`: a schedule by rows fires exactly at the n-th row, and not when the batch
    ends. `counts_on`: late rows continue the count of the window's earlier ones.
    """

    early: Schedule | None
    late: Schedule | None
    on_time: bool
    early_by_row: bool
    late_by_row: bool
    only_updated: bool = False
    empty_on_time: bool = False
    lateness: int = 0  # microseconds
    counts_on: bool = False
    late_after_end: bool = False  # a window whose first row comes after its end is late, and not on time
    margin: int = 1  # microseconds before the end of a window, up to which EveryEventTime fires
    late_margin: int = 0  # microseconds before the end of the lateness, up to which EveryEventTime fires
    carries: bool = False  # late firings go on with the count of rows from before the end
    once: bool = False  # one firing of a window in a batch, also where it closes in it

    @staticmethod
    def of(spec: Specification) -> TriggerRule:
        emit, semantics = spec.emit, spec.semantics
        if isinstance(emit, EveryRow):
            return TriggerRule(EveryRows(1), EveryRows(1), False, True, True)
        if isinstance(emit, OnUpdate):
            return TriggerRule(EveryRows(1), EveryRows(1), False, False, False, once=True)
        if isinstance(emit, OnClose):
            return TriggerRule(None, EveryRows(1), True, False, semantics.late_firing == "row")
        assert isinstance(emit, Trigger)
        by_row = semantics.count_trigger == "row"
        empty = semantics.on_time_pane == "always"
        assert isinstance(spec.allowed_lateness, timedelta)
        lateness = micros(spec.allowed_lateness)
        counts_on = semantics.late_count == "continue"
        return TriggerRule(
            emit.early,
            emit.late,
            emit.on_time,
            by_row,
            by_row,
            emit.only_updated,
            empty,
            lateness,
            counts_on,
            semantics.late_pane == "after_end",
            # An inclusive watermark closes a window when it reaches its last instant: a multiple there is on time.
            1 + semantics.tick if semantics.watermark_inclusive and emit.on_time else 1,
            # It evicts a window one tick before the end of the lateness, and with it a timer at that end (Flink).
            semantics.tick if semantics.watermark_inclusive else 0,
            # One trigger by number of rows that takes no notice of the end: Flink's CountTrigger, Beam's AfterCount.
            carries=counts_on or (not emit.on_time and emit.early == emit.late),
        )


@dataclass(frozen=True, slots=True)
class Ledger:
    """Record of each open window besides its contents; int64 arrays of one length.

    count: rows since its trigger last fired by rows (all its rows, where late ones continue the count). seen: system
    time of its first row, then of its last firing. next_time: the event time at which its trigger fires next. closed: 1
    once it has closed. since: rows that arrived before were discarded. last: its last result, as a row of a table; -1.
    """

    count: np.ndarray
    seen: np.ndarray
    next_time: np.ndarray
    closed: np.ndarray
    since: np.ndarray
    last: np.ndarray

    @staticmethod
    def fresh(n: int, now: int) -> Ledger:
        zero = np.zeros(n, np.int64)
        return Ledger(zero, np.full(n, now), np.full(n, _NEVER), zero, np.full(n, INT64_MIN), np.full(n, -1))

    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.count, self.seen, self.next_time, self.closed, self.since, self.last

    def without_last(self) -> tuple[np.ndarray, ...]:
        """All arrays but `last`."""
        return self.arrays()[:-1]

    def take(self, at: np.ndarray) -> Ledger:
        return Ledger(*(a[at] for a in self.arrays()))

    def written(self, places: np.ndarray, part: Ledger) -> Ledger:
        """Ledger with some entries replaced."""
        arrays = []
        for whole, some in zip(self.arrays(), part.arrays(), strict=True):
            copy = whole.copy()
            copy[places] = some
            arrays.append(copy)
        return Ledger(*arrays)


def without_unused(ledger: Ledger, results: list[pa.Array]) -> tuple[Ledger, list[pa.Array]]:
    """Ledger and results without the results that no window refers to any more, once these are the majority."""
    used = np.flatnonzero(ledger.last >= 0)
    if not results or len(results[0]) <= 2 * len(used) + 64:
        return ledger, results
    rows = pa.array(ledger.last[used])
    moved = np.full(len(ledger.last), -1)
    moved[used] = np.arange(len(used))
    return replace(ledger, last=moved), [column.take(rows) for column in results]


def joined_ledgers(ledger: Ledger, others: Sequence[np.ndarray], last: np.ndarray, before: int) -> Ledger:
    """Ledger with the entries of another one behind its own; the results of that one come behind `before` others."""
    whole = [np.concatenate(pair) for pair in zip(ledger.without_last(), others, strict=True)]
    return Ledger(*[*whole, np.concatenate((ledger.last, np.where(last >= 0, last + before, -1)))])


@dataclass(frozen=True, slots=True)
class Firings:
    """Firings in the order (window, rank, phase): the window, the number of its rows in the batch before it, and the
    timing. `at_end`: it fired when the batch ended.
    """

    window: np.ndarray
    rank: np.ndarray
    timing: np.ndarray
    at_end: np.ndarray  # bool

    def __len__(self) -> int:
        return len(self.window)

    def take(self, at: np.ndarray) -> Firings:
        return Firings(self.window[at], self.rank[at], self.timing[at], self.at_end[at])


@dataclass(frozen=True, slots=True)
class Visits:
    """Rows that a batch brought to windows. Window w got the rows `row[first[w]:first[w + 1]]`, in order of arrival.

    before_close: how many of them came before the window closed (all of them, if it did not). closing: whether it
    closed in this batch. after_end: whether its first row of all came after its end: such a window is on time, or late
    where nothing fires on time, and never early.
    """

    row: np.ndarray  # int64[visits]: places in the batch
    first: np.ndarray  # int64[windows + 1]
    before_close: np.ndarray  # int64[windows]
    closing: np.ndarray  # bool[windows]
    after_end: np.ndarray  # bool[windows]

    @property
    def size(self) -> np.ndarray:
        """Number of rows of each window, int64[windows]."""
        return np.diff(self.first)


def emits(rule: TriggerRule, firings: Firings, held: np.ndarray) -> np.ndarray:
    """Firings that emit a result, bool; `held` is whether the window holds anything."""
    some: np.ndarray = held != 0
    return some | (firings.timing == ON_TIME) if rule.empty_on_time else some


def interval_of(schedule: Every | EveryEventTime) -> int:
    """Interval of a schedule in microseconds."""
    assert isinstance(schedule.interval, timedelta)
    return micros(schedule.interval)


def _passed(next_time: np.ndarray, stated: np.ndarray, last: np.ndarray, step: int) -> np.ndarray:
    """Number of multiples of `step`, from `next_time` on, that a watermark at `stated` has passed, up to `last`:
    int64[n]. One where that is without end (a window for ever, at the end of the stream). `next_time` is at most
    `stated`.

    Flink's ContinuousEventTimeTrigger fires once for each, whether or not anything is new.
    """
    upto = np.minimum(stated, last)
    number = np.where(upto >= INT64_MAX - 1, 1, np.maximum((upto - next_time) // step + 1, 1))
    if int(number.sum()) > _MOST_FIRINGS:
        raise LimitExceeded(
            f"the watermark passes {int(number.sum()):,} multiples of {step} microseconds at once, at each of which "
            "EveryEventTime fires: is a time in the stream wrong? Otherwise take a longer interval"
        )
    return number


def _next_multiple(time: np.ndarray, step: int) -> np.ndarray:
    """First multiples of `step` after these times."""
    after: np.ndarray = np.minimum(time // step * step, INT64_MAX - step) + step
    return after


@dataclass(frozen=True)
class BatchTime:
    """Time in a batch, or in a part of one.

    Attributes:
        now: system time, in microseconds.
        per_row: whether the watermark moves within the batch.
        waits: bool, the windows that `Every` leaves for a later part of the batch; None: no window.
    """

    now: int
    per_row: bool
    waits: np.ndarray | None = None


class _Batch:
    """Batch whose firings are found, kind by kind: early, as windows close, and late. `count`, `seen` and `next_time`
    are those of the ledger, and change with each kind.
    """

    def __init__(self, rule: TriggerRule, ledger: Ledger, visits: Visits, time: BatchTime) -> None:
        self.rule, self.visits, self.time = rule, visits, time
        self.was_closed = ledger.closed != 0
        self.closed = self.was_closed | visits.closing
        self.ended = self.was_closed | visits.after_end
        self.within = visits.closing & time.per_row  # closed before the end of the batch: its later rows are not theirs
        self.size, self.before = visits.size, visits.before_close
        if rule.once:
            self.before = np.where(self.ended, 0, self.size)
        elif not rule.on_time:  # no firing on time takes its first row
            self.before = np.where(visits.after_end, 0, self.before)
        self.count, self.seen, self.next_time = ledger.count.copy(), ledger.seen.copy(), ledger.next_time.copy()
        self.seen[(ledger.seen == INT64_MIN) & (self.size > 0)] = time.now
        self.parts: list[tuple[np.ndarray, np.ndarray, int, int, bool]] = []

    def early(self, first_time: np.ndarray, end: np.ndarray, stated: np.ndarray) -> None:
        schedule = self.rule.early
        if isinstance(schedule, EveryRows):
            counted = self._by_rows(schedule, np.where(self.was_closed, 0, self.count), False)
            self.count = np.where(self.was_closed, self.count, counted)
        elif self.rule.counts_on:
            self.count += self.before
        if isinstance(schedule, EveryEventTime):
            step = interval_of(schedule)
            begins = ~self.ended & (self.next_time == _NEVER) & (self.before > 0)
            self.next_time[begins] = _next_multiple(first_time[begins], step)
            last = np.where(end == INT64_MAX, end - 1, end - self.rule.margin)
            at = np.flatnonzero(~self.was_closed & (self.next_time <= stated) & (self.next_time <= last))
            at = self._passing(at, stated, last, step)
            self._add_early(at, self.before[at])
        elif isinstance(schedule, Every):
            self._by_clock(schedule, ~self.closed & (self.seen != INT64_MIN), EARLY)

    def on_closing(self) -> None:
        shut = np.flatnonzero(self.visits.closing)
        self.next_time[shut] = _NEVER
        if not self.rule.carries:
            self.count[shut] = 0
        if not self.rule.on_time:
            return
        after_end = self.visits.after_end[shut]
        inside = self.within[shut] | (after_end & self.rule.late_by_row)  # it fires on time at its first row
        late = after_end & self.rule.late_after_end
        for timing, chosen in ((ON_TIME, ~late), (LATE, late)):
            for some, at_end in ((shut[inside & chosen], False), (shut[~inside & chosen], True)):
                self._add(some, self.before[some], timing, 1, at_end)

    def late(self, first_time: np.ndarray, end: np.ndarray, stated: np.ndarray) -> None:
        schedule = self.rule.late
        if isinstance(schedule, EveryRows):
            counted = self._by_rows(schedule, np.where(self.closed, self.count, 0), True)
            self.count = np.where(self.closed, counted, self.count)
        elif isinstance(schedule, EveryEventTime):
            step = interval_of(schedule)
            ended = self.ended | self.within
            begins = ended & (self.next_time == _NEVER) & (self.size > self.before)
            self.next_time[begins] = _next_multiple(first_time[begins], step)
            kept = np.minimum(end, INT64_MAX - self.rule.lateness) + self.rule.lateness - self.rule.late_margin
            at = np.flatnonzero(ended & (self.next_time <= np.minimum(stated, kept)) & (self.next_time != _NEVER))
            at = self._passing(at, stated, kept, step)
            self._add(at, self.size[at], LATE, 2, True)
        elif isinstance(schedule, Every):
            self._by_clock(schedule, self.was_closed, LATE)

    def firings(self) -> Firings:
        if not self.parts:
            none = np.empty(0, np.int64)
            return Firings(none, none, none, none.astype(bool))
        window = np.concatenate([p[0] for p in self.parts])
        rank = np.concatenate([p[1] for p in self.parts])
        size = [len(p[0]) for p in self.parts]
        timing, phase, at_end = (np.repeat([p[k] for p in self.parts], size) for k in (2, 3, 4))
        order = np.lexsort((phase, rank, window))
        return Firings(window[order], rank[order], timing[order], at_end[order])

    def _add(self, window: np.ndarray, rank: np.ndarray, timing: int, phase: int, at_end: bool) -> None:
        if len(window):
            self.seen[window] = self.time.now
            self.parts.append((window, rank, timing, phase, at_end))

    def _add_early(self, window: np.ndarray, rank: np.ndarray) -> None:
        """Adds early firings: when the batch ends, or when the window closes within it."""
        within = self.within[window]
        for some, at_end in ((within, False), (~within, True)):
            self._add(window[some], rank[some], EARLY, 0, at_end)

    def _by_rows(self, schedule: EveryRows, count: np.ndarray, late: bool) -> np.ndarray:
        """Counts of rows since the last firing, after the firings by number of rows, early or late, were added."""
        rule, size, before = self.rule, self.size, self.before
        mine = size - before if late else before
        total: np.ndarray = count + mine
        fires = late | ~self.visits.after_end
        if not (rule.late_by_row if late else rule.early_by_row):
            at = np.flatnonzero((total >= schedule.rows) & (mine > 0) & fires)
            if late:
                self._add(at, size[at], LATE, 2, True)
            else:
                self._add_early(at, before[at])
            total[at] = 0
            return total
        # Sessions that merged may count more rows together than a firing takes: then it fires at the next row (Flink).
        counted = count if rule.counts_on else np.minimum(count, schedule.rows - 1)
        window = np.repeat(np.arange(len(size)), size)
        rank = np.arange(len(window)) - self.visits.first[window] + 1
        chosen = rank > before[window] if late else rank <= before[window]
        window, rank = window[chosen], rank[chosen]
        number = counted[window] + (rank - before[window] if late else rank)
        hit = (number % schedule.rows == 0) & fires[window]
        self._add(window[hit], rank[hit], LATE if late else EARLY, 2 if late else 0, False)
        return total if rule.counts_on else np.where(mine > 0, (counted + mine) % schedule.rows, count)

    def _passing(self, at: np.ndarray, stated: np.ndarray, last: np.ndarray, step: int) -> np.ndarray:
        """Windows `at`, each as often as a watermark at `stated` passes a multiple of `step` up to `last`."""
        at = np.repeat(at, _passed(self.next_time[at], stated[at], last[at], step))
        self.next_time[at] = _next_multiple(stated[at], step)
        return at

    def _by_clock(self, schedule: Every, some: np.ndarray, timing: int) -> None:
        """Adds the firings of those of some windows whose last one is an interval of the system's time ago."""
        due = some & (self.time.now - self.seen >= interval_of(schedule))
        at = np.flatnonzero(due if self.time.waits is None else due & ~self.time.waits)
        self._add(at, self.size[at], timing, 2, True)


def firings_of(
    rule: TriggerRule,
    ledger: Ledger,
    visits: Visits,
    first_time: np.ndarray,
    late_time: np.ndarray,
    end: np.ndarray,
    stated: np.ndarray,
    time: BatchTime,
) -> tuple[Firings, Ledger]:
    """Firings of a batch, and the ledger after them (but for `since` and `last`, which depend on what is emitted).

    first_time: the time of the first row that each window got. late_time: of a window that had closed, or did in this
    batch, that of its first row since, or the watermark when that row came, if it is later. end: int64, the ends of
    windows. stated: the watermark as the user states it, for each window.
    """
    batch = _Batch(rule, ledger, visits, time)
    batch.early(first_time, end, stated)
    batch.on_closing()
    batch.late(late_time, end, stated)
    closed = batch.closed.astype(np.int64)
    return batch.firings(), Ledger(batch.count, batch.seen, batch.next_time, closed, ledger.since, ledger.last)


def same_rows(columns: list[pa.Array], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether rows a[i] and b[i] of a table are equal, bool[n]; nulls equal nulls, and NaN equals NaN."""
    equal = np.ones(len(a), bool)
    for column in columns:
        keys = equality_keys(column)
        same = keys[a] == keys[b]
        if column.null_count:
            valid = np.asarray(column.is_valid())
            same = np.where(valid[a] & valid[b], same, valid[a] == valid[b])
        equal &= same
    return equal


def is_news(columns: list[pa.Array], row: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Whether rows of a table are other than the previous ones (-1: there is none), bool[n]."""
    had = previous >= 0
    news = ~had
    news[had] = ~same_rows(columns, row[had], previous[had])
    return news


@dataclass(frozen=True, slots=True)
class EmittedRows:
    """Results to emit: `value` is a row of `pool`, `subject` the firing that emits it, `retraction` whether it takes
    back an earlier result.
    """

    pool: list[pa.Array]
    value: np.ndarray
    subject: np.ndarray
    retraction: np.ndarray


def remembers(plan: Plan) -> bool:
    """Whether the last result of each window has to be kept."""
    return plan.spec.accumulation == "retracting" or bool(getattr(plan.spec.emit, "only_updated", False))


def no_values(plan: Plan) -> list[pa.Array]:
    """Values of no results, one empty array per aggregate."""
    return [pa.nulls(0, o.type) for o in plan.outputs]


def pooled(a: list[pa.Array], b: list[pa.Array]) -> list[pa.Array]:
    """Rows of two tables, one after the other."""
    if not a or not len(a[0]):
        return b
    return [pa.concat_arrays(pair) for pair in zip(a, b, strict=True)]


def emitted_rows(
    pool: list[pa.Array], value: np.ndarray, previous: np.ndarray, only_updated: bool, retracting: bool
) -> EmittedRows:
    """Results of firings: firing i has the value `value[i]` of the pool, and its window was last emitted with
    `previous[i]` (-1: never).
    """
    subject = np.flatnonzero(is_news(pool, value, previous)) if only_updated else np.arange(len(value))
    rows = value[subject]
    if not retracting:
        return EmittedRows(pool, rows, subject, np.zeros(len(rows), bool))
    before = previous[subject]
    back = before >= 0
    number = np.concatenate((subject[back] * 2, subject * 2 + 1))
    order = np.argsort(number, kind="stable")
    return EmittedRows(
        pool,
        np.concatenate((before[back], rows))[order],
        np.concatenate((subject[back], subject))[order],
        np.concatenate((np.ones(int(back.sum()), bool), np.zeros(len(rows), bool)))[order],
    )


@dataclass(frozen=True, slots=True)
class Retractions:
    """Emitted results that no longer hold: rows of `results`, and the keys, bounds and timings that they were emitted
    with.
    """

    row: np.ndarray
    code: np.ndarray
    start: np.ndarray
    end: np.ndarray
    timing: np.ndarray

    @staticmethod
    def none() -> Retractions:
        zero = np.empty(0, np.int64)
        return Retractions(zero, zero, zero, zero, zero)


ARRIVAL = ""  # the last column of results that are put in order; no column of the output has this name


def as_they_came(results: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Results by the row that brought them about; those of one row stay in their order."""
    if not results:
        return results
    (batch,) = pa.Table.from_batches(results).combine_chunks().to_batches()
    order = np.argsort(np.asarray(batch.column(batch.num_columns - 1)), kind="stable")
    return [batch.remove_column(batch.num_columns - 1).take(pa.array(order))]
