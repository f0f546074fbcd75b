"""The day with the most departures, hour by hour, out of the windows alone that a query emitted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa

NEW_YORK: Final = ZoneInfo("America/New_York")
_UTC: Final = ZoneInfo("UTC")
_HOUR: Final = 3_600_000_000


@dataclass(frozen=True)
class Window:
    """One window of the day, over all airports; `departures` are those of each airport, in the order of `airports`."""

    #: When it ends, in New York: "01:00" to "24:00".
    until: str
    departures: tuple[int, ...]
    cancelled: int
    #: In minutes; None where nobody left.
    mean_delay: float | None


@dataclass(frozen=True)
class BusiestDay:
    """A day, and the windows that end at its hours."""

    day: datetime
    departures: int
    size: timedelta
    airports: tuple[str, ...]
    windows: tuple[Window, ...]

    @property
    def title(self) -> str:
        return f"The busiest day, {self.day:%A} {self.day.day} {self.day:%B %Y}: {self.departures:,} departures"

    @property
    def most(self) -> int:
        """The departures of the fullest window."""
        return max(sum(w.departures) for w in self.windows)


def busiest_day(result: pa.Table, size: timedelta) -> BusiestDay | None:
    """The busiest day of a result of the query per origin; None where no window has closed at an end of a day.

    Args:
        result: as `check.read_result` gives it.
        size: of the query's windows; a day must be a whole number of them.
    """
    by_end: dict[datetime, dict[str, tuple[int, float, int]]] = {}
    ends = result["end"].cast(pa.int64()).to_numpy()
    result = result.filter(pa.array(ends % _HOUR == 0))  # the hours of New York are whole hours of UTC
    columns = (result[n].to_pylist() for n in ("end", "origin", "departures", "mean_delay", "cancelled"))
    for end, origin, departures, mean, cancelled in zip(*columns, strict=True):
        by_end.setdefault(end, {})[origin] = (departures, (mean or 0.0) * departures, cancelled)
    days: dict[datetime, int] = {}
    for end, origins in by_end.items():
        local = end.astimezone(NEW_YORK).replace(tzinfo=None)
        midnight = local.replace(hour=0, minute=0, second=0)
        if (local - midnight) % size == timedelta(0):  # windows that tile a day
            day = midnight - timedelta(days=1) if local == midnight else midnight
            days[day] = days.get(day, 0) + sum(n for n, _, _ in origins.values())
    if not days:
        return None
    busiest = max(days, key=lambda d: (days[d], d))
    airports = tuple(sorted(set(result["origin"].to_pylist())))
    windows = []
    for hour in range(1, 25):
        end = (busiest + timedelta(hours=hour)).replace(tzinfo=NEW_YORK).astimezone(_UTC)
        origins = by_end.get(end, {})
        departures = tuple(origins.get(a, (0, 0.0, 0))[0] for a in airports)
        late = sum(s for _, s, _ in origins.values())
        mean_delay = late / sum(departures) if any(departures) else None
        windows.append(Window(f"{hour:02}:00", departures, sum(x for _, _, x in origins.values()), mean_delay))
    return BusiestDay(busiest, days[busiest], size, airports, tuple(windows))
