"""Results of holistic aggregates, from slices of rows: one Arrow array with one value per window. Nulls are skipped;
NaN is the largest number.

Two ways, chosen by how much the windows overlap: sort the rows of every window (little overlap), or slide a multiset of
ranks from window to window (much overlap; the cost is then rows entering and leaving, not the overlap).

`approx_quantile` and `approx_count_distinct` are exact here, where other aggregates keep the rows anyway: the values
are at hand, and an exact answer honours every accuracy. By themselves they keep sketches: `gpuwin.state.rows.sketches`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from gpuwin.state.rows.row_state import RowSlices
from gpuwin.state.rows.sortable import equality_keys, order_keys, valid_mask
from gpuwin_kernels.cpu.order import order_by_code
from gpuwin_kernels.cpu.slices import dense_ranks, expand, first_of_groups, slide_select, slide_top

Order = Literal["arrival", "time"]
_SLIDE_FROM = 4  # (row, window) pairs per row from which sliding is cheaper than sorting each window


def _pairs(slices: RowSlices) -> int:
    return int((slices.hi - slices.lo).sum())


def _slides(slices: RowSlices) -> bool:
    return _pairs(slices) > _SLIDE_FROM * len(slices.code)


@dataclass(frozen=True, slots=True)
class _Listed:
    """The valid rows of every window, one window after the other, each in order of value."""

    row: np.ndarray  # int64[k]: position in the slices
    window: np.ndarray  # int32[k]
    first: np.ndarray  # int64[windows + 1]
    begins: np.ndarray  # uint8[k]: 1 where a value appears first in its window


def _listed(slices: RowSlices, column: int, key: np.ndarray) -> _Listed:
    row, window, first = expand(slices.lo, slices.hi, valid_mask(slices.values[column]))
    if not len(row):
        return _Listed(row, window, first, np.empty(0, np.uint8))
    keys = key[row]
    order = order_by_code(window, keys)
    return _Listed(row[order], window[order], first, first_of_groups(window, keys, order))


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Ranks of values within their key, for sliding; `windows` is the order in which sliding costs least."""

    rank: np.ndarray  # int64[rows], -1 for null
    ranks: int
    row_of: np.ndarray  # int64[rows]: a row of the slices for (first row of the key's rows) + rank
    base: np.ndarray  # int64[rows]: the first row of the row's key
    windows: np.ndarray  # int64[windows]


def _ranked(slices: RowSlices, column: int, key: np.ndarray) -> _Ranked:
    valid = valid_mask(slices.values[column])
    order = order_by_code(slices.code, key)
    rank, ranks = dense_ranks(slices.code, key, valid, order)
    base = np.searchsorted(slices.code, slices.code)
    row_of = np.zeros(len(rank), np.int64)
    some = np.flatnonzero(rank >= 0)
    row_of[base[some] + rank[some]] = some
    return _Ranked(rank, ranks, row_of, base, np.lexsort((slices.hi, slices.lo)))


def _quantile_rows(slices: RowSlices, column: int, q: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that hold the values at floor and ceiling of q * (n - 1), -1 for a window without values; and the n of each
    window.
    """
    windows = len(slices.lo)
    key = order_keys(slices.values[column])
    if _slides(slices):
        ranked = _ranked(slices, column, key)
        lo, hi = slices.lo[ranked.windows], slices.hi[ranked.windows]
        below, above, sizes, _ = slide_select(lo, hi, ranked.rank, ranked.ranks, np.array([q]))
        some = sizes > 0
        base = ranked.base[lo[some]]
        low, high, size = np.full(windows, -1, np.int64), np.full(windows, -1, np.int64), np.zeros(windows, np.int64)
        low[ranked.windows[some]] = ranked.row_of[base + below[some, 0]]
        high[ranked.windows[some]] = ranked.row_of[base + above[some, 0]]
        size[ranked.windows] = sizes
        return low, high, size
    listed = _listed(slices, column, key)
    size = np.diff(listed.first)
    some = size > 0
    position = q * (size - 1)
    low, high = np.full(windows, -1, np.int64), np.full(windows, -1, np.int64)
    low[some] = listed.row[(listed.first[:-1] + np.floor(position).astype(np.int64))[some]]
    high[some] = listed.row[(listed.first[:-1] + np.ceil(position).astype(np.int64))[some]]
    return low, high, size


def quantile(slices: RowSlices, column: int, q: float) -> pa.Array:
    """Exact quantiles, float64, with linear interpolation between neighbours (Spark's `percentile`); null for a window
    without values.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile is a fraction between 0 and 1, not {q}")
    low, high, size = _quantile_rows(slices, column, q)
    if not len(slices.code):
        return pa.nulls(len(size), pa.float64())
    numbers = slices.values[column].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    position = q * (size - 1)
    part = position - np.floor(position)
    below, above = numbers[low], numbers[high]
    with np.errstate(invalid="ignore"):
        between = np.where(part == 0.0, below, (1.0 - part) * below + part * above)
    return pa.array(between, mask=size == 0)


def median(slices: RowSlices, column: int) -> pa.Array:
    """Exact medians, float64: `quantile` at one half."""
    return quantile(slices, column, 0.5)


def approx_quantile(slices: RowSlices, column: int, q: float, accuracy: int) -> pa.Array:
    """Smallest values whose rank is at least q * n, of the column's type (Spark's `percentile_approx`). Exact, so
    within any accuracy.

    `accuracy` bounds the rank error by n / accuracy; it must be positive.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile is a fraction between 0 and 1, not {q}")
    if accuracy <= 0:
        raise ValueError(f"accuracy must be positive, not {accuracy}")
    values = slices.values[column]
    sizes = np.diff(expand(slices.lo, slices.hi, valid_mask(values))[2])
    row = np.full(len(sizes), -1, np.int64)
    if len(values):
        listed = _listed(slices, column, order_keys(values))
        some = sizes > 0
        nth = np.maximum(np.ceil(q * sizes).astype(np.int64) - 1, 0)
        row[some] = listed.row[(listed.first[:-1] + nth)[some]]
    return values.take(pa.array(row, mask=sizes == 0))


def count_distinct(slices: RowSlices, column: int) -> pa.Array:
    """Numbers of different values, int64; NaN is one value, and so are 0.0 and -0.0."""
    key = equality_keys(slices.values[column])
    if _slides(slices):
        ranked = _ranked(slices, column, key)
        order = ranked.windows
        out = np.zeros(len(order), np.int64)
        nothing = np.empty(0, np.float64)
        out[order] = slide_select(slices.lo[order], slices.hi[order], ranked.rank, ranked.ranks, nothing)[3]
        return pa.array(out)
    listed = _listed(slices, column, key)
    before = np.concatenate(([0], np.cumsum(listed.begins, dtype=np.int64)))
    return pa.array(np.diff(before[listed.first]))


def approx_count_distinct(slices: RowSlices, column: int, rsd: float) -> pa.Array:
    """Numbers of different values, int64: exact, so within any `rsd` (which must be positive)."""
    if not rsd > 0:
        raise ValueError(f"rsd must be positive, not {rsd}")
    return count_distinct(slices, column)


def _lists(values: pa.Array, row: np.ndarray, first: np.ndarray) -> pa.Array:
    if len(row) > np.iinfo(np.int32).max:
        raise OverflowError(f"{len(row)} list items in one result: emit fewer windows at a time")
    if len(row) and row[-1] - row[0] == len(row) - 1 and bool((np.diff(row) == 1).all()):
        items = values.slice(int(row[0]), len(row))  # contiguous: no copy
    else:
        items = values.take(pa.array(row))
    return pa.ListArray.from_arrays(pa.array(first.astype(np.int32)), items)


def _in_order(slices: RowSlices, row: np.ndarray, window: np.ndarray, order: Order) -> np.ndarray:
    """Listed rows of each window by arrival, or as they are (by time, then arrival)."""
    if order == "time" or not len(row):
        return row
    arrived: np.ndarray = row[order_by_code(window, slices.seq[row])]
    return arrived


def collect_list(slices: RowSlices, column: int, order: Order = "arrival") -> pa.Array:
    """Values of each window, list<T>, in order of arrival, or of time and then arrival; an empty list for a window
    without values.
    """
    row, window, first = expand(slices.lo, slices.hi, valid_mask(slices.values[column]))
    return _lists(slices.values[column], _in_order(slices, row, window, order), first)


def collect_set(slices: RowSlices, column: int, order: Order = "arrival") -> pa.Array:
    """Different values of each window, list<T>, in the order of their first appearance."""
    values = slices.values[column]
    row, window, first = expand(slices.lo, slices.hi, valid_mask(values))
    row = _in_order(slices, row, window, order)
    if not len(row):
        return _lists(values, row, first)
    keys = equality_keys(values)[row]
    by_value = order_by_code(window, keys)  # stable: the first of each group appeared first
    kept = np.sort(by_value[first_of_groups(window, keys, by_value) == 1])
    return _lists(values, row[kept], np.searchsorted(window[kept], np.arange(len(first))))


def top_k(slices: RowSlices, column: int, k: int) -> pa.Array:
    """The k largest values of each window, list<T>, repeats included, the largest first."""
    if k <= 0:
        raise ValueError(f"top_k needs a positive k, not {k}")
    values = slices.values[column]
    key = order_keys(values)
    if _slides(slices):
        ranked = _ranked(slices, column, key)
        order = ranked.windows
        rank, first = slide_top(slices.lo[order], slices.hi[order], ranked.rank, ranked.ranks, k)
        window = np.repeat(order, np.diff(first))
        row = ranked.row_of[ranked.base[slices.lo[window]] + rank]
        by_window = np.argsort(window, kind="stable")
        return _lists(values, row[by_window], np.searchsorted(window[by_window], np.arange(len(order) + 1)))
    listed = _listed(slices, column, key)
    last = listed.first[1:]
    size = np.minimum(np.diff(listed.first), k)
    first = np.concatenate(([0], np.cumsum(size)))
    nth = np.arange(first[-1]) - np.repeat(first[:-1], size)
    return _lists(values, listed.row[np.repeat(last, size) - 1 - nth], first)


def histogram(slices: RowSlices, column: int) -> pa.Array:
    """Number of times that each value occurs, map<T, int64>, in order of value."""
    values = slices.values[column]
    listed = _listed(slices, column, equality_keys(values))
    begins = np.flatnonzero(listed.begins)
    counts = np.diff(np.concatenate((begins, [len(listed.row)])))
    first = np.searchsorted(listed.window[begins], np.arange(len(listed.first)))
    items = values.take(pa.array(listed.row[begins]))
    return pa.MapArray.from_arrays(pa.array(first.astype(np.int32)), items, pa.array(counts))
