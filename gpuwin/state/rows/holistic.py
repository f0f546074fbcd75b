"""Results of holistic aggregates, from slices of rows: one Arrow array with one value per window. Nulls are skipped;
NaN is the largest number.

How much the windows overlap says which way costs least: to look at the rows of every window by themselves (little
overlap), or to slide, so that only rows that enter and leave are looked at. Different values are counted by the rows
that have the same value (`repeats`); quantiles and the largest values are read from the rows in order of value
(`sliding_order`).

`approx_quantile` and `approx_count_distinct` are exact here, where other aggregates keep the rows anyway: the values
are at hand, and an exact answer honours every accuracy. By themselves they keep sketches: `gpuwin.state.rows.sketches`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.state.rows.slices import Order, RowSlices
from gpuwin.state.rows.sortable import equality_keys, filled, is_orderable, order_keys, valid_mask
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import order_by_code
from gpuwin_kernels.cpu.packed_order import order_within_codes, parts_by_code
from gpuwin_kernels.cpu.parallel import each, ranges
from gpuwin_kernels.cpu.repeats import distinct_of_sliding, find_repeats
from gpuwin_kernels.cpu.selection import distinct_of_windows, quantiles_of_windows, top_of_windows
from gpuwin_kernels.cpu.slices import (
    count_valid,
    expand,
    first_of_groups,
    float_keys,
    list_by_key,
)
from gpuwin_kernels.cpu.sliding_order import places_of, quantiles_of_sliding, top_of_sliding

# (Row, window) pairs per row from which ...
_REPEATS_FROM = 1  # ... a row before and behind of the same value is cheaper to find than to sort each window,
_ORDER_FROM = 2  # ... a quantile is cheaper to read from all rows in order of value,
_TOP_FROM = 4  # ... and so are the largest values.
_SLIDE_SPLIT = 1 << 12  # windows from which a second thread slides, too


def _pairs(slices: RowSlices) -> int:
    return int((slices.hi - slices.lo).sum())


def _slides(slices: RowSlices, overlap: int) -> bool:
    return _pairs(slices) > overlap * len(slices)


def _sliding(slices: RowSlices) -> np.ndarray:
    """Windows in the order in which sliding costs least, int64[windows]."""
    return np.lexsort((slices.hi, slices.lo))


@dataclass(frozen=True, slots=True)
class _Listed:
    """The valid rows of every window, one window after the other, each in order of value."""

    row: np.ndarray  # int64[k]: position in the slices
    first: np.ndarray  # int64[windows + 1]

    @property
    def sizes(self) -> np.ndarray:
        """Valid rows of each window, int64[windows]."""
        return np.diff(self.first)


def _sizes(slices: RowSlices, values: pa.Array) -> np.ndarray:
    """Rows of each window whose value is not null, int64[windows]."""
    lo, hi = slices.lo, slices.hi
    size: np.ndarray = np.maximum(hi - lo, 0)
    if values.null_count:
        valid, shares = valid_mask(values), _shares(_places(size))
        each(lambda part: count_valid(lo, hi, valid, *part, size), shares)
    return size


def _listed(slices: RowSlices, column: int, key: np.ndarray) -> _Listed:
    lo, hi, valid = slices.lo, slices.hi, valid_mask(slices.values[column])
    first = _places(_sizes(slices, slices.values[column]))
    row = empty(first[-1], np.int64)
    each(lambda part: list_by_key(lo, hi, valid, key, first, *part, row), _shares(first))
    return _Listed(row, first)


def _places(size: np.ndarray) -> np.ndarray:
    """Where each of some lists begins, int64[lists + 1], one behind the other."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(size, dtype=np.int64)))


def _shares(first: np.ndarray) -> list[tuple[int, int]]:
    """Windows cut into a range for each thread, with about as many rows each."""
    cuts = [lo for lo, _ in ranges(int(first[-1]))][1:]
    edges = [0, *np.searchsorted(first, cuts).tolist(), len(first) - 1]
    return list(itertools.pairwise(edges))


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Rows in order of value within their key, for sliding."""

    windows: np.ndarray  # int64[windows]: in the order in which sliding costs least
    order: np.ndarray  # int64[rows]
    place: np.ndarray  # int64[rows]: of each row in `order`

    @classmethod
    def of(cls, slices: RowSlices, key: np.ndarray) -> _Ordered:
        order, place = order_within_codes(slices.code, key), empty(len(slices), np.int64)
        each(lambda part: places_of(order, *part, place), ranges(len(order)))
        return cls(_sliding(slices), order, place)


def quantiles(slices: RowSlices, column: int, q: Sequence[float]) -> list[pa.Array]:
    """Exact quantiles, float64, with linear interpolation between neighbours (Spark's `percentile`), an array for each
    fraction; null for a window without values.
    """
    if not all(0.0 <= fraction <= 1.0 for fraction in q):
        raise ValueError(f"a quantile is a fraction between 0 and 1, not all of {list(q)}")
    windows = len(slices.lo)
    if not len(slices):
        return [pa.nulls(windows, pa.float64())] * len(q)
    values = slices.values[column]
    numbers = filled(values.cast(pa.float64(), safe=False))
    lo, hi, valid = slices.lo, slices.hi, valid_mask(values)
    fractions, number = np.unique(np.array(q, np.float64), return_inverse=True)
    out, size = empty((len(fractions), windows)), empty(windows, np.int64)
    if _slides(slices, _ORDER_FROM):
        key = float_keys(numbers.astype(np.float64, copy=False))
        at = _Ordered.of(slices, key)
        where = slices.code, lo, hi, at.windows, at.place, at.order, valid, key
        each(lambda part: quantiles_of_sliding(*where, fractions, *part, out, size), ranges(windows, _SLIDE_SPLIT))
    else:
        shares = _shares(_places(np.maximum(hi - lo, 0)))
        each(lambda part: quantiles_of_windows(lo, hi, valid, numbers, fractions, *part, out, size), shares)
    return [pa.array(out[k], mask=size == 0) for k in number]


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
    listed = _listed(slices, column, order_keys(values))
    sizes = listed.sizes
    row = np.full(len(sizes), -1, np.int64)
    some = sizes > 0
    nth = np.maximum(np.ceil(q * sizes).astype(np.int64) - 1, 0)
    row[some] = listed.row[(listed.first[:-1] + nth)[some]]
    return values.take(pa.array(row, mask=sizes == 0))


def _distinct(slices: RowSlices, column: int, key: np.ndarray) -> np.ndarray:
    """Different values of each window, int64[windows]."""
    lo, hi, valid = slices.lo, slices.hi, valid_mask(slices.values[column])
    out = empty(len(lo), np.int64)
    shares = _shares(_places(np.maximum(hi - lo, 0)))
    each(lambda part: distinct_of_windows(lo, hi, valid, key, *part, out), shares)
    return out


def count_distinct(slices: RowSlices, column: int) -> pa.Array:
    """Numbers of different values, int64; NaN is one value, and so are 0.0 and -0.0."""
    key = equality_keys(slices.values[column])
    return pa.array((_distinct_by_repeats if _slides(slices, _REPEATS_FROM) else _distinct)(slices, column, key))


def _distinct_by_repeats(slices: RowSlices, column: int, key: np.ndarray) -> np.ndarray:
    """As `_distinct`, of windows that overlap."""
    code, lo, hi, valid = slices.code, slices.lo, slices.hi, valid_mask(slices.values[column])
    earlier, later = empty((2, len(slices)), np.int64)
    order = order_within_codes(code, key)
    each(lambda part: find_repeats(code, key, valid, order, *part, earlier, later), parts_by_code(code))
    windows, out = _sliding(slices), empty(len(lo), np.int64)
    each(lambda part: distinct_of_sliding(lo, hi, windows, earlier, later, *part, out), ranges(len(lo), _SLIDE_SPLIT))
    return out


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
    """Listed rows of each window, as they lie, by arrival, or by time and then arrival."""
    if order == slices.by or not len(row):
        return row
    key = slices.seq if order == "arrival" else slices.time
    in_order: np.ndarray = row[order_by_code(window, key[row])]  # stable
    return in_order


def collect_list(slices: RowSlices, column: int, order: Order = "arrival") -> pa.Array:
    """Values of each window, list<T>, in order of arrival, or of time and then arrival; an empty list for a window
    without values.
    """
    row, _, first = _appearing(slices, column, order)
    return _lists(slices.values[column], row, first)


def collect_set(slices: RowSlices, column: int, order: Order = "arrival") -> pa.Array:
    """Different values of each window, list<T>, in the order of their first appearance."""
    row, window, first = _appearing(slices, column, order)
    if not len(row):
        return _lists(slices.values[column], row, first)
    by_value, begins = _groups(slices, column, row, window)
    kept = np.sort(by_value[begins])
    return _lists(slices.values[column], row[kept], np.searchsorted(window[kept], np.arange(len(first))))


def _appearing(slices: RowSlices, column: int, order: Order) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows with a value of each window in this order, int64[k], their windows, int64[k], and where these begin,
    int64[windows + 1].
    """
    row, window, first = expand(slices.lo, slices.hi, valid_mask(slices.values[column]))
    return _in_order(slices, row, window, order), window, first


def _groups(slices: RowSlices, column: int, row: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of appearing rows in order of window and value, int64[k], and where equal ones begin among them, bool[k]:
    there is the first that appeared.
    """
    keys = equality_keys(slices.values[column])[row]
    by_value = order_by_code(window, keys)  # stable
    return by_value, first_of_groups(window, keys, by_value) == 1


def top_k(slices: RowSlices, column: int, k: int) -> pa.Array:
    """The k largest values of each window, list<T>, repeats included, the largest first."""
    if k <= 0:
        raise ValueError(f"top_k needs a positive k, not {k}")
    values = slices.values[column]
    return _lists(values, *_largest(slices, order_keys(values), values, k))


def picked_by(slices: RowSlices, column: int, by: int, k: int, largest: bool) -> pa.Array:
    """Values of each window where another column is among its k smallest or largest, list<T>, the smallest or largest
    first; of equals the first to arrive comes first, of the largest the last. Rows with a null in either are skipped.
    """
    values, ranked = slices.values[column], slices.values[by]
    order = np.lexsort((slices.seq, order_keys(ranked)))
    rank = empty(len(order), np.int64)
    rank[order if largest else order[::-1]] = np.arange(len(order))
    both = pa.array(rank, mask=(valid_mask(values) & valid_mask(ranked)) == 0)
    return _lists(values, *_largest(slices, rank, both, k))


def _largest(slices: RowSlices, key: np.ndarray, values: pa.Array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with the k largest keys (int64[rows]) of each window, the largest first, int64[m], and where the windows
    begin among them, int64[windows + 1]. Rows whose value is null are skipped.
    """
    lo, hi, valid = slices.lo, slices.hi, valid_mask(values)
    size = _sizes(slices, values)
    first = _places(np.minimum(size, k))
    row = empty(first[-1], np.int64)
    if _slides(slices, _TOP_FROM):
        at = _Ordered.of(slices, key)
        where = slices.code, lo, hi, at.windows, at.place, at.order, valid, first
        each(lambda part: top_of_sliding(*where, *part, row), ranges(len(lo), _SLIDE_SPLIT))
    else:
        each(lambda part: top_of_windows(lo, hi, valid, key, first, *part, row), _shares(_places(size)))
    return row, first


def histogram(slices: RowSlices, column: int, order: Order = "arrival") -> pa.Array:
    """Number of times that each value occurs, map<T, int64>, in order of value; nested values, which have none, in the
    order of their first appearance.
    """
    values = slices.values[column]
    if not is_orderable(values.type):
        return _histogram_by_appearance(slices, column, order)
    key = equality_keys(values)
    listed = _listed(slices, column, key)
    in_order = key[listed.row]
    new = np.ones(len(in_order), bool)
    new[1:] = in_order[1:] != in_order[:-1]
    new[listed.first[:-1][listed.sizes > 0]] = True
    begins = np.flatnonzero(new)
    counts = np.diff(np.concatenate((begins, [len(listed.row)])))
    return _map(values.take(pa.array(listed.row[begins])), counts, _places(_distinct(slices, column, key)))


def _histogram_by_appearance(slices: RowSlices, column: int, order: Order) -> pa.Array:
    row, window, first = _appearing(slices, column, order)
    if not len(row):
        return _map(slices.values[column].slice(0, 0), row, first)
    by_value, new = _groups(slices, column, row, window)
    begins = np.flatnonzero(new)
    counts = np.diff(np.concatenate((begins, [len(row)])))
    appeared = np.argsort(by_value[begins])
    kept = by_value[begins][appeared]
    places = np.searchsorted(window[kept], np.arange(len(first)))
    return _map(slices.values[column].take(pa.array(row[kept])), counts[appeared], places)


def _map(keys: pa.Array, counts: np.ndarray, first: np.ndarray) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array(first.astype(np.int32)), keys, pa.array(counts))
