"""Scalar arithmetic that every CPU kernel shares. The functions are compiled into their callers."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit

_SIGN = np.uint64(1 << 63)
_LARGEST = np.int64((1 << 63) - 1)


@njit(nogil=True, cache=True)
def float_rank(bits):  # type: ignore[no-untyped-def]
    """From the bits (int64) of a float64 to an int64 of the same order: -0.0 is just below 0.0, every NaN is the same
    and the largest.
    """
    rank = bits ^ ((bits >> np.int64(63)) & _LARGEST)
    if (bits & _LARGEST) > np.int64(0x7FF0000000000000):
        rank = _LARGEST
    return rank


@njit(nogil=True, cache=True)
def rank_bits(rank):  # type: ignore[no-untyped-def]
    """The inverse of `float_rank`; NaN comes back as the quiet NaN."""
    if rank == _LARGEST:
        return np.int64(0x7FF8000000000000)
    return rank ^ ((rank >> np.int64(63)) & _LARGEST)


@njit(nogil=True, cache=True)
def float_before(a, b):  # type: ignore[no-untyped-def]
    """a < b where NaN is larger than every number and equal to itself, and -0.0 is below 0.0."""
    if a != a:
        return False
    if b != b or a < b:
        return True
    return a == b and a == 0.0 and np.signbit(a) and not np.signbit(b)


@njit(nogil=True, cache=True)
def wide_add(a_hi, a_lo, b_hi, b_lo):  # type: ignore[no-untyped-def]
    """(hi, lo, bad) of a + b in 128 bits two's complement; bad is negative if the sum left 128 bits."""
    lo = a_lo + b_lo
    hi = a_hi + b_hi + (np.int64(1) if lo < a_lo else np.int64(0))
    return hi, lo, (a_hi ^ hi) & (b_hi ^ hi)


@njit(nogil=True, cache=True)
def wide_before(a_hi, a_lo, b_hi, b_lo):  # type: ignore[no-untyped-def]
    """a < b as 128-bit integers."""
    return a_hi < b_hi or (a_hi == b_hi and a_lo < b_lo)


@njit(nogil=True, cache=True)
def moments_add(a, b):  # type: ignore[no-untyped-def]
    """Count, mean and sum of squared distances of two samples as one (Chan, Golub, LeVeque, 1979)."""
    a_n, a_mean, a_m2 = a
    b_n, b_mean, b_m2 = b
    if a_n == 0.0:
        return b
    if b_n == 0.0:
        return a
    n = a_n + b_n
    delta = b_mean - a_mean
    share = b_n / n
    return n, a_mean + delta * share, a_m2 + b_m2 + delta * delta * a_n * share


@njit(nogil=True, cache=True)
def bytes_before(offsets, data, a, b):  # type: ignore[no-untyped-def]
    """Whether entry a of a byte heap is before entry b, as unsigned bytes; a prefix is before what it begins."""
    if a == b:
        return False
    i = offsets[a]
    j = offsets[b]
    i_end = offsets[a + 1]
    j_end = offsets[b + 1]
    while i < i_end and j < j_end:
        if data[i] != data[j]:
            return data[i] < data[j]
        i += 1
        j += 1
    return i_end - i < j_end - j


@njit(nogil=True, cache=True)
def two_sum(a, b):  # type: ignore[no-untyped-def]
    """(s, e) with s = fl(a + b) and s + e = a + b exactly (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)
