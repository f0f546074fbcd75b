"""Reads of several device arrays for one wait."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cuda import runtime
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.many import collected
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, starts_together


def read(*arrays: DeviceArray) -> list[np.ndarray]:
    """Copies of one-dimensional arrays on the host, for one wait: one kernel puts them together first, if the device
    has room for that.
    """
    some = [array for array in arrays if len(array)]
    if len(some) < 2:
        return [runtime.to_host(array) if len(array) else np.empty(0, array.dtype) for array in arrays]
    starts, size = starts_together([(len(array), array.dtype) for array in some], 8)
    try:
        whole = runtime.empty(size, np.uint8)
    except OutOfDeviceMemory:
        return [runtime.to_host(array) for array in arrays]
    collected(some, whole, starts)
    host, at = runtime.to_host(whole), iter(starts)
    return [_values(host, next(at), array) if len(array) else np.empty(0, array.dtype) for array in arrays]


def _values(host: np.ndarray, start: int, like: DeviceArray) -> np.ndarray:
    return host[start : start + len(like) * like.dtype.itemsize].view(like.dtype)


__all__ = ["read"]
