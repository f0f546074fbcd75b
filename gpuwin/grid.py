"""Grid of windows: the pane that a time falls in, the windows that a pane belongs to, and the bounds of windows.

A pane is the longest interval of time that no window cuts in two. Every window is a range of panes, so a row is
aggregated once, into its pane, whatever the number of its windows (Krishnamurthy, Wu, Franklin: On-the-fly sharing for
streamed aggregation, SIGMOD 2006). Times, panes and windows are int64; a bound of a window that leaves int64 saturates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from gpuwin.calendar import DAY_US, Calendar, number_at, start_of
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN, micros
from gpuwin.vocabulary.windows import (
    CalendarWindow,
    CumulativeWindow,
    GlobalWindow,
    InheritedWindow,
    SlidingWindow,
    TumblingWindow,
    Window,
)
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.extremes import ends_of
from gpuwin_kernels.cpu.floors import floors
from gpuwin_kernels.cpu.linear import linear

FIRST_WINDOW = INT64_MIN + 1
"""The smallest number of a window or a pane. The smallest int64 stands for none."""


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Windows of one kind. Pane p covers the microseconds [origin + p*width, origin + (p+1)*width).

    Sliding (and tumbling): window k covers the panes [k*panes_per_slide, k*panes_per_slide + panes_per_window); where a
    slide is longer than a window, panes lie in a gap between windows. Cumulative: window k ends with pane k, and begins
    where its period of panes_per_window panes does; it slides by one pane. Of a calendar: pane and window k are its
    period k. Endless: the global window, number 0, is one pane, and its bounds are the ends of int64. Inherited: a
    row's pane and window are the end of the window that it carries, in microseconds; the start is part of the key.
    """

    panes_per_window: int
    panes_per_slide: int
    cumulative: bool = False
    width: int = 1  # of a pane, microseconds
    origin: int = 0  # microseconds, not negative
    endless: bool = False
    inherited: bool = False
    calendar: Calendar | None = None

    def __post_init__(self) -> None:
        if self.panes_per_window < 1 or self.panes_per_slide < 1 or self.width < 1:
            raise ValueError(f"windows have at least one pane, and slide by at least one: {self}")
        if self.cumulative and self.panes_per_slide != 1:
            raise ValueError(f"a cumulative window slides by one pane: {self}")

    @staticmethod
    def of(window: Window) -> WindowGrid:
        """The grid of any window but a session."""
        if isinstance(window, TumblingWindow):
            return WindowGrid.sliding(_micros(window.size), _micros(window.size), _micros(window.offset))
        if isinstance(window, SlidingWindow):
            return WindowGrid.sliding(_micros(window.size), _micros(window.slide), _micros(window.offset))
        if isinstance(window, CumulativeWindow):
            size, step = _micros(window.size), _micros(window.step)
            return WindowGrid(size // step, 1, cumulative=True, width=step, origin=_micros(window.offset) % size)
        if isinstance(window, CalendarWindow):
            return WindowGrid(1, 1, width=DAY_US, calendar=Calendar.of(window))
        if isinstance(window, GlobalWindow):
            return WindowGrid(1, 1, endless=True)
        if isinstance(window, InheritedWindow):
            return WindowGrid(1, 1, inherited=True)
        raise TypeError(f"{type(window).__name__} has no grid: sessions begin with their rows")

    @staticmethod
    def sliding(size: int, slide: int, offset: int = 0) -> WindowGrid:
        """Windows of `size` that start every `slide`, on a grid through the epoch plus `offset`; microseconds."""
        width = math.gcd(size, slide)
        return WindowGrid(size // width, slide // width, width=width, origin=offset % slide)

    # -- kinds of grids ------------------------------------------------------------------------------------------------

    @property
    def is_panes(self) -> bool:
        """Whether every window is one pane, and every pane a window."""
        return self.panes_per_window == 1 and self.panes_per_slide == 1

    @property
    def overlaps(self) -> bool:
        """Whether a row can be in more than one window."""
        return self.cumulative or self.panes_per_window > self.panes_per_slide

    @property
    def gaps(self) -> bool:
        """Whether a row can be in no window."""
        return not self.cumulative and self.panes_per_slide > self.panes_per_window

    # -- panes of times ------------------------------------------------------------------------------------------------

    def panes(self, time: np.ndarray) -> np.ndarray:
        """Panes of times, int64[n] (times int64[n], microseconds; for inherited windows, the window ends)."""
        if self.endless:
            return np.zeros(len(time), np.int64)
        if self.calendar is not None:
            return self.calendar.numbers(time)
        if self.origin and len(time) and int(time.min()) < INT64_MIN + self.origin:  # time - origin would leave int64
            whole, rest = divmod(self.origin, self.width)
            pane = time // self.width - (time % self.width < rest)
            return self._numbered(np.maximum(pane, FIRST_WINDOW + whole) - whole)
        if len(time) >= tuning.SPLIT_ROWS and self.width > 1:
            return floors(time, self.origin, self.width)
        if self.origin:
            time = time - self.origin
        return self._numbered(time) if self.width == 1 else time // self.width

    def divides(self, oldest: int, newest: int) -> bool:
        """Whether the panes of all times in [oldest, newest] are floor((time - origin) / width), and these times no
        more than half of int64 apart: kernels then find the panes of `panes` by themselves.
        """
        if self.endless or self.inherited or self.calendar is not None or self.width == 1:
            return False
        return oldest >= INT64_MIN + self.origin + self.width and newest - oldest < 1 << 62

    @staticmethod
    def _numbered(pane: np.ndarray) -> np.ndarray:
        """Panes within int64: the smallest int64 is no pane, its rows go into the next one. Only panes of a microsecond
        come so far.
        """
        return np.maximum(pane, FIRST_WINDOW) if len(pane) and int(pane.min()) < FIRST_WINDOW else pane

    def cells(self, code: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Panes of rows of keys `code` (int32[n]), int64[n]; rows of one key and pane share all their windows."""
        return self.panes(time)

    def in_gap(self, pane: np.ndarray) -> np.ndarray:
        """Whether panes lie between two windows, bool[n]."""
        inside: np.ndarray = pane % self.panes_per_slide
        return inside >= self.panes_per_window

    # -- panes of windows, windows of panes ----------------------------------------------------------------------------

    def first_pane(self, window: int) -> int:
        """First pane of a window; any integers."""
        if self.cumulative:
            return window - window % self.panes_per_window
        return window * self.panes_per_slide

    def last_pane(self, window: int) -> int:
        """Last pane of a window; any integers."""
        return window if self.cumulative else window * self.panes_per_slide + self.panes_per_window - 1

    def panes_of(self, first: int, last: int) -> tuple[int, int]:
        """First and last pane that windows [first, last] cover, within int64."""
        return max(self.first_pane(first), INT64_MIN), min(self.last_pane(last), INT64_MAX)

    def windows_of(self, pane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last window of each pane, int64[n] each; the last is before the first for a pane in a gap. Windows
        whose number would leave int64 are left out.
        """
        if self.is_panes:
            return pane, pane
        size = np.int64(self.panes_per_window)
        if self.cumulative:
            later = size - 1 - pane % size
            if len(pane) and int(pane.max()) > INT64_MAX - self.panes_per_window:
                return pane, np.where(pane > INT64_MAX - later, INT64_MAX, pane + later)
            return pane, pane + later
        slide = np.int64(self.panes_per_slide)
        last = pane // slide
        if not len(pane) or int(pane.min()) >= FIRST_WINDOW + self.panes_per_window:
            return (pane - size) // slide + 1, last
        # (pane - size) // slide without leaving int64: by the quotients and the rests of both.
        behind, rest = divmod(self.panes_per_window, self.panes_per_slide)
        return np.maximum(last - (pane % slide < rest), FIRST_WINDOW + behind - 1) - behind + 1, last

    # -- watermarks ----------------------------------------------------------------------------------------------------

    def last_closed(self, watermark: int) -> int | None:
        """Last window that ends at or before `watermark` (exclusive, microseconds). None: every window does. The
        smallest int64: none does.
        """
        if watermark >= INT64_MAX:
            return None
        if self.endless:
            return -1
        if watermark <= INT64_MIN:
            return INT64_MIN
        if self.inherited:
            return watermark
        if self.calendar is not None:
            return number_at(self.calendar, watermark) - 1
        ended = (watermark - self.origin) // self.width  # panes before this one end at or before the watermark
        last = ended - 1 if self.cumulative else (ended - self.panes_per_window) // self.panes_per_slide
        return max(last, INT64_MIN)

    def last_closed_each(self, watermark: np.ndarray) -> np.ndarray:
        """Last closed windows, int64[n], as of `last_closed`; the largest int64 less one where every window is
        closed.
        """
        if self.endless:
            return np.where(watermark >= INT64_MAX, INT64_MAX - 1, -1)
        if self.inherited:
            return np.where(watermark >= INT64_MAX, INT64_MAX - 1, watermark)
        ended = self.panes(watermark)  # panes before this one end at or before the watermark
        last = (ended if self.cumulative else self.windows_of(ended)[0]) - 1
        return np.where(watermark == INT64_MIN, INT64_MIN, np.where(watermark >= INT64_MAX, INT64_MAX - 1, last))

    # -- bounds of windows ---------------------------------------------------------------------------------------------

    def start_of(self, window: int) -> int:
        """Start of a window, microseconds."""
        if self.calendar is not None:
            return start_of(self.calendar, window)
        return _saturated(self.origin + self.first_pane(window) * self.width)

    def end_of(self, window: int) -> int:
        """End of a window, microseconds, exclusive."""
        if self.calendar is not None:
            return self.start_of(window + 1)
        return _saturated(self.origin + (self.last_pane(window) + 1) * self.width)

    def starts(self, window: np.ndarray) -> np.ndarray:
        """Starts of windows, int64[n], microseconds."""
        if self.cumulative:
            return self.starts_of_panes(window // self.panes_per_window, self.panes_per_window)
        return self.starts_of_panes(window, self.panes_per_slide)

    def ends(self, window: np.ndarray) -> np.ndarray:
        """Ends of windows, int64[n], microseconds, exclusive."""
        if self.inherited:
            return window
        if self.endless:
            return np.full(len(window), INT64_MAX)
        if self.cumulative:
            return self.starts_of_panes(window, 1, 1)
        return self.starts_of_panes(window, self.panes_per_slide, self.panes_per_window)

    def least_times(self, start: np.ndarray) -> np.ndarray:
        """Least times of the rows of windows with these starts, int64[n]: rows before the first pane are in it."""
        return np.where(start <= FIRST_WINDOW + self.origin, INT64_MIN, start) if self.width == 1 else start

    def starts_of_panes(self, number: np.ndarray, step: int = 1, ahead: int = 0) -> np.ndarray:
        """Starts of the panes `number * step + ahead`, int64[n], microseconds."""
        if not len(number):
            return number
        if self.calendar is not None:
            return self.calendar.starts(number * step + ahead)
        least = -((((self.origin - INT64_MIN) // self.width) + ahead) // step)
        most = ((INT64_MAX - self.origin) // self.width - ahead) // step
        few = len(number) < tuning.SPLIT_ROWS
        first, last = (int(number.min()), int(number.max())) if few else ends_of(number)
        if first < least or last > most:
            inside = (np.clip(number, least, most) * step + ahead) * self.width + self.origin
            inside = np.where(number < least, INT64_MIN, inside)
            return np.where(number > most, INT64_MAX, inside)
        factor, offset = step * self.width, ahead * self.width + self.origin
        if not few and factor <= INT64_MAX and offset <= INT64_MAX:
            return linear(number, factor, offset)
        start: np.ndarray = number * factor
        start += offset
        return start


def _micros(value: object) -> int:
    assert isinstance(value, timedelta)
    return micros(value)


def _saturated(value: int) -> int:
    return max(INT64_MIN, min(INT64_MAX, value))
