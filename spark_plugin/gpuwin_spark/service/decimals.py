"""128-bit decimals as pairs of 64-bit words, in NumPy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

Words = tuple[np.ndarray, np.ndarray]


def join(hi: np.ndarray, lo: np.ndarray, t: pa.DataType, valid: np.ndarray | None) -> pa.Array:
    """A decimal128 array of type ``t`` from words, null where ``valid`` is 0."""
    n = len(hi)
    words = np.empty(2 * n, np.uint64)
    words[0::2] = lo
    words[1::2] = hi.view(np.uint64)
    bitmap = None if valid is None else pa.py_buffer(np.packbits(np.asarray(valid, bool), bitorder="little"))
    return pa.Array.from_buffers(t, n, [bitmap, pa.py_buffer(words)])


def combine(high: Words, low: Words) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``high * 2**64 + low`` of two 128-bit words each; ``low`` is not negative.

    Returns:
        (hi, lo, fits): the low 128 bits, and whether the value is in their range.
    """
    carry_lo = high[1] + low[0].view(np.uint64)
    carry_hi = high[0] + (carry_lo < high[1]).astype(np.int64)
    hi = carry_lo.view(np.int64)
    return hi, low[1], carry_hi == (hi >> 63)


def within(hi: np.ndarray, lo: np.ndarray, precision: int) -> np.ndarray:
    """Where ``|value| < 10**precision``."""
    inside: np.ndarray = _less(hi, lo, 10**precision) & ~_less(hi, lo, -(10**precision) + 1)
    return inside


def _less(hi: np.ndarray, lo: np.ndarray, bound: int) -> np.ndarray:
    bound_hi, bound_lo = np.int64(bound >> 64), np.uint64(bound & ((1 << 64) - 1))
    less: np.ndarray = (hi < bound_hi) | ((hi == bound_hi) & (lo < bound_lo))
    return less
