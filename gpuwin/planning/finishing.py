"""From finished cells to Arrow columns of the exact output types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from gpuwin.errors import OverflowError
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import array_of, decimal_array
from gpuwin_kernels.layout import CellArrays

Finish = Callable[[Sequence[CellArrays], BytesHeap | None], pa.Array]


def finisher(
    kind: str, at: tuple[int, ...], out: pa.DataType, source: pa.DataType | None = None, ddof: int = 0
) -> Finish:
    """What makes a result of the partial columns number `at`. `kind`: "count", "value", "picked", "mean", "var",
    "std"."""

    def finish(columns: Sequence[CellArrays], heap: BytesHeap | None) -> pa.Array:
        cells = columns[at[0]]
        if kind == "count":
            return pa.array(cells.values[0])
        if kind == "value":
            return array_of(cells.values, cells.valid, out, heap)
        if kind == "picked":
            return array_of(cells.values[2:], cells.valid, out, heap)  # behind time and arrival
        if kind == "mean":
            return _mean(cells, columns[at[1]].values[0], out, source)
        return _spread(cells, ddof, kind == "std")

    return finish


def _mean(total: CellArrays, size: np.ndarray, out: pa.DataType, source: pa.DataType | None) -> pa.Array:
    empty = size == 0
    if pa.types.is_decimal(out):
        assert source is not None
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
