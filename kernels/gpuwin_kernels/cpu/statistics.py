"""Merges of statistics that keep more than a mean and a variance, and of sketches. Compiled into their callers.

Sources: higher moments and co-moments of two samples as one, Pebay, "Formulas for Robust, One-Pass Parallel Computation
of Covariances and Arbitrary-Order Statistical Moments", 2008; registers, Flajolet et al., "HyperLogLog", 2007.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.scalar import moments_add

_REGISTER_BITS = 6
_REGISTERS = 10  # whole registers in a word of 64 bits


@njit(nogil=True, cache=True)
def moments3_add(a, b):  # type: ignore[no-untyped-def]
    """Count, mean, and sums of the second and third powers of the distances to it."""
    a_n, a_mean, a_m2, a_m3 = a
    b_n, b_mean, b_m2, b_m3 = b
    if a_n == 0.0:
        return b
    if b_n == 0.0:
        return a
    n, mean, m2 = moments_add((a_n, a_mean, a_m2), (b_n, b_mean, b_m2))
    delta = b_mean - a_mean
    step = delta / n
    m3 = a_m3 + b_m3 + delta * step * step * a_n * b_n * (a_n - b_n) + 3.0 * step * (a_n * b_m2 - b_n * a_m2)
    return n, mean, m2, m3


@njit(nogil=True, cache=True)
def moments4_add(a, b):  # type: ignore[no-untyped-def]
    """As `moments3_add`, and the fourth powers."""
    a_n, a_mean, a_m2, a_m3, a_m4 = a
    b_n, b_mean, b_m2, b_m3, b_m4 = b
    if a_n == 0.0:
        return b
    if b_n == 0.0:
        return a
    n, mean, m2, m3 = moments3_add((a_n, a_mean, a_m2, a_m3), (b_n, b_mean, b_m2, b_m3))
    delta = b_mean - a_mean
    step = delta / n
    m4 = (
        a_m4
        + b_m4
        + delta * step * step * step * a_n * b_n * (a_n * a_n - a_n * b_n + b_n * b_n)
        + 6.0 * step * step * (a_n * a_n * b_m2 + b_n * b_n * a_m2)
        + 4.0 * step * (a_n * b_m3 - b_n * a_m3)
    )
    return n, mean, m2, m3, m4


@njit(nogil=True, cache=True)
def comoments_add(a, b):  # type: ignore[no-untyped-def]
    """Count, both means, and the sum of products of the distances to them."""
    a_n, a_x, a_y, a_xy = a
    b_n, b_x, b_y, b_xy = b
    if a_n == 0.0:
        return b
    if b_n == 0.0:
        return a
    n = a_n + b_n
    dx = b_x - a_x
    dy = b_y - a_y
    share = b_n / n
    return n, a_x + dx * share, a_y + dy * share, a_xy + b_xy + dx * dy * a_n * share


@njit(nogil=True, cache=True)
def correlation_add(a, b):  # type: ignore[no-untyped-def]
    """As `comoments_add`, and the sums of squared distances of either variable."""
    a_n, a_x, a_y, a_xy, a_xx, a_yy = a
    b_n, b_x, b_y, b_xy, b_xx, b_yy = b
    n, x, y, xy = comoments_add((a_n, a_x, a_y, a_xy), (b_n, b_x, b_y, b_xy))
    _, _, xx = moments_add((a_n, a_x, a_xx), (b_n, b_x, b_xx))
    _, _, yy = moments_add((a_n, a_y, a_yy), (b_n, b_y, b_yy))
    return n, x, y, xy, xx, yy


@njit(nogil=True, cache=True)
def registers_max(a, b):  # type: ignore[no-untyped-def]
    """Two words of ten 6-bit registers, the larger of each: the merge of HyperLogLog."""
    out = np.int64(0)
    mask = np.int64((1 << _REGISTER_BITS) - 1)
    for _ in range(_REGISTERS):
        out |= max(a & mask, b & mask)
        mask <<= np.int64(_REGISTER_BITS)
    return out
