"""Sketches that `approx_count_distinct` and `approx_quantile` keep in place of rows.

They are the values of a `RowState`, one binary for each (key, pane) or (key, session), or, where single rows
still matter, for each row. Those that belong together are merged as runs are. So windows share the sketches of their
panes, and sketches are spilled, evicted and written into a snapshot as rows are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import bytes_of
from gpuwin.state.physical import array_of, dtype_of, is_bytes, words_of
from gpuwin.state.rows.slices import RowSlices
from gpuwin.state.rows.sortable import valid_mask
from gpuwin_kernels.cpu import distinct, quantiles
from gpuwin_kernels.cpu.slices import float_keys

PIECES = pa.large_binary()
_LEAST_PRECISION, _MOST_PRECISION = 4, 20
_NAN_KEY = np.iinfo(np.int64).max


def _words(sketches: pa.Array, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(offsets in words, words): sketch i is words[offsets[i]:offsets[i + 1]]."""
    nothing = np.empty(0, dtype)
    nothing.setflags(write=False)  # as Arrow's arrays are: kernels are compiled for one or the other
    if not len(sketches):
        return np.zeros(1, np.int64), nothing
    _, offsets, data = sketches.buffers()
    places = np.frombuffer(offsets, np.int64, len(sketches) + 1, sketches.offset * 8) >> 3
    return places, nothing if data is None or data.size < 8 else np.frombuffer(data, dtype, data.size >> 3)


def _binaries(offsets: np.ndarray, words: np.ndarray) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets << 3)), pa.py_buffer(words)]
    return pa.Array.from_buffers(PIECES, len(offsets) - 1, buffers)


def _singles(words: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Pieces of one word for each valid row, and of none for the others."""
    offsets = np.concatenate(([0], np.cumsum(valid, dtype=np.int64)))
    return _binaries(offsets, words if offsets[-1] == len(words) else words[valid != 0])


def _in_order(slices: RowSlices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    hi = np.maximum(slices.lo, slices.hi)
    return slices.lo, hi, np.lexsort((hi, slices.lo))


@dataclass(frozen=True)
class Distinct:
    """Sketch of the number of different values, by 2**precision registers where there are more than a few."""

    precision: int

    @staticmethod
    def of(rsd: float) -> Distinct | None:
        """Sketch with a relative standard deviation of at most `rsd`; None where registers would not be worth it."""
        precision = max(int(np.ceil(2.0 * np.log2(1.04 / rsd))), _LEAST_PRECISION)
        return Distinct(precision) if precision <= _MOST_PRECISION else None

    @staticmethod
    def takes(type_: pa.DataType) -> bool:
        return dtype_of(type_) is not None

    def singles(self, values: pa.Array) -> pa.Array:
        return _singles(self._hashed(values), valid_mask(values))

    def _hashed(self, values: pa.Array) -> np.ndarray:
        if is_bytes(values.type):
            data, offsets = bytes_of(values)
            hashes: np.ndarray = distinct.hashed_bytes(offsets.astype(np.int64), data)
            return hashes
        words = words_of(values, None)
        low = float_keys(words[-1]) if words[-1].dtype == np.float64 else words[-1].view(np.int64)
        high = words[0] if len(words) == 2 else np.empty(0, np.int64)
        if not len(low):
            return np.empty(0, np.uint64)
        hashes = distinct.hashed(high, np.ascontiguousarray(low))
        return hashes

    def merged(self, sketches: pa.Array, first: np.ndarray) -> pa.Array:
        return _binaries(*distinct.merged(*_words(sketches, "uint64"), first, self.precision))

    def finish(self, slices: RowSlices, column: int) -> pa.Array:
        """Numbers of different values, int64; 0 for a window without values."""
        words = _words(slices.values[column], "uint64")
        return pa.array(distinct.count_windows(*words, *_in_order(slices), self.precision))


@dataclass(frozen=True)
class Ranks:
    """Sketch of the values of a column by rank; `k` items at the upper level, about three times as many in all."""

    type: pa.DataType
    k: int

    @staticmethod
    def of(type_: pa.DataType, accuracy: int) -> Ranks:
        """Sketch with errors of ranks nearly always below n / accuracy: their standard deviation is a quarter of it."""
        return Ranks(type_, 2 * accuracy)

    @staticmethod
    def takes(type_: pa.DataType) -> bool:
        if pa.types.is_decimal(type_):
            return dtype_of(type_) is not None and type_.precision <= 18
        return dtype_of(type_) in ("int64", "float64")

    def singles(self, values: pa.Array) -> pa.Array:
        words = words_of(values, None)[-1]
        keys = float_keys(words) if words.dtype == np.float64 else words.view(np.int64)
        return _singles(np.ascontiguousarray(keys), valid_mask(values))

    def merged(self, sketches: pa.Array, first: np.ndarray) -> pa.Array:
        return _binaries(*quantiles.merged(*_words(sketches, "int64"), first, self.k))

    def finish(self, slices: RowSlices, column: int, q: float) -> pa.Array:
        """Values of the type of the column; null for a window without values."""
        words = _words(slices.values[column], "int64")
        found, valid = quantiles.quantile_of_windows(*words, *_in_order(slices), q)
        if dtype_of(self.type) == "float64":
            return array_of((_floats(found),), valid, self.type, None)
        if pa.types.is_decimal(self.type):
            return array_of((found >> 63, found.view(np.uint64)), valid, self.type, None)
        return array_of((found,), valid, self.type, None)


def _floats(keys: np.ndarray) -> np.ndarray:
    """The inverse of `float_keys`."""
    negative = keys < 0
    bits = np.where(negative, ~keys | np.int64(-(1 << 63)), keys)
    return np.where(keys == _NAN_KEY, np.nan, bits.view(np.float64))


AnySketch = Distinct | Ranks


def finisher_of(sketch: AnySketch, column: int, q: float) -> Callable[[RowSlices], pa.Array]:
    """Function from slices of sketches to results."""
    more: dict[str, Any] = {"q": q} if isinstance(sketch, Ranks) else {}
    return partial(sketch.finish, column=column, **more)
