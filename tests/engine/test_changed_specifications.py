"""Specifications that change between a snapshot and its restore: what goes on, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracle import LEFT, RIGHT, Row, hows, matched, pairs, rows_named, steps, table, windowed
from streams import Options, answers, expected_answers, options, streams
from test_properties import EXAMPLES, KINDS

import gpuwin as gw


@pytest.mark.parametrize("kind", [*KINDS, "event time", "any windows", "any sessions"])
@settings(EXAMPLES, max_examples=20)
@given(data=st.data())
def test_the_delay_changes_as_in_the_oracle(kind: str, data: st.DataObject) -> None:
    """The oracle is told of the new delay in the middle of the stream; it has no snapshot."""
    chosen: Options = data.draw(options(kind))
    stream = data.draw(streams())
    then, more = {}, chosen.more
    for k in range(len(stream)):
        if data.draw(st.booleans()):
            more = more | {"delay": data.draw(st.integers(0, 9))}
            then[k] = replace(chosen, more=more)
    assert answers(chosen, stream, then=then) == expected_answers(chosen, stream, then)


@pytest.mark.parametrize("kind", ["interval", "window"])
@settings(EXAMPLES, max_examples=40)
@given(rows_named("l"), rows_named("r"), hows, steps, st.integers(-8, 8), st.integers(1, 9), st.data())
def test_delays_of_a_join_change(
    kind: str, left: list[Row], right: list[Row], how: Any, split: Any, lower: int, width: int, data: st.DataObject
) -> None:
    """Rows that are not late when they come meet all their partners, whatever the delays were before."""
    upper = lower + width

    def spec() -> gw.IntervalJoin | gw.WindowJoin:
        pair = (
            gw.BoundedOutOfOrderness(timedelta(seconds=delays[0])),
            gw.BoundedOutOfOrderness(timedelta(seconds=delays[1])),
        )
        if kind == "window":
            return gw.WindowJoin(gw.TumblingWindow(timedelta(seconds=width)), ["k"], "t", "t", how, watermark=pair)
        bounds = timedelta(seconds=lower), timedelta(seconds=upper)
        return gw.IntervalJoin(["k"], "t", "t", *bounds, how, watermark=pair)

    def window(row: Row) -> tuple[int, int]:
        assert row[1] is not None
        return row[1] // width * width, row[1] // width * width + width

    def in_time(row: Row) -> bool:
        assert row[1] is not None
        return row[1] >= watermark if kind == "interval" else window(row)[1] > watermark

    none = -(10**9)
    delays, each, watermark = [3, 3], [none, none], none
    op = spec().start(left_schema=LEFT, right_schema=RIGHT)
    kept: list[list[Row]] = [[], []]
    found: Counter[tuple[Any, ...]] = Counter()
    i = j = 0
    for a, b in [*split, (len(left), len(right))]:
        come = left[i : i + a], right[j : j + b]
        i, j = i + a, j + b
        found += pairs(op.process(left=table(come[0], LEFT), right=table(come[1], RIGHT)))
        for side, rows in enumerate(come):
            kept[side] += [row for row in rows if in_time(row)]
            each[side] = max([each[side], *(row[1] - delays[side] for row in rows if row[1] is not None)])
        watermark = max(watermark, min(each))
        delays = [data.draw(st.integers(0, 9)) for _ in delays]
        op = spec().restore(op.snapshot(), allow_changes=True)
        assert op.watermark == (None if watermark == none else watermark * 1_000_000)
    found += pairs(op.finish())
    if kind == "window":
        assert found == windowed(kept[0], kept[1], how, lambda row: [window(row)])
    else:
        assert found == matched(kept[0], kept[1], how, lambda a, b: lower <= b[1] - a[1] <= upper)  # type: ignore[operator]


def spec(**more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {
        "window": gw.TumblingWindow("10 seconds"),
        "time": "time",
        "aggregates": {"n": gw.count()},
        "watermark": gw.BoundedOutOfOrderness("5 seconds"),
        "allowed_lateness": "20 seconds",
    }
    return gw.WindowedAggregation(**{**given, **more})


def rows(*times: int) -> pa.Table:
    return pa.table({"time": pa.array(times, pa.timestamp("s"))})


def taken(**more: Any) -> bytes:
    op = spec(**more).start()
    op.process(rows(1, 2, 30))
    assert op.watermark == 25_000_000
    return op.snapshot()


def test_the_watermark_stays_where_it_was() -> None:
    data = taken()
    op = spec(watermark=gw.BoundedOutOfOrderness("12 seconds")).restore(data, allow_changes=True)
    assert op.watermark == 25_000_000
    op.process(rows(36))
    assert op.watermark == 25_000_000
    op.process(rows(38))
    assert op.watermark == 26_000_000
    op = spec(watermark=gw.BoundedOutOfOrderness("1 second")).restore(data, allow_changes=True)
    assert op.watermark == 25_000_000
    op.process(rows(30))
    assert op.watermark == 29_000_000


def test_late_rows_go_with_their_collection() -> None:
    op = spec(collect_late=True, allowed_lateness="0 seconds").start()
    op.process(rows(100))
    op.process(rows(*[1] * 10_000))
    size = op.metrics.state_bytes
    data = op.snapshot()
    limits = gw.Limits(max_state_bytes=size - 10_000)
    op = spec(allowed_lateness="0 seconds", limits=limits).restore(data)
    op.process(rows(100))
    assert op.metrics.state_bytes < size - 70_000
    on = spec(collect_late=True, allowed_lateness="0 seconds")
    assert on.restore(op.snapshot()).late_rows().num_rows == 0
    assert on.restore(data).late_rows().num_rows == 10_000


def test_merges_go_with_their_collection() -> None:
    common = {"window": gw.SessionWindow("10 seconds"), "watermark": gw.BoundedOutOfOrderness("1 hour")}
    op = spec(collect_merges=True, **common).start()
    for time in (0, 18, 9):
        op.process(rows(time))
    data = op.snapshot()
    op = spec(**common).restore(data)
    assert not op._running.merges
    assert not op._running.waiting_bytes
    on = spec(collect_merges=True, **common)
    assert on.restore(op.snapshot()).session_merges().num_rows == 0
    assert on.restore(data).session_merges().num_rows == 1


def test_delays_of_several_inputs_change() -> None:
    def inputs(*delays: str) -> gw.MultipleInputs:
        return gw.MultipleInputs([gw.BoundedOutOfOrderness(delay) for delay in delays])  # type: ignore[arg-type]

    op = spec(watermark=inputs("5 seconds", "5 seconds")).start()
    op.process(rows(30), source=0)
    op.process(rows(20), source=1)
    op = spec(watermark=inputs("9 seconds", "1 second")).restore(op.snapshot(), allow_changes=True)
    assert op.watermark == 15_000_000
    op.process(rows(31), source=0)  # 22, and it was at 25
    op.process(rows(40), source=1)
    assert op.watermark == 25_000_000


@pytest.mark.parametrize("lateness", ["21 seconds", "19 seconds", "0 seconds"])
def test_the_lateness_does_not_change(lateness: str) -> None:
    with pytest.raises(gw.SnapshotError, match="another specification: allowed_lateness differs"):
        spec(allowed_lateness=lateness).restore(taken(), allow_changes=True)


@pytest.mark.parametrize(
    "watermark",
    [
        gw.EventClock("5 seconds"),
        gw.ExplicitWatermark(),
        gw.SystemClock(),
        gw.MultipleInputs([gw.BoundedOutOfOrderness("5 seconds")] * 2),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_another_kind_of_watermark_is_refused(watermark: Any) -> None:
    with pytest.raises(gw.SnapshotError, match=r"another specification: watermark differs; watermark was Bounded.*=5"):
        spec(watermark=watermark).restore(taken(), allow_changes=True)


def test_the_wait_of_a_clock_does_not_change() -> None:
    op = spec(watermark=gw.EventClock("5 seconds")).start(clock=lambda: 0)
    with pytest.raises(gw.SnapshotError, match="watermark differs"):
        spec(watermark=gw.EventClock("6 seconds")).restore(op.snapshot(), allow_changes=True)


def test_several_differ() -> None:
    with pytest.raises(gw.SnapshotError, match="another specification: aggregates, emit differ; aggregates was n: "):
        spec(emit=gw.OnUpdate(), aggregates={"m": gw.count()}).restore(taken(), allow_changes=True)


def test_another_kind_of_watermark_of_a_join_is_refused() -> None:
    def join(watermark: Any, how: Any = "inner") -> gw.HashJoin | gw.IntervalJoin:
        return gw.IntervalJoin(["k"], "t", "t", "0 seconds", "1 minute", how, watermark=watermark)

    data = join(gw.BoundedOutOfOrderness("1 minute")).start().snapshot()
    join(gw.BoundedOutOfOrderness("2 minutes")).restore(data, allow_changes=True)
    for other in (
        join(gw.ExplicitWatermark()),
        join((gw.BoundedOutOfOrderness("1 minute"), gw.BoundedOutOfOrderness("1 minute"))),
        join(gw.BoundedOutOfOrderness("1 minute"), "left"),
    ):
        with pytest.raises(gw.SnapshotError, match="another join"):
            other.restore(data, allow_changes=True)


def test_changes_are_to_be_allowed() -> None:
    data = taken()
    changed = spec(watermark=gw.BoundedOutOfOrderness("6 seconds"))
    with pytest.raises(gw.SnapshotError, match=r"watermark differs; watermark was .* and is .*allow_changes=True"):
        changed.restore(data)
    assert changed.restore(data, allow_changes=True).watermark == 25_000_000
    join = gw.IntervalJoin(["k"], "t", "t", "0 seconds", "1 minute", watermark=gw.BoundedOutOfOrderness("1 minute"))
    with pytest.raises(gw.SnapshotError, match=r"another join:(.|\n)*allow_changes=True"):
        replace(join, watermark=gw.BoundedOutOfOrderness("2 minutes")).restore(join.start().snapshot())
