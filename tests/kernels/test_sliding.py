"""Kernels of overlapping windows over raw rows, against a look at each window by itself."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from gpuwin.state.rows import holistic
from gpuwin.state.rows.row_state import window_edges
from gpuwin.state.rows.slices import RowSlices
from gpuwin_kernels.cpu.slices import edges_of_windows, float_keys
from gpuwin_kernels.cpu.sliding_order import float_of_key

KEYS = 7


def slices_of(rng: np.random.Generator, rows: int, values: pa.Array, size: int, slide: int) -> RowSlices:
    """Rows of some keys, and every window of each key that holds one of them, in the order in which a state asks."""
    code = np.sort(rng.integers(0, KEYS, rows)).astype(np.int32)
    time = rng.integers(0, 1000, rows)
    order = np.lexsort((time, code))
    starts = np.arange(-size, 1000, slide)
    start, key = (a.ravel() for a in np.meshgrid(starts, np.arange(KEYS, dtype=np.int32), indexing="ij"))
    lo, hi = window_edges(code, time[order], key, start, start + size)
    return RowSlices(code, time[order], np.arange(rows), (values,), lo, hi)


def some_values(rng: np.random.Generator, rows: int, kind: str) -> pa.Array:
    numbers = {
        "few": rng.integers(0, 5, rows).astype(float),
        "many": rng.normal(size=rows),
        "odd": rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5], rows),
    }[kind]
    return pa.array(numbers, mask=rng.random(rows) < 0.2, from_pandas=False)


def valid_of(slices: RowSlices, window: int) -> list[float]:
    part = slices.values[0].slice(int(slices.lo[window]), int(max(slices.hi[window] - slices.lo[window], 0)))
    return [v for v in part.to_pylist() if v is not None]


@pytest.mark.parametrize("kind", ["few", "many", "odd"])
@pytest.mark.parametrize(("size", "slide"), [(300, 100), (350, 100), (1000, 20), (100, 100), (40, 100)])
@pytest.mark.parametrize("rows", [0, 1, 400, 5000])
def test_overlapping_windows(rows: int, size: int, slide: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of counting different values, and of finding a quantile, says the same as the values of each window."""
    rng = np.random.default_rng([rows, size, slide])
    slices = slices_of(rng, rows, some_values(rng, rows, kind), size, slide)
    windows = range(len(slices.lo))
    wanted = [len({"nan" if v != v else v + 0.0 for v in valid_of(slices, w)}) for w in windows]
    quantiles = []
    for w in windows:
        values = sorted(valid_of(slices, w), key=lambda v: (v != v, v))  # NaN is the largest number
        position = 0.3 * (len(values) - 1)
        below, part = int(np.floor(position)), position - np.floor(position)
        with np.errstate(invalid="ignore"):
            quantiles.append(
                None if not values
                else values[below] if part == 0.0
                else (1.0 - part) * values[below] + part * values[below + 1]
            )  # fmt: skip
    tops = [sorted(valid_of(slices, w), key=lambda v: (v == v, -v))[:3] for w in windows]
    for ways in itertools.product((0, 1 << 60), repeat=3):
        for name, pairs in zip(("_REPEATS_FROM", "_ORDER_FROM", "_TOP_FROM"), ways, strict=True):
            monkeypatch.setattr(holistic, name, pairs)
        assert holistic.count_distinct(slices, 0).to_pylist() == wanted
        found = holistic.quantiles(slices, 0, [0.3])[0]
        np.testing.assert_array_equal(found.is_null().to_numpy(zero_copy_only=False), [q is None for q in quantiles])
        np.testing.assert_allclose(
            found.drop_null().to_numpy(), [q for q in quantiles if q is not None], rtol=1e-12, equal_nan=True
        )
        largest = holistic.top_k(slices, 0, 3)
        np.testing.assert_array_equal(largest.value_lengths().to_numpy(), [len(top) for top in tops])
        np.testing.assert_array_equal(largest.flatten().to_numpy(), [v for top in tops for v in top])


def test_a_key_with_many_values_after_one_with_few() -> None:
    """The table of values grows within a key, and is small again for the next one."""
    rng = np.random.default_rng(3)
    code = np.repeat(np.array([0, 1, 2], np.int32), [50, 20_000, 50])
    values = pa.array(rng.integers(0, 15_000, len(code)))
    lo, hi = np.array([0, 50, 5_000, 20_050]), np.array([50, 20_050, 20_050, 20_100])
    slices = RowSlices(code, np.arange(len(code)), np.arange(len(code)), (values,), lo, hi)
    wanted = [len(np.unique(np.asarray(values)[a:b])) for a, b in zip(lo, hi, strict=True)]
    assert holistic._distinct_by_repeats(slices, 0, np.asarray(values)).tolist() == wanted


def test_floats_of_keys() -> None:
    values = np.array([0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1.7e308, -1.7e308])
    np.testing.assert_array_equal([float_of_key(key) for key in float_keys(values)], values)


@pytest.mark.parametrize("ascending", [True, False])
def test_edges_code_by_code(ascending: bool) -> None:
    """The search that begins where the last one of the code ended finds what a search among all rows finds."""
    rng = np.random.default_rng(4)
    code = np.sort(rng.choice([0, 1, 2, 5, 6], 800)).astype(np.int32)
    time = rng.integers(-50, 50, 800)
    time = time[np.lexsort((time, code))]
    start, wanted = (a.ravel() for a in np.meshgrid(np.arange(-80, 80, 7), np.arange(9, dtype=np.int32), indexing="ij"))
    if not ascending:
        order = rng.permutation(len(start))
        start, wanted = start[order], wanted[order]
    end = np.where(rng.random(len(start)) < 0.1, np.iinfo(np.int64).max, start + 20)
    lo, hi = np.empty((2, len(start)), np.int64)
    edges_of_windows(code, time, wanted, start, end, 0, len(start), lo, hi)
    found = window_edges(code, time, wanted, start, end)
    filled = hi > lo
    np.testing.assert_array_equal(found[1] - found[0], hi - lo)
    np.testing.assert_array_equal(found[0][filled], lo[filled])
