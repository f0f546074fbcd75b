"""Finishes: functions from the merged cells of an aggregate to the Arrow column of its exact output type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.errors import OverflowError
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import array_of, decimal_array
from gpuwin.vocabulary.aggregates import Aggregate
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.means import means_of
from gpuwin_kernels.layout import CellArrays


@dataclass(frozen=True)
class Result:
    """One aggregate over columns of known types: all that its finish depends on beside the cells."""

    aggregate: Aggregate
    types: tuple[pa.DataType, ...]  # of the columns that it reads
    out: pa.DataType


Cells = Sequence[CellArrays]
"""The partial columns of one aggregate, in the order in which it asked for them."""
Finish = Callable[[Result, Cells, BytesHeap | None], pa.Array]


def count(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """A number, as it is."""
    return pa.array(cells[0].values[0])


def value(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """The value of a sum, a minimum or a maximum."""
    return array_of(cells[0].values, cells[0].valid, result.out, heap)


def picked(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """The value behind what decides which one is kept: two words."""
    return array_of(cells[0].values[2:], cells[0].valid, result.out, heap)


def bits(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """The bits of an integer."""
    if result.out != pa.uint64():
        return value(result, cells, heap)
    return known(cells[0], cells[0].values[0].view(np.uint64))


def mean(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """A count and a sum as their quotient."""
    return _mean(cells[1], cells[0].values[0], result.out, result.types[0])


def variance(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """Squared distances by n - ddof; null where that is not positive."""
    return _spread(cells[0], result.aggregate.ddof, False)


def deviation(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """The square root of a variance."""
    return _spread(cells[0], result.aggregate.ddof, True)


def skewness(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """Skewness of a population; null where all values are the same."""
    size, center, squares, cubes = cells[0].values
    squares, cubes = of_finite((center,), squares, cubes)
    with np.errstate(all="ignore"):
        return known(cells[0], np.sqrt(size) * cubes / np.sqrt(squares * squares * squares), squares != 0)


def covariance(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """Products of distances by n - ddof; null where that is not positive."""
    size, x, y, products = cells[0].values
    (products,) = of_finite((x, y), products)
    divisor = size - result.aggregate.ddof
    return known(cells[0], products / np.where(divisor > 0, divisor, 1.0), divisor > 0)


def distances(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """The last word of a sample of one or two variables: squared distances, or products of them."""
    _, *means, products = cells[0].values
    return known(cells[0], *of_finite(means, products))


def correlation(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """Pearson's coefficient; null of one pair, or where either variable is constant."""
    products, y_squares, x_squares = _of_pairs(cells[0])
    with np.errstate(all="ignore"):
        found = products / (np.sqrt(x_squares) * np.sqrt(y_squares))
    return known(cells[0], found, (cells[0].values[0] > 1) & (x_squares != 0) & (y_squares != 0))


def determination(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """The square of the coefficient of correlation; null where the second variable is constant, else 1 where the first
    is."""
    products, y_squares, x_squares = _of_pairs(cells[0])
    with np.errstate(all="ignore"):
        root = products / (np.sqrt(x_squares) * np.sqrt(y_squares))
    return known(cells[0], np.where(y_squares == 0, 1.0, root * root), x_squares != 0)


def slope(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """Slope of the line of the first variable over the second; null where that is constant."""
    products, _, squares = _of_pairs(cells[0])
    return known(cells[0], products / np.where(squares == 0, 1.0, squares), squares != 0)


def intercept(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """Intercept of the line of the first variable over the second; null where that is constant."""
    products, _, squares = _of_pairs(cells[0])
    _, y, x, *_ = cells[0].values
    with np.errstate(invalid="ignore"):
        return known(cells[0], y - products / np.where(squares == 0, 1.0, squares) * x, squares != 0)


def _of_pairs(cells: CellArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Products of distances, and the squared distances of the first variable and of the second."""
    _, y, x, products, y_squares, x_squares = cells.values
    return of_finite((y, x), products)[0], of_finite((y,), y_squares)[0], of_finite((x,), x_squares)[0]


def of_finite(means: Sequence[np.ndarray], *words: np.ndarray) -> list[np.ndarray]:
    """The distances, NaN of infinite values, however they were merged."""
    finite = np.logical_and.reduce([np.isfinite(m) for m in means])
    return [np.where(finite, w, np.nan) for w in words]


def known(cells: CellArrays, values: np.ndarray, known: np.ndarray | None = None) -> pa.Array:
    """Null where no value was seen, and where a result is not `known`."""
    lost = np.zeros(len(values), bool) if cells.valid is None else cells.valid == 0
    if known is not None:
        lost |= ~known
    return pa.array(values, mask=lost if lost.any() else None)


def _mean(total: CellArrays, size: np.ndarray, out: pa.DataType, source: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(out):
        return _decimal_mean(total, size, out, source)
    if len(total.values) == 2:
        empty = size == 0
        hi, lo = total.values
        small = hi == (lo.view(np.int64) >> np.int64(63))
        numbers = np.where(small, lo.view(np.int64), 0).astype(np.float64)
        wide = np.flatnonzero(~small & ~empty)
        means = numbers / np.where(empty, 1, size)
        for i in wide:
            means[i] = ((int(hi[i]) << 64) + int(lo[i])) / int(size[i])
    elif len(size) >= tuning.SPLIT_ROWS and size.dtype == np.int64 and total.values[0].dtype in (np.int64, np.float64):
        means, some_empty = means_of(total.values[0], size)
        return pa.array(means, mask=size == 0 if some_empty else None)
    else:
        empty = size == 0
        some_empty = bool(empty.any())
        means = total.values[0] / (np.where(empty, 1, size) if some_empty else size)
        return pa.array(means, mask=empty if some_empty else None)
    return pa.array(means, mask=empty if empty.any() else None)


def _decimal_mean(total: CellArrays, size: np.ndarray, out: pa.DataType, source: pa.DataType) -> pa.Array:
    """Rounded half away from zero, as Spark's avg."""
    factor = 10 ** (out.scale - source.scale)
    hi, lo = total.values
    valid = size > 0
    if not valid.any():
        return pa.nulls(len(size), out)
    low = lo.view(np.int64)
    most = ((1 << 63) - 1) // (2 * factor) - int(size.max())
    if bool((hi == low >> np.int64(63)).all()) and int(low.max()) <= most and int(low.min()) >= -most:
        scaled, by = np.abs(low) * factor, np.where(valid, size, 1)
        rounded = (2 * scaled + by) // (2 * by)
        signed = np.where(low < 0, -rounded, rounded)
        return decimal_array(signed >> np.int64(63), signed.view(np.uint64), valid, out.scale).cast(out)
    high, small = np.zeros(len(size), np.int64), np.zeros(len(size), np.uint64)
    for i in np.flatnonzero(valid):
        exact, rows = (int(hi[i]) << 64) + int(lo[i]), int(size[i])
        rounded_exact = (2 * abs(exact) * factor + rows) // (2 * rows) * (-1 if exact < 0 else 1)
        if abs(rounded_exact) >= 10**out.precision:
            raise OverflowError(f"a mean does not fit {out}")
        high[i], small[i] = rounded_exact >> 64, rounded_exact & ((1 << 64) - 1)
    return decimal_array(high, small, valid, out.scale).cast(out)


def _spread(cells: CellArrays, ddof: int, root: bool) -> pa.Array:
    size, center, squares = cells.values
    divisor = size - ddof
    (squares,) = of_finite((center,), squares)
    spread = squares / np.where(divisor > 0, divisor, 1.0)
    return known(cells, np.sqrt(spread) if root else spread, divisor > 0)
