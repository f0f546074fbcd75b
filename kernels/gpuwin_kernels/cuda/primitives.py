"""Sort, scan and select on the device, by libraries: `cuda.compute` (CCCL) where it can be used, else CuPy; NumPy on
the same memory in the simulator.

Both libraries sort by radix. CCCL's takes a range of bits; CuPy's goes over all bits of the type, so keys are made as
narrow for it as their range allows.
"""

from __future__ import annotations

import logging
from functools import cache
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np

from gpuwin_kernels.cuda import runtime
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import (
    as_cupy,
    as_numba,
    calling_cupy,
    cuda,
    empty,
    kernel,
    launch,
    sent,
    to_device,
    waited,
    zeros,
)

log = logging.getLogger("gpuwin")
_sorting = Lock()
_EACH = 16  # values of 8 bytes: a line of the cache


@cache
def _compute() -> ModuleType | None:
    """The module `cuda.compute`, or None where it is not installed, or cannot be used, which the log says."""
    try:
        import cuda.compute as compute

        # The module can be imported without its bindings, and then lacks what is in it.
        _ = compute.make_radix_sort, compute.SortOrder.ASCENDING
    except ModuleNotFoundError as error:
        if error.name not in ("cuda", "cuda.compute"):  # something that it needs
            _say_once(error)
        return None
    except (ImportError, AttributeError) as error:
        _say_once(error)
        return None
    found: ModuleType = compute
    return found


@cache
def _say_once_of(said: str) -> None:
    log.warning(
        "cuda.compute (the package cuda-cccl) is installed and cannot be used: %s. CuPy sorts in its place, over more "
        "bits than there are. Install the version that fits the driver: gpuwin[cuda13] or gpuwin[cuda12].",
        said,
    )


def _say_once(error: Exception) -> None:
    _say_once_of(f"{type(error).__name__}: {' '.join(str(error).split())}")


def sort_pairs(
    keys: DeviceArray, values: DeviceArray, bits: int = 64, first: int = 0
) -> tuple[DeviceArray, DeviceArray]:
    """(keys uint64[n], values int32[n]) in the stable order of the keys, which are below 2**bits; of their bits from
    the `first` on, if it is said.
    """
    if len(keys) < 2:
        return keys, values
    sent.launches["sort"] += 1
    if runtime.simulated():
        in_keys: Any = keys
        in_values: Any = values
        host, other = in_keys.copy_to_host(), in_values.copy_to_host()
        # As a radix sort, which does not see the bits above.
        order = np.argsort((host & np.uint64((1 << bits) - 1)) >> np.uint64(first), kind="stable")
        empty(16 * len(keys), np.uint8)  # stands for memory of the sort
        out_keys: Any = empty(len(keys), np.uint64)
        out_values: Any = empty(len(keys), values.dtype)
        out_keys.copy_to_device(host[order])
        out_values.copy_to_device(other[order])
        return out_keys, out_values
    return _sorted_by_library(keys, values, bits, first)


def _sorted_by_library(
    keys: DeviceArray, values: DeviceArray, bits: int, first: int
) -> tuple[DeviceArray, DeviceArray]:
    compute = _compute()
    if compute is not None:
        try:
            return _sorted_by_cccl(compute, keys, values, bits, first)
        except (ImportError, AttributeError) as error:  # a binding that is looked for when it is called
            _say_once(error)
    return _sorted_by_cupy(keys, values, bits, first)


def _sorted_by_cupy(keys: DeviceArray, values: DeviceArray, bits: int, first: int) -> tuple[DeviceArray, DeviceArray]:
    """Radix sort over all bits of the narrowest type that holds those that matter: 4 passes over 32 bits for 20."""
    dtype = next(d for d in (np.uint8, np.uint16, np.uint32, np.uint64) if bits - first <= 8 * np.dtype(d).itemsize)
    with calling_cupy(32 * len(keys)):
        narrow = (as_cupy(keys) >> np.uint64(first)).astype(dtype, copy=False)
        order = narrow.argsort()  # stable; CuPy 13 takes no `kind`
        return as_numba(as_cupy(keys)[order]), as_numba(as_cupy(values)[order])


def _sorted_by_cccl(
    compute: ModuleType, keys: DeviceArray, values: DeviceArray, bits: int, first: int = 0
) -> tuple[DeviceArray, DeviceArray]:
    """Radix sort over the bits that there are, its scratch memory from our pool. Newer versions take keywords only."""
    n = len(keys)
    out_keys, out_values = empty(n, np.uint64), empty(n, values.dtype)
    arrays = {"d_in_keys": keys, "d_out_keys": out_keys, "d_in_values": values, "d_out_values": out_values}
    with _sorting, calling_cupy(16 * n):  # a sorter is shared by threads, and remembers its arrays
        sorter = compute.make_radix_sort(**arrays, order=compute.SortOrder.ASCENDING)
        call = arrays | {"num_items": n, "begin_bit": first, "end_bit": bits, "stream": None}  # the legacy one
        scratch = empty(max(int(sorter(temp_storage=None, **call)), 1), np.uint8)
        sorter(temp_storage=scratch, **call)
    return out_keys, out_values


def exclusive_sum(values: DeviceArray) -> DeviceArray:
    """int64[n + 1]: the sum of what comes before each of int64[n], and of all."""
    whole = zeros(len(values) + 1, np.int64)
    if len(values):
        sent.launches["copy"] += 1
        behind: Any = whole[1:]
        behind.copy_to_device(values, stream=runtime.stream())
    return running_sum(whole)


def running_sum(values: DeviceArray) -> DeviceArray:
    """The very array, int64[n], n > 0, with the sum up to each value in its place. Of 0 and n numbers it makes what
    comes before each of these, and the sum of all.
    """
    sent.launches["scan"] += 1
    sent.arrays += 1  # CuPy's own, for the scan
    if runtime.simulated():
        of: Any = values
        of.copy_to_device(np.cumsum(of.copy_to_host()))  # stands for what does not wait on a device
        return values
    import cupy

    with calling_cupy(8 * len(values)):
        there = as_cupy(values)
        cupy.cumsum(there, out=there)
    return values


@kernel("void(uint64[::1], uint64[::1])", hot=True)
def _most_of_each(values, most):  # type: ignore[no-untyped-def]
    """Largest of each `_EACH` values that follow on one another."""
    i = cuda.grid(1)
    if i < most.shape[0]:
        best = values[i * _EACH]
        for k in range(1, _EACH):
            if i * _EACH + k < values.shape[0]:
                best = max(best, values[i * _EACH + k])
        most[i] = best


@kernel("void(uint64[::1], uint64[::1], uint64[::1])", hot=True)
def _most_so_far(values, most, out):  # type: ignore[no-untyped-def]
    """`most`: up to the end of each `_EACH` values."""
    i = cuda.grid(1)
    if i * _EACH < values.shape[0]:
        best = most[i - 1] if i > 0 else np.uint64(0)
        for k in range(_EACH):
            if i * _EACH + k < values.shape[0]:
                best = max(best, values[i * _EACH + k])
                out[i * _EACH + k] = best


def running_max(values: DeviceArray) -> DeviceArray:
    """uint64[n]: the largest of uint64[n] up to each position. A thread goes over `_EACH` values, after those before
    them are known, which are found in the same way: values are read twice, and written once.
    """
    n, out = len(values), empty(len(values), np.uint64)
    parts = -(-n // _EACH)
    most = empty(parts, np.uint64)
    if parts > 1:
        launch(_most_of_each, parts, values, most)
        most = running_max(most)
    launch(_most_so_far, parts, values, most, out)
    return out


def select(flags: DeviceArray) -> DeviceArray:
    """int32[m]: the positions where uint8[n] is not 0, ascending. Waits for m."""
    waited()
    sent.launches["select"] += 1
    if runtime.simulated():
        of: Any = flags
        return to_device(np.flatnonzero(of.copy_to_host()).astype(np.int32))
    import cupy

    with calling_cupy(16 * len(flags)):
        return as_numba(cupy.flatnonzero(as_cupy(flags)).astype(np.int32))


@kernel("void(uint64[::1], uint64[::1], boolean, int64[::1])")
def _search(keys, wanted, right, out):  # type: ignore[no-untyped-def]
    w = cuda.grid(1)
    if w < wanted.shape[0]:
        x = wanted[w]
        lo = 0
        hi = keys.shape[0]
        while lo < hi:
            middle = (lo + hi) >> 1
            if keys[middle] < x or (right and keys[middle] == x):
                lo = middle + 1
            else:
                hi = middle
        out[w] = lo


def search(keys: DeviceArray, wanted: DeviceArray, right: bool = False) -> DeviceArray:
    """int64[k]: how many of the sorted keys (uint64[n]) are below each wanted one (uint64[k]); `right`: or equal."""
    out = empty(len(wanted), np.int64)
    launch(_search, len(wanted), keys, wanted, right, out)
    return out


__all__ = ["exclusive_sum", "running_max", "running_sum", "search", "select", "sort_pairs"]
