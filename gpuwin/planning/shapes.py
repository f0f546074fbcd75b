"""The grid behind a window: which pane a time falls in, which windows hold a pane, when a window ends.

A pane is `gcd(size, slide)` wide. Window `k` of a sliding window covers the panes `[k * per_slide, k * per_slide +
per_window)`; window `k` of a
cumulative window ends with pane `k`. `GlobalWindow` is one pane; an inherited window is a pane of one microsecond at
its end, and its start is part of
the key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN, micros
from gpuwin.vocabulary.windows import (
    CumulativeWindow,
    GlobalWindow,
    InheritedWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    Window,
)


def _micros(value: object) -> int:
    assert isinstance(value, timedelta)
    return micros(value)


def _saturated(value: int) -> int:
    return max(INT64_MIN, min(INT64_MAX, value))


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths in microseconds, panes and windows as int64 numbers."""

    width: int  # of a pane
    origin: int
    per_window: int
    per_slide: int
    cumulative: bool = False
    endless: bool = False  # the global window
    inherited: bool = False

    @staticmethod
    def of(window: Window) -> Shape:
        """The grid of any window but a session."""
        if isinstance(window, TumblingWindow):
            size = _micros(window.size)
            return Shape(size, _micros(window.offset) % size, 1, 1)
        if isinstance(window, SlidingWindow):
            size, slide = _micros(window.size), _micros(window.slide)
            width = math.gcd(size, slide)
            return Shape(width, _micros(window.offset) % slide, size // width, slide // width)
        if isinstance(window, CumulativeWindow):
            size, step = _micros(window.size), _micros(window.step)
            return Shape(step, _micros(window.offset) % size, size // step, 1, cumulative=True)
        if isinstance(window, GlobalWindow):
            return Shape(1, 0, 1, 1, endless=True)
        if isinstance(window, InheritedWindow):
            return Shape(1, 0, 1, 1, inherited=True)
        assert not isinstance(window, SessionWindow)
        raise AssertionError(window)

    @property
    def overlaps(self) -> bool:
        """Whether a row can be in more than one window."""
        return self.cumulative or self.per_window > self.per_slide

    @property
    def gaps(self) -> bool:
        """Whether a row can be in no window."""
        return not self.cumulative and self.per_slide > self.per_window

    # -- panes -------------------------------------------------------------------------------------------------------

    def panes(self, time: np.ndarray) -> np.ndarray:
        """int64[n]: the pane of each time (for inherited windows: of each window end)."""
        if self.endless:
            return np.zeros(len(time), np.int64)
        if self.origin and len(time):
            if int(time.min()) < INT64_MIN + self.origin:  # time - origin would leave int64
                whole, rest = divmod(self.origin, self.width)
                return time // self.width - (time % self.width < rest) - whole
            time = time - self.origin
        return time if self.width == 1 else time // self.width

    def cells(self, code: np.ndarray, time: np.ndarray) -> np.ndarray:
        """int64[n]: equal where rows of a key (int32[n]) are in the same windows for ever: the pane."""
        return self.panes(time)

    def pane_of(self, time: int) -> int:
        return 0 if self.endless else (time - self.origin) // self.width

    def unassigned(self, pane: np.ndarray) -> np.ndarray:
        """bool[n]: panes in a gap between windows."""
        inside: np.ndarray = pane % self.per_slide
        return inside >= self.per_window

    def first_pane(self, window: int) -> int:
        """The oldest pane of a window."""
        if self.cumulative:
            return window // self.per_window * self.per_window
        return window * self.per_slide

    def last_pane(self, window: int) -> int:
        return window if self.cumulative else window * self.per_slide + self.per_window - 1

    def windows_of(self, pane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64[n] twice: the first and the last window that hold each pane. The last is before the first for a pane
        in a gap."""
        if self.cumulative:
            return pane, pane // self.per_window * self.per_window + (self.per_window - 1)
        if self.per_window == self.per_slide == 1:
            return pane, pane
        last = pane // self.per_slide
        if len(pane) and int(pane.min()) < INT64_MIN + self.per_window:  # pane - per_window would leave int64
            return last + (pane % self.per_slide - self.per_window) // self.per_slide + 1, last
        return (pane - self.per_window) // self.per_slide + 1, last

    # -- windows -----------------------------------------------------------------------------------------------------

    def closed(self, watermark: int) -> int | None:
        """The last window that ends at or before `watermark` (exclusive microseconds); None: every window does."""
        if watermark >= INT64_MAX:
            return None
        if self.endless:
            return -1
        if watermark <= INT64_MIN:
            return INT64_MIN
        if self.inherited:
            return watermark
        panes = (watermark - self.origin) // self.width  # panes that lie wholly before the watermark end with this one
        if self.cumulative:
            return panes - 1
        return (panes - self.per_window) // self.per_slide

    def closed_each(self, watermark: np.ndarray) -> np.ndarray:
        """int64[n]: as `closed`; the largest int64 less one where every window is."""
        if self.endless:
            return np.where(watermark >= INT64_MAX, INT64_MAX - 1, -1)
        if self.inherited:
            return np.where(watermark >= INT64_MAX, INT64_MAX - 1, watermark)
        least = INT64_MIN + self.origin + self.width * (self.per_window + 1)
        panes = (np.maximum(watermark, least) - self.origin) // self.width
        last = panes - 1 if self.cumulative else (panes - self.per_window) // self.per_slide
        return np.where(watermark < least, INT64_MIN, np.where(watermark >= INT64_MAX, INT64_MAX - 1, last))

    def start_of(self, window: int) -> int:
        return _saturated(self.origin + self.first_pane(window) * self.width)

    def end_of(self, window: int) -> int:
        return _saturated(self.origin + (self.last_pane(window) + 1) * self.width)

    def starts(self, window: np.ndarray) -> np.ndarray:
        """int64[n]: saturated."""
        if self.cumulative:
            return self._instants(window // self.per_window * self.per_window)
        return self._instants(window, self.per_slide)

    def ends(self, window: np.ndarray) -> np.ndarray:
        """int64[n]: saturated."""
        if self.inherited:
            return window
        if self.endless:
            return np.full(len(window), INT64_MAX)
        return (
            self._instants(window, 1, 1) if self.cumulative else self._instants(window, self.per_slide, self.per_window)
        )

    def _instants(self, number: np.ndarray, step: int = 1, ahead: int = 0) -> np.ndarray:
        """int64[n]: where the panes `number * step + ahead` begin."""
        if not len(number):
            return number
        least = -((((self.origin - INT64_MIN) // self.width) + ahead) // step)
        most = ((INT64_MAX - self.origin) // self.width - ahead) // step
        if int(number.min()) < least or int(number.max()) > most:
            inside = (np.clip(number, least, most) * step + ahead) * self.width + self.origin
            inside = np.where(number < least, INT64_MIN, inside)
            return np.where(number > most, INT64_MAX, inside)
        instants: np.ndarray = number * (step * self.width)
        instants += ahead * self.width + self.origin
        return instants
