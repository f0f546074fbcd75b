"""Quotients of times by a width, rounded down, by all threads."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.aliases import alias_of
from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each, ranges

_LEAST = np.int64(-(1 << 63))
_MOST = np.int64((1 << 63) - 1)


@njit(nogil=True, cache=True)
def _fill(time, origin, width, out):  # type: ignore[no-untyped-def]
    quotient = np.int64(0)
    first = np.int64(1)  # the last quotient is that of [first, last]: most times have that of the time before
    last = np.int64(0)
    for i in range(time.shape[0]):
        x = time[i] - origin
        if x < first or x > last:
            quotient = x // width
            first = quotient * width
            last = first + (width - np.int64(1))
            if first > x:
                first = _LEAST
            if last < x:
                last = _MOST
        out[i] = quotient


def floors(time: np.ndarray, origin: int, width: int) -> np.ndarray:
    """floor((time - origin) / width), int64[n], of times int64[n] whose difference to `origin` fits int64; `width` is
    positive, and both fit int64.
    """
    out = empty(len(time), np.int64)
    time = alias_of(time)
    each(lambda part: _fill(time[slice(*part)], origin, width, out[slice(*part)]), ranges(len(out)))
    return out
