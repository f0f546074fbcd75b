"""Windows: six shapes, each a frozen description without behaviour. Intervals are half-open, `[start, end)`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.durations import Duration, as_timedelta

_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True)
class Column:
    """Column of the input, where a specification allows one instead of a constant."""

    name: str


def column(name: str) -> Column:
    """Column of the input by name: `gw.SessionWindow(gap=gw.column("timeout"))`."""
    if not isinstance(name, str) or not name:
        raise SpecificationError(f"a column name is a non-empty string, not {name!r}")
    return Column(name)


def _duration(window: object, field: str, least: timedelta | None) -> None:
    """Replaces a duration of any accepted form by its timedelta, so that equal windows are equal specifications."""
    value = as_timedelta(getattr(window, field), f"{type(window).__name__}.{field}")
    if least is not None and value < least:
        bound = "positive" if least > _ZERO else "zero or positive"
        raise SpecificationError(f"{type(window).__name__}.{field} must be {bound}, not {value}")
    object.__setattr__(window, field, value)


@dataclass(frozen=True)
class TumblingWindow:
    """Windows `[start, start + size)`, one after the other, on a grid through the epoch plus `offset`."""

    size: Duration
    offset: Duration = "0 seconds"

    def __post_init__(self) -> None:
        _duration(self, "size", timedelta.resolution)
        _duration(self, "offset", None)


@dataclass(frozen=True)
class SlidingWindow:
    """Windows of `size`, one every `slide`. A row is in several windows, or, where `slide` exceeds `size`, perhaps in
    none.
    """

    size: Duration
    slide: Duration
    offset: Duration = "0 seconds"

    def __post_init__(self) -> None:
        _duration(self, "size", timedelta.resolution)
        _duration(self, "slide", timedelta.resolution)
        _duration(self, "offset", None)


@dataclass(frozen=True)
class CumulativeWindow:
    """Windows of `step`, `2 * step`, ... `size` that share their start, within each `size`. `step` must divide
    `size`.
    """

    size: Duration
    step: Duration
    offset: Duration = "0 seconds"

    def __post_init__(self) -> None:
        _duration(self, "size", timedelta.resolution)
        _duration(self, "step", timedelta.resolution)
        _duration(self, "offset", None)
        assert isinstance(self.size, timedelta)
        assert isinstance(self.step, timedelta)
        if self.size % self.step:
            raise SpecificationError(f"CumulativeWindow: step {self.step} must divide size {self.size}")


@dataclass(frozen=True)
class SessionWindow:
    """Windows of rows of a key that follow each other within a `gap`: a duration, or a column with the gap of each row.

    The column is an Arrow duration, an integer (microseconds), or a string as in Spark; a null, zero or negative gap
    drops the row, which counts as unassigned. A constant gap may be zero (rows of one instant).
    """

    gap: Duration | Column

    def __post_init__(self) -> None:
        if isinstance(self.gap, str) and self.gap.isidentifier():
            raise SpecificationError(f"SessionWindow.gap: {self.gap!r} is no duration; a column is gw.column(...)")
        if not isinstance(self.gap, Column):
            _duration(self, "gap", _ZERO)


@dataclass(frozen=True)
class GlobalWindow:
    """One window for ever: its bounds are null, and only the end of the stream closes it."""


@dataclass(frozen=True)
class InheritedWindow:
    """Windows of an operator upstream: rows carry their bounds in the columns `window_start` and `window_end`.

    A row's time is the last instant of its window (as of `gw.window_time`), unless a time column is named. A row
    without bounds is dropped, and counted in `rows_null_time`.
    """


Window = TumblingWindow | SlidingWindow | CumulativeWindow | SessionWindow | GlobalWindow | InheritedWindow
