"""Joins: known answers, watermarks, names and types, wrong use, snapshots."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from join_oracle import (
    LEFT,
    RIGHT,
    SECOND,
    Row,
    pairs,
    run,
    table,
)

from gpuwin import WindowedAggregation, count
from gpuwin.errors import LimitExceeded, SchemaError, SnapshotError, SpecificationError
from gpuwin.joins import HashJoin, IntervalJoin, JoinOperator, WindowJoin
from gpuwin.joins.plan import JoinPlan
from gpuwin.state.rows.row_runs import RowRun
from gpuwin.state.rows.waiting_rows import WaitingRows, run_of
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.semantics import Semantics
from gpuwin.vocabulary.watermarks import BoundedOutOfOrderness, EventClock, ExplicitWatermark
from gpuwin.vocabulary.windows import (
    GlobalWindow,
    InheritedWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    column,
)


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


@pytest.mark.parametrize(("semantics", "after"), [(Semantics.SPARK, 185), (Semantics(), 190)])
def test_a_restart_on_spark_s_terms_drops_how_far_each_side_was(semantics: Semantics, after: int) -> None:
    delay = BoundedOutOfOrderness("10 seconds")
    for spec in (
        WindowJoin(TumblingWindow("60 seconds"), ["k"], "t", "t", watermark=delay, semantics=semantics),
        IntervalJoin(["k"], "t", "t", "0 seconds", "5 seconds", watermark=delay, semantics=semantics),
    ):
        op = spec.start()
        op.process(table([("a", 200, "l0")], LEFT), table([("a", 195, "r0")], RIGHT))
        op = spec.restore(op.snapshot())
        op.process(right=table([("a", 200, "r1")], RIGHT))
        assert op.watermark == after * SECOND
        op.process(left=table([("a", 201, "l1")], LEFT))
        assert op.watermark == 190 * SECOND


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


def test_watermarks_are_those_of_an_aggregation() -> None:
    """Of milliseconds where the semantics say so, none where no row moves it, and as they are stated in metrics."""
    times = pa.schema([("k", pa.string()), ("t", pa.timestamp("us"))])

    def row(micros: int) -> pa.Table:
        return pa.table([pa.array(["a"]), pa.array([micros], pa.timestamp("us"))], schema=times)

    op = IntervalJoin(["k"], "t", "t", "0 seconds", "5 seconds", semantics=Semantics.SPARK).start()
    op.process(left=row(1_000_700), right=row(1_000_700))
    assert op.watermark == 1_000_000
    assert op.process(left=row(1_000_200)).num_rows == 1
    op = IntervalJoin(["k"], "t", "t", "0 seconds", "5 seconds", semantics=Semantics(watermark_inclusive=True)).start()
    op.process(left=row(5), right=row(7))
    assert op.metrics.watermark == op.watermark == 5
    for far in (EventClock(timedelta.max), BoundedOutOfOrderness(timedelta.max)):
        for semantics in (Semantics(), Semantics.FLINK):
            join = WindowJoin(TumblingWindow("10 seconds"), ["k"], "t", "t", watermark=far, semantics=semantics)
            op = join.start()
            op.process(left=row(-5), right=row(-5))
            assert op.watermark is None
            assert op.finish().num_rows == 1


@pytest.mark.parametrize("time", [pd.NaT, 2**63 - 1, 2**63 - 2, "2024-01-01"])
def test_watermarks_that_are_refused(time: Any) -> None:
    """By joins as by aggregations; the one but the largest, inclusive, is the end of the stream."""
    semantics = Semantics(watermark_inclusive=True)
    counts = WindowedAggregation(
        window=GlobalWindow(), time="t", aggregates={"n": count()}, watermark=ExplicitWatermark(), semantics=semantics
    )
    said = []
    for op in (
        IntervalJoin(["k"], "t", "t", "0 seconds", "5 seconds", semantics=semantics).start(),
        counts.start(),
    ):
        with pytest.raises(SpecificationError) as refused:
            op.advance_watermark(time)
        said.append(str(refused.value))
        assert op.watermark is None
    assert said[0] == said[1]


def test_windows_that_the_first_watermark_has_closed_stay_closed() -> None:
    window = SlidingWindow("10 seconds", "5 seconds")
    spec = WindowJoin(window, ["k"], "t", "t", "left", semantics=Semantics(watermark_start=0))
    op = spec.start(left_schema=LEFT, right_schema=RIGHT)
    op.process(left=table([("a", -2, "l0")], LEFT))
    assert pairs(op.finish()) == Counter({("a", -5, 5, "l0", None): 1})


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
        (pa.schema([("k", pa.string()), ("t", pa.null())]), r"start\(left_schema=\.\.\.\)"),
    ]:
        with pytest.raises(SchemaError, match=message):
            IntervalJoin(["k"], "t", "t", "0 seconds", "0 seconds").start(left_schema=schema)
    with pytest.raises(SchemaError, match="cast one"):
        HashJoin(["k"]).start(left_schema=LEFT, right_schema=pa.schema([("k", pa.int64())]))


def test_limits_leave_the_state_as_it_was() -> None:
    op = HashJoin(["k"], limits=Limits(max_state_bytes=40_000)).start()
    op.process(left=table([("a", 0, "x")], LEFT))
    before = op.snapshot()
    with pytest.raises(LimitExceeded, match="max_state_bytes is 40000"):
        op.process(left=table([(f"k{i}", 0, "x") for i in range(2_000)], LEFT))
    assert op.snapshot() == before
    assert op.process(right=table([("a", 0, "y")], RIGHT)).num_rows == 1


def test_a_join_over_its_limit_still_lets_its_rows_go() -> None:
    spec = IntervalJoin(["k"], "t", "t", "0 seconds", "1 second", "left", watermark=ExplicitWatermark())
    op = spec.start()
    op.process(left=table([("a", 1, "l0"), ("a", 9, "l1")], LEFT))
    op = replace(spec, limits=Limits(max_state_bytes=100)).restore(op.snapshot())
    with pytest.raises(LimitExceeded):
        op.process(left=table([("a", 9, "l2")], LEFT))
    assert op.advance_watermark(5 * SECOND).num_rows == 1
    assert op.finish().num_rows == 1


@pytest.mark.parametrize(
    "spec",
    [
        WindowJoin(GlobalWindow(), ["k"], "t", "t", "left", watermark=ExplicitWatermark()),
        WindowJoin(TumblingWindow("10 seconds"), ["k"], "t", "t", "left", watermark=ExplicitWatermark()),
        IntervalJoin(["k"], "t", "t", "0 seconds", "1 second", "left", watermark=ExplicitWatermark()),
        IntervalJoin(["k"], "t", "t", "-2 seconds", "-1 second", "left"),
    ],
)
def test_a_row_of_the_last_instant_comes_once(spec: WindowJoin | IntervalJoin) -> None:
    last = pa.table({"k": ["a"], "t": pa.array([(1 << 63) - 1], pa.timestamp("us"))})
    op = spec.start(left_schema=last.schema, right_schema=last.schema)
    assert op.process(left=last).num_rows + op.process(right=last.slice(1)).num_rows + op.finish().num_rows == 1


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
    for other in ({"watermark": BoundedOutOfOrderness("1 hour")}, {"semantics": Semantics(close="after_end")}):
        with pytest.raises(SnapshotError, match="another join"):
            replace(spec, **other).restore(data)
    assert replace(spec, limits=Limits(max_state_bytes=1 << 30)).restore(data).metrics == op.metrics


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HashJoin("k"), r"write \['k'\]"),
        (lambda: HashJoin([]), "one or more"),
        (lambda: HashJoin(["k"], "outer"), "how is one of"),  # type: ignore[arg-type]
        (lambda: IntervalJoin(["k"], "t", "t", "2 seconds", "1 second"), "larger than upper"),
        (lambda: IntervalJoin(["k"], "t", "t", "0 seconds", "1 second", "cogroup"), "how is one of"),
        (lambda: WindowJoin(InheritedWindow(), ["k"], "t", "t"), "leave out left_time and right_time"),
        (lambda: WindowJoin(SessionWindow(column("g")), ["k"], "t", "t"), "one gap"),
        (lambda: WindowJoin(GlobalWindow(), ["window_end"], "t", "t"), "other names"),
        (lambda: HashJoin(["k"], limits=Limits(max_open_windows=1)), "bounded by Limits.max_state_bytes"),
        (lambda: WindowJoin(GlobalWindow(), ["k"], "t", "t", keep="newest"), "keep is one of all, first, last"),  # type: ignore[arg-type]
        (lambda: HashJoin(["k"]).start(left_schema=["k"]), "left_schema is a pyarrow.Schema"),  # type: ignore[arg-type]
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


def test_keys_may_be_encoded_differently_on_the_two_sides() -> None:
    """A polars frame has string views, a pandas frame large strings."""
    rows = pa.table({"t": pa.array([1], pa.timestamp("s")), "k": ["a"]})
    spec = WindowJoin(TumblingWindow("1 minute"), ["k"], "t", "t")
    for encoding in (pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        op = spec.start()
        op.process(left=rows, right=rows.set_column(1, "k", rows["k"].cast(encoding)))
        op.process(right=rows.set_column(1, "k", pa.nulls(1)))
        assert op.finish()["k"].to_pylist() == ["a"]
    with pytest.raises(SchemaError, match=r"start\(left_schema=..., right_schema=...\)"):
        spec.start().process(left=rows.set_column(1, "k", pa.nulls(1)), right=rows)


@pytest.mark.parametrize("view", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())])
def test_keys_that_are_views_of_lists_meet(view: pa.DataType) -> None:
    rows = pa.table({"k": pa.array([[1], [2, 3], [1], None], view), "i": [0, 1, 2, 3]})
    op = HashJoin(["k"]).start()
    op.process(left=rows)
    found = HashJoin(["k"]).restore(op.snapshot()).process(right=rows)
    assert sorted(zip(found["i"].to_pylist(), found["i_right"].to_pylist(), strict=True)) == [
        (0, 0), (0, 2), (1, 1), (2, 0), (2, 2)
    ]  # fmt: skip
    assert found.schema.field("k").type in (pa.list_(pa.int64()), pa.large_list(pa.int64()))


UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None, b"1" * 16, b"0" * 16], pa.binary(16)))
ODD_KEYS = {
    "extension": UUIDS,
    "structs of extensions": pa.StructArray.from_arrays([UUIDS], ["x"], mask=pa.array([False, True, False, False])),
    "lists of extensions": pa.ListArray.from_arrays(pa.array([0, 1, None, 2, 4], pa.int32()), UUIDS),
    "maps of extensions": pa.MapArray.from_arrays(pa.array([0, 1, None, 2, 4], pa.int32()), list("abcd"), UUIDS),
    "no bytes": pa.array([b"", None, b"", None], pa.binary(0)),
}


@pytest.mark.parametrize("keys", [["k"], ["k", "t"]], ids=str)
@pytest.mark.parametrize("name", ODD_KEYS)
def test_keys_of_types_that_arrow_knows_little_of(name: str, keys: list[str]) -> None:
    given = ODD_KEYS[name].to_pylist()
    rows = pa.table({"k": ODD_KEYS[name], "t": pa.array(range(4), pa.timestamp("s")), "i": [0, 1, 2, 3]})
    spec = HashJoin(keys, "full")
    op = spec.start(left_schema=rows.schema, right_schema=rows.schema)
    first = op.process(left=rows)
    op = spec.restore(op.snapshot())
    second = op.process(right=rows)
    op = spec.restore(op.snapshot())
    found = pa.concat_tables([first, second, op.finish()]).to_pylist()
    met = {(a, b) for a in range(4) for b in range(4) if given[a] == given[b] is not None and (a == b or keys == ["k"])}
    alone = {(i, None) for i in range(4) if given[i] is None} | {(None, i) for i in range(4) if given[i] is None}
    assert {(row["i"], row["i_right"]) for row in found} == met | alone
    assert all(row["k"] == given[row["i_right"] if row["i"] is None else row["i"]] for row in found)
    spec_of_counts = WindowedAggregation(window=GlobalWindow(), keys=keys, time="t", aggregates={"n": count()})
    counts = spec_of_counts.start()
    counts.process(rows)
    totals = spec_of_counts.restore(counts.snapshot()).finish().to_pylist()
    assert all(row["n"] == (given.count(row["k"]) if keys == ["k"] else 1) for row in totals)
    assert sum(row["n"] for row in totals) == 4


def test_a_clock_is_taken_as_by_other_operators() -> None:
    def never() -> int:
        raise AssertionError("joins go by the times of their rows")

    op = HashJoin(["k"]).start(device="cpu", clock=never)
    assert op.process(left=table([("a", 0, "x")], LEFT), right=table([("a", 0, "y")], RIGHT)).num_rows == 1
    with pytest.raises(SpecificationError, match="clock is a function"):
        HashJoin(["k"]).start(clock=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["cogroup", "full"])
def test_keys_with_a_null_in_one_column_stay_apart(how: Any) -> None:
    """They meet no row of the other side, and are one group with those of their own side that are the same."""
    rows = pa.table({"a": ["x", "y", "x"], "b": pa.nulls(3, pa.string()), "t": pa.array([0, 2, 4], pa.timestamp("s"))})
    join = WindowJoin(SessionWindow("3 seconds"), ["a", "b"], "t", "t", how)
    op = join.start()
    op.process(left=rows, right=rows.slice(1, 1))
    op = join.restore(op.snapshot())
    found = op.finish().select(["a", "b", "window_start", "window_end"]).to_pylist()
    bounds = sorted((r["a"], r["window_start"].second, r["window_end"].second) for r in found)
    assert bounds == [("x", 0, 3), ("x", 4, 7), ("y", 2, 5), ("y", 2, 5)]


def test_any_time_before() -> None:
    """A bound may be the longest time that there is."""
    left = pa.table({"k": [1, 2], "t": pa.array([10, 20], pa.timestamp("us")), "a": [1, 2]})
    right = pa.table({"k": [1, 2], "t": pa.array([5, 30], pa.timestamp("us")), "b": [3, 4]})
    op = IntervalJoin(["k"], "t", "t", timedelta.min, "0 seconds").start("cpu")
    found = [*op.process(left=left).to_pylist(), *op.process(right=right).to_pylist(), *op.finish().to_pylist()]
    assert [(row["a"], row["b"]) for row in found] == [(1, 3)]


def test_no_row_ends_the_sides_of_a_join() -> None:
    largest = (1 << 63) - 1
    zero = BoundedOutOfOrderness("0 seconds")
    operator = WindowJoin(TumblingWindow("1 second"), ["k"], "t", "t", watermark=zero).start()
    side = pa.table({"k": [1], "t": pa.array([largest], pa.int64()).view(pa.timestamp("us"))})
    assert operator.process(left=side, right=side).num_rows == 0
    assert operator.watermark == largest - 1
    assert operator.process(left=side).num_rows == 0
    assert operator.metrics.rows_late == 0
    assert operator.finish().num_rows == 2


def test_a_late_left_row_of_a_left_join_is_counted_only() -> None:
    def side(name: str, *times: int) -> pa.Table:
        return pa.table({"k": [1] * len(times), name: pa.array(times, pa.timestamp("s"))})

    op = IntervalJoin(["k"], "a", "b", "0 seconds", "1 minute", "left").start()
    op.process(left=side("a", 1000), right=side("b", 1000))
    assert op.process(left=side("a", 500)).num_rows == 0
    assert op.metrics.rows_late == 1
    assert op.finish().num_rows == 0


LATE = [
    IntervalJoin(["k"], "t", "t", "0 seconds", "1 minute", "left"),
    WindowJoin(TumblingWindow("1 minute"), ["k"], "t", "t"),
    WindowJoin(SessionWindow("1 minute"), ["k"], "t", "t", how="cogroup"),
]


@pytest.mark.parametrize("join", LATE, ids=lambda join: f"{type(join).__name__} {getattr(join, 'window', '')}")
def test_late_rows_are_kept_as_they_came(join: Any) -> None:
    def side(key: int, *times: int | None) -> pa.Table:
        return pa.table({"t": pa.array(times, pa.timestamp("s")), "more": ["x"] * len(times), "k": [key] * len(times)})

    join = replace(join, collect_late=True)
    op = join.start()
    assert op.late_rows() == (pa.table({}), pa.table({}))
    op.process(left=side(1, 1000), right=side(1, 1000))
    op.process(left=side(2, 900, None, 500, 1001), right=side(3, 1002))
    empty = op.metrics.state_bytes
    op.process(right=side(4, 100))
    assert op.metrics.rows_late == 3
    assert op.metrics.state_bytes > empty
    with pytest.raises(SchemaError):
        op.process(left=side(5, 10), right=pa.table({"t": pa.array([1], pa.timestamp("s"))}))
    restored = join.restore(data := op.snapshot())
    for one in (op, restored):
        left, right = one.late_rows()
        assert left.to_pylist() == side(2, 900, 500).to_pylist()
        assert right.to_pylist() == side(4, 100).to_pylist()
        assert [late.num_rows for late in one.late_rows()] == [0, 0]
        assert one.late_rows()[0].schema == left.schema
    assert restored.metrics.state_bytes < empty + 1
    plain = replace(join, collect_late=False).restore(data)
    assert plain.finish().equals(op.finish())
    with pytest.raises(SpecificationError, match="collect_late=True"):
        plain.late_rows()


def test_no_late_rows_have_the_types_of_the_batch() -> None:
    """Those that late rows have: dictionaries stay, and views become values."""
    join = replace(LATE[1], collect_late=True)

    def side(*times: int) -> pa.Table:
        key, text = (pa.array([word] * len(times), pa.string_view()) for word in ("a", "b"))
        columns = {"k": key.cast(pa.string()).dictionary_encode(), "t": pa.array(times, pa.timestamp("s")), "v": text}
        return pa.table(columns).replace_schema_metadata({"from": "here"})

    given = side().schema
    kept = given.set(2, pa.field("v", pa.string()))
    op = join.start(left_schema=given)
    assert [late.schema for late in op.late_rows()] == [kept, pa.schema([])]
    op.process(right=side(1000).select(["v", "t", "k"]))
    op = join.restore(op.snapshot())
    none = op.late_rows()
    assert [late.schema.names for late in none] == [["k", "t", "v"], ["v", "t", "k"]]
    op.process(left=side(1000, 2000), right=side(2000))
    op = join.restore(op.snapshot())
    none = op.late_rows()
    assert [late.num_rows for late in none] == [0, 0]
    op.process(left=side(1), right=side(2))
    for before, late in zip(none, op.late_rows(), strict=True):
        assert late.num_rows == 1
        assert before.schema.equals(late.schema, check_metadata=True)
        assert late.schema == kept


@pytest.mark.parametrize("how", ["semi", "anti"])
@pytest.mark.parametrize("spec", LATE)
def test_a_snapshot_may_have_columns_of_rows_that_are_not_given_out(
    monkeypatch: pytest.MonkeyPatch, spec: Any, how: Any
) -> None:
    """As builds wrote it that kept them."""
    spec = replace(spec, how=how)
    sides = {"left": table([("a", 1, "l0"), ("b", 2, "l1")], LEFT), "right": table([("a", 1, "r0")], RIGHT)}
    found = []
    for kept in (False, True):
        with monkeypatch.context() as patch:
            if kept:
                patch.setattr(JoinPlan, "keeps_values", lambda plan, number: True)
            op = spec.start()
            op.process(**sides)
            data = op.snapshot()
        op = spec.restore(data)
        found.append(pa.concat_tables([op.process(**sides), op.finish()]).to_pydict())
    assert found[0] == found[1]
    assert found[0]["l"]


def test_a_row_that_waits_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though windows close with every batch, and more rows wait than may."""
    put_in_runs: list[int] = []

    def counted(parts: Sequence[WaitingRows]) -> RowRun:
        put_in_runs.append(sum(map(len, parts)))
        return run_of(parts)

    monkeypatch.setattr("gpuwin.joins.side.WAITING_ROWS", 50)
    monkeypatch.setattr("gpuwin.joins.side.run_of", counted)
    late = BoundedOutOfOrderness("20 seconds")
    op = WindowJoin(TumblingWindow("1 second"), ["k"], "t", "t", "semi", watermark=late).start()
    pairs = 0
    for second in range(100):
        rows = pa.table({"k": range(9), "t": pa.array([second] * 9, pa.timestamp("s"))})
        pairs += op.process(rows, rows).num_rows
    assert pairs == 79 * 9
    assert 100 < sum(put_in_runs) <= op.metrics.rows_in


@pytest.mark.parametrize("how", ["inner", "full", "semi"])
@pytest.mark.parametrize("join", [*LATE[:2], HashJoin(["k"])])
def test_pairs_whose_texts_are_too_long_for_one_batch(monkeypatch: pytest.MonkeyPatch, join: Any, how: Any) -> None:
    """One text of a row that meets many is given out many times: more than 2 GiB have no room in a column."""
    left = table([(key, 1, key * 9) for key in "abc"], LEFT)
    right = table([(key, 1, f"{key}{i}") for key in "acd" for i in range(40)], RIGHT)
    found, batches = [], []
    for most in (None, 500):
        with monkeypatch.context() as patch:
            if most is not None:
                patch.setattr("gpuwin.joins.side.TEXT_BYTES", most)
            op = replace(join, how=how).start()
            rows = pa.concat_tables([op.process(left=left, right=right), op.finish()])
        found.append(rows.to_pylist())
        batches.append(rows["l"].num_chunks)
        assert most is None or all(chunk.get_total_buffer_size() <= most for chunk in rows["l"].chunks)
    assert found[0] == found[1]
    assert how == "semi" or batches[0] < batches[1]


@pytest.mark.parametrize("join", [LATE[1], HashJoin(["k"])])
def test_groups_whose_texts_are_too_long_for_one_batch(monkeypatch: pytest.MonkeyPatch, join: Any) -> None:
    left = table([(key, 1, f"{key}{i}" * 9) for key in "abc" for i in range(5)], LEFT)
    right = table([(key, 1, f"{key}{i}") for key in "acd" for i in range(4)], RIGHT)
    join, found = replace(join, how="cogroup"), []
    for most in (None, 200, 40):
        with monkeypatch.context() as patch:
            if most is not None:
                patch.setattr("gpuwin.joins.side.TEXT_BYTES", most)
            op = join.start()
            op.process(left=left, right=right)
            if most == 40:
                before = op.snapshot()
                with pytest.raises(LimitExceeded, match="more than 2 GiB of text"):
                    op.finish()
                assert op.snapshot() == before
            else:
                rows = op.finish()
                found.append(rows.to_pylist())
                assert rows["l"].num_chunks == (1 if most is None else 3)
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_late_rows_count_for_the_limit() -> None:
    rows = pa.table({"k": [1], "t": pa.array([1000], pa.timestamp("s"))})
    late = pa.table({"k": [1] * 5000, "t": pa.array([1] * 5000, pa.timestamp("s"))})
    op = replace(LATE[1], collect_late=True, limits=Limits(max_state_bytes=50_000)).start()
    op.process(left=rows, right=rows)
    with pytest.raises(LimitExceeded):
        op.process(left=late)
    assert [one.num_rows for one in op.late_rows()] == [0, 0]
    assert op.process(left=late.slice(0, 10)).num_rows == 0
    assert op.late_rows()[0].num_rows == 10


def test_left_rows_alone_come_once_and_as_soon_as_it_is_certain() -> None:
    def side(name: str, *times: int) -> pa.Table:
        return pa.table({"k": pa.array([1] * len(times), pa.int64()), name: pa.array(times, pa.timestamp("s"))})

    def seconds(found: pa.Table) -> list[int]:
        assert found.column_names == ["k", "a"]
        return found["a"].cast(pa.int64()).to_pylist()

    semi = IntervalJoin(["k"], "a", "b", "0 seconds", "1 minute", "semi", watermark=BoundedOutOfOrderness("1 hour"))
    anti = replace(semi, how="anti")
    schemas = {"left_schema": side("a").schema, "right_schema": side("b").schema}
    found, alone = semi.start(**schemas), anti.start(**schemas)
    for op, wanted in ((found, [[], [1000], [], [1010]]), (alone, [[], [], [], []])):
        steps = [{"left": side("a", 1000, 1010, 1500)}, {"right": side("b", 1005, 1006)}, {"right": side("b", 1007)}]
        assert [seconds(op.process(**step)) for step in [*steps, {"right": side("b", 1030)}]] == wanted
    found, alone = semi.restore(found.snapshot()), anti.restore(alone.snapshot())
    assert seconds(found.process(left=side("a", 1020), right=side("b", 1031))) == [1020]
    assert seconds(found.finish()) == []
    assert seconds(alone.advance_watermark(1_600_000_000)) == [1500]
    with pytest.raises(SpecificationError, match="inner, left, right, full, semi, anti, not 'cogroup'"):
        replace(semi, how="cogroup")
