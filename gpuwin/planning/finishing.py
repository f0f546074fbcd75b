"""Finishes: functions from the finished cells of an aggregate to the Arrow column of its exact output type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.errors import OverflowError
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import array_of, decimal_array
from gpuwin.vocabulary.aggregates import Aggregate
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
    return pa.array(cells[0].values[0].view(np.uint64), mask=_unseen(cells[0]))


def mean(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """A count and a sum as their quotient."""
    return _mean(cells[1], cells[0].values[0], result.out, result.types[0])


def variance(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """Squared distances by n - ddof; null where that is not positive."""
    return _spread(cells[0], result.aggregate.ddof, False)


def deviation(result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
    """The square root of a variance."""
    return _spread(cells[0], result.aggregate.ddof, True)


def _unseen(cells: CellArrays) -> np.ndarray | None:
    return None if cells.valid is None else cells.valid == 0


def _mean(total: CellArrays, size: np.ndarray, out: pa.DataType, source: pa.DataType) -> pa.Array:
    empty = size == 0
    if pa.types.is_decimal(out):
        return _decimal_mean(total, size, out, source)
    if len(total.values) == 2:
        hi, lo = total.values
        small = hi == (lo.view(np.int64) >> np.int64(63))
        numbers = np.where(small, lo.view(np.int64), 0).astype(np.float64)
        wide = np.flatnonzero(~small & ~empty)
        means = numbers / np.where(empty, 1, size)
        for i in wide:
            means[i] = ((int(hi[i]) << 64) + int(lo[i])) / int(size[i])
    else:
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
            raise OverflowError(f"a mean does not fit {out}; nothing of the batch was applied")
        high[i], small[i] = rounded_exact >> 64, rounded_exact & ((1 << 64) - 1)
    return decimal_array(high, small, valid, out.scale).cast(out)


def _spread(cells: CellArrays, ddof: int, root: bool) -> pa.Array:
    size, mean, squares = cells.values
    seen = np.ones(len(size), bool) if cells.valid is None else cells.valid != 0
    divisor = size - ddof
    known = seen & (divisor > 0)
    squares = np.where(np.isfinite(mean), squares, np.nan)  # of infinite values, however they were merged
    spread = squares / np.where(known, divisor, 1.0)
    if root:
        spread = np.sqrt(spread)
    return pa.array(spread, mask=None if known.all() else ~known)
