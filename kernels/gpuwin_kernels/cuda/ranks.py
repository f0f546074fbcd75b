"""Running counts of marks, int64[n + 1], and what stands in for their scan where there are few: counters of tiles.

A scan is a launch by itself, of several kernels in turn. Of few marks the kernel that sets them counts them by tiles,
of 64 marks and of 4,096, and the kernel that asks for a rank adds up the tiles before it and the marks of its own. That
is at most 190 reads, nearly all of which the threads of a warp share. Where there are more marks, there are no tiles,
and `before` is scanned as ever.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.device_array import DeviceArray, Length
from gpuwin_kernels.cuda.runtime import cuda

MOST_COUNTED = 1 << 18
"""Marks that are counted by tiles at most."""
_NEAR, _FAR = 6, 12  # bits of a place within a tile
_FARS = MOST_COUNTED >> _FAR


def tiles_of(n: int) -> Length:
    """(values, dtype) of the counters of n marks, which begin as zero; none of them if there are too many marks."""
    return (_FARS + (n >> _NEAR) + 1 if n <= MOST_COUNTED else 0), np.int64


def counted(before: DeviceArray, tiles: DeviceArray) -> DeviceArray:
    """Marks as `rank` takes them: `before`, int64[n + 1], 0 and then 1 for each that is marked, if `tiles` has
    counted these; else its running count.
    """
    return before if len(tiles) else primitives.running_sum(before)


def total_of(before: DeviceArray, tiles: DeviceArray) -> DeviceArray:
    """int64[k], on the device: parts of the number of marks."""
    return tiles[:_FARS] if len(tiles) else before[len(before) - 1 :]


@cuda.jit(device=True)
def count_mark(tiles, i):  # type: ignore[no-untyped-def]
    """Counts the mark at a place, if marks are counted by tiles."""
    if tiles.shape[0] > 0:
        cuda.atomic.add(tiles, i >> _FAR, 1)
        cuda.atomic.add(tiles, _FARS + (i >> _NEAR), 1)


@cuda.jit(device=True)
def is_marked(before, tiles, i):  # type: ignore[no-untyped-def]
    """Whether there is a mark at a place."""
    return before[i + 1] != (before[i] if tiles.shape[0] == 0 else 0)


@cuda.jit(device=True)
def rank(before, tiles, i):  # type: ignore[no-untyped-def]
    """Number of marks before a place, or of all if it is the number of places."""
    if tiles.shape[0] == 0:
        return before[i]
    i = np.int64(i)
    found = np.int64(0)
    far = i >> _FAR
    near = i >> _NEAR
    at = np.int64(0)
    while at < far:
        found += tiles[at]
        at += 1
    at <<= _FAR - _NEAR
    while at < near:
        found += tiles[_FARS + at]
        at += 1
    at <<= _NEAR
    while at < i:
        found += before[at + 1]
        at += 1
    return found


__all__ = ["MOST_COUNTED", "count_mark", "counted", "is_marked", "rank", "tiles_of", "total_of"]
