"""The one place that imports `numba.cuda`: whether there is a device, its memory, how kernels are made and launched.

Kernels are made by `@kernel(...)`, which also enters them in `REGISTRY`, so that a test can compile every one of them
to PTX on a machine without a driver. Device memory comes from CuPy's pool, which Numba is told to use as well: a batch
like the last one allocates nothing. With `NUMBA_ENABLE_CUDASIM=1` everything runs in Numba's simulator on host memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

# CuPy reads this when it is imported: its work goes to the stream of the thread. numba-cuda reads a variable of its own
# and does nothing with it, so its launches and copies name that stream: see `stream`.
os.environ.setdefault("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "1")

from numba import config, cuda

from gpuwin_kernels.cuda.counted import PoolStats, SimulatedPool, waited, waits

STAGE_BYTES = 1 << 23
"""Pinned memory is filled, and moved, this much at a time, in two halves that take turns."""


class OutOfDeviceMemory(MemoryError):
    """The device had not `wanted` bytes left."""

    def __init__(self, wanted: int) -> None:
        super().__init__(f"the device has not {wanted} bytes of memory left")
        self.wanted = wanted


# -- what is there -----------------------------------------------------------------------------------------------------


def simulated() -> bool:
    """Whether CUDA is Numba's simulator."""
    return bool(config.ENABLE_CUDASIM)


@cache
def why_not() -> str | None:
    """What is missing for kernels to run: a package, the driver or a device. None if nothing is."""
    if simulated():
        return None
    if not _installed("numba_cuda"):
        return "the package numba-cuda is not installed (pip install 'gpuwin[cuda13]')"
    if not _installed("cupy"):
        return _without_driver() or "the package CuPy is not installed (pip install 'gpuwin[cuda13]')"
    missing = _without_driver()
    if missing is None:
        _use_pool()
    return missing


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def _without_driver() -> str | None:
    from numba.cuda.cudadrv.error import CudaSupportError

    try:
        devices = len(cuda.gpus)
    except CudaSupportError as error:
        found = " ".join(str(error).split())
        if "cannot be found" in found or "not found" in found:
            return "no NVIDIA driver was found on this machine (libcuda)"
        return f"the NVIDIA driver cannot be used: {found}"
    return None if devices else "the NVIDIA driver sees no GPU"


# -- streams -----------------------------------------------------------------------------------------------------------


@cache
def _stream() -> Any:
    return cuda.per_thread_default_stream()


def stream() -> Any:
    """The default stream of the calling thread: what other threads launch does not wait for it, nor it for them. CuPy
    and CCCL launch there too, so one thread's work is in order without waits.
    """
    return 0 if simulated() else _stream()


# -- memory ------------------------------------------------------------------------------------------------------------


@cache
def _use_pool() -> None:
    """Numba takes its memory from CuPy's pool. Must come before the first device array."""
    import cupy
    from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer

    class CupyPool(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """An external memory manager as Numba's documentation describes them."""

        interface_version = 1

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._held: dict[int, Any] = {}

        def initialize(self) -> None:
            super().initialize()

        def memalloc(self, size: int) -> Any:
            before = pool_bytes()
            try:
                memory = cupy.cuda.alloc(max(size, 1))  # an address of 0 would not do
            except cupy.cuda.memory.OutOfMemoryError:
                raise OutOfDeviceMemory(size) from None
            if pool_bytes() > before:
                _grown()
            address = memory.ptr
            self._held[address] = memory
            pointer = c_void_p(address)
            return MemoryPointer(self.context, pointer, size, finalizer=lambda: self._held.pop(address, None))

        def get_memory_info(self) -> Any:
            free, total = cupy.cuda.Device().mem_info
            return MemoryInfo(free=free, total=total)

        def reset(self) -> None:
            super().reset()
            self._held.clear()

        def defer_cleanup(self) -> Any:
            return super().defer_cleanup()

    cuda.set_memory_manager(CupyPool)


_simulated_pool = SimulatedPool()
_growths = [0]


def _grown() -> None:
    _growths[0] += 1


def pool_bytes() -> int:
    """Bytes that the pool holds, in use or not; a batch on the warm path leaves this as it is."""
    if simulated():
        return _simulated_pool.stats().nbytes
    import cupy

    return int(cupy.get_default_memory_pool().total_bytes())


def pool_stats() -> PoolStats:
    """What the pool holds, and how often it grew for an array of ours; of all threads together."""
    return _simulated_pool.stats() if simulated() else PoolStats(_growths[0], pool_bytes())


def empty(n: int, dtype: Any) -> Any:
    """A device array [n] with unset contents. Raises OutOfDeviceMemory."""
    if simulated() and n:
        return cuda.device_array(n, dtype, buffer=_simulated_pool.buffer(n * np.dtype(dtype).itemsize))
    return cuda.device_array(n, dtype)  # without a stream of its own, or CuPy would wait for that


def zeros(n: int, dtype: Any) -> Any:
    return full(n, 0, dtype)


def full(n: int, value: Any, dtype: Any) -> Any:
    """A device array [n] of one value."""
    out = empty(n, dtype)
    if simulated():
        if n:
            out[:] = np.full(n, value, dtype)
    elif n:
        as_cupy(out).fill(value)
    return out


def as_cupy(array: Any) -> Any:
    """The same memory as a CuPy array."""
    import cupy

    return cupy.asarray(array)


def as_numba(array: Any) -> Any:
    """The same memory as one of Numba's device arrays. Both libraries work on the thread's stream: nobody waits."""
    return cuda.as_cuda_array(array, sync=False)


def to_device(host: np.ndarray) -> Any:
    """A copy on the device of a one-dimensional array, through pinned memory where it is large."""
    host = np.ascontiguousarray(host)
    out = empty(len(host), host.dtype)
    if not len(host):
        return out
    if simulated() or host.nbytes <= STAGE_BYTES // 8:
        out.copy_to_device(host, stream=stream())
    else:
        _staged(host.view(np.uint8), out.view(np.uint8))
    return out


def _staged(host: np.ndarray, out: Any) -> None:
    """Fills one half of the pinned memory while the other half is on its way."""
    halves, moved = _stage.get()
    for k, lo in enumerate(range(0, len(host), STAGE_BYTES)):
        part = host[lo : lo + STAGE_BYTES]
        moved[k % 2].synchronize()
        half = halves[k % 2][: len(part)]
        np.copyto(half, part)
        out[lo : lo + len(part)].copy_to_device(half, stream=stream())
        moved[k % 2].record(stream())


class _Stage(threading.local):
    """Each thread's own pinned memory; an event says when what was copied from a half has left it. It costs 16 MiB, so
    a thread has none before its first large copy.
    """

    made: tuple[list[np.ndarray], list[Any]] | None = None

    def get(self) -> tuple[list[np.ndarray], list[Any]]:
        if self.made is None:
            halves = [cuda.pinned_array(STAGE_BYTES, np.uint8) for _ in range(2)]
            self.made = halves, [cuda.event(timing=False) for _ in range(2)]
        return self.made


_stage = _Stage()


def to_host(array: Any) -> np.ndarray:
    """A copy on the host; waits for what was launched before."""
    waited()
    out: np.ndarray
    if simulated():
        out = array.copy_to_host()
        return out
    out = np.empty(array.shape, array.dtype)
    if out.size:
        array.copy_to_host(out, stream=stream())
        stream().synchronize()
    return out


def read(*arrays: Any) -> list[np.ndarray]:
    """Copies of one-dimensional arrays on the host, for one wait: they are put together on the device first."""
    if len(arrays) < 2:
        return [to_host(array) for array in arrays]
    starts, at = [], 0
    for array in arrays:
        starts.append(at)
        at += -(-len(array) * array.dtype.itemsize // 8) * 8
    whole = empty(at, np.uint8)
    for start, array in zip(starts, arrays, strict=True):
        if len(array):
            part = array.view(np.uint8)
            whole[start : start + len(part)].copy_to_device(part, stream=stream())
    host = to_host(whole)
    return [
        host[start : start + len(array) * array.dtype.itemsize].view(array.dtype)
        for start, array in zip(starts, arrays, strict=True)
    ]


def synchronize() -> None:
    """Waits for everything that was launched, by whatever thread."""
    waited()
    cuda.synchronize()


# -- kernels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Registered:
    """A kernel, and the signatures that it is launched with."""

    name: str
    function: Callable[..., None]
    signatures: tuple[str, ...]
    hot: bool


REGISTRY: dict[str, Registered] = {}
"""Every kernel there is, by name; generated ones are entered when they are generated."""


def kernel(*signatures: str, hot: bool = False, name: str = "") -> Callable[[Callable[..., None]], Any]:
    """Makes a kernel. `signatures`: the arguments' types in Numba's notation, for compilation without a device.

    `hot`: it runs once for each row, so it must hold no 64-bit division and no local memory.
    """
    if not signatures:
        raise ValueError("a kernel needs a signature, or nothing compiles it where there is no device")

    def made(function: Callable[..., None]) -> Any:
        own = name or f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        REGISTRY[own] = Registered(own, function, signatures, hot)
        if simulated():
            return cuda.jit(_wrapping(function))
        in_a_file = Path(function.__code__.co_filename).is_file()  # a kernel with a merge of the user is not
        return cuda.jit(cache=in_a_file)(function)

    return made


def _wrapping(function: Callable[..., None]) -> Callable[..., None]:
    """For the simulator: integers wrap around as on the device, and NumPy says nothing about it.

    The simulator looks for `cuda` among the globals of what it runs, so they must be the kernel's own.
    """

    def quiet(*arguments: Any) -> None:
        with errstate(all="ignore"):
            function(*arguments)

    errstate = np.errstate
    return FunctionType(quiet.__code__, function.__globals__, function.__name__, None, quiet.__closure__)


def threads() -> int:
    """Threads of a block. The simulator runs one after the other, so few are idle there."""
    return 32 if simulated() else 256


def launch(kernel: Any, n: int, *arguments: Any) -> None:
    """One thread for each of n things; nothing if there is none."""
    if n > 0:
        size = threads()
        kernel[(n + size - 1) // size, size, stream()](*arguments)


def launch_over(kernel: Any, n: int, *arguments: Any, shared: int = 0) -> None:
    """As many threads as the device has room for, each of which strides over n things. `shared`: bytes for a block."""
    if n > 0:
        size = threads()
        blocks = min((n + size - 1) // size, _room())
        kernel[blocks, size, stream(), shared](*arguments)


@cache
def _room() -> int:
    """Blocks that keep every multiprocessor full."""
    if simulated():
        return 2
    return 8 * int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def concat(parts: Sequence[Any]) -> Any:
    """Device arrays of one dtype, one after the other."""
    if len(parts) == 1:
        return parts[0]
    out = empty(sum(len(p) for p in parts), parts[0].dtype)
    at = 0
    for part in parts:
        if len(part):
            out[at : at + len(part)].copy_to_device(part, stream=stream())
        at += len(part)
    return out


__all__ = [
    "REGISTRY",
    "OutOfDeviceMemory",
    "Registered",
    "as_cupy",
    "as_numba",
    "concat",
    "cuda",
    "empty",
    "full",
    "kernel",
    "launch",
    "launch_over",
    "pool_bytes",
    "pool_stats",
    "read",
    "simulated",
    "stream",
    "synchronize",
    "threads",
    "to_device",
    "to_host",
    "waited",
    "waits",
    "why_not",
    "zeros",
]
