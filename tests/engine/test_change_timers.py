"""Timers of `OnChange`: the pending ones are kept in order, and new ones are put in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwin as gw
from gpuwin.engines import changes

Pair = tuple[int, int]

FAR = st.sampled_from([-(1 << 62), -1, 0, 1, 1 << 62])
PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(-4, 4) | FAR), max_size=30)


def arrays(pairs: list[Pair]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


def plain_distinct(code: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return arrays(sorted(set(zip(code.tolist(), window.tolist(), strict=True))))


def plain_places(code: np.ndarray, window: np.ndarray, *wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    have = list(zip(code.tolist(), window.tolist(), strict=True))
    asked = list(zip(*(column.tolist() for column in wanted), strict=True))
    place = [sum(pair < one for pair in have) for one in asked]
    return np.array(place, np.int64), np.array([one in have for one in asked], bool)


@given(PAIRS, PAIRS)
@settings(deadline=None)
def test_pairs_are_found_where_a_plain_search_finds_them(have: list[Pair], wanted: list[Pair]) -> None:
    ordered = changes._distinct(*arrays(have))
    for ours, plain in zip(ordered, plain_distinct(*arrays(have)), strict=True):
        np.testing.assert_array_equal(ours, plain)
    found = changes._places(*ordered, *arrays(wanted))
    for ours, plain in zip(found, plain_places(*ordered, *arrays(wanted)), strict=True):
        np.testing.assert_array_equal(ours, plain)


def spec(size: int, slide: int) -> gw.WindowedAggregation:
    return gw.WindowedAggregation(
        window=gw.SlidingWindow(f"{size} seconds", f"{slide} seconds"),
        keys=["k"],
        time="t",
        aggregates={"n": gw.count(), "all": gw.collect_list("v")},
        watermark=gw.BoundedOutOfOrderness("3 seconds"),
        emit=gw.OnChange(),
        semantics=gw.Semantics.REDUCTION,
    )


def batches_of(seed: int) -> list[pa.Table]:
    """Batches of few and many keys. The watermark stands, goes on, and jumps over windows."""
    some = np.random.default_rng(seed)
    at, batches = 0, []
    for step in (0, 0, 1, 5, 0, 40, 2, 300, 1, 1):
        n, at = int(some.integers(0, 40)), at + step
        time = at + some.integers(-9, 4, n)
        keys = some.integers(0, [2, 30, 200][int(some.integers(3))], n)
        batches.append(pa.table({"k": keys, "t": pa.array(time, pa.timestamp("s")), "v": some.integers(0, 3, n)}))
    return batches


def told(windowed: gw.WindowedAggregation, batches: list[pa.Table]) -> list[Any]:
    op, tables = windowed.start(), []
    for number, batch in enumerate(batches):
        tables.append(op.process(batch))
        if number % 4 == 3:
            op = windowed.restore(op.snapshot())
        tables.append(op.branch().finish())
    return [*tables, op.finish()]


@pytest.mark.parametrize(("size", "slide"), [(10, 10), (10, 2), (12, 5)])
@pytest.mark.parametrize("seed", range(4))
def test_results_are_those_of_timers_sorted_in_each_batch(
    size: int, slide: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = told(spec(size, slide), batches_of(seed))
    monkeypatch.setattr(changes, "_distinct", plain_distinct)
    monkeypatch.setattr(changes, "_places", plain_places)
    plain = told(spec(size, slide), batches_of(seed))
    assert ours == plain
    assert sum(len(table) for table in ours) > 0


def test_a_batch_sorts_none_of_the_timers_that_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, sorted_ = changes._distinct, list[int]()

    def counted(code: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sorted_.append(len(code))
        return sound(code, window)

    monkeypatch.setattr(changes, "_distinct", counted)
    op = spec(10, 10).start()
    for keys in (range(500), range(7)):
        op.process(pa.table({"k": list(keys), "t": pa.array([0] * len(keys), pa.timestamp("s")), "v": list(keys)}))
    assert sorted_ == [500, 7]
