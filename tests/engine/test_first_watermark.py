"""A watermark that is somewhere before any row has come: what it has passed is closed."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw


def rows(*seconds: int) -> pa.Table:
    return pa.table({"time": pa.array(seconds, pa.timestamp("s")), "v": pa.array(seconds, pa.int64())})


def ends(table: pa.Table) -> list[tuple[int, int]]:
    found = zip(table["window_end"].cast(pa.int64()).to_pylist(), table["n"].to_pylist(), strict=True)
    return [(end // 1_000_000, n) for end, n in found]


EMISSIONS: list[Any] = [gw.OnClose(), gw.OnChange(), gw.OnUpdate(), gw.EveryRow(), gw.Trigger()]


@pytest.mark.parametrize("emit", EMISSIONS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("schema", [None, rows().schema], ids=["unknown", "known"])
@pytest.mark.parametrize("late_filter", ["current", "previous"])
def test_a_closed_window_does_not_open_for_the_first_row(emit: Any, schema: pa.Schema | None, late_filter: Any) -> None:
    semantics = gw.Semantics(late_filter=late_filter)
    spec = gw.WindowedAggregation(
        window=gw.SlidingWindow("20 seconds", "10 seconds"),
        time="time",
        aggregates={"n": gw.count(), "middle": gw.median("v")},
        watermark=gw.ExplicitWatermark(),
        emit=emit,
        semantics=semantics,
    )
    advanced = spec.start(schema=schema)
    advanced.advance_watermark(110_000_000)
    restored = spec.restore(advanced.snapshot())
    started = replace(spec, semantics=replace(semantics, watermark_start=110_000_000)).start(schema=schema)
    for op in (advanced, restored, started):
        # 107 is in [90, 110), which has closed, and in [100, 120).
        first = ends(op.process(rows(107)))
        assert first in ([], [(120, 1)])
        later = ends(op.advance_watermark(125_000_000))
        assert (first + later).count((120, 1)) == 1
        assert {end for end, _ in first + later} <= {120, 130}  # 130: the empty window of OnChange
        assert op.metrics.rows_late == 0
        assert op.metrics.window_rows_late == 1


@pytest.mark.parametrize("policy", ["min", "max"])
@pytest.mark.parametrize("window", [gw.TumblingWindow("10 seconds"), gw.SessionWindow("10 seconds")], ids=str)
def test_rows_of_several_inputs_move_a_watermark_one_by_one(window: Any, policy: Any) -> None:
    """A batch of an input gives what its rows give in batches of their own."""
    inputs = [gw.BoundedOutOfOrderness("0 seconds"), gw.BoundedOutOfOrderness("2 seconds")]
    spec = gw.WindowedAggregation(
        window=window,
        time="time",
        aggregates={"n": gw.count()},
        watermark=gw.MultipleInputs(inputs, policy=policy),
        semantics=gw.Semantics(watermark_advance="row"),
    )
    whole, one_by_one = spec.start(), spec.start()
    results: list[list[tuple[int, int]]] = [[], []]
    for source, seconds in ((0, [5, 31, 8]), (1, [3, 36, 2, 38]), (0, [70, 31, 60]), (1, [80, 12])):
        results[0] += ends(whole.process(rows(*seconds), source=source))
        for second in seconds:
            results[1] += ends(one_by_one.process(rows(second), source=source))
        assert whole.watermark == one_by_one.watermark
    assert whole.metrics.rows_late == one_by_one.metrics.rows_late > 0
    assert sorted(results[0]) == sorted(results[1]) != []


def test_rows_of_several_inputs_move_no_watermark_of_a_key() -> None:
    inputs = gw.MultipleInputs([gw.BoundedOutOfOrderness("0 seconds"), gw.BoundedOutOfOrderness("2 seconds")])
    window, aggregates = gw.TumblingWindow("10 seconds"), {"n": gw.count()}
    with pytest.raises(gw.SpecificationError, match="move one watermark for the stream"):
        gw.WindowedAggregation(
            window=window, time="time", aggregates=aggregates, watermark=inputs, semantics=gw.Semantics.BYTEWAX
        )


def test_windows_of_rows_close_by_one_watermark() -> None:
    with pytest.raises(gw.SpecificationError, match="close by one watermark for the stream"):
        gw.WindowedAggregation(
            window=gw.InheritedWindow(), time="time", aggregates={"n": gw.count()}, semantics=gw.Semantics.BYTEWAX
        )


def test_a_branch_gives_no_watermark_to_its_keys() -> None:
    views = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"), keys=["key"], time="time", aggregates={"n": gw.count()},
        semantics=gw.Semantics(watermark_scope="key"),
    )  # fmt: skip

    def rows(key: str, second: int) -> pa.Table:
        return pa.table({"key": [key], "time": pa.array([second], pa.timestamp("s"))})

    op = views.start()
    op.process(rows("a", 5))
    op.branch().process(rows("b", 7))
    op.process(rows("a", 6))
    assert op.watermark == 6_000_000
    op.advance_watermark(8_000_000)
    op.process(rows("b", 9))
    assert op.watermark == 8_000_000


@pytest.mark.parametrize("ordered", [gw.collect_list("v"), gw.collect_set("v")])
def test_rows_that_bring_their_windows_along_are_not_seen_by_time(ordered: gw.Aggregate) -> None:
    start = pa.array([0], pa.timestamp("s"))
    rows = pa.table({"time": start, "v": [1], "window_start": start, "window_end": pa.array([10], pa.timestamp("s"))})

    def run(time: str, order: Any) -> pa.Table:
        semantics = gw.Semantics(order=order)
        window = gw.InheritedWindow()
        return gw.aggregate(
            rows, gw.WindowedAggregation(window=window, time=time, aggregates={"v": ordered}, semantics=semantics)
        )

    with pytest.raises(gw.SpecificationError, match="sees the rows of a window by time"):
        run("time", "time")
    assert run("time", "arrival")["v"].to_pylist() == run("window_start", "time")["v"].to_pylist() == [[1]]


@pytest.mark.parametrize("emit", [gw.OnClose(), gw.EveryRow(), gw.Trigger(early=gw.EveryRows(9))], ids=repr)
@pytest.mark.parametrize("advance", ["batch", "row"])
def test_a_row_late_with_the_window_that_it_brings_along_is_counted(emit: Any, advance: Any) -> None:
    """Also where rows are late by their own time, which may be the end of that window, or after it."""
    semantics = gw.Semantics(late_by="timestamp", watermark_advance=advance)
    op = gw.WindowedAggregation(
        window=gw.InheritedWindow(), time="time", aggregates={"n": gw.count()}, emit=emit, semantics=semantics,
    ).start()  # fmt: skip
    op.advance_watermark(20_000_000)
    rows = {name: pa.array([10, 20], pa.timestamp("s")) for name in ("time", "window_end", "window_start")}
    rows["time"], rows["window_end"] = pa.array([20, 25], pa.timestamp("s")), pa.array([20, 30], pa.timestamp("s"))
    found = pa.concat_tables([op.process(pa.table(rows)), op.finish()])
    assert set(found["window_end"].to_pylist()) == {rows["window_end"][1].as_py()}
    assert (op.metrics.rows_late, op.metrics.rows_in) == (1, 2)


WIDTH = dt.timedelta(microseconds=10)


@pytest.mark.parametrize(
    "window", [gw.TumblingWindow(WIDTH), gw.SlidingWindow(WIDTH, WIDTH / 2), gw.SessionWindow(WIDTH)]
)
@pytest.mark.parametrize("start", [100, None])
def test_a_row_is_not_late_where_the_system_clock_is_behind_the_watermark(
    window: gw.TumblingWindow | gw.SlidingWindow | gw.SessionWindow, start: int | None
) -> None:
    """Its time is then that of the watermark: before, it was in no result, and counted nowhere."""
    spec = gw.WindowedAggregation(
        window=window,
        aggregates={"n": gw.count()},
        watermark=gw.SystemClock(),
        semantics=gw.Semantics(watermark_start=start),
    )
    op = spec.start(clock=lambda: 0)
    if start is None:
        op.advance_watermark(100)
    op.process(pa.table({"v": [1, 2]}))
    assert set(op.finish()["n"].to_pylist()) == {2}
    assert op.metrics.rows_late == 0


@pytest.mark.parametrize(
    ("semantics", "watermark"),
    [
        (gw.Semantics(), gw.BoundedOutOfOrderness("0 seconds")),
        (gw.Semantics(watermark_advance="row"), gw.BoundedOutOfOrderness("0 seconds")),
        (gw.Semantics(watermark_scope="key"), gw.BoundedOutOfOrderness("0 seconds")),
        (gw.Semantics(watermark_inclusive=True), gw.BoundedOutOfOrderness("0 seconds")),
        (gw.Semantics(watermark_inclusive=True, watermark_precision="ms"), gw.BoundedOutOfOrderness("0 seconds")),
        (gw.Semantics(watermark_inclusive=True, watermark_advance="row"), gw.BoundedOutOfOrderness("0 seconds")),
        (gw.Semantics(), gw.MultipleInputs([gw.BoundedOutOfOrderness("0 seconds")] * 2, policy="max")),
        (gw.Semantics(), gw.EventClock(wait="0 seconds")),
        (gw.Semantics(watermark_scope="key"), gw.EventClock(wait="0 seconds")),
    ],
    ids=["batch", "row", "key", "inclusive", "ms", "inclusive, row", "inputs", "clock", "clock of keys"],
)
@pytest.mark.parametrize("emit", [gw.OnClose(), gw.Trigger()], ids=lambda e: type(e).__name__)
def test_no_row_ends_the_stream(emit: Any, semantics: Any, watermark: Any) -> None:
    """Not even one at the largest time, and not with the clock going on from there."""
    largest = (1 << 63) - 1
    spec = gw.WindowedAggregation(
        window=gw.GlobalWindow(),
        keys=["k"],
        time="time",
        aggregates={"n": gw.count()},
        watermark=watermark,
        emit=emit,
        semantics=semantics,
    )
    now = iter(range(1_000_000, 1 << 40, 1_000_000))
    op = spec.start(clock=lambda: next(now))
    for time in (5, largest, 6, largest):
        times = pa.array([time, time], pa.int64()).view(pa.timestamp("us"))
        assert op.process(pa.table({"k": [1, 1], "time": times})).num_rows == 0
        assert op.watermark is None or op.watermark < largest
    assert op.metrics.rows_late == 0
    assert op.finish()["n"].to_pylist() == [8]


def test_a_stated_start_does_not_end_the_stream() -> None:
    semantics = gw.Semantics(watermark_inclusive=True, watermark_start=(1 << 63) - 2)
    spec = gw.WindowedAggregation(
        window=gw.GlobalWindow(), time="time", aggregates={"n": gw.count()}, semantics=semantics
    )
    op = spec.start()
    assert op.process(rows(5)).num_rows == 0
    assert op.finish()["n"].to_pylist() == [1]
