"""Smallest and largest value of an array of int64, found by all threads."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu import slots
from gpuwin_kernels.cpu.aliases import alias_of
from gpuwin_kernels.cpu.parallel import each, ranges

_ALL = np.zeros(0, np.uint8)


def ends_of(values: np.ndarray) -> tuple[int, int]:
    """(smallest, largest) of int64[n], n at least 1. Raises ValueError for no values."""
    if not len(values):
        raise ValueError("no values have neither a smallest nor a largest one")
    values = alias_of(values)
    parts = ranges(len(values))
    if len(parts) == 1:
        oldest, newest = slots.time_range(values, _ALL)[:2]
        return int(oldest), int(newest)
    found = each(lambda part: slots.time_range(values[slice(*part)], _ALL), parts)
    return min(int(f[0]) for f in found), max(int(f[1]) for f in found)
