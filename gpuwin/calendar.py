"""Calendar of a time zone: periods of days, weeks, months or years, by number, and where each begins in UTC.

A period begins with the first instant at which the clocks of the zone show its first day: at midnight, or, where the
clocks skip midnight, right after the skip. Periods follow each other without gaps, so the days on which clocks change
have 23 or 25 hours, and a day that a zone left out (30 December 2011 in Samoa) has no length, and no number. Days are
those of the Gregorian calendar, also before it, and zones those of `zoneinfo`, whose rules go on for ever.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.windows import CalendarWindow
from gpuwin_kernels.cpu.extremes import ends_of

DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
_LAST_DAY = INT64_MAX // DAY_US  # since the epoch; later ones leave int64 microseconds
_CYCLE = 146_097  # days of 400 years, after which dates and days of the week come again
# Days that Python's dates have, with their neighbours. No zone changes its rules in the cycle after the one, nor in the
# cycle before the other, so that these hold in all cycles beyond.
_OLDEST, _NEWEST = -500_000, 2_500_000
_LINE = range(1840, 2040)  # years in which zones moved over the date line
_TABLE = 4_096  # periods between the oldest and the newest time of a batch whose starts are all looked up


@dataclass(frozen=True, slots=True)
class Calendar:
    """Periods of so many days, or so many months, in a time zone. Period 0 begins on the `first` day (since the epoch);
    of months, on that day of the month.
    """

    days: int
    months: int
    first: int
    zone: str

    @staticmethod
    def of(window: CalendarWindow) -> Calendar:
        """The calendar of such windows."""
        count, unit = window.parts
        first = date.fromisoformat(str(window.starting)).toordinal() - _EPOCH
        days = {"day": 1, "week": 7}.get(unit, 0)
        months = {"month": 1, "quarter": 3, "year": 12}.get(unit, 0)
        return Calendar(count * days, count * months, first, str(window.timezone))

    def numbers(self, time: np.ndarray) -> np.ndarray:
        """Periods of times, int64[n] (times int64[n], microseconds)."""
        if not len(time):
            return time
        ends = np.array(ends_of(time))
        low, high = self._of_dates(ends)
        if high - low <= _TABLE:  # no zone is a day from UTC
            known, starts = _between(self, int(low) - 1, int(high) + 1)
        else:
            dates = np.unique(self._of_dates(time))
            known = np.unique(np.concatenate([dates - 1, dates, dates + 1]))
            starts = self._table(known)
        starts = starts[: np.searchsorted(starts, INT64_MAX)]  # no time is after the others, which saturate
        first, last = np.searchsorted(starts, ends, side="right") - 1
        if first == last:
            return np.full(len(time), known[first])
        found: np.ndarray = known[np.searchsorted(starts, time, side="right") - 1]
        return found

    def starts(self, number: np.ndarray) -> np.ndarray:
        """Starts of periods, int64[n], microseconds; those that leave int64 saturate."""
        if not len(number):
            return number
        low, high = ends_of(number)
        if high - low <= _TABLE:
            return np.asarray(_between(self, low, high)[1][number - low])
        known, place = np.unique(number, return_inverse=True)
        return np.asarray(self._table(known)[place])

    def _table(self, number: np.ndarray) -> np.ndarray:
        return np.array([_begins(self.zone, day) for day in self._first_days(number).tolist()], np.int64)

    def _of_dates(self, time: np.ndarray) -> np.ndarray:
        """Periods of the dates that times have in UTC, int64[n]."""
        day = time // DAY_US
        if self.days:
            number = (day - self.first) // self.days
            return np.asarray(number - np.searchsorted(self._left_out(), number))
        first = np.datetime64(self.first, "D")
        ahead = int((first - first.astype("datetime64[M]")).astype(np.int64))  # days of a month before its period
        month = (day - ahead).view("datetime64[D]").astype("datetime64[M]").astype(np.int64)
        return np.asarray((month - int(first.astype("datetime64[M]").astype(np.int64))) // self.months)

    def _first_days(self, number: np.ndarray) -> np.ndarray:
        """First days of periods, int64[n], days since the epoch; of those far beyond int64 microseconds, others that
        are, too.
        """
        number = np.clip(number, -2 * _LAST_DAY, 2 * _LAST_DAY)
        if self.days:
            gone = self._left_out()
            number = number + np.searchsorted(gone - np.arange(len(gone)), number, side="right")
            return np.asarray(number * self.days + self.first)
        first = np.datetime64(self.first, "D")
        ahead = first - first.astype("datetime64[M]")
        month = number * self.months + int(first.astype("datetime64[M]").astype(np.int64))
        return np.asarray((month.view("datetime64[M]").astype("datetime64[D]") + ahead).astype(np.int64))

    def _left_out(self) -> np.ndarray:
        """Periods without length, as they would be numbered if they counted, int64[n]."""
        return _days_left_out(self.zone) - self.first if self.days == 1 else np.empty(0, np.int64)


@lru_cache(64)
def _days_left_out(zone: str) -> np.ndarray:
    """Days that a zone left out, int64[n], days since the epoch."""
    new_years = [date(year, 1, 1).toordinal() - _EPOCH for year in _LINE]
    return np.array(
        [
            day
            for first, after in itertools.pairwise(new_years)
            if _begins(zone, after) - _begins(zone, first) < (after - first) * DAY_US - DAY_US // 2
            for day in range(first, after)
            if _begins(zone, day) == _begins(zone, day + 1)
        ],
        np.int64,
    )


@lru_cache(64)
def _between(calendar: Calendar, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Periods from `low` to `high`, int64[n], and their starts. Batches ask for the same ones again and again."""
    known = np.arange(low, high + 1)
    starts = calendar._table(known)
    for shared in (known, starts):
        shared.flags.writeable = False
    return known, starts


@lru_cache(1 << 10)
def number_at(calendar: Calendar, time: int) -> int:
    """Period of one time, microseconds. Watermarks ask for the same one several times in a batch."""
    return int(calendar.numbers(np.array([time]))[0])


@lru_cache(1 << 10)
def start_of(calendar: Calendar, number: int) -> int:
    """Start of one period, microseconds; one that leaves int64 saturates."""
    return int(calendar.starts(np.array([number]))[0])


@lru_cache(1 << 16)
def _begins(zone: str, day: int) -> int:
    """First instant, microseconds UTC, at which clocks of a zone show a day (days since the epoch) or a later one."""
    if not -_LAST_DAY < day < _LAST_DAY:
        return INT64_MAX if day > 0 else INT64_MIN
    if not _OLDEST <= day < _NEWEST:
        cycles = (day - (_OLDEST if day < 0 else _NEWEST - _CYCLE)) // _CYCLE
        return _begins(zone, day - cycles * _CYCLE) + cycles * _CYCLE * DAY_US
    where: tzinfo = UTC if zone == "UTC" else ZoneInfo(zone)
    midnight = datetime.fromordinal(day + _EPOCH).replace(tzinfo=where)
    early, late = sorted(_seconds(midnight.replace(fold=fold)) for fold in (0, 1))
    if _seconds(midnight) == early:
        return early * 1_000_000
    # The clocks skip midnight: somewhere in (early, late].
    while late - early > 1:
        middle = (early + late) // 2
        shown = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=middle)).astimezone(where).date()
        early, late = (early, middle) if shown >= midnight.date() else (middle, late)
    return late * 1_000_000


def _seconds(local: datetime) -> int:
    """Seconds since the epoch, of a time in a zone."""
    ahead = local.utcoffset()
    assert ahead is not None
    return (local.replace(tzinfo=None) - ahead - datetime(1970, 1, 1)) // timedelta(seconds=1)
