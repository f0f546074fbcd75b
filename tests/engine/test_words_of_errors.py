"""Errors that say what to do instead, and what the pages say of idle inputs, of the row that won and of firings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import gpuwin as gw


def spec(**more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {"window": gw.TumblingWindow("10 seconds"), "time": "time", "aggregates": {"n": gw.count()}}
    return gw.WindowedAggregation(**{**given, **more})


def rows(*times: int, **columns: Any) -> pa.Table:
    return pa.table({"time": pa.array(times, pa.timestamp("s")), **columns})


TWO = gw.MultipleInputs([gw.BoundedOutOfOrderness("0 seconds"), gw.BoundedOutOfOrderness("2 seconds")])  # type: ignore[arg-type]


# -- several inputs ----------------------------------------------------------------------------------------------------


def test_an_idle_input_is_moved_and_the_error_says_so() -> None:
    with pytest.raises(
        gw.SpecificationError, match=r"not EventClock.*: move an idle input by op\.advance_watermark\(t"
    ):
        gw.MultipleInputs([gw.EventClock("1 minute"), gw.EventClock("1 minute")])  # type: ignore[arg-type]
    with pytest.raises(gw.SpecificationError, match=r"not SystemClock\(\)$"):
        gw.MultipleInputs([gw.SystemClock()] * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("clock", [gw.EventClock("1 minute"), (gw.EventClock(timedelta.max), gw.EventClock("1 day"))])
def test_an_idle_side_is_moved_and_the_error_says_so(clock: Any) -> None:
    for write in (
        lambda: gw.IntervalJoin(["k"], "t", "t", "0 seconds", "1 minute", watermark=clock),
        lambda: gw.WindowJoin(gw.TumblingWindow("1 minute"), ["k"], "t", "t", watermark=clock),
    ):
        with pytest.raises(gw.SpecificationError, match=r"where a side is idle, move both by op\.advance_watermark"):
            write()
    with pytest.raises(gw.SpecificationError, match=r"not SystemClock\(\)$"):
        gw.IntervalJoin(["k"], "t", "t", "0 seconds", "1 minute", watermark=gw.SystemClock())  # type: ignore[arg-type]


def test_run_takes_pairs_of_several_inputs() -> None:
    op = spec(watermark=TWO).start()
    came = [(0, rows(11)), (1, rows(3)), (1, rows(13)), (0, rows(21)), (1, rows(23))]
    by_hand = [op.process(batch, source=source) for source, batch in came]
    by_hand.append(op.finish())
    assert list(gw.run(spec(watermark=TWO), came)) == by_hand
    assert [table["n"].to_pylist() for table in by_hand] == [[], [], [1], [], [2], [2]]


@pytest.mark.parametrize("wrong", [rows(1), (rows(1),), [0, rows(1)], {"time": []}])
def test_run_wants_to_know_whose_rows_come(wrong: Any) -> None:
    with pytest.raises(gw.SchemaError, match=r"with MultipleInputs gw\.run takes pairs \(source, batch\)"):
        next(iter(gw.run(spec(watermark=TWO), [wrong])))
    with pytest.raises(gw.SpecificationError, match="source is the number of an input"):
        next(iter(gw.run(spec(watermark=TWO), [(2, rows(1))])))


def test_run_of_a_join_says_how_a_join_runs() -> None:
    join = gw.HashJoin(["k"])
    with pytest.raises(gw.SpecificationError, match=r"not HashJoin; a join goes by its own loop: .*left=\.\.\."):
        gw.run(join, [])  # type: ignore[arg-type]


# -- types -------------------------------------------------------------------------------------------------------------


def test_numbers_that_become_floats() -> None:
    op = spec(aggregates={"total": gw.sum("v")}).start()
    op.process(rows(1, v=[1]))
    with pytest.raises(gw.SchemaError, match=r"is double, and was int64 in the first batch: .*start\(schema=\.\.\.\)$"):
        op.process(rows(2, v=[1.5]))
    schema = pa.schema([("time", pa.timestamp("s")), ("v", pa.float64())])
    op = spec(aggregates={"total": gw.sum("v")}).start(schema=schema)
    with pytest.raises(gw.SchemaError, match=r"is int64, and was double"):
        op.process(rows(1, v=[1]))
    join = gw.HashJoin(["k"]).start()
    join.process(left=pa.table({"k": [1], "v": [1]}))
    with pytest.raises(gw.SchemaError, match=r"start\(left_schema=\.\.\.\)$"):
        join.process(left=pa.table({"k": [1], "v": [1.5]}))


@pytest.mark.parametrize(
    ("aggregate", "says"),
    [
        (gw.first("s"), "take gw.first('number'), and join the rows to that number; or look for it in gw.collect_list"),
        (gw.last("s"), "take gw.last('number'), and join"),
        (gw.any_value("s"), "take gw.any_value('number'), and join"),
        (gw.min_by("s", "v"), "take gw.min_by('number', 'v'), and join"),
        (gw.max_by("s", "v"), "take gw.max_by('number', 'v'), and join"),
        (gw.max("s"), "gw.collect_list('s') takes nested values"),
        (gw.top_k("s", 2), "gw.collect_list('s') takes nested values"),
        (gw.sum("s"), "it takes numbers, decimals (decimal128) and durations"),
        (gw.max_by("v", "s"), "it takes numbers, decimals of up to 18 digits, booleans and times"),
    ],
)
def test_structs_are_refused_with_what_to_do(aggregate: Any, says: str) -> None:
    table = rows(1, v=[1], s=[{"a": 1}])
    with pytest.raises(gw.SchemaError) as caught:
        gw.aggregate(table, spec(aggregates={"x": aggregate}))
    assert says in str(caught.value)
    assert gw.aggregate(table, spec(aggregates={"x": gw.collect_list("s")}))["x"].to_pylist() == [[{"a": 1}]]


def test_columns_of_the_row_that_won_may_be_of_different_rows() -> None:
    picks = {"last": gw.last("c"), "most": gw.max_by("c", "p"), "p": gw.max("p"), "none": gw.max_by("c", "q")}
    table = rows(0, 1, p=[1, 2], c=["x", None], q=pa.array([None, 2], pa.int64()))
    (row,) = gw.aggregate(table, spec(aggregates=picks)).select(list(picks)).to_pylist()
    assert row == {"last": "x", "most": "x", "p": 2, "none": None}


def test_the_merge_of_an_ordered_accumulation_is_not_called() -> None:
    """It is compiled: one that does not is refused."""

    def made(merge: Any) -> Any:
        return gw.accumulation(
            state={"digits": 0},
            add=lambda digits, v: digits * 10 + v,
            merge=merge,
            result=lambda digits: digits,
            name="digits",
            ordered=True,
        )("v")

    table = rows(1, 6, 3, 12, v=[1, 2, 3, 4])
    for window in (gw.SlidingWindow("10 seconds", "5 seconds"), gw.SessionWindow("4 seconds"), gw.GlobalWindow()):
        answers = []
        for merge in (lambda a, b: a * 0 - 1, lambda a, b: a + b):
            op = spec(window=window, aggregates={"x": made(merge)}, watermark=gw.EventClock(timedelta.max)).start()
            answers.append(pa.concat_tables([*(op.process(table.slice(k, 1)) for k in range(4)), op.finish()]))
        assert answers[0] == answers[1]
        assert min(answers[0]["x"].to_pylist()) > 0
    with pytest.raises(gw.SpecificationError, match="merge does not compile"):
        spec(aggregates={"x": made(lambda a, b: a.nothing)}).start(schema=table.schema)


# -- what counts as a firing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", ["accumulating", "discarding"])
def test_a_firing_with_nothing_new_is_a_firing(accumulation: Any) -> None:
    now = [0]
    every = gw.Every("10 seconds")
    op = spec(
        window=gw.TumblingWindow("100 seconds"),
        emit=gw.Trigger(early=every, late=every),
        accumulation=accumulation,
        allowed_lateness="1 hour",
    ).start(clock=lambda: now[0])
    found = []
    steps: list[tuple[int, list[int]]] = [(0, [1]), (10, []), (20, []), (25, [2]), (29, []), (30, []), (35, [100])]
    steps += [(36, [3]), (41, []), (44, []), (45, [])]
    for second, times in steps:
        now[0] = second * 1_000_000
        table = op.process(rows(*times))
        found.append(list(zip(table["n"].to_pylist(), table["pane"].to_pylist(), strict=True)))
    same = accumulation == "accumulating"
    again, closing = [(1, "early")] if same else [], [(2, "on_time")] if same else []
    late = [(3, "late") if same else (1, "late"), (1, "early")]
    assert found == [
        *([], [(1, "early")], again, [], []),
        [(2 if same else 1, "early")],  # at 30, ten seconds after the one that said nothing new
        closing,
        *([], [], [], late),  # ten seconds after the window closed, whether or not that said anything
    ]


def test_sessions_on_update_leave_what_they_were_unless_it_is_taken_back() -> None:
    def told(accumulation: Any) -> list[tuple[int, int, bool]]:
        op = spec(
            window=gw.SessionWindow("10 seconds"),
            emit=gw.OnUpdate(),
            accumulation=accumulation,
            watermark=gw.BoundedOutOfOrderness("1 minute"),
        ).start()
        table = pa.concat_tables([op.process(rows(t)) for t in (0, 15, 8)])
        back = table["is_retraction"].to_pylist() if accumulation == "retracting" else [False] * table.num_rows
        start = [at.second for at in table["window_start"].to_pylist()]
        return list(zip(start, table["n"].to_pylist(), back, strict=True))

    assert told("accumulating") == [(0, 1, False), (15, 1, False), (0, 3, False)]
    assert told("retracting") == [(0, 1, False), (15, 1, False), (0, 1, True), (15, 1, True), (0, 3, False)]


def test_keep_within_counts_back_from_the_newest_row() -> None:
    op = spec(
        window=gw.GlobalWindow(),
        watermark=gw.ExplicitWatermark(),
        aggregates={"all": gw.collect_list("v")},
        emit=gw.Trigger(early=gw.EveryRows(1), evict=gw.KeepWithin("10 seconds")),
    ).start()
    times = [1, 5, 20, 12, 3]
    found = op.process(rows(*times, v=times))["all"].to_pylist()
    assert found == [[1], [1, 5], [20], [20, 12], [20, 12]]


def test_rows_without_bounds_are_counted() -> None:
    op = spec(window=gw.InheritedWindow()).start()
    bounds = {
        "window_start": pa.array([0, None], pa.timestamp("s")),
        "window_end": pa.array([10, None], pa.timestamp("s")),
    }
    op.process(rows(1, 2, **bounds))
    assert (op.metrics.rows_null_time, op.metrics.windows_open) == (1, 1)


def test_a_late_left_row_of_a_left_join_is_counted_only() -> None:
    def side(name: str, *times: int) -> pa.Table:
        return pa.table({"k": [1] * len(times), name: pa.array(times, pa.timestamp("s"))})

    op = gw.IntervalJoin(["k"], "a", "b", "0 seconds", "1 minute", "left").start()
    op.process(left=side("a", 1000), right=side("b", 1000))
    assert op.process(left=side("a", 500)).num_rows == 0
    assert op.metrics.rows_late == 1
    assert op.finish().num_rows == 0
