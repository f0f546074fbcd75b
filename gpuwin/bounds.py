"""Bounds of closed and of evicted windows, by the watermark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN, micros
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.windows import SessionWindow


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
