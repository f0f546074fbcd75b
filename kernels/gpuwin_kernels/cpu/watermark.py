"""Watermarks row by row, one for each key."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def running_watermarks(code, candidate, known):  # type: ignore[no-untyped-def]
    """int64[n]: the watermark of each row's key after that row, in order of arrival.

    `known` (int64[codes]) is moved on in place.
    """
    after = np.empty(code.shape[0], np.int64)
    for i in range(code.shape[0]):
        c = code[i]
        if candidate[i] > known[c]:
            known[c] = candidate[i]
        after[i] = known[c]
    return after
