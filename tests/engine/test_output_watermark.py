"""The watermark of results: no later one is before it, whatever the specification, and where an engine can tell, it is
the latest that may be said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import SECOND, Options, options, streams, table_of

import gpuwin as gw

MINUTE = 60 * SECOND
LARGEST = (1 << 63) - 1
KINDS = [
    "panes",
    "by row",
    "changes",
    "any windows",
    "any sessions",
    "event time",
    "firings",
    "session firings",
    "plain",
]


def ends(table: pa.Table) -> list[int]:
    return [end for end in table["window_end"].cast(pa.int64()).to_pylist() if end is not None]


def times(table: pa.Table) -> list[int]:
    return [time for time in gw.window_time(table)["window_time"].cast(pa.int64()).to_pylist() if time is not None]


def kept_promises(spec: gw.WindowedAggregation, tables: list[pa.Table], clock: Callable[[], int] | None = None) -> int:
    """Number of watermarks that were stated. Results that came after one are not before it."""
    op = spec.start(schema=tables[0].schema, clock=clock)
    promised, last, stated = None, None, 0
    for place, table in enumerate([*tables, None]):
        if place == len(tables) // 2:
            op = spec.restore(op.snapshot(), clock=clock)
            assert op.output_watermark == promised
        found = op.finish() if table is None else op.process(table)
        if promised is not None:
            assert all(time >= promised for time in times(found)), (promised, ends(found))
        last, promised = promised, op.output_watermark
        assert last is None or (promised is not None and promised >= last)
        stated += promised is not None
    return stated


@st.composite
def chosen(draw: st.DrawFn) -> Options:
    return draw(options(draw(st.sampled_from(KINDS))))


@settings(deadline=None, max_examples=120)
@given(chosen(), streams(), st.booleans(), st.booleans(), st.booleans())
def test_no_result_is_before_the_watermark_of_results(
    some: Options, stream: list[list[Any]], previous: bool, inclusive: bool, last_event: bool
) -> None:
    spec = some.spec()
    semantics = replace(
        spec.semantics,
        late_filter="previous" if previous else "current",
        watermark_inclusive=inclusive,
        session_end="last_event" if last_event else "gap",
        session_close="settled" if last_event and some.more.get("strict") else "as_window",
    )
    gaps = some.shape[1] if some.shape[0] == "gaps" else 1
    kept_promises(replace(spec, semantics=semantics), [table_of(batch, gaps) for batch in stream] or [table_of([])])


def minutes(*at: float, key: str = "a") -> pa.Table:
    micros = pa.array([int(m * MINUTE) for m in at], pa.timestamp("us"))
    return pa.table({"key": pa.array([key] * len(at), pa.string()), "time": micros})


def spec_of(window: Any, **more: Any) -> gw.WindowedAggregation:
    given_ = {"keys": ["key"], "time": "time", "aggregates": {"n": gw.count()}, "watermark": gw.ExplicitWatermark()}
    return gw.WindowedAggregation(window=window, **(given_ | more))


TEN = gw.TumblingWindow("10 minutes")
INCLUSIVE = gw.Semantics(watermark_inclusive=True)
LAST = gw.Semantics(session_end="last_event")


@pytest.mark.parametrize(
    ("spec", "behind"),
    [
        (spec_of(TEN), 0),
        (spec_of(gw.SlidingWindow("10 minutes", "3 minutes")), 0),
        (spec_of(gw.CumulativeWindow("10 minutes", "5 minutes")), 0),
        (spec_of(TEN, allowed_lateness="3 minutes"), 3 * MINUTE),
        (spec_of(TEN, semantics=gw.Semantics(close="after_end")), 1),
        (spec_of(TEN, semantics=INCLUSIVE), 0),
        (spec_of(TEN, semantics=gw.Semantics.FLINK), 0),
        (spec_of(TEN, emit=gw.OnUpdate(), allowed_lateness="1 minute"), MINUTE),
        (spec_of(TEN, emit=gw.OnChange()), 0),
        (spec_of(TEN, emit=gw.EveryRow()), 0),
        (spec_of(TEN, emit=gw.Trigger(early=gw.EveryRows(2)), accumulation="retracting"), 0),
        (spec_of(gw.SessionWindow("2 minutes")), 0),
        (spec_of(gw.SessionWindow("2 minutes"), semantics=LAST), 2 * MINUTE),
        (spec_of(gw.SessionWindow("2 minutes"), accumulation="retracting"), 0),
        (spec_of(gw.SessionWindow("2 minutes"), emit=gw.OnUpdate(), accumulation="retracting"), 0),
        (spec_of(gw.SessionWindow("0 seconds"), semantics=gw.Semantics(late_by="timestamp")), 1),
        (spec_of(gw.SessionWindow(gw.column("gap"))), 0),
        (spec_of(gw.InheritedWindow(), time=None), 0),
        (spec_of(TEN, semantics=gw.Semantics(watermark_scope="key")), 0),
        (spec_of(gw.GlobalWindow()), None),
        (spec_of(TEN, emit=gw.Complete()), None),
        (spec_of(TEN, allowed_lateness=timedelta.max), None),
        (spec_of(gw.SessionWindow(gw.column("gap")), semantics=LAST), None),
        (spec_of(gw.SessionWindow("1 minute"), emit=gw.Trigger(), accumulation="retracting"), 0),
    ],
)
def test_how_far_results_are_behind(spec: gw.WindowedAggregation, behind: int | None) -> None:
    op = spec.start()
    assert op.output_watermark is None
    op.advance_watermark(100 * MINUTE)
    assert op.output_watermark == (None if behind is None else 100 * MINUTE - behind)
    assert spec.restore(op.snapshot()).output_watermark == op.output_watermark
    op.finish()
    never = isinstance(spec.window, gw.GlobalWindow) or (behind is None and spec.allowed_lateness != timedelta.max)
    assert op.output_watermark == (None if never else LARGEST)


def by_bytewax(window: Any) -> gw.WindowedAggregation:
    return spec_of(window, watermark=gw.EventClock("1 minute"), semantics=gw.Semantics.BYTEWAX)


def test_a_key_that_has_not_come_yet_may_come_with_any_time() -> None:
    op = by_bytewax(TEN).start(clock=lambda: 0)
    op.process(minutes(100))
    assert op.watermark == 99 * MINUTE
    assert op.output_watermark is None
    op.process(minutes(1, key="b"))
    op.advance_watermark(20 * MINUTE)
    assert op.output_watermark == 20 * MINUTE
    assert op.process(minutes(15, 40, key="c")).num_rows == 0  # the first is late for its window
    assert min(times(op.finish())) >= 20 * MINUTE


@pytest.mark.parametrize("gap", ["0 seconds", "2 minutes"])
@pytest.mark.parametrize("window", ["grid", "session"])
def test_rows_of_the_system_clock(gap: str, window: str) -> None:
    now = iter(range(0, 100 * MINUTE, MINUTE // 2))
    batches = [minutes(*range(k % 3)) for k in range(60)]
    shape = TEN if window == "grid" else gw.SessionWindow(gap)
    spec = spec_of(shape, watermark=gw.SystemClock(), time=None)
    assert kept_promises(spec, batches, lambda: next(now)) > 50
    carried = spec_of(gw.InheritedWindow(), watermark=gw.SystemClock(), time=None).start(clock=lambda: 5)
    carried.advance_watermark(100)
    assert carried.output_watermark is None


def test_a_session_of_the_watermarks_own_instant() -> None:
    """It is in time by its time, and ends at once."""
    for semantics in (gw.Semantics(late_by="timestamp"), gw.Semantics(late_by="timestamp", session_end="last_event")):
        op = spec_of(gw.SessionWindow("0 seconds"), semantics=semantics).start()
        op.process(minutes(1))
        op.advance_watermark(2 * MINUTE)
        promised = op.output_watermark
        late = pa.concat_tables([op.process(minutes(2)), op.advance_watermark(3 * MINUTE)])
        assert times(late) == [promised] == [2 * MINUTE - 1]


def test_a_session_that_takes_back_an_earlier_end() -> None:
    """It does as soon as it grows, while that end is still to come."""
    for more in ({"emit": gw.Trigger(early=gw.EveryRows(2))}, {"allowed_lateness": "2 minutes"}):
        op = spec_of(gw.SessionWindow("2 minutes"), accumulation="retracting", **more).start()
        op.process(minutes(0, 1))
        op.advance_watermark(3 * MINUTE - 1 if "emit" in more else 5 * MINUTE - 1)
        promised = op.output_watermark
        assert promised == 3 * MINUTE - 1
        taken_back = op.process(minutes(2.5 if "emit" in more else 3))
        assert times(taken_back)[0] == promised
        assert taken_back["is_retraction"].to_pylist()[0]


def test_it_is_the_latest_that_may_be_said() -> None:
    """The earliest result that may still come lies at the watermark itself."""
    cases: list[tuple[gw.WindowedAggregation, int, int]] = [  # the watermark, and the time of a row that is in time
        (spec_of(gw.TumblingWindow("1 microsecond")), 1000, 1000),
        (spec_of(gw.TumblingWindow("1 microsecond"), allowed_lateness="7 microseconds"), 1000, 993),
        (spec_of(gw.SlidingWindow("3 microseconds", "1 microsecond")), 1000, 1000),
        (spec_of(gw.SessionWindow("5 microseconds")), 1000, 996),
        (spec_of(gw.SessionWindow("5 microseconds"), semantics=LAST), 1000, 996),
        (spec_of(gw.TumblingWindow("1 microsecond"), semantics=gw.Semantics(close="after_end")), 1000, 999),
        (spec_of(gw.TumblingWindow("1 microsecond"), semantics=gw.Semantics(watermark_scope="key")), 1000, 1000),
    ]
    for spec, watermark, time in cases:
        for late in (0, 1):
            op = spec.start()
            op.advance_watermark(watermark)
            row = pa.table({"key": ["a"], "time": pa.array([time - late], pa.timestamp("us"))})
            promised = op.output_watermark
            tables = [op.process(row), op.finish()]
            found = [time for table in tables for time in times(table)]
            if late and spec.window != gw.SlidingWindow("3 microseconds", "1 microsecond"):
                assert not found
                assert op.metrics.rows_late == 1
            elif not late:
                assert min(found) == promised, spec
