"""Lengths as Java's streams write them: int32, big-endian, at any place of a byte array."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit


@njit(nogil=True, cache=True)
def read_int32(data, at):  # type: ignore[no-untyped-def]
    """The int32 at data[at:at + 4] (uint8), as int64."""
    word = np.uint32(0)
    for i in range(at, at + 4):
        word = (word << np.uint32(8)) | np.uint32(data[i])
    return np.int64(np.int32(word))


@njit(nogil=True, cache=True)
def write_int32(data, at, word):  # type: ignore[no-untyped-def]
    """Writes an int32 to data[at:at + 4] (uint8)."""
    for i in range(at + 3, at - 1, -1):
        data[i] = word & 0xFF
        word >>= 8


@njit(nogil=True, cache=True)
def is_single(data, begin, end):  # type: ignore[no-untyped-def]
    """Whether data[begin:end] (uint8), pieces that are each behind their length, is one of them, or none."""
    return begin == end or begin + 4 + read_int32(data, begin) == end
