"""Scalar functions that CUDA kernels share; they are compiled into their callers."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu import scalar
from gpuwin_kernels.cuda.runtime import cuda, simulated

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio (Knuth, 6.4)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)  # no key: packed cells are below 2**63

if simulated():

    def bits_of(x):  # type: ignore[no-untyped-def]
        """The bits of a float64 as int64."""
        return np.float64(x).view(np.int64)

    def float_of(bits):  # type: ignore[no-untyped-def]
        """The float64 of these bits."""
        return np.int64(bits).view(np.float64)

else:
    from numba.cuda import libdevice

    @cuda.jit(device=True)
    def bits_of(x):  # type: ignore[no-untyped-def]
        """The bits of a float64 as int64."""
        return libdevice.double_as_longlong(x)

    @cuda.jit(device=True)
    def float_of(bits):  # type: ignore[no-untyped-def]
        """The float64 of these bits."""
        return libdevice.longlong_as_double(bits)


float_rank = cuda.jit(device=True)(scalar.float_rank.py_func)
unrank = cuda.jit(device=True)(scalar.rank_bits.py_func)


@cuda.jit(device=True)
def rank_of(x):  # type: ignore[no-untyped-def]
    """An int64 of the same order: NaN is the largest, -0.0 just below 0.0."""
    return float_rank(bits_of(x))  # type: ignore[no-untyped-call]


wide_add = cuda.jit(device=True)(scalar.wide_add.py_func)
wide_before = cuda.jit(device=True)(scalar.wide_before.py_func)
moments_add = cuda.jit(device=True)(scalar.moments_add.py_func)


@cuda.jit(device=True)
def float_before(a, b):  # type: ignore[no-untyped-def]
    """a < b where NaN is larger than every number and equal to itself, and -0.0 is below 0.0."""
    return rank_of(a) < rank_of(b)


@cuda.jit(device=True)
def mixed(key):  # type: ignore[no-untyped-def]
    """A hash of uint64."""
    h = key * _GOLDEN
    h ^= h >> np.uint64(32)
    return (h * _MIX) >> np.uint64(20)


@cuda.jit(device=True)
def is_set(bitmap, bit):  # type: ignore[no-untyped-def]
    """A bit of an Arrow bitmap."""
    return (bitmap[bit >> 3] >> (bit & 7)) & 1 != 0


@cuda.jit(device=True)
def pane_after(time, base, width, reciprocal):  # type: ignore[no-untyped-def]
    """floor((time - base) / width) for 0 <= time - base < 2**51, without a division: the product with the reciprocal is
    off by one at the most. `base` is taken modulo 2**64, and so is the difference.
    """
    d = time - base
    q = np.int64(np.float64(d) * reciprocal)
    r = d - q * width
    if r >= width:
        q += 1
    if r < 0:
        q -= 1
    return q


@cuda.jit(device=True)
def place_of(before, k):  # type: ignore[no-untyped-def]
    """Where a running count (int64[n + 1], from 0 on) goes up from k to k + 1, which it does in steps of one."""
    lo = np.int64(0)
    hi = np.int64(before.shape[0] - 1)
    while lo < hi:
        middle = (lo + hi) >> 1
        if before[middle + 1] <= k:
            lo = middle + 1
        else:
            hi = middle
    return lo


@cuda.jit(device=True)
def probe(keys, key):  # type: ignore[no-untyped-def]
    """The slot of a key in an open-addressing table (uint64, a power of two, EMPTY where free); enters it if it is not
    there.
    """
    mask = np.uint64(keys.shape[0] - 1)
    at = mixed(key) & mask
    while True:
        found = keys[np.int64(at)]
        if found == key:
            return np.int64(at)
        if found == EMPTY:
            found = cuda.atomic.cas(keys, np.int64(at), EMPTY, key)
            if found == EMPTY or found == key:  # noqa: SIM109 - a tuple has no uint64 in it
                return np.int64(at)
        at = (at + np.uint64(1)) & mask
