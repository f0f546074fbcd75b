"""Codes of several columns as one, and codes of rows that are given by index: what lies between one dictionary and the
next.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch
from gpuwin_kernels.cuda.scalar import is_set


@kernel("void(int32[::1], int32[::1], int64[::1], uint8[::1])", hot=True)
def _pair(high, low, pairs, unknown):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < high.shape[0]:
        pairs[i] = (np.int64(high[i]) << 32) | np.int64(low[i])
        unknown[i] = 1 if high[i] < 0 or low[i] < 0 else 0


def paired(high: DeviceArray, low: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """(int64[n]: two codes (int32[n] each) in one key; uint8[n]: 1 where one of them is -1, and the key means
    nothing)."""
    n = len(high)
    pairs, unknown = empty(n, np.int64), empty(n, np.uint8)
    launch(_pair, n, high, low, pairs, unknown)
    return pairs, unknown


@kernel("void(int64[::1], uint8[::1], int64, uint8[::1], int32[::1], int32[::1])", hot=True)
def _by_index(index, bitmap, offset, gone, code_of, codes):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < codes.shape[0]:
        if gone.shape[0] > 0 and gone[i] != 0:
            codes[i] = -1
        elif bitmap.shape[0] == 0 or is_set(bitmap, offset + i):
            codes[i] = code_of[index[i]]
        else:
            codes[i] = code_of[code_of.shape[0] - 1]


def by_index(
    index: DeviceArray, bitmap: DeviceArray, offset: int, gone: DeviceArray, code_of: DeviceArray
) -> DeviceArray:
    """int32[n]: the codes `code_of` (int32) of rows that are given by index (int64[n]); the last one where the index is
    null (Arrow bitmap, uint8 from bit `offset` on, or empty); -1 where `gone` (uint8[n], or empty) is not 0.
    """
    codes = empty(len(index), np.int32)
    launch(_by_index, len(index), index, bitmap, offset, gone, code_of, codes)
    return codes


__all__ = ["by_index", "paired"]
