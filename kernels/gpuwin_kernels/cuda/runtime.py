"""The one place that imports `numba.cuda`: whether there is a device, its memory, how kernels are made and launched.

Kernels are made by `@kernel(...)`, which also enters them in `REGISTRY`, so that a test can compile every one of them
to PTX on a machine without a driver. Device memory comes from CuPy's pool, which Numba is told to use as well: a batch
like the last one allocates nothing. With `NUMBA_ENABLE_CUDASIM=1` everything runs in Numba's simulator on host memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any

import numpy as np
from numba import config, cuda

from gpuwin_kernels.cuda import compiler, driver, numpy_names, pool, scratch
from gpuwin_kernels.cuda.counted import PoolStats, SimulatedPool, sent, waited, waits
from gpuwin_kernels.cuda.device_array import DeviceArray, Kernel, Length, Number, Stream
from gpuwin_kernels.cuda.pool import OutOfDeviceMemory, calling_cupy
from gpuwin_kernels.cuda.scratch import Scratch, kept
from gpuwin_kernels.cuda.staging import Ring, Rings

if "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS" not in os.environ:  # most launches for a small batch are of few blocks
    for _settings in (config, getattr(cuda, "config", config)):
        _settings.CUDA_LOW_OCCUPANCY_WARNINGS = 0

if not config.ENABLE_CUDASIM:
    numpy_names.load_array_functions()  # before anything is compiled

STAGE_BYTES = 1 << 24
"""Pinned memory is filled in two halves of so many bytes, which take turns: one is filled while the other is copied."""


# -- what is there -----------------------------------------------------------------------------------------------------


def simulated() -> bool:
    """Whether CUDA is Numba's simulator."""
    return bool(config.ENABLE_CUDASIM)


_first_use = RLock()
"""Held by the thread that sets up the driver: Numba calls it ready before it is, to threads that come meanwhile."""
_tried: list[str | None] = []


def why_not() -> str | None:
    """Reason why kernels do not run: a package, the driver, a device, or a part of the compiler is missing. It is tried
    with one kernel, once in a process; other threads wait for it. None if nothing is.
    """
    if not _tried:
        with _first_use:
            if not _tried:
                _tried.append(_missing())
    return _tried[0]


def _missing() -> str | None:
    if simulated():
        return None
    if not _installed("numba_cuda"):
        return "the package numba-cuda is not installed (pip install 'gpuwin[cuda13]')"
    if not _installed("cupy"):
        return _without_driver() or "the package CuPy is not installed (pip install 'gpuwin[cuda13]')"
    return _without_driver() or _without_pool() or _without_compiler()


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def _without_driver() -> str | None:
    try:
        devices = len(cuda.gpus)
    except Exception as error:  # also a package that does not fit the driver: "auto" then means the CPU
        found = " ".join(str(error).split())
        if "cannot be found" in found or "not found" in found:
            return driver.MISSING
        return f"the NVIDIA driver cannot be used: {found or type(error).__name__}"
    return None if devices else "the NVIDIA driver sees no GPU"


def _without_pool() -> str | None:
    try:
        cuda.set_memory_manager(pool.plugin(_grown))  # before the first device array
    except Exception as error:
        return f"CuPy cannot be used: {type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _without_compiler() -> str | None:
    fault = compiler.fault_on_device()
    return None if fault is None else str(fault)


def capability() -> tuple[int, int]:
    """Compute capability of the device at hand, which must be there."""
    major, minor = cuda.get_current_device().compute_capability
    return int(major), int(minor)


# -- the stream --------------------------------------------------------------------------------------------------------


@cache
def _stream() -> Stream:
    there: Stream = cuda.legacy_default_stream()
    return there


def stream() -> Stream | int:
    """The stream of all launches and copies, of all threads: the legacy default one, on which CuPy and CCCL work too.

    States pass from thread to thread, and a block that one thread gives back to the pool is the next one's at once. On
    one stream the device does everything in the order in which the host asked for it, so both are safe without events.
    """
    return 0 if simulated() else _stream()


# -- memory ------------------------------------------------------------------------------------------------------------


_simulated_pool = SimulatedPool()
_growths = [0]


def _grown() -> None:
    _growths[0] += 1


def pool_bytes() -> int:
    """Bytes that the pool holds, in use or not; a batch on the warm path leaves this as it is."""
    if simulated():
        return _simulated_pool.stats().nbytes
    return pool.held_bytes()


def pool_stats() -> PoolStats:
    """Bytes that the pool holds, and how often it grew for an array of ours; of all threads together."""
    return _simulated_pool.stats() if simulated() else PoolStats(_growths[0], pool_bytes())


def release_unused() -> None:
    """Gives what the pool holds and nobody uses back to the driver, and so to the other processes of the device."""
    _simulated_pool.release_unused() if simulated() else pool.release_unused()


_apart = [False]


def keep_arrays_apart() -> None:
    """From now on each array of this process has memory by itself, for tools that look at what lies beyond one. A batch
    takes many more launches and allocations.
    """
    _apart[0] = True


def empty(n: int, dtype: np.typing.DTypeLike) -> DeviceArray:
    """A device array [n] with unset contents, of the arena of a batch if there is one. Raises OutOfDeviceMemory."""
    if not n:
        return nothing(np.dtype(dtype))
    arena = scratch.arena()
    if arena is not None:
        at = arena.place(n * np.dtype(dtype).itemsize)
        if at is not None and arena.whole is not None:
            return part(arena.whole, at, n, dtype)
    sent.arrays += 1
    made: DeviceArray
    if simulated():
        made = cuda.device_array(n, dtype, buffer=_simulated_pool.buffer(n * np.dtype(dtype).itemsize))
        return made
    why_not()  # has Numba take its memory from the pool, before it has any
    made = cuda.device_array(n, dtype)  # without a stream of its own, or CuPy would wait for that
    return made


def starts_together(lengths: Sequence[Length], step: int = scratch.LINE) -> tuple[list[int], int]:
    """(where each of some arrays of (values, dtype) begins in one block of memory, bytes of all). Arrays begin at
    multiples of `step`.
    """
    starts, at = [], 0
    for n, dtype in lengths:
        starts.append(at)
        at += -(-n * np.dtype(dtype).itemsize // step) * step
    return starts, at


def in_arena(of: Scratch) -> AbstractContextManager[None]:
    """The arrays of a batch are made within; see `scratch.batch`."""

    def made(room: int) -> DeviceArray | None:
        if _apart[0]:
            return None
        try:
            return empty(room, np.uint8)
        except OutOfDeviceMemory:  # arrays by themselves may fit, as each is free when it is done with
            return None

    return scratch.batch(of, made)


def together(*lengths: Length, zero: bool = False) -> list[DeviceArray]:
    """Device arrays of (values, dtype) in one block of memory, which is free when the last of them is gone. They are
    unset, or all `zero`. Raises OutOfDeviceMemory.
    """
    if _apart[0]:
        return [zeros(n, dtype) if zero else empty(n, dtype) for n, dtype in lengths]
    whole, arrays = unset(*lengths)
    if zero:
        fill(whole, 0)
    return arrays


def unset(*lengths: Length) -> tuple[DeviceArray, list[DeviceArray]]:
    """(one block of memory, int64[k]; device arrays of (values, dtype) in it), which a kernel sets to zero by the way.
    Raises OutOfDeviceMemory.
    """
    if _apart[0]:
        return nothing(np.dtype(np.int64)), together(*lengths, zero=True)
    starts, size = starts_together(lengths)
    whole = empty(size, np.uint8)
    arrays = [part(whole, start, n, dtype) for start, (n, dtype) in zip(starts, lengths, strict=True)]
    return part(whole, 0, size // 8, np.int64), arrays


def part(whole: DeviceArray, start: int, n: int, dtype: np.typing.DTypeLike) -> DeviceArray:
    """The n values that begin at a byte of uint8 memory of the device."""
    dtype = np.dtype(dtype)
    if not n:
        return nothing(dtype)
    end = start + n * dtype.itemsize
    if simulated():
        return whole[start:end].view(dtype)
    # As slicing and `view` do, in one step: either takes as long as a small kernel.
    of: Any = whole
    made: DeviceArray = type(of)(
        shape=(n,), strides=(dtype.itemsize,), dtype=dtype, gpu_data=of.gpu_data.view(start, end)
    )
    return made


@cache
def nothing(dtype: np.dtype[Any]) -> DeviceArray:
    """The array [0] of a dtype."""
    why_not()  # see `empty`
    made: DeviceArray = cuda.device_array(0, dtype)
    return made


def zeros(n: int, dtype: np.typing.DTypeLike) -> DeviceArray:
    return full(n, 0, dtype)


def full(n: int, value: Number, dtype: np.typing.DTypeLike) -> DeviceArray:
    """A device array [n] of one value."""
    out = empty(n, dtype)
    fill(out, value)
    return out


def fill(array: DeviceArray, value: Number) -> None:
    """Sets all of an array to a value."""
    n = len(array)
    sent.launches["fill"] += n > 0
    if simulated():
        if n:
            on_host: Any = array
            on_host[:] = np.full(n, value, array.dtype)
    elif n:
        with calling_cupy():
            pool.as_cupy(array).fill(value)


def scalar(value: int | DeviceArray) -> DeviceArray:
    """int64[1] on the device: an int, or what is there already."""
    return full(1, value, np.int64) if isinstance(value, (int, np.integer)) else value


def as_cupy(array: DeviceArray) -> Any:
    """CuPy array over the memory of an array."""
    return pool.as_cupy(array)


def as_numba(array: Any) -> DeviceArray:
    """Device array of Numba over the memory of an array of CuPy. Both libraries work on one stream: nobody waits."""
    made: DeviceArray = cuda.as_cuda_array(pool.WithoutStream(pool.contiguous(array)), sync=False)
    return made


def to_device(host: np.ndarray) -> DeviceArray:
    """A copy on the device of a one-dimensional array, through pinned memory; `host` may change at once."""
    host = np.ascontiguousarray(host)
    out = empty(len(host), host.dtype)
    _move(host, out)
    return out


def to_words(host: np.ndarray) -> DeviceArray:
    """A copy on the device of uint8[n] as uint64, one at least; what lies behind the last byte is unset."""
    out = empty(max(-(-len(host) // 8), 1), np.uint64)
    _move(np.ascontiguousarray(host), out)
    return out


def _move(host: np.ndarray, out: DeviceArray) -> None:
    """Into an array of at least as many bytes."""
    if not len(host):
        return
    source = host.view(np.uint8)
    target: Any = out.view(np.uint8)
    sent.moved += 1
    if simulated():
        target[: len(source)].copy_to_device(source)
        return

    def copy(at: int, some: np.ndarray) -> None:
        target[at : at + len(some)].copy_to_device(some, stream=stream())

    _rings.move(source, copy)


def _ring() -> Ring:
    return Ring(STAGE_BYTES, lambda n: cuda.pinned_array(n, np.uint8), lambda: cuda.event(timing=False), stream())


_rings = Rings(_ring)


def to_host(array: DeviceArray) -> np.ndarray:
    """A copy on the host; waits for what was launched before."""
    waited()
    there: Any = array
    out: np.ndarray
    if simulated():
        out = there.copy_to_host()
        return out
    out = np.empty(array.shape, array.dtype)
    if out.size:
        there.copy_to_host(out, stream=_stream())
        _stream().synchronize()
    return out


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


def kernel(*signatures: str, hot: bool = False, name: str = "") -> Callable[[Callable[..., None]], Kernel]:
    """Makes a kernel. `signatures`: the arguments' types in Numba's notation, for compilation without a device.

    `hot`: it runs once for each row, so it must hold no 64-bit division and no local memory.
    """
    if not signatures:
        raise ValueError("a kernel needs a signature, or nothing compiles it where there is no device")

    def made(function: Callable[..., None]) -> Kernel:
        own = name or f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        REGISTRY[own] = Registered(own, function, signatures, hot)
        made: Kernel
        if simulated():
            made = cuda.jit(_wrapping(function))
            return made
        compiled = cuda.jit(function)
        if Path(function.__code__.co_filename).is_file():  # a kernel with a merge of the user is in none
            from gpuwin_kernels.cuda.code_cache import KernelCache

            compiled._cache = KernelCache(function)
        made = compiled
        return made

    return made


def _wrapping(function: Callable[..., None]) -> Callable[..., None]:
    """For the simulator: integers wrap around as on the device, and NumPy says nothing about it.

    The simulator looks for `cuda` among the globals of what it runs, so they must be the kernel's own.
    """

    def quiet(*arguments: object) -> None:
        with errstate(all="ignore"):
            function(*arguments)

    errstate = np.errstate
    return FunctionType(quiet.__code__, function.__globals__, function.__name__, None, quiet.__closure__)


def threads() -> int:
    """Threads of a block. The simulator runs one after the other, so few are idle there."""
    return 32 if simulated() else 256


def launches() -> int:
    """Number of times that this thread has put work on the stream of the device, besides copies from the host and to
    it; see `counted.Sent`.
    """
    return sent.launches.total()


def launch(kernel: Kernel, n: int, *arguments: object) -> None:
    """One thread for each of n things; nothing if there is none."""
    if n > 0:
        size = threads()
        _launch(kernel, ((n + size - 1) // size, size, stream()), arguments)


def launch_over(kernel: Kernel, n: int, *arguments: object, shared: int = 0) -> None:
    """As many threads as the device has room for, each of which strides over n things. `shared`: bytes for a block."""
    if n > 0:
        size = threads()
        blocks = min((n + size - 1) // size, _room())
        _launch(kernel, (blocks, size, stream(), shared), arguments)


def _launch(kernel: Kernel, grid: tuple[object, ...], arguments: tuple[object, ...]) -> None:
    """Launches a kernel. The driver takes memory of its own to load it: where it finds none, what the pool holds and
    nobody uses goes back to it. Raises OutOfDeviceMemory where that is not enough.
    """
    sent.launches[kernel.__name__] += 1
    try:
        kernel[grid](*arguments)
    except Exception as error:
        if not pool.says_out_of_memory(error):
            raise
        release_unused()
        try:
            kernel[grid](*arguments)
        except Exception as again:
            if not pool.says_out_of_memory(again):
                raise
            raise OutOfDeviceMemory(0) from again


@cache
def _room() -> int:
    """Blocks that keep every multiprocessor full."""
    if simulated():
        return 2
    return 8 * int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def concat(parts: Sequence[DeviceArray]) -> DeviceArray:
    """Device arrays of one dtype, one after the other."""
    if len(parts) == 1:
        return parts[0]
    out = empty(sum(len(p) for p in parts), parts[0].dtype)
    at = 0
    for part in parts:
        if len(part):
            sent.launches["copy"] += 1
            target: Any = out[at : at + len(part)]
            target.copy_to_device(part, stream=stream())
        at += len(part)
    return out


__all__ = [
    "REGISTRY",
    "OutOfDeviceMemory",
    "Registered",
    "Scratch",
    "as_cupy",
    "as_numba",
    "calling_cupy",
    "capability",
    "concat",
    "cuda",
    "empty",
    "full",
    "in_arena",
    "keep_arrays_apart",
    "kept",
    "kernel",
    "launch",
    "launch_over",
    "launches",
    "part",
    "pool_bytes",
    "pool_stats",
    "release_unused",
    "scalar",
    "sent",
    "simulated",
    "starts_together",
    "stream",
    "synchronize",
    "threads",
    "to_device",
    "to_host",
    "to_words",
    "together",
    "unset",
    "waited",
    "waits",
    "why_not",
    "zeros",
]
