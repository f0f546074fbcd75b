"""Joins and the operators around them: rows that bring their windows along, joins by window alone, and the watermark of
what comes out."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracle import LEFT, RIGHT, SECOND, Row, hows, pairs, rows_named, run, steps, table, windowed

import gpuwin as gw
from gpuwin.errors import LimitExceeded, SchemaError, SnapshotError, SpecificationError

LARGEST = (1 << 63) - 1
INHERITED = gw.InheritedWindow()
Result = tuple[Any, int | None, int | None, str]  # key, window_start, window_end, value


def results(rows: list[Result], value: str, zone: str | None = "UTC") -> pa.Table:
    bound = pa.timestamp("us", zone)
    k, start, end, v = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "k": pa.array(k, pa.string()),
            "window_start": pa.array(start, pa.int64()).cast(bound),
            "window_end": pa.array(end, pa.int64()).cast(bound),
            value: pa.array(v, pa.string()),
        }
    )


SCHEMAS = {"left_schema": results([], "l").schema, "right_schema": results([], "r").schema}


def told(found: pa.Table) -> list[tuple[Any, ...]]:
    bounds = [found[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
    values = [found[name].to_pylist() for name in ("l", "r") if name in found.column_names]
    return list(zip(found["k"].to_pylist(), *bounds, *values, strict=True))


@st.composite
def upstream(draw: st.DrawFn) -> list[tuple[list[Result], list[Result], int]]:
    """Batches of results of two operators, and their watermark after each, which no later end is at or before."""
    batches, watermark, number = [], 0, itertools.count()
    for _ in range(draw(st.integers(1, 6))):
        sides = []
        for side in "lr":
            rows = draw(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-4, 0), st.integers(1, 9))))
            sides.append([(k, watermark + s, watermark + e, f"{side}{next(number)}") for k, s, e in rows])
        watermark += draw(st.integers(0, 6))
        batches.append((sides[0], sides[1], watermark))
    return batches


@settings(max_examples=60, deadline=None)
@given(upstream(), hows, st.booleans(), st.booleans())
def test_results_meet_in_equal_windows(
    batches: list[tuple[list[Result], list[Result], int]], how: Any, by_key: bool, restore: bool
) -> None:
    keys = ["k"] if by_key else []
    join = gw.WindowJoin(INHERITED, keys, how=how, watermark=gw.ExplicitWatermark())
    op = join.start(**SCHEMAS)
    found: list[tuple[Any, ...]] = []
    for left, right, watermark in batches:
        assert op.process(left=results(left, "l"), right=results(right, "r")).num_rows == 0
        if restore:
            op = join.restore(op.snapshot())
        now = op.advance_watermark(watermark)
        assert all(row[2] <= watermark for row in told_by(now, by_key))
        assert op.output_watermark == watermark
        found += told_by(now, by_key)
    rest = told_by(op.finish(), by_key)
    assert all(row[2] > batches[-1][2] for row in rest)
    assert op.metrics.rows_late == 0
    left, right = ([row for batch in batches for row in batch[side]] for side in (0, 1))
    as_rows = [[(k if by_key else "", None, v) for k, _, _, v in rows] for rows in (left, right)]
    window = {v: (s, e) for _, s, e, v in left + right}
    assert Counter(found + rest) == windowed(*as_rows, how, lambda row: [window[row[2]]])


def told_by(found: pa.Table, by_key: bool) -> list[tuple[Any, ...]]:
    return told(found if by_key else with_one_key(found, ""))


def with_one_key(found: pa.Table, key: str) -> pa.Table:
    """Rows that were joined by window alone, as if by a key that they all have."""
    names = [name for name in ("k", "k_right") if name in found.column_names]
    return found.drop_columns(names).append_column("k", pa.array([key] * found.num_rows, pa.string()))


def test_windows_that_have_passed_are_evicted() -> None:
    op = gw.WindowJoin(INHERITED, ["k"], watermark=gw.ExplicitWatermark()).start(**SCHEMAS)
    sizes = []
    for minute in range(300):
        rows = [(f"k{minute}-{n}", minute * 60, minute * 60 + 60, "x") for n in range(50)]
        op.process(left=results(rows, "l"), right=results(rows[:25], "r"))
        assert op.advance_watermark(minute * 60 + 60).num_rows == 25
        sizes.append(op.metrics.state_bytes)
        assert op.metrics.rows_kept <= 75
    assert max(sizes[150:]) <= 2 * max(sizes[:150])
    assert op.process(left=results([("a", 0, 60, "late")], "l")).num_rows == 0
    assert op.metrics.rows_late == 1


def test_groups_of_results_and_bounds_that_are_missing() -> None:
    join = gw.WindowJoin(INHERITED, ["k"], how="cogroup")
    op = join.start(**SCHEMAS)
    some = [("a", 0, 60, "x"), ("a", 0, 60, "y"), ("a", 0, None, "z"), ("a", None, 60, "z"), (None, 0, 60, "n")]
    op.process(left=results(some, "l"), right=results([("a", 0, 60, "q"), ("a", 0, 90, "w")], "r"))
    found = op.finish().sort_by([("k", "ascending"), ("window_end", "ascending")])
    assert [row[3:] for row in told(found)] == [(["x", "y"], ["q"]), ([], ["w"]), (["n"], [])]
    assert found.column_names == ["k", "window_start", "window_end", "l", "r"]
    assert op.metrics.rows_null_time == 2


def test_the_watermark_may_be_of_the_results_themselves() -> None:
    """As in an aggregation, the time of a result is the last instant of its window."""
    op = gw.WindowJoin(INHERITED, ["k"]).start(**SCHEMAS)
    first, second = [("a", 0, 60, "x")], [("a", 60, 121, "y")]
    op.process(left=results(first, "l"), right=results(first, "r"))
    assert op.watermark == 59
    assert told(op.process(left=results(second, "l"), right=results(second, "r"))) == [("a", 0, 60, "x", "x")]
    assert op.watermark == 120
    extreme = [("a", -(1 << 63), -(1 << 63), "low"), ("a", 0, LARGEST, "high")]
    op = gw.WindowJoin(INHERITED, ["k"], watermark=gw.ExplicitWatermark()).start(**SCHEMAS)
    op.process(left=results(extreme, "l"), right=results(extreme, "r"))
    assert [row[3] for row in told(op.finish())] == ["low", "high"]


@settings(max_examples=50, deadline=None)
@given(rows_named("l", ["a"]), rows_named("r", ["a"]), steps, hows)
def test_a_join_by_window_alone(left: list[Row], right: list[Row], split: list[tuple[int, int]], how: Any) -> None:
    for window in (gw.TumblingWindow("7 seconds"), gw.SessionWindow("3 seconds"), gw.GlobalWindow()):
        alone = gw.WindowJoin(window, [], "t", "t", how, watermark=gw.EventClock(timedelta.max))
        by_key = replace(alone, keys=["k"])
        op = alone.start(left_schema=LEFT, right_schema=RIGHT)
        op.process(left=table(left, LEFT))
        op = alone.restore(op.snapshot())
        found = pa.concat_tables([op.process(right=table(right, RIGHT)), op.finish()])
        want = run(by_key, left, right, split)
        bounds = [c for c in found.column_names if c.startswith("window")]
        assert found.column_names[: len(bounds)] == bounds
        assert pairs(with_one_key(found, "a")) == want


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gw.WindowJoin(INHERITED, ["k"], "t", "t"), "leave out left_time and right_time"),
        (lambda: gw.WindowJoin(INHERITED, ["k"], "window_end"), "leave out left_time and right_time"),
        (lambda: gw.WindowJoin(INHERITED, ["k", "window_start"]), "need not be among the keys"),
        (lambda: gw.WindowJoin(gw.TumblingWindow("1 minute"), ["k"]), "left_time is the name of a column, not None"),
        (lambda: gw.WindowJoin(gw.TumblingWindow("1 minute"), ["k"], "t"), "right_time is the name of a column"),
        (lambda: gw.WindowJoin(INHERITED, [""]), "different key columns"),
        (lambda: gw.WindowJoin("1 minute", ["k"]), "window is for example"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        make()


def test_what_a_batch_of_results_needs() -> None:
    join = gw.WindowJoin(INHERITED, ["k"])
    with pytest.raises(SchemaError, match="the left side has no column 'window_start'"):
        join.start().process(left=pa.table({"k": ["a"]}))
    with pytest.raises(SchemaError, match="the right side has no key column 'k'"):
        join.start(right_schema=results([], "r").schema.remove(0))
    with pytest.raises(SchemaError, match="'window_end' is int64"):
        join.start().process(left=pa.table({"k": ["a"], "window_start": [1], "window_end": [1]}))
    op = join.start()
    op.process(left=results([("a", 0, 60, "x")], "l"))
    with pytest.raises(SchemaError, match="window_start"):
        op.process(right=results([("a", 0, 60, "x")], "r", zone=None))
    with pytest.raises(SnapshotError, match="another join"):
        gw.WindowJoin(INHERITED, []).restore(op.snapshot())
    tight = replace(join, limits=gw.Limits(max_state_bytes=10)).start()
    with pytest.raises(LimitExceeded):
        tight.process(left=results([("a", 0, 60, "x")], "l"))


# -- the watermark of what comes out ---------------------------------------------------------------------------------


def interval(lower: int, upper: int, how: Any, **more: Any) -> gw.IntervalJoin:
    bounds = (f"{lower} microseconds", f"{upper} microseconds")
    return gw.IntervalJoin(["k"], "t", "u", *bounds, how, watermark=gw.ExplicitWatermark(), **more)


def side(times: list[tuple[Any, int]], name: str) -> pa.Table:
    stamps = pa.array([t for _, t in times], pa.int64()).cast(pa.timestamp("us"))
    return pa.table({"k": pa.array([k for k, _ in times], pa.string()), name: stamps})


TIMED = {"left_schema": side([], "t").schema, "right_schema": side([], "u").schema}


def micros(found: pa.Table, name: str) -> list[int]:
    times = found[name].cast(pa.int64()).to_pylist() if name in found.column_names else []
    return [time for time in times if time is not None]


@settings(max_examples=80, deadline=None)
@given(st.integers(-9, 9), st.integers(0, 9), hows, st.booleans(), st.data())
def test_pairs_to_come_are_not_before_it(lower: int, wide: int, how: Any, inclusive: bool, data: st.DataObject) -> None:
    semantics = gw.Semantics(watermark_inclusive=inclusive)
    join = interval(lower, lower + wide, how, semantics=semantics)
    op, promised = join.start(**TIMED), (None, None, None)
    rows = st.lists(st.tuples(st.sampled_from(["a", None]), st.integers(-12, 12)), max_size=6)
    watermark = 0
    for _ in range(data.draw(st.integers(1, 6))):
        batch = [[(k, watermark + t) for k, t in data.draw(rows)] for _ in "lr"]
        found = [op.process(left=side(batch[0], "t"), right=side(batch[1], "u"))]
        op = join.restore(op.snapshot())
        watermark += data.draw(st.integers(0, 6))
        found.append(op.advance_watermark(watermark))
        for some in found:
            check_pairs(some, promised)
        promised = op.left_output_watermark, op.right_output_watermark, op.output_watermark
        assert promised[2] == min(promised[:2])  # type: ignore[type-var]
    check_pairs(op.finish(), promised)
    assert op.left_output_watermark == op.right_output_watermark == op.output_watermark == LARGEST


def check_pairs(found: pa.Table, promised: tuple[int | None, ...]) -> None:
    if promised[0] is None or promised[1] is None or promised[2] is None:
        return
    assert all(time >= promised[0] for time in micros(found, "t"))
    assert all(time >= promised[1] for time in micros(found, "u"))
    assert all(time >= promised[2] for name in "tu" for time in micros(found, name))


@pytest.mark.parametrize("bounds", [(-5, 7), (0, 7), (-5, 0), (3, 7), (-7, -3), (0, 0)])
def test_a_pair_may_come_at_the_watermark_itself(bounds: tuple[int, int]) -> None:
    lower, upper = bounds
    op = interval(lower, upper, "inner").start(**TIMED)
    ahead = range(900, 1100)
    early = op.process(left=side([("a", t) for t in ahead], "t"), right=side([("b", t) for t in ahead], "u"))
    op.advance_watermark(1000)
    assert (op.left_output_watermark, op.right_output_watermark) == (1000 - max(upper, 0), 1000 + min(lower, 0))
    # Each row that may still come, with all partners that are there.
    later = op.process(right=side([("a", t) for t in range(990, 1100)], "u"))
    other = op.process(left=side([("b", t) for t in range(990, 1100)], "t"))
    both = op.process(left=side([("c", 1000 + t) for t in range(20)], "t"),
                      right=side([("c", 1000 + t) for t in range(20)], "u"))  # fmt: skip
    assert early.num_rows == 0
    found = pa.concat_tables([later, other, both])
    if upper >= 0:
        assert min(micros(found, "t")) == op.left_output_watermark
    if lower <= 0:
        assert min(micros(found, "u")) == op.right_output_watermark


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["grid", "sliding", "session", "last event", "settled", "after end", "no gap"]),
    rows_named("l"), rows_named("r"), steps, st.sampled_from(["inner", "left", "right", "full", "cogroup"]),
)  # fmt: skip
def test_windows_to_come_end_after_it(
    kind: str, left: list[Row], right: list[Row], split: list[tuple[int, int]], how: Any
) -> None:
    windows: dict[str, Any] = {
        "grid": gw.TumblingWindow("7 seconds"),
        "sliding": gw.SlidingWindow("7 seconds", "2 seconds"),
    }
    windows["no gap"] = gw.SessionWindow("0 seconds")
    semantics = {
        "last event": gw.Semantics(session_end="last_event"),
        "settled": gw.Semantics(session_close="settled"),
        "after end": gw.Semantics(close="after_end"),
    }
    join = gw.WindowJoin(
        windows.get(kind, gw.SessionWindow("3 seconds")), ["k"], "t", "t", how,
        watermark=gw.BoundedOutOfOrderness("2 seconds"), semantics=semantics.get(kind, gw.Semantics()),
    )  # fmt: skip
    op = join.start(left_schema=LEFT, right_schema=RIGHT)
    promised, i, j = None, 0, 0
    for a, b in [*split, (len(left), len(right)), (0, 0)]:
        found = op.process(left=table(left[i : i + a], LEFT), right=table(right[j : j + b], RIGHT))
        times = micros(gw.window_time(found), "window_time")
        assert promised is None or min(times, default=LARGEST) >= promised
        i, j, promised = i + a, j + b, op.output_watermark
        assert op.left_output_watermark is None
        assert op.right_output_watermark is None
    if promised is not None:
        assert op.watermark is not None
        assert promised == op.watermark - {"last event": 3 * SECOND, "settled": 1, "after end": 1}.get(kind, 0)
        assert all(time >= promised for time in micros(gw.window_time(op.finish()), "window_time"))
        assert op.output_watermark == LARGEST


def test_a_window_may_come_at_the_watermark_itself() -> None:
    for more, at in (({}, 1000), ({"semantics": gw.Semantics(close="after_end")}, 999)):
        for window in (gw.TumblingWindow("1 microsecond"), INHERITED):
            times = {} if window == INHERITED else {"left_time": "window_start", "right_time": "window_start"}
            op = gw.WindowJoin(window, ["k"], watermark=gw.ExplicitWatermark(), **times, **more).start(**SCHEMAS)
            op.advance_watermark(1000)
            assert op.output_watermark == at
            for time in (at - 1, at):
                row = [("a", time, time + 1, "x")]
                op.process(left=results(row, "l"), right=results(row, "r"))
                assert op.metrics.rows_late == 2
            found = op.finish()
            assert [end - 1 for end in micros(found, "window_end")] == [at]


def test_nothing_is_promised_of_joins_that_keep_all() -> None:
    rows = results([("a", 0, 60, "x")], "l")
    for join in (
        gw.HashJoin(["k"]),
        gw.HashJoin(["k"], "cogroup"),
        gw.WindowJoin(gw.GlobalWindow(), ["k"], "window_start", "window_start", watermark=gw.ExplicitWatermark()),
    ):
        op = join.start()
        op.process(left=rows, right=rows)
        assert op.advance_watermark(1000).num_rows == 0
        assert op.metrics.rows_kept == 2
        assert (op.output_watermark, op.left_output_watermark, op.right_output_watermark) == (None, None, None)
        op.finish()
        assert op.output_watermark is None
    assert interval(0, 0, "inner").start().output_watermark is None
    far = gw.IntervalJoin(["k"], "t", "u", "-100000000 days", "0 seconds", watermark=gw.ExplicitWatermark()).start(
        **TIMED
    )
    far.advance_watermark(0)
    assert (far.output_watermark, far.left_output_watermark) == (far.right_output_watermark, 0)
