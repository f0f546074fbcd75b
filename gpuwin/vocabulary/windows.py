"""Windows: seven shapes, each a frozen description without behaviour. Intervals are half-open, `[start, end)`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

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


_CALENDAR: Final = re.compile(r"([0-9]{1,4})? *(day|week|month|quarter|year)s?")


@dataclass(frozen=True)
class CalendarWindow:
    """Windows of whole days, weeks, months, quarters or years of a time zone, one after the other.

    size: "1 day", "2 weeks", "month", "1 quarter", "1 year". timezone: a name such as "Europe/Berlin", or a `ZoneInfo`,
    whatever zone the time column has; times without a zone are UTC. starting: the first day of one of the windows, a
    `date` or its ISO text; that of months, quarters and years is at most the 28th. By default 1 January 1970, and of
    weeks the Monday after.

    Raises SpecificationError for another size, and for a time zone that is not known.
    """

    size: str
    timezone: str | tzinfo = "UTC"
    starting: str | date = ""

    def __post_init__(self) -> None:
        written = _CALENDAR.fullmatch(self.size.strip().lower()) if isinstance(self.size, str) else None
        count = 0 if written is None else int(written[1] or 1)
        if written is None or count < 1:
            raise SpecificationError(
                f'CalendarWindow.size is a number of days, weeks, months, quarters or years ("1 month"), not '
                f"{self.size!r}; what has hours is gw.TumblingWindow"
            )
        unit = written[2]
        object.__setattr__(self, "size", f"{count} {unit}{'s' * (count > 1)}")
        object.__setattr__(self, "timezone", _timezone(self.timezone))
        starting = _day(self.starting or ("1970-01-05" if unit == "week" else "1970-01-01"))
        if unit not in ("day", "week") and starting.day > 28:
            raise SpecificationError(
                f"CalendarWindow.starting is {starting}, and not every month has a day {starting.day}: take the 28th "
                "or an earlier one"
            )
        object.__setattr__(self, "starting", starting.isoformat())

    @property
    def parts(self) -> tuple[int, str]:
        """Number and unit of the size: (2, "week")."""
        count, unit = self.size.split()
        return int(count), unit.removesuffix("s")


_OF_A_MACHINE = ("", "localtime", "posixrules")  # names that say another zone elsewhere, where a snapshot is restored


def _timezone(written: object) -> str:
    """Name of a time zone."""
    name = "UTC" if written is UTC else written.key if isinstance(written, ZoneInfo) else written
    try:
        known = isinstance(name, str) and name not in _OF_A_MACHINE and (name == "UTC" or ZoneInfo(name) is not None)
    except (KeyError, OSError, ValueError):  # a name that is not found, or cannot be one
        known = False
    if not known:
        raise SpecificationError(
            f"CalendarWindow.timezone {written!r} is not known here: it is a name such as 'Europe/Berlin', and its "
            "rules come with the system or with pip install tzdata"
        )
    return str(name)


def _day(value: object) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return date(value.year, value.month, value.day)
    try:
        if isinstance(value, str):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise SpecificationError(f"CalendarWindow.starting is a date, or text such as '2024-04-01', not {value!r}")


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


Window = (
    TumblingWindow | SlidingWindow | CumulativeWindow | CalendarWindow | SessionWindow | GlobalWindow | InheritedWindow
)
