"""Progress of event time: the watermark of the stream, or of each key, and the rules by which it moves.

Inside, a watermark is exclusive (no more rows with time < W) and int64 microseconds; the smallest int64 is "none yet",
the largest the end of the stream, which only `finish` brings: what rows, clocks and the user ask for stays before it.
Watermarks that the user states or reads follow `gw.Semantics`: inclusive or not, floored to milliseconds or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN, micros, saturating_add
from gpuwin.vocabulary.instant import instant
from gpuwin.vocabulary.semantics import Semantics
from gpuwin.vocabulary.watermarks import (
    BoundedOutOfOrderness,
    EventClock,
    MultipleInputs,
    SystemClock,
    Watermark,
)
from gpuwin_kernels.cpu.watermark import running_watermarks


def _delay(watermark: Watermark) -> int | None:
    """Microseconds of a watermark behind the largest time; None where rows do not move it."""
    if isinstance(watermark, BoundedOutOfOrderness):
        assert isinstance(watermark.delay, timedelta)
        return micros(watermark.delay)
    if isinstance(watermark, EventClock):
        assert isinstance(watermark.wait, timedelta)
        return micros(watermark.wait)
    return None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of time. Immutable: every step makes a new one.

    `before` is the watermark that was in force when the last batch began, `now` the system time of the last batch, and
    `running` whether a row has set the watermark going with the clock. `by_key` (int64[codes]) are the watermarks of
    keys; keys that are not there yet are at `watermark`. `sources` are the watermarks of several inputs.
    """

    watermark: int = INT64_MIN
    before: int = INT64_MIN
    now: int = INT64_MIN
    running: bool = False
    by_key: np.ndarray | None = None
    sources: tuple[int, ...] = ()

    def of_keys(self, keys: int) -> np.ndarray:
        """Watermarks of so many keys, int64[keys]."""
        found = np.full(keys, self.watermark)
        if self.by_key is not None:
            known = self.by_key[:keys]
            found[: len(known)] = np.maximum(known, self.watermark)
        return found


BEFORE_TIME = Progress()


class WatermarkRule:
    """Rule by which the watermark of a specification moves; holds no state."""

    def __init__(self, watermark: Watermark, semantics: Semantics) -> None:
        self.watermark = watermark
        self.semantics = semantics
        self.tick = semantics.tick
        self.floor = 1_000 if semantics.watermark_precision == "ms" else 1
        self.shift = self.tick if semantics.watermark_inclusive else 0
        self.latest = (INT64_MAX - 1) // self.floor * self.floor  # of all watermarks before the end of the stream
        self.lag = self.tick if semantics.watermark_lag == "tick" else 0
        self.delay = _delay(watermark)
        self.per_row = semantics.watermark_advance == "row"
        self.per_key = semantics.watermark_scope == "key"
        self.by_previous = semantics.late_filter == "previous"  # rows are late, and windows close, by the one before
        self.clocked = isinstance(watermark, EventClock | SystemClock)
        self.system = isinstance(watermark, SystemClock)

    # -- from the user, and to the user -------------------------------------------------------------------------------

    def to_internal(self, stated: int) -> int:
        """Exclusive watermark of one that is stated; the latest, where that would be the end of the stream."""
        return INT64_MIN if stated <= INT64_MIN else max(INT64_MIN, min(self._unbounded(stated), self.latest))

    def _unbounded(self, stated: int) -> int:
        return stated // self.floor * self.floor + self.shift

    def from_user(self, time: Any) -> int:
        """Exclusive watermark that a user asks for, of whatever is an `instant`. Raises SpecificationError for anything
        else, and for the end of the stream.
        """
        stated = instant(time)
        if stated >= INT64_MAX or self._unbounded(stated) > self.latest:
            raise SpecificationError("the largest time is the end of the stream: call finish()")
        return self.to_internal(stated)

    def to_user(self, watermark: int) -> int | None:
        """Watermark as the user states it; None where there is none."""
        if watermark <= INT64_MIN:
            return None
        return watermark if watermark >= INT64_MAX else watermark - self.shift

    def result_watermark(self, watermark: int) -> int | None:
        """Watermark of results as the user states it; None where there is none, or int64 has none before it."""
        return None if watermark <= INT64_MIN + self.shift else self.to_user(watermark)

    def to_user_each(self, watermark: np.ndarray) -> np.ndarray:
        """Watermarks as the user states them, int64[n]."""
        inside = (watermark > INT64_MIN + self.shift) & (watermark < INT64_MAX)
        return np.where(inside, watermark - self.shift, watermark)

    def waits(self, progress: Progress) -> bool:
        """Whether timers of event time wait though the watermark has passed them: they fire when it moves, and it is
        still where it was before the batch (Flink).
        """
        alone = self.per_row or self.per_key or self.by_previous
        return not alone and progress.watermark <= progress.before

    def asked_by(self, time: int, delay: int) -> int:
        """Exclusive watermark that a row of this time asks for."""
        if delay >= INT64_MAX:
            return INT64_MIN
        return self.to_internal(saturating_add(time, -delay - self.lag))

    def asked_by_each(self, time: np.ndarray) -> np.ndarray:
        """Exclusive watermarks that rows of these times ask for, each alone, int64[n]."""
        return np.full(len(time), INT64_MIN) if self.delay is None else self._asked_by_each(time, self.delay)

    def _asked_by_each(self, time: np.ndarray, delay: int) -> np.ndarray:
        if delay >= INT64_MAX:
            return np.full(len(time), INT64_MIN)
        less = delay + self.lag
        least = INT64_MIN + less
        stated = np.where(time < least, INT64_MIN, np.maximum(time, least) - less)
        if self.floor != 1:
            stated = np.where(stated <= INT64_MIN + self.floor, INT64_MIN, stated // self.floor * self.floor)
        exclusive: np.ndarray = np.minimum(stated, self.latest - self.shift)
        return np.where(stated == INT64_MIN, stated, exclusive + self.shift) if self.shift else exclusive

    # -- steps --------------------------------------------------------------------------------------------------------

    def begin(self) -> Progress:
        start = self.semantics.watermark_start
        first = INT64_MIN if start is None else self.to_internal(start)
        sources: tuple[int, ...] = ()
        if isinstance(self.watermark, MultipleInputs):
            sources = (INT64_MIN,) * len(self.watermark.inputs)
        none = np.empty(0, np.int64) if self.per_key else None
        return Progress(first, first, by_key=none, sources=sources)

    def restored(self, progress: Progress) -> Progress:
        """Progress of an operator that goes on from a snapshot of this one."""
        if self.semantics.restored_inputs == "kept":
            return progress
        return replace(progress, sources=(INT64_MIN,) * len(progress.sources))

    def tick_clock(self, progress: Progress, now: int) -> Progress:
        """Progress after the system clock was read, before the rows of a batch. It never goes back.

        The watermark goes on with the clock where the specification says so, and not because a trigger reads it. Where
        rows have the time of the clock, it is not behind the watermark: a row that comes now is not late.
        """
        now = max(now, progress.now, progress.watermark if self.system else INT64_MIN)
        if not self.clocked:
            return replace(progress, now=now)
        if self.system:
            return self.advanced(replace(progress, now=now), self.exclusive_now(now))
        passed = 0 if progress.now == INT64_MIN else now - progress.now  # a watermark once set goes on with the clock
        if self.per_key and progress.by_key is not None:
            keys = progress.by_key
            gone = np.where(keys == INT64_MIN, INT64_MIN, np.minimum(keys, self.latest - passed) + passed)
            return replace(progress, now=now, by_key=gone)
        if progress.running and passed:
            return replace(progress, now=now, watermark=min(progress.watermark + passed, self.latest))
        return replace(progress, now=now)

    def exclusive_now(self, now: int) -> int:
        """Watermark of the system clock: a row may still arrive at this very moment, however the watermark is
        stated.
        """
        return now // self.floor * self.floor

    def advanced(self, progress: Progress, watermark: int) -> Progress:
        """Progress with the stream's watermark at `watermark` (exclusive), unless that were back."""
        if watermark <= progress.watermark:
            return progress
        return replace(progress, watermark=watermark)

    def tested_against(self, progress: Progress) -> int:
        """Watermark that rows of a batch are tested against, where it does not move with them."""
        return progress.before if self.by_previous else progress.watermark

    def followed(self, progress: Progress, after: Progress) -> Progress:
        """Progress after a batch, from that before it and that after its rows."""
        return replace(after, before=progress.watermark) if self.by_previous else after

    def closing_progress(self, progress: Progress, after: Progress) -> Progress:
        """Progress by which windows close at a batch, from that before it and that after its rows."""
        return replace(after, watermark=progress.watermark) if self.by_previous else after

    def after_rows(self, progress: Progress, time: np.ndarray, source: int) -> Progress:
        """Progress after rows of these times, with one watermark for the stream."""
        return self.after_newest(progress, int(time.max()), source) if len(time) else progress

    def after_newest(self, progress: Progress, newest: int, source: int) -> Progress:
        """Progress after rows of which the newest is of this time."""
        if self.delay is None and not progress.sources:
            return progress
        if progress.sources:
            assert isinstance(self.watermark, MultipleInputs)
            delay = _delay(self.watermark.inputs[source])
            return progress if delay is None else self.source_at(progress, source, self.asked_by(newest, delay))
        assert self.delay is not None
        ahead = self.asked_by(newest, self.delay)
        if ahead <= progress.watermark:
            return progress
        now, by_key = progress.now, progress.by_key
        return Progress(ahead, progress.before, now, True, by_key, progress.sources)

    def source_at(self, progress: Progress, source: int, watermark: int) -> Progress:
        """Progress with one of several inputs at `watermark`; the stream is at the smallest, or the largest, of
        them.
        """
        assert isinstance(self.watermark, MultipleInputs)
        each = list(progress.sources)
        each[source] = max(each[source], watermark)
        joint = min(each) if self.watermark.policy == "min" else max(each)
        return self.advanced(replace(progress, sources=tuple(each)), joint)

    def after_each_row(self, progress: Progress, time: np.ndarray, source: int) -> tuple[Progress, np.ndarray]:
        """Progress after rows of these times, and the watermark in force when each row comes, int64[n]. It moves after
        the row, so that a row is never late, and closes no session that it belongs to, by its own time.
        """
        several = self.watermark if isinstance(self.watermark, MultipleInputs) else None
        delay = self.delay if several is None else _delay(several.inputs[source])
        if delay is None:
            return progress, np.full(len(time), progress.watermark)
        each = self._asked_by_each(time, delay)
        if several is not None:
            others = progress.sources[:source] + progress.sources[source + 1 :]
            own = np.maximum.accumulate(np.maximum(each, progress.sources[source]))
            each = np.minimum(own, min(others)) if several.policy == "min" else np.maximum(own, max(others))
        each = np.concatenate(([progress.watermark], each[:-1])) if len(each) else each
        each = np.maximum.accumulate(np.maximum(each, progress.watermark))
        return self.after_rows(progress, time, source), each

    def after_rows_by_key(
        self, progress: Progress, time: np.ndarray, code: np.ndarray, keys: int
    ) -> tuple[Progress, np.ndarray]:
        """Progress after rows of these times, with a watermark per key code, and that of the row's key when each row
        comes, int64[n].
        """
        assert progress.by_key is not None
        before = np.full(max(keys, len(progress.by_key)), INT64_MIN)
        before[: len(progress.by_key)] = progress.by_key
        known = np.maximum(before, progress.watermark)
        if self.delay is None:
            each = known[code]
        else:
            each = running_watermarks(code, self._asked_by_each(time, self.delay), known)
        # A key that no row of this stream had is one of a branch, or of a batch that failed: it has no watermark yet.
        unseen = before == INT64_MIN
        unseen[code] = False
        known[unseen] = INT64_MIN
        return replace(progress, by_key=known), each
