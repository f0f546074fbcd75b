"""Values of up to eight bytes as the int64 keys of a dictionary, two values alike exactly where the keys are. As on the
host, NaN is equal to NaN and -0.0 to 0.0.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch
from gpuwin_kernels.cuda.scalar import bits_of, is_set

_NAN = np.int64(0x7FF8000000000000)


@kernel(*(f"void({kind}{bits}[::1], int64[::1])" for kind in ("int", "uint") for bits in (8, 16, 32)), hot=True)
def _widen(narrow, wide):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < narrow.shape[0]:
        wide[i] = np.int64(narrow[i])


@kernel("void(float32[::1], int64[::1])", "void(float64[::1], int64[::1])", hot=True)
def _equal_bits(values, bits):  # type: ignore[no-untyped-def]
    """Bits that are equal exactly where the floats are: one NaN, one zero."""
    i = cuda.grid(1)
    if i < values.shape[0]:
        x = np.float64(values[i])
        if x != x:
            bits[i] = _NAN
        elif x == 0.0:
            bits[i] = 0
        else:
            bits[i] = bits_of(x)  # type: ignore[no-untyped-call]


@kernel("void(uint8[::1], int64, int64[::1])", hot=True)
def _of_bits(bitmap, offset, values):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < values.shape[0]:
        values[i] = 1 if is_set(bitmap, offset + i) else 0


def whole(values: DeviceArray) -> DeviceArray:
    """int64[n] of integers or floats of at most 8 bytes; half floats are widened by the host."""
    if values.dtype == np.int64:
        return values
    out = empty(len(values), np.int64)
    launch(_equal_bits if values.dtype.kind == "f" else _widen, len(values), values, out)
    return out


def bits(bitmap: DeviceArray, offset: int, n: int) -> DeviceArray:
    """int64[n]: 0 and 1, of a packed bitmap (uint8) from bit `offset` on."""
    out = empty(n, np.int64)
    launch(_of_bits, n, bitmap, offset, out)
    return out


@kernel("void(int64, int64[::1])", hot=True)
def _steps(width, offsets):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < offsets.shape[0]:
        offsets[i] = i * width


def steps(width: int, n: int) -> DeviceArray:
    """int64[n + 1]: where each of n values of a fixed width begins, and the last ends."""
    out = empty(n + 1, np.int64)
    launch(_steps, n + 1, width, out)
    return out


__all__ = ["bits", "steps", "whole"]
