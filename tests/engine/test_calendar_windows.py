"""Windows of a calendar: days, weeks, months and years by the clocks of a time zone."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Options, options, streams
from test_properties import EXAMPLES

import gpuwin as gw
from gpuwin.calendar import DAY_US, Calendar
from gpuwin.choice import cpu_only
from gpuwin.planning.plan import plan_of
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.specification_json import read_specification, write_specification

DATED = pa.schema({"t": pa.timestamp("us", "UTC")})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = [
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Antarctica/Troll"),
    *("America/Sao_Paulo", "Africa/Cairo"),  # whose clocks skipped midnight
    "America/St_Johns",  # whose clocks went back right after midnight, to the day before
    *("Pacific/Apia", "Pacific/Kwajalein"),  # which left out a day
]


def shown(zone: str, micros: int) -> date:
    """The date that clocks show, by Python's own arithmetic."""
    return (EPOCH + timedelta(microseconds=micros)).astimezone(ZoneInfo(zone)).date()


def noon_on(zone: str, day: date) -> int | None:
    """Noon of a day, microseconds; None where the zone left the day out."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    return (noon - EPOCH) // timedelta(microseconds=1) if noon.astimezone(ZoneInfo(zone)).date() == day else None


def instants(*texts: str) -> pa.Array:
    """Times with an offset, as UTC."""
    times = [datetime.fromisoformat(text) for text in texts]
    return pa.array([(t - EPOCH) // timedelta(microseconds=1) for t in times], pa.timestamp("us", "UTC"))


def rows_by(window: gw.CalendarWindow, times: pa.Array, **more: Any) -> list[tuple[str, str, int]]:
    """(start, end, rows) of the windows, by the clocks of their zone."""
    spec = gw.WindowedAggregation(window=window, time="t", aggregates={"n": gw.count()}, **more)
    zone = ZoneInfo(str(window.timezone))
    return [
        (*(r[b].astimezone(zone).isoformat() for b in ("window_start", "window_end")), r["n"])
        for r in gw.aggregate(pa.table({"t": times}), spec).to_pylist()
    ]


@pytest.mark.parametrize("zone", ZONES)
def test_a_day_begins_when_clocks_first_show_it(zone: str) -> None:
    calendar = Calendar.of(gw.CalendarWindow("1 day", zone))
    number = np.arange(-20_000, 25_000)
    starts = calendar.starts(number)
    odd = np.flatnonzero(np.diff(starts) != DAY_US)
    assert len(odd) == 0 if zone == "UTC" else len(odd) > 1
    assert (np.diff(starts) > 0).all()
    days = [day for day in (date(1910, 1, 1) + timedelta(i) for i in range(50_000)) if noon_on(zone, day) is not None]
    begin = days.index(date(1970, 1, 1))
    for k in [*odd, *(odd + 1), *range(0, len(number), 997)]:
        day = days[begin + number[k]]
        assert shown(zone, int(starts[k])) >= day > shown(zone, int(starts[k]) - 1)


@pytest.mark.parametrize("zone", ZONES)
def test_rules_go_on_for_ever(zone: str) -> None:
    """Those of the first years that Python has, and of the last, hold 400 years before and after, too."""
    calendar = Calendar.of(gw.CalendarWindow("1 day", zone))

    def start_of_day(at: int) -> int:
        return int(calendar.starts(calendar.numbers(np.array([at])))[0])

    for year, cycle in ((2, -146_097), (300, -146_097), (9700, 146_097), (9998, 146_097)):
        for day in (date(year, 1, 1) + timedelta(days) for days in range(0, 365, 13)):
            noon = noon_on(zone, day)
            assert noon is not None
            start = start_of_day(noon)
            assert shown(zone, start) == day > shown(zone, start - 1)
            assert start_of_day(noon + cycle * DAY_US) == start + cycle * DAY_US


def test_a_day_that_is_left_out_is_no_window_without_rows() -> None:
    times = instants("2011-12-29T12:00-10:00", "2011-12-31T12:00+14:00", "2012-01-01T12:00+14:00")
    found = rows_by(gw.CalendarWindow("1 day", "Pacific/Apia"), times, emit=gw.OnChange())
    assert [(start[:10], n) for start, _, n in found] == [("2011-12-29", 1), ("2012-01-02", 0)]


@pytest.mark.parametrize("size", ["day", "3 days", "week", "month", "2 quarters", "10 years"])
@pytest.mark.parametrize("zone", ZONES)
def test_each_time_is_in_one_window(zone: str, size: str) -> None:
    calendar = Calendar.of(gw.CalendarWindow(size, zone, "2023-11-28"))
    rng = np.random.default_rng(0)
    ends = [INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX - 1, INT64_MAX]
    around = rng.integers(1_690_000_000_000_000, 1_710_000_000_000_000, 500)
    for time in (np.array(ends), rng.integers(INT64_MIN, INT64_MAX, 500), around):
        number = calendar.numbers(time)
        start, end = calendar.starts(number), calendar.starts(number + 1)
        assert (start <= time).all()
        assert (start < end).all()
        assert ((time < end) | (end == INT64_MAX)).all()


def test_months_and_the_days_on_which_clocks_change() -> None:
    times = instants("2024-03-31T00:30+01:00", "2024-03-31T23:30+02:00", "2024-04-01T00:00+02:00")
    assert rows_by(gw.CalendarWindow("1 day", "Europe/Berlin"), times) == [
        ("2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00", 2),
        ("2024-04-01T00:00:00+02:00", "2024-04-02T00:00:00+02:00", 1),
    ]
    assert rows_by(gw.CalendarWindow("month", "Europe/Berlin"), times) == [
        ("2024-03-01T00:00:00+01:00", "2024-04-01T00:00:00+02:00", 2),
        ("2024-04-01T00:00:00+02:00", "2024-05-01T00:00:00+02:00", 1),
    ]
    assert rows_by(gw.CalendarWindow("1 quarter", "America/New_York"), times) == [
        ("2024-01-01T00:00:00-05:00", "2024-04-01T00:00:00-04:00", 3)
    ]


def test_a_first_day_moves_weeks_and_years() -> None:
    times = instants("2024-03-30T12:00+00:00", "2024-03-31T12:00+00:00", "2024-04-06T12:00+00:00")
    monday, sunday = gw.CalendarWindow("1 week"), gw.CalendarWindow("1 week", starting=date(2024, 4, 7))
    assert [(start[:10], n) for start, _, n in rows_by(monday, times)] == [("2024-03-25", 2), ("2024-04-01", 1)]
    assert [(start[:10], n) for start, _, n in rows_by(sunday, times)] == [("2024-03-24", 1), ("2024-03-31", 2)]
    fiscal = rows_by(gw.CalendarWindow("year", starting="2020-04-01"), times)
    assert [(start[:10], end[:10], n) for start, end, n in fiscal] == [
        ("2023-04-01", "2024-04-01", 2),
        ("2024-04-01", "2025-04-01", 1),
    ]


@pytest.mark.parametrize("kind", ["panes", "by row", "complete", "changes", "firings", "event time", "any windows"])
@settings(EXAMPLES, max_examples=40)
@given(data=st.data())
def test_days_of_utc_are_tumbling_windows(kind: str, data: st.DataObject) -> None:
    """In every mode of emission, batch by batch, restored from snapshots on the way."""
    days, offset = data.draw(st.integers(1, 4)), data.draw(st.integers(-3, 3))
    day = timedelta(days=1)
    tumbling = Options(("sliding", days, days, offset), data.draw(options(kind)).more).spec(unit=day)
    window = gw.CalendarWindow(f"{days} days", starting=date(1970, 1, 1) + offset * day)
    assert told(replace(tumbling, window=window), stream := data.draw(streams()), True) == told(tumbling, stream, False)


def told(spec: gw.WindowedAggregation, stream: list[list[Any]], restore: bool) -> list[Any]:
    def table(rows: list[Any]) -> pa.Table:
        days = [t * DAY_US for _, t, _ in rows]
        columns = {"key": pa.array([r[0] for r in rows], pa.string()), "time": pa.array(days, pa.timestamp("us"))}
        return pa.table({**columns, "value": pa.array([r[2] for r in rows], pa.int64())})

    op, found = spec.start(schema=table([]).schema), []
    for rows in stream:
        found.append(op.process(table(rows)).to_pylist())
        if restore:
            op = spec.restore(op.snapshot())
    m = op.metrics
    return [*found, op.finish().to_pylist(), m.rows_late, m.window_rows_late, m.rows_unassigned, m.windows_open]


def test_many_rows_of_a_year_by_month_are_those_of_brought_windows() -> None:
    """Enough rows for all threads, rows that are kept for the median, and a watermark that closes on the way."""
    rng = np.random.default_rng(5)
    start = 1_700_000_000_000_000 + np.arange(300_000) * 100_000_000 + rng.integers(0, 10**11, 300_000)
    rows = pa.table(
        {"t": pa.array(start, pa.timestamp("us", "UTC")), "k": rng.integers(0, 50, 300_000), "v": rng.random(300_000)}
    )
    calendar = Calendar.of(window := gw.CalendarWindow("1 month", "America/New_York"))
    number = calendar.numbers(start)
    brought = rows
    for name, bound in (("window_start", number), ("window_end", number + 1)):
        brought = brought.append_column(name, pa.array(calendar.starts(bound), pa.timestamp("us", "UTC")))
    spec = gw.WindowedAggregation(
        window=window,
        keys=["k"],
        time="t",
        aggregates={"n": gw.count(), "middle": gw.median("v"), "newest": gw.last("v"), "top": gw.max_by("k", "v")},
        watermark=gw.BoundedOutOfOrderness("2 days"),
    )
    other = replace(spec, window=gw.InheritedWindow(), semantics=gw.Semantics(order="arrival"))
    spec = replace(spec, semantics=gw.Semantics(order="arrival"))
    order = [("window_start", "ascending"), ("k", "ascending")]
    found, wanted = (
        pa.concat_tables(gw.run(one, [table.slice(i, 30_000) for i in range(0, 300_000, 30_000)])).sort_by(order)
        for one, table in ((spec, rows), (other, brought))
    )
    assert found.equals(wanted)
    assert found.num_rows == 50 * len(np.unique(number)) > 500


def test_windows_meet_in_a_join() -> None:
    times = instants(
        "2024-01-31T18:00+00:00", "2024-01-31T19:00+00:00"
    )  # the last of January there, the first of February
    left = pa.table({"k": [1, 1], "t": times, "a": [1, 2]})
    join = gw.WindowJoin(gw.CalendarWindow("1 month", "Asia/Kathmandu"), ["k"], "t", "t").start()
    join.process(left=left)
    (january,) = join.process(right=left.rename_columns(["k", "t", "b"])).to_pylist()
    (february,) = join.finish().to_pylist()
    assert [(r["a"], r["b"]) for r in (january, february)] == [(1, 1), (2, 2)]


def test_windows_go_by_the_system_clock() -> None:
    clock = iter(instants("2024-02-10T00:00+00:00", "2024-03-09T00:00+00:00").cast(pa.int64()).to_pylist())
    spec = gw.WindowedAggregation(
        window=gw.CalendarWindow("1 month"), aggregates={"n": gw.count()}, watermark=gw.SystemClock()
    )
    op = spec.start(clock=lambda: next(clock))
    assert op.process(pa.table({"x": [1, 2]})).num_rows == 0
    (row,) = op.process(pa.table({"x": [3]})).to_pylist()
    assert (row["n"], row["window_start"].month, row["window_end"].month) == (2, 2, 3)


def test_aggregations_run_on_the_cpu() -> None:
    days, months = (
        plan_of(gw.WindowedAggregation(window=window, time="t", aggregates={"n": gw.count()}), DATED)
        for window in (gw.TumblingWindow("1 day"), gw.CalendarWindow("1 month"))
    )
    assert cpu_only(days) is None
    assert cpu_only(months) == "windows of a calendar have no CUDA kernel"


def test_a_specification_travels() -> None:
    window = gw.CalendarWindow(" 1 Quarter", "Europe/Berlin", date(2024, 2, 1))
    assert window == gw.CalendarWindow("quarter", timezone="Europe/Berlin", starting="2024-02-01")
    assert window.size == "1 quarter"
    assert gw.CalendarWindow("1 day", ZoneInfo("Europe/Berlin")) == gw.CalendarWindow("1 day", "Europe/Berlin")
    assert gw.CalendarWindow("1 day", UTC) == gw.CalendarWindow("1 day")
    spec = gw.WindowedAggregation(window=window, time="t", aggregates={"n": gw.count()})
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert read_specification(*write_specification(spec)).window == window


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"size": "1 hour"}, "TumblingWindow"),
        ({"size": "0 days"}, "number of days"),
        ({"size": "1 month 2 days"}, "number of days"),
        ({"size": timedelta(days=1)}, "number of days"),
        ({"size": "1 day", "timezone": "Mars/Olympus"}, "tzdata"),
        ({"size": "1 day", "timezone": "../etc/passwd"}, "not known here"),
        ({"size": "1 day", "timezone": ""}, "not known here"),
        ({"size": "1 day", "timezone": "localtime"}, "not known here"),
        ({"size": "1 day", "timezone": 3}, "not known here"),
        ({"size": "1 month", "starting": "2024-01-31"}, "not every month has a day 31"),
        ({"size": "1 week", "starting": "Monday"}, "is a date"),
        ({"size": "1 week", "starting": datetime(2024, 1, 1)}, "is a date"),
    ],
)
def test_says_what_it_takes(given: dict[str, Any], says: str) -> None:
    with pytest.raises(gw.SpecificationError, match=says):
        gw.CalendarWindow(**given)


def test_a_month_elsewhere_leads_here() -> None:
    with pytest.raises(gw.SpecificationError, match=r"gw\.CalendarWindow"):
        gw.TumblingWindow("1 month")
    with pytest.raises(AttributeError, match=r"gw\.CalendarWindow"):
        gw.CalendarWindows  # noqa: B018
