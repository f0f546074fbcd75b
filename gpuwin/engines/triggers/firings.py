"""Firings of triggers in a batch: when one fires for a window, early, on time or late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.engines.results import EARLY, LATE, ON_TIME
from gpuwin.engines.triggers.ledger import NEVER, Ledger
from gpuwin.engines.triggers.rule import TriggerRule, interval_of
from gpuwin.errors import LimitExceeded
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.triggers import Every, EveryEventTime, EveryRows

_MOST_FIRINGS = 1 << 26  # of one batch


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


class _FiringsFound:
    """Firings of a batch as they are found, kind by kind: early, as windows close, and late. `count`, `timed_from` and
    `next_time` are those of the ledger, and change with each kind.
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
        self.count, self.next_time = ledger.count.copy(), ledger.next_time.copy()
        self.timed_from = ledger.timed_from.copy()
        self.timed_from[(ledger.timed_from == INT64_MIN) & (self.size > 0)] = time.now
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
            begins = ~self.ended & (self.next_time == NEVER) & (self.before > 0)
            self.next_time[begins] = _next_multiple(first_time[begins], step)
            last = np.where(end == INT64_MAX, end - 1, end - self.rule.margin)
            at = np.flatnonzero(~self.was_closed & (self.next_time <= stated) & (self.next_time <= last))
            at = self._passing(at, stated, last, step)
            self._add_early(at, self.before[at])
        elif isinstance(schedule, Every):
            self._by_clock(schedule, ~self.closed & (self.timed_from != INT64_MIN), EARLY)

    def on_closing(self) -> None:
        shut = np.flatnonzero(self.visits.closing)
        self.next_time[shut] = NEVER
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
            begins = ended & (self.next_time == NEVER) & (self.size > self.before)
            self.next_time[begins] = _next_multiple(first_time[begins], step)
            kept = np.minimum(end, INT64_MAX - self.rule.lateness) + self.rule.lateness - self.rule.late_margin
            at = np.flatnonzero(ended & (self.next_time <= np.minimum(stated, kept)) & (self.next_time != NEVER))
            at = self._passing(at, stated, kept, step)
            self._add(at, self.size[at], LATE, 2, True)
        elif isinstance(schedule, Every):
            self._by_clock(schedule, self.was_closed, LATE)

    def firings(self) -> Firings:
        if not self.parts:
            none = np.empty(0, np.int64)
            return Firings(none, none, none, none.astype(bool))
        if len(self.parts) == 1:  # which is in this order
            ((window, rank, timing, _, at_end),) = self.parts
            return Firings(window, rank, np.full(len(window), timing), np.full(len(window), at_end))
        window = np.concatenate([p[0] for p in self.parts])
        rank = np.concatenate([p[1] for p in self.parts])
        size = [len(p[0]) for p in self.parts]
        timings, phases, at_ends = (np.repeat([p[k] for p in self.parts], size) for k in (2, 3, 4))
        order = np.lexsort((phases, rank, window))
        return Firings(window[order], rank[order], timings[order], at_ends[order])

    def _add(self, window: np.ndarray, rank: np.ndarray, timing: int, phase: int, at_end: bool) -> None:
        if len(window):
            self.timed_from[window] = self.time.now
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
        done = counted // schedule.rows
        times = np.where(fires, (counted + mine) // schedule.rows - done, 0)
        window = np.repeat(np.arange(len(size)), times)
        turn = np.arange(1, len(window) + 1) - np.repeat(np.cumsum(times) - times, times)
        rank = (done[window] + turn) * schedule.rows - counted[window]
        if late:
            rank += before[window]
        self._add(window, rank, LATE if late else EARLY, 2 if late else 0, False)
        return total if rule.counts_on else np.where(mine > 0, (counted + mine) % schedule.rows, count)

    def _passing(self, at: np.ndarray, stated: np.ndarray, last: np.ndarray, step: int) -> np.ndarray:
        """Windows `at`, each as often as a watermark at `stated` passes a multiple of `step` up to `last`."""
        at = np.repeat(at, _passed(self.next_time[at], stated[at], last[at], step))
        self.next_time[at] = _next_multiple(stated[at], step)
        return at

    def _by_clock(self, schedule: Every, some: np.ndarray, timing: int) -> None:
        """Adds the firings of those of some windows whose last one is an interval of the system's time ago."""
        due = some & (self.time.now - self.timed_from >= interval_of(schedule))
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
    found = _FiringsFound(rule, ledger, visits, time)
    found.early(first_time, end, stated)
    found.on_closing()
    found.late(late_time, end, stated)
    closed = found.closed.astype(np.int64)
    return found.firings(), Ledger(found.count, found.timed_from, found.next_time, closed, ledger.since, ledger.last)
