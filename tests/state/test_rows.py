"""Raw rows and the holistic aggregates, against plain Python over lists."""

from __future__ import annotations

import decimal
import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin.state.rows import holistic, row_state
from gpuwin.state.rows.row_state import RowState
from gpuwin.state.rows.slices import RowSlices
from gpuwin.state.rows.waiting_rows import WaitingRows

FAR = np.iinfo(np.int64).max
Row = tuple[int, int, Any]  # code, time, value


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def state_of(
    rows: list[Row], type_: pa.DataType, splits: list[int] | None = None, sorted_before: list[int] | None = None
) -> RowState:
    """`sorted_before`: the rows wait, and after each split those before one of these times do not wait any more."""
    state = RowState.empty([type_])
    befores = iter(sorted_before or [])
    edges = [0, *sorted(splits or []), len(rows)]
    for lo, hi in itertools.pairwise(edges):
        part = rows[lo:hi]
        code = np.array([r[0] for r in part], np.int32)
        values = [pa.array([r[2] for r in part], type_)]
        time = i64(*(r[1] for r in part))
        state = state.add(code, time, np.arange(lo, hi), values, waits=sorted_before is not None)
        time[:] = 0  # what a caller does with its memory afterwards is its own affair
        state = state.in_runs(next(befores, -FAR))
    return state


def select(state: RowState, windows: list[tuple[int, int, int]], since: list[int] | None = None) -> RowSlices:
    code = np.array([w[0] for w in windows], np.int32)
    return state.select(
        code, i64(*(w[1] for w in windows)), i64(*(w[2] for w in windows)), None if since is None else i64(*since)
    )


def of_window(rows: list[Row], window: tuple[int, int, int]) -> list[Any]:
    """Values in order of arrival."""
    c, lo, hi = window
    return [v for (k, t, v) in rows if k == c and lo <= t and (t < hi or hi == FAR) and v is not None]


def in_time_order(rows: list[Row], window: tuple[int, int, int]) -> list[Any]:
    c, lo, hi = window
    inside = [(t, v) for (k, t, v) in rows if k == c and v is not None and lo <= t and (t < hi or hi == FAR)]
    return [v for _, v in sorted(inside, key=lambda pair: pair[0])]


def sort_key(v: Any) -> Any:
    return (1, 0) if isinstance(v, float) and math.isnan(v) else (0, v)


def plain_quantile(values: list[Any], q: float) -> float | None:
    if not values:
        return None
    v = sorted((float(x) for x in values), key=sort_key)
    at = q * (len(v) - 1)
    low = math.floor(at)
    return v[low] if at == low else (1.0 - (at - low)) * v[low] + (at - low) * v[low + 1]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=1e-12)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def canonical(v: Any) -> Any:
    if isinstance(v, float):
        return "nan" if math.isnan(v) else v + 0.0
    return v


def firsts(values: list[Any]) -> list[Any]:
    seen: dict[Any, Any] = {}
    for v in values:
        seen.setdefault(canonical(v), v)
    return list(seen.values())


def assert_quantiles(found: pa.Array, wanted: list[list[Any]], q: float) -> None:
    """Quantiles to the last places of what they lie between: the two parts of 0.0 need not cancel, where the compiler
    multiplies and adds in one step.
    """
    assert len(found) == len(wanted)
    for got, values in zip(found.to_pylist(), wanted, strict=True):
        want = plain_quantile(values, q)
        finite = (abs(float(v)) for v in values if math.isfinite(v))
        assert same(got, want) or abs(got - want) <= 4e-16 * max(finite, default=0.0), (got, want)


def check_all(rows: list[Row], windows: list[tuple[int, int, int]], slices: RowSlices, numeric: bool) -> None:
    wanted = [of_window(rows, w) for w in windows]
    timed = [in_time_order(rows, w) for w in windows]
    checks = [
        (holistic.collect_list(slices, 0, "arrival"), wanted),
        (holistic.collect_list(slices, 0, "time"), timed),
        (holistic.collect_set(slices, 0, "arrival"), [firsts(v) for v in wanted]),
        (holistic.collect_set(slices, 0, "time"), [firsts(v) for v in timed]),
        (holistic.count_distinct(slices, 0), [len(firsts(v)) for v in wanted]),
        (holistic.approx_count_distinct(slices, 0, 0.05), [len(firsts(v)) for v in wanted]),
        (holistic.top_k(slices, 0, 3), [sorted(v, key=sort_key, reverse=True)[:3] for v in wanted]),
        (
            holistic.approx_quantile(slices, 0, 0.3, 100),
            [sorted(v, key=sort_key)[max(math.ceil(0.3 * len(v)) - 1, 0)] if v else None for v in wanted],
        ),
    ]
    if numeric:
        fractions = (0.9, 0.0, 0.25, 1.0, 0.5, 0.25)
        for q, found in zip(fractions, holistic.quantiles(slices, 0, fractions), strict=True):
            assert_quantiles(found, wanted, q)
        assert_quantiles(holistic.quantiles(slices, 0, [0.5])[0], wanted, 0.5)
    for found, expected in checks:
        assert len(found) == len(windows)
        for got, want in zip(found.to_pylist(), expected, strict=True):
            assert same(got, want), (got, want)
    for got, values in zip(holistic.histogram(slices, 0).to_pylist(), wanted, strict=True):
        assert {canonical(k): n for k, n in got} == Counter(canonical(v) for v in values)
        keys = [k for k, _ in got]
        assert same(keys, sorted(keys, key=sort_key))


VALUES = {
    "int64": (pa.int64(), st.integers(-5, 5) | st.sampled_from([2**63 - 1, -(2**63)]), True),
    "float64": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, -1.5, math.nan, math.inf, 3.0]), True),
    "uint64": (pa.uint64(), st.integers(0, 4) | st.just(2**64 - 1), True),
    "string": (pa.string(), st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600"]), False),
    "date": (pa.date32(), st.dates(), False),
    "decimal": (pa.decimal128(9, 2), st.integers(-300, 300).map(lambda n: decimal.Decimal(n) / 100), True),
    "bool": (pa.bool_(), st.booleans(), False),
}


@pytest.mark.parametrize("kind", VALUES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_aggregate_of_every_window(kind: str, data: st.DataObject) -> None:
    type_, value, numeric = VALUES[kind]
    rows = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(-20, 20), value | st.none()), max_size=40))
    splits = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    bounds = st.integers(-22, 22)
    windows = data.draw(
        st.lists(st.tuples(st.integers(0, 3), bounds, bounds | st.just(FAR)), max_size=8).map(
            lambda ws: [(c, lo, max(lo, hi)) for c, lo, hi in ws]
        )
    )
    if data.draw(st.booleans()):  # windows that overlap as sliding ones do
        windows += [(c, k, k + 15) for c in (0, 1) for k in range(-30, 20, 2)]
    sorted_before = data.draw(st.none() | st.lists(st.integers(-22, 22) | st.just(FAR), max_size=5))
    state = state_of(rows, type_, splits, sorted_before)
    check_all(rows, windows, select(state, windows), numeric)


def test_sliding_and_listing_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    rows = [(int(c), int(t), int(v)) for c, t, v in rng.integers(0, 50, (3000, 3))]
    slices = select(state_of(rows, pa.int64(), [1000, 1500]), [(c, k, k + 20) for c in range(50) for k in range(40)])
    found = []
    for limit in (0, 10**9):
        monkeypatch.setattr(holistic, "_TOP_FROM", limit)
        monkeypatch.setattr(holistic, "_ORDER_FROM", limit)
        found.append(
            [holistic.quantiles(slices, 0, [0.5])[0], holistic.count_distinct(slices, 0), holistic.top_k(slices, 0, 4)]
        )
    assert found[0] == found[1]


def test_rows_that_wait_become_a_run_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_state, "WAITING_ROWS", 10)
    monkeypatch.setattr(row_state, "WAITING_PARTS", 4)
    state = RowState.empty([pa.int64()])
    sizes = []
    for n, size in enumerate([4, 6, 1, 1, 1, 1, 1, 1]):
        at = np.full(size, n)
        state = state.add(np.zeros(size, np.int32), at, at, [pa.array(at)], waits=True)
        sizes.append(sum(map(len, state.waiting)))
    assert state.cells == 16
    assert sizes == [4, 10, 0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_rows_that_wait_keep_no_more_than_themselves(type_: pa.DataType) -> None:
    """A batch may be a few rows of much memory."""
    column = pa.array(["x" * 1000, "y" * 1000] * 5000).cast(type_)
    state = RowState.empty([type_])
    state = state.add(np.zeros(2, np.int32), i64(1, 2), i64(0, 1), [column.slice(7, 2)], waits=True)
    assert state.nbytes < 4000
    assert sum(b.size for b in state.waiting[0].values[0].buffers() if b is not None) < 4000
    slices = select(state, [(0, 0, 5)])
    assert holistic.collect_list(slices, 0).to_pylist() == [["y" * 1000, "x" * 1000]]


def test_many_rows_by_all_threads() -> None:
    rng = np.random.default_rng(6)
    n, codes = 300_000, 700
    code, time = rng.integers(0, codes, n).astype(np.int32), np.sort(rng.integers(0, 4000, n))
    value = rng.choice(np.array([*range(50), math.inf, -math.inf, math.nan]), n)
    valid = rng.random(n) > 0.1
    state = RowState.empty([pa.float64()]).add(code, time, np.arange(n), [pa.array(value, mask=~valid)], waits=True)
    windows = [(c, k, k + 1000) for k in range(0, 4000, 1000) for c in range(codes)]
    slices = select(state.in_runs(), windows)
    assert len(slices.code) == n  # all of the run, as it lies there
    of: dict[tuple[int, int], list[float]] = {}
    for c, t, v in zip(code[valid].tolist(), time[valid].tolist(), value[valid].tolist(), strict=True):
        of.setdefault((c, t // 1000), []).append(v)
    wanted = [sorted(of[c, k // 1000], key=sort_key) for c, k, _ in windows]
    assert holistic.count_distinct(slices, 0).to_pylist() == [len(firsts(v)) for v in wanted]
    assert same(holistic.top_k(slices, 0, 9).to_pylist(), [v[:-10:-1] for v in wanted])
    fractions = (0.98, 0.5, 0.0, 0.01, 1.0, 0.5)
    for q, array in zip(fractions, holistic.quantiles(slices, 0, fractions), strict=True):
        assert same(array.to_pylist(), [plain_quantile(v, q) for v in wanted])


def test_since_leaves_out_what_was_emitted_before() -> None:
    rows = [(0, t, t) for t in range(10)]
    state = state_of(rows, pa.int64(), [5])
    slices = select(state, [(0, 0, 8), (0, 0, 8), (0, 4, 20)], since=[0, 6, 6])
    assert holistic.collect_list(slices, 0).to_pylist() == [[0, 1, 2, 3, 4, 5, 6, 7], [6, 7], [6, 7, 8, 9]]
    assert holistic.count_distinct(slices, 0).to_pylist() == [8, 2, 4]


@pytest.mark.parametrize("waits", [False, True])
def test_evicted_and_dropped_rows_are_gone_and_free_their_memory(waits: bool) -> None:
    rng = np.random.default_rng(3)
    state = RowState.empty([pa.int64()])
    kept: list[tuple[int, int, int]] = []
    for batch in range(60):
        code = rng.integers(0, 5, 200).astype(np.int32)
        time = rng.integers(batch * 10, batch * 10 + 30, 200)
        seq = np.arange(batch * 200, batch * 200 + 200)
        state = state.add(code, time, seq, [pa.array(seq)], waits=waits)
        kept += list(zip(code.tolist(), time.tolist(), seq.tolist(), strict=True))
        state = state.in_runs(batch * 10 - 20).evict(batch * 10 - 50)
        kept = [r for r in kept if r[1] >= batch * 10 - 50]
        if batch % 3 == 0:
            state = state.evict_windows(
                np.array([2, 2], np.int32), i64(batch * 10 - 40, batch * 10), i64(batch * 10 - 20, batch * 10 + 5)
            )
            kept = [
                r
                for r in kept
                if r[0] != 2 or not (batch * 10 - 40 <= r[1] < batch * 10 - 20 or batch * 10 <= r[1] < batch * 10 + 5)
            ]
        slices = select(state, [(c, -1000, FAR) for c in range(5)])
        got = [sorted(v) for v in holistic.collect_list(slices, 0).to_pylist()]
        assert got == [sorted(r[2] for r in kept if r[0] == c) for c in range(5)]
    assert state.cells < 4 * len(kept)
    assert state.nbytes < 100 * state.cells


def test_a_failed_or_later_batch_leaves_the_old_state_alone() -> None:
    old = state_of([(0, 1, 1), (0, 5, 5)], pa.int64())
    new = old.add(np.array([0], np.int32), i64(3), i64(2), [pa.array([3])]).evict_windows(
        np.array([0], np.int32), i64(5), i64(6)
    )
    assert holistic.collect_list(select(old, [(0, 0, 10)]), 0).to_pylist() == [[1, 5]]
    assert holistic.collect_list(select(new, [(0, 0, 10)]), 0).to_pylist() == [[1, 3]]


def test_nested_values_have_equality_but_no_order() -> None:
    rows = [(0, 0, [1, 2]), (0, 1, None), (0, 2, [1, 2]), (0, 3, [])]
    slices = select(state_of(rows, pa.list_(pa.int64())), [(0, 0, 9), (1, 0, 9)])
    assert holistic.collect_list(slices, 0).to_pylist() == [[[1, 2], [1, 2], []], []]
    assert holistic.collect_set(slices, 0).to_pylist() == [[[1, 2], []], []]
    assert holistic.count_distinct(slices, 0).to_pylist() == [2, 0]
    with pytest.raises(TypeError, match="no order"):
        holistic.top_k(slices, 0, 2)


def test_types_come_back_as_they_went_in() -> None:
    dictionary = pa.dictionary(pa.int8(), pa.string())
    state = RowState.empty([pa.string(), pa.binary(), dictionary])
    arrays = [pa.array(["a", None]), pa.array([b"x", b"y"]), pa.array(["p", "q"]).cast(dictionary)]
    slices = state.add(np.zeros(2, np.int32), i64(1, 2), i64(0, 1), arrays).select(
        np.zeros(1, np.int32), i64(0), i64(9)
    )
    assert [v.type for v in slices.values] == [pa.string(), pa.binary(), pa.string()]
    assert holistic.collect_list(slices, 0).type == pa.list_(pa.string())
    assert holistic.histogram(slices, 1).type == pa.map_(pa.binary(), pa.int64())


@pytest.mark.parametrize("sorted_before", [None, [3, 8], []])
def test_a_state_survives_arrow_and_new_codes(sorted_before: list[int] | None) -> None:
    rows = [(c, t, f"{c}.{t}") for c in (1, 3, 7) for t in range(20)]
    state = (
        state_of(rows, pa.string(), [10, 30, 31], sorted_before)
        .evict(5)
        .evict_windows(np.array([3], np.int32), i64(7), i64(9))
    )
    back = RowState.from_arrow([pa.string()], state.to_arrow())
    windows = [(c, -5, FAR) for c in (1, 3, 7)]
    lists = holistic.collect_list(select(state, windows), 0)
    assert holistic.collect_list(select(back, windows), 0) == lists
    assert back.used_codes().tolist() == [1, 3, 7]
    new = np.full(8, -1, np.int32)
    new[[1, 3, 7]] = [0, 1, 2]
    moved = (state if sorted_before == [] else back).recoded(new)
    assert holistic.collect_list(select(moved, [(c, -5, FAR) for c in range(3)]), 0) == lists
    assert sum(map(len, lists.to_pylist())) == 3 * 15 - 2
    with pytest.raises(ValueError, match="not a state of rows"):
        RowState.from_arrow([pa.int64()], state.to_arrow())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: holistic.quantiles(s, 0, [0.5, 1.5]), "between 0 and 1"),
        (lambda s: holistic.approx_quantile(s, 0, 0.5, 0), "accuracy must be positive"),
        (lambda s: holistic.approx_count_distinct(s, 0, 0.0), "rsd must be positive"),
        (lambda s: holistic.top_k(s, 0, 0), "positive k"),
    ],
)
def test_bad_arguments_are_named(call: Any, message: str) -> None:
    slices = select(state_of([(0, 0, 1)], pa.int64()), [(0, 0, 1)])
    with pytest.raises(ValueError, match=message):
        call(slices)


def test_waiting_rows_keep_little_more_memory_than_they_need() -> None:
    """However slowly they leave."""
    n = 1_000
    rows: WaitingRows | None = WaitingRows.of(
        np.zeros(n, np.int32), np.arange(n), np.arange(n), [pa.array(np.arange(n))], [pa.int64()]
    )
    for least in range(0, n, 40):
        assert rows is not None
        rows = rows.since(least)
        assert rows is not None
        assert rows.time.tolist() == rows.values[0].to_pylist() == list(range(least, n))
        values = rows.values[0].buffers()[1].size // 8
        assert len(rows) <= values <= 2 * len(rows)
        assert rows.nbytes == values * (4 + 8 + 8 + 8)
