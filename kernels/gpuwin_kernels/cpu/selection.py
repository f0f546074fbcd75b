"""Order statistics of each window by itself: its values are copied, and put in order as far as the answer needs it.

For windows that overlap little; `sliding_order` is for those that overlap much. The kernels work on windows
[w0, w1), so that threads share them.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit

SHORT = 32  # values up to which insertion beats partition


@njit(nogil=True, cache=True)
def sort_few(values, n):  # type: ignore[no-untyped-def]
    """Sorts the first n values, by insertion."""
    for i in range(1, n):
        v = values[i]
        j = i - 1
        while j >= 0 and values[j] > v:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = v


@njit(nogil=True, cache=True)
def _partition(values, lo, hi, k):  # type: ignore[no-untyped-def]
    """Puts the k-th smallest of values[lo:hi] in its place, and smaller ones before it (Hoare's quickselect, with the
    middle of three as pivot).
    """
    hi -= 1
    while hi - lo >= SHORT:
        middle = (lo + hi) >> 1
        a, b, c = values[lo], values[middle], values[hi]
        pivot = max(min(a, b), min(max(a, b), c))
        i = lo
        j = hi
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k <= j:
            hi = j
        elif k >= i:
            lo = i
        else:
            return
    sort_few(values[lo:], hi + 1 - lo)


@njit(nogil=True, cache=True)
def quantiles_of_windows(lo, hi, valid, numbers, fractions, w0, w1, out, size):  # type: ignore[no-untyped-def]
    """Writes the quantiles of the valid numbers (float64) of each window, with linear interpolation, and how many
    there are. fractions float64[m]: ascending. out float64[m, windows], 0 where there is no number; size
    int64[windows]. NaN is the largest number.
    """
    scratch = np.empty(64, np.float64)
    for w in range(w0, w1):
        if hi[w] - lo[w] > scratch.shape[0]:
            scratch = np.empty(2 * (hi[w] - lo[w]), np.float64)
        n = 0  # numbers, without the NaNs
        nans = 0
        for i in range(lo[w], hi[w]):
            if valid[i]:
                v = numbers[i]
                if v == v:
                    scratch[n] = v
                    n += 1
                else:
                    nans += 1
        size[w] = n + nans
        placed = np.int64(0)  # before it lie smaller numbers only
        for f in range(fractions.shape[0]):
            out[f, w] = 0.0
            if n + nans == 0:
                continue
            position = fractions[f] * (n + nans - 1)
            below = np.int64(np.floor(position))
            part = position - below
            if below >= n or (part > 0.0 and below + 1 >= n):
                out[f, w] = np.nan
                continue
            _partition(scratch, placed, n, below)
            placed = below
            out[f, w] = scratch[below]
            if part > 0.0:
                above = scratch[below + 1]
                for k in range(below + 2, n):
                    above = min(above, scratch[k])
                out[f, w] = (1.0 - part) * out[f, w] + part * above


@njit(nogil=True, cache=True)
def distinct_of_windows(lo, hi, valid, key, w0, w1, out):  # type: ignore[no-untyped-def]
    """Writes the number of different keys (int64) among the valid rows of each window."""
    scratch = np.empty(64, np.int64)
    for w in range(w0, w1):
        if hi[w] - lo[w] > scratch.shape[0]:
            scratch = np.empty(2 * (hi[w] - lo[w]), np.int64)
        n = 0
        for i in range(lo[w], hi[w]):
            if valid[i]:
                scratch[n] = key[i]
                n += 1
        if n <= SHORT:
            sort_few(scratch, n)
        else:
            scratch[:n].sort()
        out[w] = n > 0
        for k in range(1, n):
            out[w] += scratch[k] != scratch[k - 1]


@njit(nogil=True, cache=True)
def top_of_windows(lo, hi, valid, key, first, w0, w1, row):  # type: ignore[no-untyped-def]
    """Writes the rows with the largest keys (int64) of each window, the largest first and of equals the newest: as many
    valid rows as the window w has room for, from first[w] to first[w + 1].
    """
    for w in range(w0, w1):
        at = first[w]
        room = first[w + 1] - at
        n = 0
        for i in range(lo[w], hi[w]):
            if not valid[i] or (n == room and key[i] < key[row[at + n - 1]]):
                continue
            j = n if n < room else n - 1
            while j > 0 and key[row[at + j - 1]] <= key[i]:
                row[at + j] = row[at + j - 1]
                j -= 1
            row[at + j] = i
            n = min(n + 1, room)
