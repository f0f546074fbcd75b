"""Watermarks row by row, one for each key."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit


@njit(nogil=True, cache=True)
def running_watermarks(code, candidate, known):  # type: ignore[no-untyped-def]
    """int64[n]: the watermark of each row's key when that row comes, in order of arrival.

    `known` (int64[codes]) is moved on in place.
    """
    before = np.empty(code.shape[0], np.int64)
    for i in range(code.shape[0]):
        c = code[i]
        before[i] = known[c]
        if candidate[i] > known[c]:
            known[c] = candidate[i]
    return before


@njit(nogil=True, cache=True)
def rows_before_closing(lo, hi, end, closing, earliest, stop):  # type: ignore[no-untyped-def]
    """stop[g]: rows `lo[g]:stop[g]` are the first row of group g and those after it that come before anything closes.

    end, closing: int64[rows]: a row opens something that ends at `end`; when it comes, what ends up to `closing` has
    closed. earliest: int64[groups]: the first end of what was open. All that is known of what rows extend is that it
    ends no earlier.
    """
    for g in range(lo.shape[0]):
        least = min(earliest[g], end[lo[g]])
        i = lo[g] + 1
        while i < hi[g] and least > closing[i]:
            least = min(least, end[i])
            i += 1
        stop[g] = i
