"""Every aggregate over every type it takes, against a line of Python each: nulls, NaN, -0.0, decimals, extremes of
int64."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections import Counter
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw

D = Decimal
NAN = float("nan")
LARGEST, SMALLEST = 2**63 - 1, -(2**63)
DAY = dt.date(2024, 2, 29)


def batch(values: list[Any], type_: pa.DataType, by: list[Any] | None = None, by_type: Any = None) -> pa.Table:
    """Rows of one key in two windows of ten seconds; the second one has only nulls."""
    n = len(values)
    times = [*range(n), 10, 11]
    return pa.table(
        {
            "key": ["k"] * (n + 2),
            "time": pa.array(times, pa.timestamp("s")),
            "c": pa.array([*values, None, None], type_),
            "by": pa.array([*(by or range(n)), None, None], by_type or pa.int64()),
        }
    )


def results(aggregate: Any, rows: pa.Table, split: int) -> tuple[list[Any], pa.DataType]:
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("10 seconds"),
        keys=["key"],
        time="time",
        aggregates={"out": aggregate},
        watermark=gw.ExplicitWatermark(),
    )
    op = spec.start()
    tables = [op.process(rows.slice(0, split)), op.process(rows.slice(split)), op.finish()]
    out = pa.concat_tables(tables).sort_by("window_start")
    assert out.schema == op.output_schema
    return out["out"].to_pylist(), out.schema.field("out").type


def number_order(x: Any) -> Any:
    return (isinstance(x, float) and math.isnan(x), x)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12)
    return bool(a == b) and type(a) is type(b)


INTS = [3, None, -7, 3, 12]
FLOATS = [1.5, None, -0.0, 2.25, 1.5]
DECIMALS = [D("1.25"), None, D("-3.10"), D("1.25")]
TEXTS = ["b", None, "a", "ä", "b"]
EXACT = Callable[[list[Any]], Any]

CASES: list[tuple[str, Any, list[Any], pa.DataType, Any, pa.DataType]] = [
    ("count", gw.count("c"), INTS, pa.int32(), 4, pa.int64()),
    ("sum of int8", gw.sum("c"), [100, 100, 100], pa.int8(), 300, pa.int64()),
    ("sum of extremes", gw.sum("c"), [LARGEST, -1, 1, SMALLEST], pa.int64(), -1, pa.int64()),
    ("sum of uint32", gw.sum("c"), [2**32 - 1, 2**32 - 1], pa.uint32(), 2**33 - 2, pa.int64()),
    ("sum of floats", gw.sum("c"), FLOATS, pa.float32(), 5.25, pa.float64()),
    ("sum of NaN", gw.sum("c"), [1.0, NAN], pa.float64(), NAN, pa.float64()),
    ("sum of decimals", gw.sum("c"), DECIMALS, pa.decimal128(9, 2), D("-0.60"), pa.decimal128(38, 2)),
    (
        "sum of large decimals",
        gw.sum("c"),
        [D(10) ** 30] * 3,
        pa.decimal128(31, 0),
        3 * D(10) ** 30,
        pa.decimal128(38, 0),
    ),
    ("sum of durations", gw.sum("c"), [dt.timedelta(1)] * 3, pa.duration("us"), dt.timedelta(3), pa.duration("us")),
    ("mean of ints", gw.mean("c"), INTS, pa.int16(), 2.75, pa.float64()),
    ("mean beyond int64", gw.mean("c"), [LARGEST, LARGEST], pa.int64(), float(LARGEST), pa.float64()),
    ("mean of uint64", gw.mean("c"), [2**64 - 1, 1], pa.uint64(), float(2**63), pa.float64()),
    (
        "mean of decimals",
        gw.mean("c"),
        [D("1.00"), D("1.00"), D("0.01")],
        pa.decimal128(9, 2),
        D("0.670000"),
        pa.decimal128(13, 6),
    ),
    ("variance", gw.var("c"), INTS, pa.int64(), statistics.variance([3, -7, 3, 12]), pa.float64()),
    (
        "variance of a population",
        gw.var("c", 0),
        INTS,
        pa.int64(),
        statistics.pvariance([3.0, -7, 3, 12]),
        pa.float64(),
    ),
    ("deviation", gw.std("c"), FLOATS, pa.float64(), statistics.stdev([1.5, -0.0, 2.25, 1.5]), pa.float64()),
    ("deviation of one", gw.std("c"), [5.0], pa.float64(), None, pa.float64()),
    ("smallest with NaN", gw.min("c"), [NAN, 2.0, None], pa.float64(), 2.0, pa.float64()),
    ("largest with NaN", gw.max("c"), [NAN, 2.0, math.inf], pa.float64(), NAN, pa.float64()),
    ("smallest date", gw.min("c"), [DAY, dt.date(1969, 1, 1)], pa.date32(), dt.date(1969, 1, 1), pa.date32()),
    ("largest time", gw.max("c"), [dt.time(1), dt.time(2)], pa.time64("us"), dt.time(2), pa.time64("us")),
    ("largest uint64", gw.max("c"), [2**64 - 1, 5], pa.uint64(), 2**64 - 1, pa.uint64()),
    ("smallest decimal", gw.min("c"), DECIMALS, pa.decimal128(9, 2), D("-3.10"), pa.decimal128(9, 2)),
    ("largest text by bytes", gw.max("c"), TEXTS, pa.string(), "ä", pa.string()),
    ("smallest binary", gw.min("c"), [b"\xff", b"", None], pa.binary(), b"", pa.binary()),
    ("largest binary of one size", gw.max("c"), [b"ab", None, b"\xff\0"], pa.binary(2), b"\xff\0", pa.binary(2)),
    ("variance of infinity", gw.var("c"), [1.5, math.inf, -math.inf], pa.float64(), NAN, pa.float64()),
    ("smallest boolean", gw.min("c"), [True, False, None], pa.bool_(), False, pa.bool_()),
    ("first", gw.first("c"), [None, *TEXTS], pa.string(), "b", pa.string()),
    ("last", gw.last("c"), INTS, pa.int8(), 12, pa.int8()),
    ("last decimal", gw.last("c"), DECIMALS, pa.decimal128(9, 2), D("1.25"), pa.decimal128(9, 2)),
    ("any", gw.any("c"), [False, None, True], pa.bool_(), True, pa.bool_()),
    ("all", gw.all("c"), [False, None, True], pa.bool_(), False, pa.bool_()),
    ("median", gw.median("c"), INTS, pa.int64(), 3.0, pa.float64()),
    ("quantile", gw.quantile("c", 0.25), INTS, pa.int64(), 0.5, pa.float64()),
    ("approximate quantile", gw.approx_quantile("c", 0.5), INTS, pa.int64(), 3, pa.int64()),
    ("distinct", gw.count_distinct("c"), [0.0, -0.0, NAN, NAN, None], pa.float64(), 2, pa.int64()),
    ("distinct, about", gw.approx_count_distinct("c"), TEXTS, pa.string(), 3, pa.int64()),
    ("list", gw.collect_list("c"), TEXTS, pa.string(), ["b", "a", "ä", "b"], pa.list_(pa.string())),
    ("set", gw.collect_set("c"), TEXTS, pa.string(), ["b", "a", "ä"], pa.list_(pa.string())),
    ("largest k", gw.top_k("c", 2), [1.0, NAN, 3.0], pa.float64(), [NAN, 3.0], pa.list_(pa.float64())),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case[0]) for case in CASES])
@pytest.mark.parametrize("split", [0, 2])
def test_aggregate(case: Any, split: int) -> None:
    _, aggregate, values, type_, expected, out_type = case
    found, found_type = results(aggregate, batch(values, type_), split)
    assert found_type == out_type
    assert same(found[0], expected), (found[0], expected)
    nothing: Any = None
    if aggregate.kind in ("count", "count_distinct", "approx_count_distinct"):
        nothing = 0
    if aggregate.kind in ("collect_list", "collect_set", "top_k"):
        nothing = []
    assert found[1] == nothing


def test_histogram() -> None:
    found, _ = results(gw.histogram("c"), batch(TEXTS, pa.string()), 1)
    assert dict(found[0]) == Counter(t for t in TEXTS if t is not None)


@pytest.mark.parametrize(
    "window", [gw.GlobalWindow(), gw.TumblingWindow("10 seconds"), gw.SessionWindow("5 seconds")], ids=repr
)
@pytest.mark.parametrize("order", ["arrival", "time"])
def test_a_histogram_of_nested_values_has_the_order_of_a_set(window: Any, order: Any) -> None:
    rows = pa.table(
        {
            "t": pa.array([3, 1, 1, 4], pa.timestamp("s")),
            "v": pa.array([[1], [2], None, [1]], pa.list_(pa.int64())),
            "text": ["b", "a", None, "b"],
        }
    )
    spec = gw.WindowedAggregation(
        window=window,
        time="t",
        aggregates={"map": gw.histogram("v"), "set": gw.collect_set("v"), "texts": gw.histogram("text")},
        semantics=gw.Semantics(order=order),
    )
    (row,) = gw.aggregate(rows, spec).to_pylist()
    assert row["map"] == ([([1], 2), ([2], 1)] if order == "arrival" else [([2], 1), ([1], 2)])
    assert row["set"] == [value for value, _ in row["map"]]
    assert row["texts"] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("by", "by_type"),
    [
        ([5, 1, 9, 1, 9], pa.int32()),
        ([5.0, -math.inf, NAN, -math.inf, NAN], pa.float64()),
        ([D("5.0"), D("-1.5"), D("9.9"), D("-1.5"), D("9.9")], pa.decimal128(9, 1)),
        ([DAY, dt.date(1900, 1, 1), dt.date(2100, 1, 1), dt.date(1900, 1, 1), dt.date(2100, 1, 1)], pa.date32()),
    ],
)
def test_least_and_greatest_by_another_column(by: list[Any], by_type: pa.DataType) -> None:
    values = ["a", "b", "c", "d", "e"]
    assert results(gw.min_by("c", "by"), batch(values, pa.string(), by, by_type), 2)[0] == ["b", None]
    assert results(gw.max_by("c", "by"), batch(values, pa.string(), by, by_type), 2)[0] == ["e", None]
    assert results(gw.min_by("c", "by", 3), batch(values, pa.string(), by, by_type), 2)[0] == [["b", "d", "a"], []]
    assert results(gw.max_by("c", "by", 9), batch(values, pa.string(), by, by_type), 2)[0] == [list("ecadb"), []]


@pytest.mark.parametrize(
    "window",
    [gw.TumblingWindow("9 seconds"), gw.SlidingWindow("9 seconds", "2 seconds"), gw.SessionWindow("1 second")],
    ids=lambda window: type(window).__name__,
)
@pytest.mark.parametrize("emit", [gw.OnClose(), gw.EveryRow(), gw.Trigger(early=gw.EveryRows(5))], ids=repr)
def test_rows_with_the_largest_of_another_column(window: Any, emit: Any) -> None:
    """Those that the list of all rows has first, sorted in Python; a row is a struct, and goes through a snapshot."""
    rng = np.random.default_rng(3)
    count = 300
    rows = pa.table(
        {
            "t": pa.array(rng.integers(0, 60, count), pa.timestamp("s")),
            "k": rng.integers(0, 3, count),
            "row": [{"number": i} if rng.random() > 0.1 else None for i in range(count)],
            "by": [int(v) if rng.random() > 0.1 else None for v in rng.integers(0, 9, count)],
        }
    )
    rows = rows.append_column("both", pa.array([{"row": r["row"], "by": r["by"]} for r in rows.to_pylist()]))
    spec = gw.WindowedAggregation(
        window=window,
        keys=["k"],
        time="t",
        aggregates={
            "all": gw.collect_list("both"),
            "least": gw.min_by("row", "by", 3),
            "most": gw.max_by("row", "by", 3),
        },
        watermark=gw.BoundedOutOfOrderness("1 minute"),
        emit=emit,
        semantics=gw.Semantics(order="arrival"),
    )
    op = spec.start()
    tables = [op.process(rows.slice(0, 100))]
    op = spec.restore(op.snapshot())
    tables += [op.process(rows.slice(100)), op.finish()]
    found = pa.concat_tables(tables).to_pylist()
    assert len(found) > 20
    for row in found:
        ranked = [(r["by"], r["row"]["number"]) for r in row["all"] if r["by"] is not None and r["row"] is not None]
        ranked.sort()
        assert [r["number"] for r in row["least"]] == [number for _, number in ranked[:3]]
        assert [r["number"] for r in row["most"]] == [number for _, number in ranked[::-1][:3]]


def test_overflow_is_an_error_and_never_wraps() -> None:
    for values, type_ in (
        ([LARGEST, 1], pa.int64()),
        ([D(10) ** 37 * 9] * 2, pa.decimal128(38, 0)),
        ([2**64 - 1], pa.uint64()),
    ):
        with pytest.raises(gw.OverflowError, match=r"'(out|sum c|c)'.* float64") as raised:
            results(gw.sum("c"), batch(values, type_), 1)
        assert isinstance(raised.value, ArithmeticError)
    for digits in (36, 38):  # of the mean, and of the sum that it is made of
        with pytest.raises(gw.OverflowError, match=r"('out'|128 bits).* (to|as) float64"):
            results(gw.mean("c"), batch([D("9" * digits)] * 2, pa.decimal128(digits, 0)), 1)


@pytest.mark.parametrize(
    ("aggregate", "type_"),
    [
        (gw.sum("c"), pa.string()),
        (gw.mean("c"), pa.timestamp("us")),
        (gw.var("c"), pa.bool_()),
        (gw.any("c"), pa.int64()),
        (gw.min("c"), pa.list_(pa.int64())),
        (gw.median("c"), pa.string()),
        (gw.max_by("by", "c"), pa.string()),
    ],
)
def test_a_type_that_does_not_fit_is_refused(aggregate: Any, type_: pa.DataType) -> None:
    with pytest.raises(gw.SchemaError, match="aggregate 'out'"):
        results(aggregate, batch([None], type_), 1)


@pytest.mark.parametrize("aggregate", [gw.sum("c"), gw.mean("c"), gw.max("c"), gw.first("c"), gw.min_by("c", "by")])
def test_a_decimal_of_256_bits_is_to_be_cast(aggregate: Any) -> None:
    """Its digits may be few enough: the message says what it takes to go on."""
    with pytest.raises(gw.SchemaError, match=r"decimal256\(30, 3\); it takes .*: cast it to decimal128"):
        results(aggregate, batch([None], pa.decimal256(30, 3)), 1)


def test_rounding_of_decimal_means_is_half_up() -> None:
    for cents in ([1, 2], [-1, -2], [5] * 7 + [6]):
        values = [D(c).scaleb(-6) for c in cents]
        exact = (sum(values) / len(values)).quantize(D("1E-10"), ROUND_HALF_UP)
        assert results(gw.mean("c"), batch(values, pa.decimal128(12, 6)), 1)[0][0] == exact


@pytest.mark.parametrize("window", [gw.TumblingWindow("1 hour"), gw.SlidingWindow("1 hour", "1 minute")])
def test_quantiles_of_two_columns_between_others(window: Any) -> None:
    """All quantiles of a column are found at once, and each stands where it was asked for."""
    rng = np.random.default_rng(3)
    v, w = rng.random(200), rng.integers(0, 9, 200).astype(float)
    aggregates = {
        "v_90": gw.quantile("v", 0.9),
        "n": gw.count(),
        "w_half": gw.median("w"),
        "kinds": gw.count_distinct("w"),
        "v_half": gw.median("v"),
        "w_10": gw.quantile("w", 0.1),
        "v_10": gw.quantile("v", 0.1),
    }
    table = pa.table({"time": pa.array(np.zeros(200, np.int64)).view(pa.timestamp("us")), "v": v, "w": w})
    rows = gw.aggregate(table, gw.WindowedAggregation(window, time="time", aggregates=aggregates)).to_pylist()
    asked = {"v_90": (v, 0.9), "w_half": (w, 0.5), "v_half": (v, 0.5), "w_10": (w, 0.1), "v_10": (v, 0.1)}
    for row in rows:
        assert {name: row[name] for name in asked} == pytest.approx({n: np.quantile(*a) for n, a in asked.items()})
        assert (list(row)[-7:], row["n"], row["kinds"]) == (list(aggregates), 200, 9)
    assert len(rows) == (1 if isinstance(window, gw.TumblingWindow) else 60)


@pytest.mark.parametrize("type_", [pa.decimal32(5, 2), pa.decimal64(12, 2)])
def test_narrow_decimals_have_ranks(type_: pa.DataType) -> None:
    values = pa.array(["1.50", "-2.25", "1.50", None], pa.string()).cast(pa.decimal128(12, 2)).cast(type_)
    table = pa.table({"time": pa.array([1, 2, 3, 4], pa.timestamp("s")), "value": values})
    aggregates = {"middle": gw.median("value"), "n": gw.count_distinct("value"), "top": gw.top_k("value", 1)}
    views = gw.WindowedAggregation(gw.GlobalWindow(), time="time", aggregates=aggregates)
    (row,) = gw.aggregate(table, views).to_pylist()
    assert (row["middle"], row["n"], [str(v) for v in row["top"]]) == (1.5, 2, ["1.50"])


@pytest.mark.parametrize("aggregate", [gw.collect_list, gw.histogram, gw.count_distinct, gw.sum, gw.min])
def test_a_column_without_a_type_is_refused(aggregate: Any) -> None:
    table = pa.table({"time": pa.array([1], pa.timestamp("s")), "value": pa.nulls(1)})
    views = gw.WindowedAggregation(gw.GlobalWindow(), time="time", aggregates={"x": aggregate("value")})
    with pytest.raises(gw.SchemaError, match="which is null"):
        gw.aggregate(table, views)


def test_a_large_batch_counts_a_column_without_a_type() -> None:
    rows = 40_000  # which a kernel aggregates at once
    aggregates = {"all": gw.count(), "some": gw.count("value"), "pairs": gw.regr_count("value", "number")}
    spec = gw.WindowedAggregation(window=gw.TumblingWindow("1 minute"), time="time", aggregates=aggregates)
    op = spec.start()
    for size in (rows, 600):
        time = pa.array(np.zeros(size, np.int64)).view(pa.timestamp("us"))
        op.process(pa.table({"time": time, "value": pa.nulls(size), "number": np.zeros(size)}))
    (row,) = op.finish().to_pylist()
    assert (row["all"], row["some"], row["pairs"]) == (rows + 600, 0, 0)


UNION = pa.dense_union([pa.field("a", pa.int64()), pa.field("b", pa.string())])


@pytest.mark.parametrize("type_", [UNION, pa.list_(UNION), pa.struct([("x", UNION)]), pa.map_(pa.string(), UNION)])
def test_unions_are_not_compared(type_: pa.DataType) -> None:
    """They are refused before any row is taken, and lists of them are given out."""
    schema = pa.schema({"time": pa.timestamp("s"), "value": type_})
    for aggregate in (gw.count_distinct, gw.approx_count_distinct, gw.collect_set, gw.histogram):
        spec = gw.WindowedAggregation(gw.GlobalWindow(), time="time", aggregates={"x": aggregate("value")})
        with pytest.raises(gw.SchemaError, match="it takes values of any plain type but unions"):
            spec.start(schema=schema)
    listed = gw.WindowedAggregation(gw.GlobalWindow(), time="time", aggregates={"x": gw.collect_list("value")})
    assert listed.start(schema=schema).output_schema.field("x").type == pa.list_(type_)


def test_more_columns_than_a_word_has_bits() -> None:
    rng = np.random.default_rng(4)
    rows = 40_000  # which a kernel aggregates at once
    values = {f"v{k}": rng.integers(-9, 9, rows) for k in range(72)}
    gone = {name: rng.random(rows) < 0.2 for name in values}
    table = pa.table(
        {
            "ts": pa.array(np.zeros(rows, np.int64)).view(pa.timestamp("us")),
            "key": rng.integers(0, 5, rows),
            **{name: pa.array(column, mask=gone[name]) for name, column in values.items()},
        }
    )
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"),
        keys=["key"],
        time="ts",
        aggregates={f"sum_{v}": gw.sum(v) for v in values},  # nine kernels' worth of columns of one kind
    )
    found = gw.aggregate(table, spec)
    for row in found.to_pylist():
        own = table["key"].to_numpy() == row["key"]
        for name, column in values.items():
            some = column[own & ~gone[name]]
            assert row[f"sum_{name}"] == some.sum(), name


def test_columns_of_the_row_that_won_may_be_of_different_rows() -> None:
    picks = {"last": gw.last("c"), "most": gw.max_by("c", "p"), "p": gw.max("p"), "none": gw.max_by("c", "q")}
    times = pa.array([0, 1], pa.timestamp("s"))
    table = pa.table({"time": times, "p": [1, 2], "c": ["x", None], "q": pa.array([None, 2], pa.int64())})
    spec = gw.WindowedAggregation(window=gw.TumblingWindow("10 seconds"), time="time", aggregates=picks)
    (row,) = gw.aggregate(table, spec).select(list(picks)).to_pylist()
    assert row == {"last": "x", "most": "x", "p": 2, "none": None}
