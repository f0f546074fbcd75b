"""Quantiles of windows that slide over the rows of a key: the values of a window stay in order, and one merge takes out
what leaves and puts in what enters.

A window costs a step for each of its values, so a row costs as many steps as windows it lies in. Where these are many,
`slices.slide_select` costs less.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gpuwin_kernels.cpu.memory import bits_float
from gpuwin_kernels.cpu.selection import SHORT, sort_few

_NAN_KEY = np.iinfo(np.int64).max
_SIGN = np.int64(np.iinfo(np.int64).min)


@njit(nogil=True, cache=True)
def float_of_key(key):  # type: ignore[no-untyped-def]
    """The float64 that `slices.float_keys` makes this key (int64) of."""
    if key == _NAN_KEY:
        return np.nan
    return bits_float(key if key >= 0 else ~key | _SIGN)


@njit(nogil=True, cache=True)
def _sorted_keys(key, valid, lo, hi, out):  # type: ignore[no-untyped-def]
    """Writes the keys of the valid rows [lo, hi) in order; how many."""
    n = 0
    for i in range(lo, hi):
        if valid[i]:
            out[n] = key[i]
            n += 1
    if n > SHORT:
        out[:n].sort()
    else:
        sort_few(out, n)
    return n


@njit(nogil=True, cache=True)
def _merge(held, n, leaves, gone, enters, new, out):  # type: ignore[no-untyped-def]
    """Writes the n keys of `held` without the `gone` keys of `leaves`, which it has, and with the `new` keys of
    `enters`, all of them in order.
    """
    g = e = k = 0
    for i in range(n):
        value = held[i]
        if g < gone and leaves[g] == value:
            g += 1
            continue
        while e < new and enters[e] < value:
            out[k] = enters[e]
            e += 1
            k += 1
        out[k] = value
        k += 1
    while e < new:
        out[k] = enters[e]
        e += 1
        k += 1


@njit(nogil=True, cache=True)
def quantiles_of_sliding(lo, hi, order, valid, key, q, w0, w1, out, size):  # type: ignore[no-untyped-def]
    """Writes the quantile q, with linear interpolation, of the windows order[w0:w1], and how many values each has.

    Window w holds the rows [lo[w], hi[w]); `order`: the windows by (lo, hi). key int64: `slices.float_keys` of the
    values, of rows where valid (uint8). out float64, 0 where there is no value; size int64.
    """
    widest = 1
    for k in range(w0, w1):
        widest = max(widest, hi[order[k]] - lo[order[k]])
    held, other, leaves, enters = np.empty((4, widest), np.int64)
    a = b = np.int64(0)
    n = 0
    for k in range(w0, w1):
        w = order[k]
        first, beyond = lo[w], max(hi[w], lo[w])
        if first >= b or beyond < b:
            n = _sorted_keys(key, valid, first, beyond, held)
        elif first > a or beyond > b:
            gone = _sorted_keys(key, valid, a, first, leaves)
            new = _sorted_keys(key, valid, b, beyond, enters)
            _merge(held, n, leaves, gone, enters, new, other)
            held, other = other, held
            n += new - gone
        a, b = first, beyond
        size[w], out[w] = n, 0.0
        if n:
            position = q * (n - 1)
            below = np.int64(np.floor(position))
            part = position - below
            out[w] = float_of_key(held[below])
            if part > 0.0:
                out[w] = (1.0 - part) * out[w] + part * float_of_key(held[below + 1])
