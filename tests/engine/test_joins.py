"""Joins against nested loops over lists, under any split of both streams into batches."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin.errors import LimitExceeded, SchemaError, SnapshotError, SpecificationError
from gpuwin.joins import HashJoin, IntervalJoin, JoinOperator, WindowJoin
from gpuwin.limits import Limits
from gpuwin.semantics import Semantics
from gpuwin.watermarks import BoundedOutOfOrderness, EventClock, ExplicitWatermark
from gpuwin.windows import (
    CumulativeWindow,
    GlobalWindow,
    InheritedWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    column,
)

SECOND = 1_000_000
Row = tuple[Any, int | None, str]  # key, seconds, value
LEFT = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("l", pa.string())])
RIGHT = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("r", pa.string())])


def table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    k, _t, v = (pa.array([row[j] for row in rows], pa.string() if j != 1 else pa.int64()) for j in range(3))
    micros = pa.array([None if row[1] is None else row[1] * SECOND for row in rows], pa.int64())
    return pa.table([k, micros.cast(schema.field("t").type), v], schema=schema)


def pairs(result: pa.Table) -> Counter[tuple[Any, ...]]:
    """(key, window start and end in seconds if there are any, left value, right value)."""
    bounds = [n for n in ("window_start", "window_end") if n in result.column_names]
    columns = [result.column(n).to_pylist() for n in ("k", *bounds, "l", "r")]
    return Counter(tuple(seconds(v) for v in row) for row in zip(*columns, strict=True))


def seconds(v: Any) -> Any:
    if isinstance(v, datetime):
        return (v - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    return tuple(v) if isinstance(v, list) else v


def run(spec: Any, left: list[Row], right: list[Row], steps: list[tuple[int, int]]) -> Counter[tuple[Any, ...]]:
    """Feeds both streams in steps of (left rows, right rows), and finishes."""
    op = spec.start(left_schema=LEFT, right_schema=RIGHT)
    found: Counter[tuple[Any, ...]] = Counter()
    i = j = 0
    for a, b in [*steps, (len(left), len(right))]:
        result = op.process(left=table(left[i : i + a], LEFT), right=table(right[j : j + b], RIGHT))
        assert result.schema == op.output_schema
        found += pairs(result)
        i, j = i + a, j + b
    return found + pairs(op.finish())


def matched(left: list[Row], right: list[Row], how: str, meets: Callable[[Row, Row], bool]) -> Counter[tuple[Any, ...]]:
    both = [(a, b) for a in left for b in right if a[0] is not None and a[0] == b[0] and meets(a, b)]
    found = Counter((a[0], a[2], b[2]) for a, b in both)
    if how in ("left", "full"):
        found += Counter((a[0], a[2], None) for a in left if not any(a is x for x, _ in both))
    if how in ("right", "full"):
        found += Counter((b[0], None, b[2]) for b in right if not any(b is x for _, x in both))
    return found


def rows_named(side: str, keys: list[Any] | None = None) -> st.SearchStrategy[list[Row]]:
    row = st.tuples(st.sampled_from(keys or ["a", "b", None]), st.integers(-30, 30))
    return st.lists(row, max_size=12).map(lambda rows: [(k, t, f"{side}{i}") for i, (k, t) in enumerate(rows)])


steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=5)
hows = st.sampled_from(["inner", "left", "right", "full"])


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


def grid_windows(window: Any, t: int) -> list[tuple[int, int]]:
    if isinstance(window, TumblingWindow):
        window = SlidingWindow(window.size, window.size, window.offset)
    size, offset = window.size // timedelta(seconds=1), window.offset // timedelta(seconds=1)
    if isinstance(window, CumulativeWindow):
        step = window.step // timedelta(seconds=1)
        start = (t - offset) // size * size + offset
        return [(start, e) for e in range(start + step, start + size + 1, step) if t < e]
    slide = window.slide // timedelta(seconds=1)
    first = (t - offset) // slide * slide + offset
    return [(s, s + size) for s in range(first, t - size, -slide) if s <= t < s + size]


def session_windows(rows: list[Row], gap: int, touch: str, last_event: bool) -> dict[int, tuple[int, int]]:
    """id(row) -> the session it is in."""
    found: dict[int, tuple[int, int]] = {}
    for key in {r[0] for r in rows}:
        mine = sorted((r for r in rows if r[0] == key), key=lambda r: r[1] or 0)
        groups: list[list[Row]] = []
        for r in mine:
            far = math.inf if not groups else r[1] - groups[-1][-1][1]
            if far < gap or (far == gap and touch == "merge"):
                groups[-1].append(r)
            else:
                groups.append([r])
        for g in groups:
            for r in g:
                found[id(r)] = (g[0][1], g[-1][1] if last_event else g[-1][1] + gap)
    return found


def windowed(left: list[Row], right: list[Row], how: str, of: Callable[[Row], list[Any]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    sides = [[(r, w) for r in rows for w in of(r)] for rows in (left, right)]
    partner = [set(), set()]  # type: ignore[var-annotated]
    for a, w in sides[0]:
        for b, v in sides[1]:
            if a[0] is not None and a[0] == b[0] and w == v:
                found[(a[0], *w, a[2], b[2])] += 1
                partner[0].add((a[2], w))
                partner[1].add((b[2], w))
    if how in ("left", "full"):
        found += Counter((a[0], *w, a[2], None) for a, w in sides[0] if (a[2], w) not in partner[0])
    if how in ("right", "full"):
        found += Counter((b[0], *w, None, b[2]) for b, w in sides[1] if (b[2], w) not in partner[1])
    return found


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


def test_cases_with_known_answers() -> None:
    """SL-08, SL-09, SL-10."""
    l08 = [("k1", 0, "l1"), ("k1", 0, "l2"), ("k2", 0, "l3"), (None, 0, "l4")]
    r08 = [("k1", 0, "r1"), ("k3", 0, "r2"), ("k1", 0, "r3"), (None, 0, "r4")]
    want = {("l1", "r1"), ("l1", "r3"), ("l2", "r1"), ("l2", "r3")}
    assert {p[1:] for p in run(HashJoin(["k"]), l08, r08, [])} == want
    l09: list[Row] = [("u", 10_000, "click")]
    r09 = [
        (k, t, f"p{i}")
        for i, (k, t) in enumerate([("u", 8999), ("u", 9000), ("u", 12000), ("u", 15000), ("u", 15001), ("v", 12000)])
    ]
    spec = IntervalJoin(["k"], "t", "t", "-1000 seconds", "5000 seconds")
    assert {p[1:] for p in run(spec, l09, r09, [])} == {("click", "p1"), ("click", "p2"), ("click", "p3")}
    l10: list[Row] = [("k", 59, "a"), ("k", 60, "b")]
    r10: list[Row] = [("k", 0, "x"), ("k", 61, "y"), ("k", 119, "z"), ("j", 10, "w")]
    spec10 = WindowJoin(TumblingWindow("60 seconds"), ["k"], "t", "t")
    assert {p[3:] for p in run(spec10, l10, r10, [])} == {("a", "x"), ("b", "y"), ("b", "z")}


def test_bytewax_insert_modes() -> None:
    """BW-11 (first) and BW-15 (product): a session window of 10 s that only the end of the stream closes."""
    left: list[Row] = [("ALL", 0, "1")]
    right: list[Row] = [("ALL", 2, "3"), ("ALL", 1, "2")]

    def join(keep: str) -> set[tuple[Any, ...]]:
        spec = WindowJoin(SessionWindow("10 seconds"), ["k"], "t", "t", watermark=EventClock(timedelta.max), keep=keep)  # type: ignore[arg-type]
        return {p[3:] for p in run(spec, left, right, [])}

    assert join("first") == {("1", "2")}
    assert join("last") == {("1", "3")}
    assert join("all") == {("1", "2"), ("1", "3")}


def test_the_watermark_is_the_smaller_of_the_two() -> None:
    spec = WindowJoin(
        TumblingWindow("10 seconds"),
        ["k"],
        "t",
        "t",
        "full",
        watermark=(BoundedOutOfOrderness("1 second"), BoundedOutOfOrderness("5 seconds")),
    )
    op = spec.start(left_schema=LEFT, right_schema=RIGHT)
    assert op.process(left=table([("a", 3, "l0"), ("a", 30, "l1")], LEFT)).num_rows == 0
    assert op.watermark is None
    assert op.process(right=table([("a", 14, "r0")], RIGHT)).num_rows == 0
    assert op.watermark == 9 * SECOND
    closed = op.process(right=table([("a", 15, "r1")], RIGHT))
    assert op.watermark == 10 * SECOND
    assert pairs(closed) == Counter({("a", 0, 10, "l0", None): 1})
    late = op.process(left=table([("a", 9, "l2"), ("a", 10, "l3")], LEFT))
    assert late.num_rows == 0
    assert op.metrics.rows_late == 1
    assert pairs(op.advance_watermark(20 * SECOND)) == Counter({("a", 10, 20, "l3", r): 1 for r in ("r0", "r1")})
    assert op.advance_watermark(5 * SECOND).num_rows == 0
    assert op.watermark == 20 * SECOND
    assert op.metrics.rows_in == 6
    assert op.metrics.rows_kept <= 2  # rows in memory: one that is needed, one not yet cleared away


def test_close_after_end_and_inclusive_watermarks() -> None:
    for semantics, closes in (
        (Semantics(), 10),
        (Semantics(close="after_end"), 10 + 1e-6),
        (Semantics(watermark_inclusive=True), 10 - 1e-6),
    ):
        spec = WindowJoin(
            TumblingWindow("10 seconds"), ["k"], "t", "t", watermark=ExplicitWatermark(), semantics=semantics
        )
        op = spec.start()
        op.process(left=table([("a", 3, "l0")], LEFT), right=table([("a", 4, "r0")], RIGHT))
        at = round(closes * SECOND)
        assert op.advance_watermark(at - 1).num_rows == 0
        assert op.advance_watermark(at).num_rows == 1
        assert op.watermark == at


def test_outer_rows_of_an_interval_join_come_as_soon_as_they_are_certain() -> None:
    spec = IntervalJoin(["k"], "t", "t", "-2 seconds", "5 seconds", "full", watermark=ExplicitWatermark())
    op = spec.start()
    first = op.process(left=table([("a", 10, "l0"), (None, 10, "l1")], LEFT), right=table([("b", 10, "r0")], RIGHT))
    assert first.num_rows == 0
    assert pairs(op.advance_watermark(12 * SECOND)) == Counter()
    assert pairs(op.advance_watermark(12 * SECOND + 1)) == Counter({("b", None, "r0"): 1})
    assert pairs(op.advance_watermark(15 * SECOND)) == Counter()
    assert pairs(op.advance_watermark(15 * SECOND + 1)) == Counter({("a", "l0", None): 1, (None, "l1", None): 1})
    assert op.metrics.rows_kept == 0
    late = op.process(left=table([("a", 15, "l2"), ("a", None, "l3"), ("a", 16, "l4")], LEFT))
    assert late.num_rows == 0
    assert (op.metrics.rows_late, op.metrics.rows_null_time, op.metrics.rows_kept) == (1, 1, 1)


def test_names_and_types() -> None:
    left = pa.table({"id": [1], "at": pa.array([5], pa.timestamp("s")), "v": ["x"], "window_end": [9], "only": [1.5]})
    right = pa.table({"v": [b"y"], "when": pa.array([6000], pa.timestamp("ms")), "id": [1], "v_right": [True]})
    op = WindowJoin(TumblingWindow("1 minute"), ["id"], "at", "when").start()
    op.process(left=left, right=right)
    result = op.finish()
    assert result.schema == op.output_schema
    assert result.schema == pa.schema(
        [
            ("id", pa.int64()),
            ("window_start", pa.timestamp("us")),
            ("window_end", pa.timestamp("us")),
            ("at", pa.timestamp("s")),
            ("v", pa.string()),
            ("window_end_left", pa.int64()),
            ("only", pa.float64()),
            ("v_right", pa.binary()),
            ("when", pa.timestamp("ms")),
            ("v_right_right", pa.bool_()),
        ]
    )
    assert result.to_pylist()[0]["v_right"] == b"y"


def test_several_keys_of_any_type() -> None:
    dictionary = pa.array(["x", "y", None]).dictionary_encode()
    left = pa.table({"a": dictionary, "b": pa.array([1, 2, 3], pa.int8()), "l": [1, 2, 3]})
    right = pa.table({"b": pa.array([2, 2, 3], pa.int8()), "a": ["y", "x", None], "r": [10, 20, 30]})
    op = HashJoin(["a", "b"], "full").start()
    rows = op.process(left=left, right=right).to_pylist() + op.finish().to_pylist()
    assert sorted(map(str, rows)) == sorted(
        map(
            str,
            [
                {"a": "y", "b": 2, "l": 2, "r": 10},
                {"a": "x", "b": 1, "l": 1, "r": None},
                {"a": None, "b": 3, "l": 3, "r": None},
                {"a": "x", "b": 2, "l": None, "r": 20},
                {"a": None, "b": 3, "l": None, "r": 30},
            ],
        )
    )


def test_a_side_that_never_comes() -> None:
    op = HashJoin(["k"], "left").start()
    op.process(left=table([("a", 0, "l0")], LEFT))
    assert op.finish().to_pylist() == [{"k": "a", "t": datetime(1970, 1, 1, tzinfo=UTC), "l": "l0"}]
    with pytest.raises(ValueError, match="has finished"):
        op.process(left=table([], LEFT))
    for how, value in (("left", "l0"), ("full", "l0"), ("cogroup", ["l0"])):
        op = WindowJoin(TumblingWindow("1 minute"), ["k"], "t", "t", how).start()  # type: ignore[arg-type]
        op.process(left=table([("a", 0, "l0")], LEFT))
        assert [(r["k"], r["l"]) for r in op.finish().to_pylist()] == [("a", value)]
    op = WindowJoin(SessionWindow("1 minute"), ["k"], "t", "t", "right").start()
    op.process(right=table([(None, 0, "r0")], RIGHT))
    assert [(r["k"], r["r"]) for r in op.finish().to_pylist()] == [(None, "r0")]


def test_a_batch_that_does_not_fit_changes_nothing() -> None:
    op = IntervalJoin(["k"], "t", "t", "0 seconds", "0 seconds").start()
    op.process(left=table([("a", 1, "l0")], LEFT), right=table([("b", 0, "r0")], RIGHT))
    before = op.snapshot()
    good = table([("a", 1, "r1")], RIGHT)
    for bad, message in [
        (table([("a", 1, "l1")], LEFT).drop_columns(["l"]), "left batch does not fit: no column 'l'"),
        (table([("a", 1, "l1")], LEFT).set_column(2, "l", pa.array([1])), "cast it"),
        ([1, 2], "a batch is Arrow data"),
    ]:
        with pytest.raises(SchemaError, match=message):
            op.process(left=bad, right=good)
        assert op.snapshot() == before
    for schema, message in [
        (pa.schema([("t", pa.timestamp("us"))]), "no key column"),
        (pa.schema([("k", pa.string()), ("t", pa.int64())]), "must be an Arrow timestamp"),
        (pa.schema([("k", pa.string())]), "no time column"),
    ]:
        with pytest.raises(SchemaError, match=message):
            IntervalJoin(["k"], "t", "t", "0 seconds", "0 seconds").start(left_schema=schema)
    with pytest.raises(SchemaError, match="cast one"):
        HashJoin(["k"]).start(left_schema=LEFT, right_schema=pa.schema([("k", pa.int64())]))


def test_limits_leave_the_state_as_it_was() -> None:
    op = HashJoin(["k"], limits=Limits(max_state_bytes=2000)).start()
    op.process(left=table([("a", 0, "x")], LEFT))
    before = op.snapshot()
    with pytest.raises(LimitExceeded, match="max_state_bytes is 2000"):
        op.process(left=table([(f"k{i}", 0, "x") for i in range(200)], LEFT))
    assert op.snapshot() == before
    assert op.process(right=table([("a", 0, "y")], RIGHT)).num_rows == 1


def test_snapshots_belong_to_a_specification_and_are_checked() -> None:
    spec = IntervalJoin(["k"], "t", "t", "0 seconds", "5 seconds", "left")
    op = spec.start()
    op.process(left=table([("a", 1, "l0"), (None, 2, "l1")], LEFT), right=table([("a", 0, "r0")], RIGHT))
    data = op.snapshot()
    back = pickle.loads(pickle.dumps(spec)).restore(data)
    assert back.metrics == op.metrics
    assert back.output_schema == op.output_schema
    assert pairs(back.process(right=table([("a", 4, "r1")], RIGHT))) == Counter({("a", "l0", "r1"): 1})
    assert pairs(back.finish()) == Counter({(None, "l1", None): 1})
    for place in range(0, len(data), 97):
        flipped = bytearray(data)
        flipped[place] ^= 4
        with pytest.raises(SnapshotError, match="damaged"):
            spec.restore(bytes(flipped))
    with pytest.raises(SnapshotError, match="damaged"):
        spec.restore(data[:-5])
    with pytest.raises(SnapshotError, match="damaged"):
        spec.restore(b"")
    with pytest.raises(SnapshotError, match="another join"):
        IntervalJoin(["k"], "t", "t", "0 seconds", "6 seconds", "left").restore(data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HashJoin("k"), r"write \['k'\]"),
        (lambda: HashJoin([]), "one or more"),
        (lambda: HashJoin(["k"], "outer"), "how is one of"),  # type: ignore[arg-type]
        (lambda: IntervalJoin(["k"], "t", "t", "2 seconds", "1 second"), "larger than upper"),
        (lambda: IntervalJoin(["k"], "t", "t", "0 seconds", "1 second", "cogroup"), "how is one of"),
        (lambda: WindowJoin(InheritedWindow(), ["k"], "t", "t"), "HashJoin"),
        (lambda: WindowJoin(SessionWindow(column("g")), ["k"], "t", "t"), "one gap"),
        (lambda: WindowJoin(GlobalWindow(), ["window_end"], "t", "t"), "other names"),
        (lambda: HashJoin(["k"]).start("cuda"), "run on the CPU"),
        (
            lambda: IntervalJoin(["k"], "t", "t", "0 seconds", "0 seconds", watermark=EventClock("1 second")),
            "watermark of a join",
        ),
    ],
)
def test_specifications_that_mean_nothing(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        make()


def test_keys_that_are_gone_leave_the_dictionary() -> None:
    op: JoinOperator = IntervalJoin(["k"], "t", "t", "0 seconds", "1 second", "full").start()
    total = 0
    for step in range(40):
        rows = [(f"{step}.{i}", step * 10, f"v{i}") for i in range(500)]
        total += op.process(left=table(rows, LEFT), right=table(rows[:300], RIGHT)).num_rows
    total += op.finish().num_rows
    assert total == 40 * 500
    assert len(op._state.keys) < 12_000


def test_a_row_is_late_for_a_session_join_once_its_own_interval_has_passed() -> None:
    op = WindowJoin(SessionWindow("5 seconds"), ["k"], "t", "t", "left", watermark=ExplicitWatermark()).start()
    op.advance_watermark(15 * SECOND)
    op.process(left=table([("a", 10, "late"), ("a", 11, "on time")], LEFT))
    assert op.metrics.rows_late == 1
    assert op.finish().column("l").to_pylist() == ["on time"]


def test_when_a_session_is_settled() -> None:
    """Bytewax: while an event exactly one gap later would join, a session closes only after its end."""
    for touch, at in (("merge", 16), ("split", 15)):
        semantics = Semantics(session_close="settled", session_touch=touch)  # type: ignore[arg-type]
        spec = WindowJoin(
            SessionWindow("5 seconds"), ["k"], "t", "t", watermark=ExplicitWatermark(), semantics=semantics
        )
        op = spec.start()
        op.process(left=table([("a", 10, "l0")], LEFT), right=table([("a", 10, "r0")], RIGHT))
        closed = [second for second in range(10, 20) if op.advance_watermark(second * SECOND).num_rows]
        assert closed == [at]
