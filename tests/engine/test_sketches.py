"""Approximate aggregates: how far they are off, how much they keep, and that few values are answered exactly, with
every window, trigger and accumulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Options, options, streams, table_of
from test_properties import EXAMPLES

import gpuwin as gw
from gpuwin.state.rows.sketches import AnySketch, Distinct, Ranks
from gpuwin.state.rows.slices import RowSlices
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.quantiles import merged

ALL_TYPES: list[tuple[pa.DataType, Callable[[np.ndarray], Any]]] = [
    (pa.int8(), lambda v: v % 100 - 50),
    (pa.uint64(), lambda v: v + 2**62),
    (pa.float32(), lambda v: (v - 50) / 4),
    (pa.float64(), lambda v: (v - 50) * 1e-3),
    (pa.date32(), lambda v: v),
    (pa.timestamp("ns", "UTC"), lambda v: v - 50),
    (pa.duration("s"), lambda v: v),
    (pa.bool_(), lambda v: v % 2 == 0),
    (pa.decimal128(9, 2), lambda v: v - 50),
    (pa.decimal128(38, 2), lambda v: v * 10**15),
    (pa.string(), lambda v: [f"text {k}" for k in v]),
    (pa.binary(2), lambda v: [f"{k:02}"[:2].encode() for k in v]),
    (pa.list_(pa.int64()), lambda v: [[int(k)] for k in v]),
]


def of_pieces(sketch: AnySketch, pieces: pa.Array, lo: Any, hi: Any, **more: Any) -> list[Any]:
    none = np.zeros(len(pieces), np.int64)
    slices = RowSlices(none.astype(np.int32), none, none, (pieces,), np.array(lo), np.array(hi))
    return list(sketch.finish(slices, 0, **more).to_pylist())


def merged_in(sketch: AnySketch, parts: list[np.ndarray]) -> pa.Array:
    """One piece, of which each part was added to the ones before."""
    whole = pa.array([], pa.large_binary())
    for part in parts:
        piece = sketch.merged(sketch.singles(pa.array(part)), np.array([0, len(part)]))
        whole = sketch.merged(pa.concat_arrays([whole, piece]), np.array([0, len(whole) + 1]))
    return whole


@pytest.mark.parametrize("rsd", [0.2, 0.05, 0.02])
def test_counts_are_off_by_what_was_asked(rsd: float) -> None:
    sketch, random = Distinct.of(rsd), np.random.default_rng(7)
    assert sketch is not None
    for n in (200, 3_000, 40_000):
        off = []
        for _ in range(30):
            values = random.integers(0, 1 << 60, n)
            piece = merged_in(sketch, [values[: n // 3], values[n // 4 :]])  # overlapping: a set knows no repeats
            assert piece.nbytes <= max(1 << sketch.precision, 256) + 32
            off.append(of_pieces(sketch, piece, [0], [1])[0] / len(set(values.tolist())) - 1)
        assert np.sqrt(np.mean(np.square(off))) < 1.35 * rsd  # thirty of them: three deviations of the deviation
        assert abs(np.mean(off)) < 3 * rsd / np.sqrt(30) + 0.001


def test_a_set_is_one_sketch_however_it_was_merged() -> None:
    random, sketch = np.random.default_rng(3), Distinct(9)
    for n in (5, 63, 64, 65, 66, 500, 5_000):
        values = random.integers(0, n, 3 * n)
        whole = merged_in(sketch, [values])
        for parts in (np.array_split(values, 7), [values[::-1]], [values[: n // 9], values, values]):
            assert merged_in(sketch, parts) == whole
        if n <= 64:
            assert of_pieces(sketch, whole, [0], [1]) == [len(set(values.tolist()))]


@pytest.mark.parametrize("accuracy", [10, 100, 1_000])
@pytest.mark.parametrize("order", ["random", "rising", "falling and rising"])
def test_ranks_are_off_by_less_than_was_asked(accuracy: int, order: str) -> None:
    n, sketch = 100_000, Ranks.of(pa.int64(), accuracy)
    values = np.random.default_rng(accuracy).permutation(n)
    if order != "random":
        values = np.sort(values) if order == "rising" else np.concatenate((np.arange(n)[::-2], np.arange(0, n, 2)))
    for parts in (1, 30):
        piece = merged_in(sketch, np.array_split(values, parts))
        assert piece.nbytes <= 8 * (6 * accuracy + 200)
        fractions = np.linspace(0, 1, 41)
        found = [of_pieces(sketch, piece, [0], [1], q=q)[0] for q in fractions]
        off = np.abs(np.array(found) + 1 - np.maximum(np.ceil(fractions * n), 1)) / n * accuracy
        assert off.max() < 1.0
        assert merged_in(sketch, np.array_split(values, parts)) == piece


@pytest.mark.parametrize("pieces", [2, 4, 8, 16])
def test_no_value_is_lost_where_many_sketches_become_one(pieces: int) -> None:
    """As after a restore, or in a session that others become. A level may give items up before the one below it."""
    draw = np.random.default_rng(pieces)

    def weight(words: np.ndarray) -> int:
        if len(words) < 2:
            return len(words)
        return sum(int(count) << level for level, count in enumerate(words[1 : 1 + words[0]]))

    def of(sketches: list[np.ndarray], k: int) -> np.ndarray:
        offsets = np.concatenate(([0], np.cumsum([len(sketch) for sketch in sketches]))).astype(np.int64)
        return merged(offsets, np.concatenate(sketches), np.array([0, len(sketches)]), k)[1]

    def sketch(n: int, k: int) -> np.ndarray:
        return merged(np.arange(n + 1), draw.integers(0, 10**6, n), np.array([0, n]), k)[1]

    for _ in range(400):
        k = int(draw.choice([20, 40, 200]))
        sizes = draw.choice([2, 5, 20, 100, 300, 1000, 5000], pieces)
        assert weight(of([sketch(int(n), k) for n in sizes], k)) == sizes.sum()


def test_few_values_of_each_pane_are_counted_exactly_however_many_windows_close() -> None:
    spec = gw.WindowedAggregation(
        window=gw.SlidingWindow("10 seconds", "1 second"),
        time="ts",
        aggregates={"n": gw.approx_count_distinct("v", 0.05)},
        watermark=gw.BoundedOutOfOrderness("0 seconds"),
    )
    seconds = np.repeat(np.arange(30), 60)
    rows = pa.table({"ts": pa.array(seconds * 1_000_000, pa.timestamp("us")), "v": np.arange(len(seconds))})

    def counts(step: int) -> list[int]:
        op = spec.start(device="cpu")
        found = [op.process(rows[at : at + step]) for at in range(0, len(rows), step)]
        return [n for table in [*found, op.finish()] for n in table["n"].to_pylist()]

    assert counts(60) == counts(len(rows))
    assert max(counts(60)) == 600


def test_windows_that_overlap_are_windows_by_themselves() -> None:
    """Sliding over pieces, some with registers and some without, or with levels, against one window at a time."""
    random = np.random.default_rng(5)
    sizes = random.integers(0, 12, 60) ** 3
    values = random.integers(0, 5_000, int(sizes.sum()))
    first = np.concatenate(([0], np.cumsum(sizes)))
    lo = np.sort(random.integers(0, 50, 80))
    hi = np.minimum(np.maximum.accumulate(lo + random.integers(0, 12, 80)), 60)
    shuffled = random.permutation(80)
    for sketch, more in ((Distinct(8), {}), (Ranks.of(pa.int64(), 20), {"q": 0.3})):
        pieces = sketch.merged(sketch.singles(pa.array(values)), first)
        each = [of_pieces(sketch, pieces, [a], [b], **more)[0] for a, b in zip(lo, hi, strict=True)]
        assert of_pieces(sketch, pieces, lo, hi, **more) == each
        assert of_pieces(sketch, pieces, lo[shuffled], hi[shuffled], **more) == [each[k] for k in shuffled]


@pytest.mark.parametrize(("type_", "make"), ALL_TYPES)
def test_every_type_is_exact_while_there_are_few(type_: pa.DataType, make: Callable[[np.ndarray], Any]) -> None:
    numbers = np.random.default_rng(11).integers(0, 100, 300)
    drawn = make(numbers)
    values = [None if k % 7 == 0 else v for k, v in enumerate(np.asarray(drawn).tolist() if len(drawn) else [])]
    if pa.types.is_decimal(type_):
        column = pa.array(values, pa.decimal128(38, 0)).cast(pa.decimal128(38, 2), safe=False).cast(type_)
    else:
        column = pa.array(values, type_)
    rows = pa.table({"time": pa.array(np.arange(300)).cast(pa.timestamp("s")), "c": column})
    ordered = {} if pa.types.is_nested(type_) else {"q": gw.approx_quantile("c", 0.4)}
    sketched = gw.WindowedAggregation(
        gw.TumblingWindow("60 seconds"), time="time", aggregates={"d": gw.approx_count_distinct("c"), **ordered}
    )
    exact = replace(sketched, aggregates={**sketched.aggregates, "all": gw.collect_list("c")})
    assert gw.aggregate(rows, sketched) == gw.aggregate(rows, exact).drop(["all"])


def test_zero_and_nan_are_one_value_each() -> None:
    values = pa.array([0.0, -0.0, float("nan"), -float("nan"), 1.0, None])
    assert of_pieces(Distinct(9), Distinct(9).singles(values), [0, 2, 5], [6, 4, 6]) == [3, 1, 0]
    ranks = Ranks.of(pa.float64(), 10)
    low, high = (of_pieces(ranks, ranks.singles(values), [0, 5], [6, 6], q=q) for q in (0.0, 1.0))
    assert low == [0.0, None]
    assert np.isnan(high[0])


APPROXIMATE = {"d": gw.approx_count_distinct("value"), "q": gw.approx_quantile("value", 0.5), "n": gw.count()}


@pytest.mark.parametrize("kind", ["panes", "by row", "firings", "sessions", "session firings", "changes", "complete"])
@settings(EXAMPLES, max_examples=15)
@given(data=st.data())
def test_few_values_are_exact_with_every_specification(kind: str, data: st.DataObject) -> None:
    """Beside `collect_list` the rows are kept, and the answers come from them."""
    chosen: Options = data.draw(options(kind))
    stream = data.draw(streams())
    restored = data.draw(st.booleans())
    sketched = replace(chosen.spec(), aggregates=APPROXIMATE)
    exact = replace(chosen.spec(), aggregates={**APPROXIMATE, "all": gw.collect_list("value")})
    op, other = (views.start(schema=table_of([]).schema) for views in (sketched, exact))
    for batch in stream:
        rows = table_of(batch, chosen.shape[1] if chosen.shape[0] == "gaps" else 1)
        found, wanted = op.process(rows), other.process(rows).drop(["all"])
        if kind != "changes":  # a list tells changes that the others do not
            assert found == wanted
        if restored:
            op = sketched.restore(op.snapshot())
    if kind != "changes":
        assert op.finish() == other.finish().drop(["all"])


def batches(keys: int = 3) -> list[pa.Table]:
    random = np.random.default_rng(2)
    out = []
    for k in range(12):
        time = np.sort(random.integers(k * 60, (k + 1) * 60, 20_000))
        value = random.integers(0, 1 << 40, 20_000)
        out.append(
            pa.table({"key": random.integers(0, keys, 20_000), "time": time, "value": value}).set_column(
                1, "time", pa.array(time).cast(pa.timestamp("s"))
            )
        )
    return out


MANY: dict[str, dict[str, Any]] = {
    "tumbling": {"window": gw.TumblingWindow("3 minutes")},
    "sliding": {"window": gw.SlidingWindow("5 minutes", "30 seconds")},
    "session": {"window": gw.SessionWindow("5 seconds")},
    "global, early": {"window": gw.GlobalWindow(), "emit": gw.Trigger(early=gw.EveryRows(10_000))},
    "session, early": {
        "window": gw.SessionWindow("5 seconds"),
        "emit": gw.Trigger(early=gw.EveryRows(10_000)),
        "semantics": gw.Semantics(count_trigger="batch"),
    },
}


@pytest.mark.parametrize("name", MANY)
def test_many_values_are_near_and_the_state_is_small(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "LOG_BATCH", 0)  # rows that wait to be aggregated are no smaller for sketches
    given_: dict[str, Any] = {"keys": ["key"], "time": "time", **MANY[name]}
    aggregates = {"d": gw.approx_count_distinct("value", 0.03), "q": gw.approx_quantile("value", 0.25, 200)}
    sketched = gw.WindowedAggregation(aggregates=aggregates, **given_)
    exact = gw.WindowedAggregation(aggregates={"n": gw.count(), "all": gw.collect_list("value")}, **given_)
    op, other, largest = sketched.start(), exact.start(), [0, 0]
    tables: list[tuple[pa.Table, pa.Table]] = []
    for k, rows in enumerate(batches()):
        tables.append((op.process(rows), other.process(rows)))
        largest = [max(a, b.metrics.state_bytes) for a, b in zip(largest, (op, other), strict=True)]
        if k == 5:
            op = sketched.restore(op.snapshot())
    tables.append((op.finish(), other.finish()))
    found, wanted = (pa.concat_tables(side) for side in zip(*tables, strict=True))
    assert found.num_rows == wanted.num_rows > 0
    assert found.select(["key", "window_start"]) == wanted.select(["key", "window_start"])
    assert largest[0] < largest[1] / 2.5
    off, ranks = [], []
    for d, q, n, every in zip(found["d"], found["q"], wanted["n"], wanted["all"].to_pylist(), strict=True):
        off.append(d.as_py() / len(set(every)) - 1)
        ranks.append(abs(np.searchsorted(np.sort(every), q.as_py()) / n.as_py() - 0.25) * 200)
    assert np.sqrt(np.mean(np.square(off))) < 0.06
    assert max(ranks) < 1.2


def test_an_update_costs_what_changed_and_not_the_sketch_of_every_key() -> None:
    """Cells of few values stay small: a million of them take little more than their values."""
    keys = np.arange(200_000)
    rows = pa.table({"key": keys, "time": pa.array(np.zeros(200_000, np.int64)).cast(pa.timestamp("s")), "value": keys})
    views = gw.WindowedAggregation(
        gw.TumblingWindow("1 minute"), ["key"], "time", {"d": gw.approx_count_distinct("value", 0.01)}
    )
    op = views.start()
    op.process(rows)
    keyed = gw.WindowedAggregation(gw.TumblingWindow("1 minute"), ["key"], "time", {"n": gw.count()}).start()
    keyed.process(rows)
    assert op.metrics.state_bytes - keyed.metrics.state_bytes < 40 * 200_000
