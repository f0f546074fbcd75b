"""Bounds of closed and of evicted windows, and of results to come, by the watermark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN, micros
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Complete
from gpuwin.vocabulary.watermarks import SystemClock
from gpuwin.vocabulary.windows import Column, GlobalWindow, InheritedWindow, SessionWindow


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a specification: at watermark W, a window is closed once `end <= closing(W)`, and evicted once `end <=
    evicting(W)`. `lateness`: microseconds. `strict`: a window closes only after its end. `by_time`: rows are late by
    their time, not by their windows.
    """

    strict: bool
    lateness: int
    by_time: bool

    @staticmethod
    def of(spec: Specification) -> Bounds:
        """Bounds of a specification."""
        semantics = spec.semantics
        close = semantics.close
        if isinstance(spec.window, SessionWindow) and semantics.session_close == "settled":
            close = "after_end" if semantics.session_touch == "merge" else "at_end"
        assert isinstance(spec.allowed_lateness, timedelta)
        return Bounds(close == "after_end", micros(spec.allowed_lateness), semantics.late_by == "timestamp")

    def closing(self, watermark: int) -> int:
        """Latest end of a closed window, microseconds."""
        if watermark >= INT64_MAX or watermark <= INT64_MIN:
            return watermark
        return watermark - 1 if self.strict else watermark

    def evicting(self, watermark: int) -> int:
        """Latest end of an evicted window, microseconds."""
        if not self.lateness:
            return self.closing(watermark)
        if watermark >= INT64_MAX:
            return watermark
        if self.lateness >= INT64_MAX:
            return INT64_MIN
        return max(INT64_MIN, self.closing(watermark) - self.lateness)

    def closing_each(self, watermark: np.ndarray) -> np.ndarray:
        """Latest end of a closed window for each watermark, int64[n]."""
        if not self.strict:
            return watermark
        inside = (watermark > INT64_MIN) & (watermark < INT64_MAX)
        return watermark - inside

    def evicting_each(self, watermark: np.ndarray) -> np.ndarray:
        """Latest end of an evicted window for each watermark, int64[n]."""
        if self.lateness >= INT64_MAX:
            return np.where(watermark >= INT64_MAX, watermark, INT64_MIN)
        closing = self.closing_each(watermark)
        if not self.lateness:
            return closing
        least = INT64_MIN + self.lateness
        later = np.where(closing < least, INT64_MIN, np.maximum(closing, least) - self.lateness)
        return np.where(watermark >= INT64_MAX, watermark, later)


@dataclass(frozen=True, slots=True)
class ResultBounds:
    """Bounds of the results of a specification: once rows are tested against watermark W, a later one has `window_end >
    after(W)`. `behind`: microseconds by which that may be behind the evicted windows.
    """

    bounds: Bounds
    behind: int

    @staticmethod
    def of(spec: Specification) -> ResultBounds | None:
        """Bounds of results; None where a result may come at any time, or has none."""
        behind = _behind(spec)
        return None if behind is None else ResultBounds(Bounds.of(spec), behind)

    def after(self, watermark: int) -> int:
        """Time that the ends of later results are after, microseconds; the smallest int64: any time."""
        return max(INT64_MIN, self.bounds.evicting(watermark) - self.behind)


def _behind(spec: Specification) -> int | None:
    """See `ResultBounds`."""
    window, semantics = spec.window, spec.semantics
    if isinstance(window, GlobalWindow) or isinstance(spec.emit, Complete):  # no ends; all windows, for ever
        return None
    never_late = isinstance(spec.watermark, SystemClock)
    if isinstance(window, InheritedWindow):  # a row of now may bring any window along
        return None if never_late else 0
    if not isinstance(window, SessionWindow):
        return 0
    bounds, by_last = Bounds.of(spec), semantics.session_end == "last_event"
    if isinstance(window.gap, Column):
        return None if by_last else 0
    assert isinstance(window.gap, timedelta)
    gap = micros(window.gap)
    # A row of the watermark's own instant is in time, and a session without a gap ends there.
    at_once = gap == 0 and (bounds.by_time or never_late) and not bounds.strict
    return (gap if by_last else 0) + at_once
