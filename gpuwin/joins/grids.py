"""Where the rows of a window join fall: windows on a grid, numbered in order of their end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.joins.side import shifted
from gpuwin.state.row_runs import INT64_MAX, INT64_MIN


def _floor(time: np.ndarray, origin: int, step: int) -> np.ndarray:
    """floor((time - origin) / step), saturating."""
    steps: np.ndarray = shifted(time, -origin) // step
    return steps


@dataclass(frozen=True, slots=True)
class SlidingGrid:
    """Window k is [origin + k * slide, origin + k * slide + size); tumbling where slide equals size."""

    size: int
    slide: int
    origin: int

    def windows(self, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(first, beyond): the windows of each row are first <= k < beyond, none where they are equal (a gap between
        windows).
        """
        return _floor(time, self.origin + self.size, self.slide) + 1, _floor(time, self.origin, self.slide) + 1

    def bounds(self, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start = self.origin + window * self.slide
        return start, start + self.size

    def last_closed(self, bound: int) -> int:
        """The largest k with end <= bound."""
        return (bound - self.origin - self.size) // self.slide

    def first_time(self, window: int) -> int:
        """No row before this time is in this window or a later one."""
        return self.origin + window * self.slide


@dataclass(frozen=True, slots=True)
class CumulativeGrid:
    """Window k ends with step k and begins where the `size` begins that this step is part of."""

    size: int
    step: int
    origin: int

    def windows(self, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps = self.size // self.step
        first = _floor(time, self.origin, self.step)
        return first, (first // steps + 1) * steps

    def bounds(self, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps = self.size // self.step
        return self.origin + window // steps * self.size, self.origin + (window + 1) * self.step

    def last_closed(self, bound: int) -> int:
        return (bound - self.origin) // self.step - 1

    def first_time(self, window: int) -> int:
        return self.origin + window // (self.size // self.step) * self.size


Grid = SlidingGrid | CumulativeGrid


def clipped(value: int) -> int:
    return min(max(value, INT64_MIN), INT64_MAX)
