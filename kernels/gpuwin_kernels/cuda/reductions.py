"""Single numbers out of device arrays: a thread strides over many values, and enters one result."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import cuda, kernel, launch_over, to_device, to_host, zeros

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@kernel("void(int64[::1], int64[::1])")
def _range(values, out):  # type: ignore[no-untyped-def]
    least = np.int64(_MOST)
    most = np.int64(_LEAST)
    i = cuda.grid(1)
    step = cuda.gridsize(1)
    while i < values.shape[0]:
        v = values[i]
        least = min(least, v)
        most = max(most, v)
        i += step
    if least < out[0]:  # read first: after a few threads most find nothing to do
        cuda.atomic.min(out, 0, least)
    if most > out[1]:
        cuda.atomic.max(out, 1, most)


def least_and_most(values: DeviceArray) -> tuple[int, int]:
    """Least and largest of int64[n], n > 0."""
    out = to_device(np.array([_MOST, _LEAST]))
    launch_over(_range, len(values), values, out)
    least, most = to_host(out)
    return int(least), int(most)


@kernel("void(int64[::1], uint64[::1])")
def _magnitude(values, out):  # type: ignore[no-untyped-def]
    most = np.uint64(0)
    i = cuda.grid(1)
    step = cuda.gridsize(1)
    while i < values.shape[0]:
        v = values[i]
        size = np.uint64(v) if v >= 0 else ~np.uint64(v) + np.uint64(1)
        most = max(most, size)
        i += step
    if most > out[0]:
        cuda.atomic.max(out, 0, most)


def largest_magnitude(values: DeviceArray) -> int:
    """max |v| of int64[n]; 0 for none."""
    out = zeros(1, np.uint64)
    launch_over(_magnitude, len(values), values, out)
    return int(to_host(out)[0])


__all__ = ["largest_magnitude", "least_and_most"]
