"""Joins against nested loops over lists, under any split of both streams into batches."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracle import (
    LEFT,
    RIGHT,
    Row,
    grid_windows,
    hows,
    matched,
    pairs,
    rows_named,
    run,
    session_windows,
    steps,
    table,
    windowed,
)

from gpuwin.joins import HashJoin, IntervalJoin, WindowJoin
from gpuwin.vocabulary.semantics import Semantics
from gpuwin.vocabulary.watermarks import BoundedOutOfOrderness
from gpuwin.vocabulary.windows import (
    CalendarWindow,
    CumulativeWindow,
    GlobalWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
)


def large_side(value: str) -> pa.Table:
    """Rows of half an hour, of which some are some seconds late, and some have no key."""
    rng, rows = np.random.default_rng(ord(value)), 150_000
    time = np.sort(rng.integers(0, 1_800, rows)) - rng.integers(0, 9, rows)
    key = pa.array(rng.integers(0, 20_000, rows), mask=rng.random(rows) < 0.01)
    columns = {"k": key, "t": pa.array(time * 1_000_000).cast(pa.timestamp("us")), value: pa.array(np.arange(rows))}
    columns[f"{value}_text"] = pa.array(np.arange(rows).astype(str))
    return pa.table(columns)


@pytest.mark.parametrize(
    ("window", "how", "keep"),
    [
        (TumblingWindow("1 minute"), "inner", "all"),
        (TumblingWindow("1 minute"), "full", "last"),
        (CalendarWindow("1 day"), "left", "first"),
        (SlidingWindow("20 seconds", "50 seconds"), "right", "all"),
        (SlidingWindow("90 seconds", "60 seconds"), "left", "all"),
        (SessionWindow("5 seconds"), "full", "all"),
        (TumblingWindow("1 minute"), "semi", "all"),
        (None, "full", "all"),
    ],
)
def test_large_batches_and_small_ones(window: Any, how: Any, keep: Any) -> None:
    """Rows by all threads, and by one."""
    late = {"watermark": BoundedOutOfOrderness("10 seconds")}
    spec = (
        IntervalJoin(["k"], "t", "t", timedelta(seconds=-20), timedelta(seconds=9), how, **late)  # type: ignore[arg-type]
        if window is None
        else WindowJoin(window, ["k"], "t", "t", how, keep=keep, **late)  # type: ignore[arg-type]
    )
    left, right, found = large_side("a"), large_side("b"), []
    for batches in (2, 40):
        op, step = spec.start(), len(left) // batches
        parts = [op.process(left.slice(i * step, step), right.slice(i * step, step)) for i in range(batches)]
        rows = pa.concat_tables([*parts, op.finish()])
        found.append(rows.sort_by([(name, "ascending") for name in rows.column_names]))
    assert len(found[0]) > 20_000
    assert found[0].equals(found[1])


@settings(max_examples=150, deadline=None)
@given(rows_named("l"), rows_named("r"), hows, steps, st.integers(-12, 12), st.integers(0, 15))
def test_interval_join(left: list[Row], right: list[Row], how: str, split: Any, lower: int, width: int) -> None:
    upper = lower + width
    spec = IntervalJoin(
        ["k"],
        "t",
        "t",
        timedelta(seconds=lower),
        timedelta(seconds=upper),
        how,
        watermark=BoundedOutOfOrderness("60 seconds"),
    )
    want = matched(left, right, how, lambda a, b: lower <= b[1] - a[1] <= upper)
    assert run(spec, left, right, split) == want


@settings(max_examples=100, deadline=None)
@given(rows_named("l"), rows_named("r"), hows, steps)
def test_hash_join(left: list[Row], right: list[Row], how: str, split: Any) -> None:
    assert run(HashJoin(["k"], how), left, right, split) == matched(left, right, how, lambda a, b: True)  # type: ignore[arg-type]


GRIDS = [
    TumblingWindow("10 seconds"),
    TumblingWindow("7 seconds", "3 seconds"),
    SlidingWindow("10 seconds", "3 seconds"),
    SlidingWindow("4 seconds", "9 seconds", "-2 seconds"),
    CumulativeWindow("12 seconds", "4 seconds", "1 second"),
]


@settings(max_examples=150, deadline=None)
@given(rows_named("l"), rows_named("r"), hows, steps, st.sampled_from(GRIDS))
def test_window_join(left: list[Row], right: list[Row], how: str, split: Any, window: Any) -> None:
    spec = WindowJoin(window, ["k"], "t", "t", how, watermark=BoundedOutOfOrderness("60 seconds"))  # type: ignore[arg-type]
    assert run(spec, left, right, split) == windowed(left, right, how, lambda r: grid_windows(window, r[1]))


@settings(max_examples=100, deadline=None)
@given(
    rows_named("l", ["a", "b"]),
    rows_named("r", ["a", "b"]),
    hows,
    steps,
    st.sampled_from(["merge", "split"]),
    st.booleans(),
)
def test_session_join(left: list[Row], right: list[Row], how: str, split: Any, touch: str, last_event: bool) -> None:
    semantics = Semantics(session_touch=touch, session_end="last_event" if last_event else "gap")  # type: ignore[arg-type]
    spec = WindowJoin(
        SessionWindow("5 seconds"),
        ["k"],
        "t",
        "t",
        how,
        watermark=BoundedOutOfOrderness("60 seconds"),
        semantics=semantics,  # type: ignore[arg-type]
    )
    sessions = session_windows(left + right, 5, touch, last_event)
    assert run(spec, left, right, split) == windowed(left, right, how, lambda r: [sessions[id(r)]])


@settings(max_examples=60, deadline=None)
@given(rows_named("l"), rows_named("r"), steps, st.sampled_from([TumblingWindow("10 seconds"), GlobalWindow()]))
def test_cogroup(left: list[Row], right: list[Row], split: Any, window: Any) -> None:
    spec = WindowJoin(window, ["k"], "t", "t", "cogroup", watermark=BoundedOutOfOrderness("60 seconds"))
    want: Counter[tuple[Any, ...]] = Counter()

    def window_of(r: Row) -> tuple[Any, Any]:
        return (None, None) if isinstance(window, GlobalWindow) else grid_windows(window, r[1])[0]  # type: ignore[arg-type]

    def in_order(rows: list[Row], key: Any, w: Any) -> tuple[str, ...]:
        return tuple(
            r[2] for r in sorted((r for r in rows if r[0] == key and window_of(r) == w), key=lambda r: r[1] or 0)
        )

    for key, w in {(r[0], window_of(r)) for r in left + right if r[0] is not None}:
        want[(key, *w, in_order(left, key, w), in_order(right, key, w))] += 1
    for w in {window_of(r) for r in left if r[0] is None}:
        want[(None, *w, in_order(left, None, w), ())] += 1
    for w in {window_of(r) for r in right if r[0] is None}:
        want[(None, *w, (), in_order(right, None, w))] += 1
    assert run(spec, left, right, split) == want


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["interval", "tumbling", "sliding", "session"]), hows)
def test_ordered_streams_are_joined_as_they_go(data: st.DataObject, kind: str, how: str) -> None:
    """With no delay and both streams in order nothing is late, state is dropped on the way, and the result is that of
    the whole.
    """
    times = [sorted(data.draw(st.lists(st.integers(0, 120), max_size=25))) for _ in range(2)]
    rows = [
        [(data.draw(st.sampled_from("ab")), t, f"{s}{i}") for i, t in enumerate(ts)]
        for s, ts in zip("lr", times, strict=True)
    ]
    specs = {
        "interval": IntervalJoin(["k"], "t", "t", "-4 seconds", "6 seconds", how),  # type: ignore[arg-type]
        "tumbling": WindowJoin(TumblingWindow("10 seconds"), ["k"], "t", "t", how),  # type: ignore[arg-type]
        "sliding": WindowJoin(SlidingWindow("10 seconds", "5 seconds"), ["k"], "t", "t", how),  # type: ignore[arg-type]
        "session": WindowJoin(SessionWindow("4 seconds"), ["k"], "t", "t", how),  # type: ignore[arg-type]
    }
    spec = specs[kind]
    op = spec.start(left_schema=LEFT, right_schema=RIGHT)
    found: Counter[tuple[Any, ...]] = Counter()
    edges = sorted(data.draw(st.lists(st.integers(0, 120), max_size=6)))
    for lo, hi in itertools.pairwise([0, *edges, 121]):
        parts = [[r for r in side if lo <= r[1] < hi] for side in rows]
        found += pairs(op.process(left=table(parts[0], LEFT), right=table(parts[1], RIGHT)))
        op = spec.restore(op.snapshot())
    before = op.metrics
    assert before.rows_late == 0
    found += pairs(op.finish())
    if kind == "interval":
        want = matched(*rows, how, lambda a, b: -4 <= b[1] - a[1] <= 6)
    elif kind == "session":
        sessions = session_windows(rows[0] + rows[1], 4, "merge", False)
        want = windowed(*rows, how, lambda r: [sessions[id(r)]])
    else:
        want = windowed(*rows, how, lambda r: grid_windows(spec.window, r[1]))  # type: ignore[union-attr]
    assert found == want
    assert op.metrics.rows_kept == 0
