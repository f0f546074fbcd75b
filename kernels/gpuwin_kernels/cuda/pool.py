"""Device memory from CuPy's pool: the plugin that makes Numba allocate there, arrays handed between the two, and what
either raises when memory is out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Any

from gpuwin_kernels.cuda.device_array import DeviceArray


class OutOfDeviceMemory(MemoryError):
    """Error of a device that has no room for `wanted` more bytes; 0 where the driver does not say how many it needs."""

    def __init__(self, wanted: int) -> None:
        room = f"not {wanted} bytes of memory left" if wanted else "no memory left for what its driver needs"
        super().__init__(f"the device has {room}")
        self.wanted = wanted


class TooManyCells(OutOfDeviceMemory):
    """Error of `n` cells, more than kernels number: the device may have the memory, and the host has the numbers."""

    def __init__(self, n: int) -> None:
        MemoryError.__init__(self, f"the device numbers at most {MOST_CELLS} cells at once, and these are {n}")
        self.wanted = 0


MOST_CELLS = (1 << 31) - 1
"""The place of a cell among others is an int32."""


def says_out_of_memory(error: Exception) -> bool:
    """Whether an error of CuPy, CUB, Numba or the driver is about memory of the device."""
    text = str(error)
    return "MemoryAllocation" in text or "OUT_OF_MEMORY" in text or "out of memory" in text


@contextmanager
def calling_cupy(wanted: int = 0) -> Iterator[None]:
    """CuPy works, and allocates, on the legacy default stream, whatever stream the caller has made its own; what it,
    CUB and the driver raise for want of memory becomes OutOfDeviceMemory. `wanted`: bytes, if the error does not say.
    """
    import cupy

    try:
        with cupy.cuda.Stream.null:
            yield
    except OutOfDeviceMemory:
        raise
    except MemoryError as error:  # CuPy's own, and std::bad_alloc of its sorts
        raise OutOfDeviceMemory(int(getattr(error, "_size", wanted))) from error
    except RuntimeError as error:
        if says_out_of_memory(error):
            raise OutOfDeviceMemory(wanted) from error
        raise


def plugin(grown: Callable[[], None]) -> type:
    """The class that Numba takes as its memory manager. `grown` is called when the pool asked the driver for memory."""
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
            before = held_bytes()
            with calling_cupy(size):
                memory = cupy.cuda.alloc(max(size, 1))  # an address of 0 would not do
            if held_bytes() > before:
                grown()
            address = int(memory.ptr)
            self._held[address] = memory
            return MemoryPointer(self.context, c_void_p(address), size, finalizer=lambda: self._held.pop(address, None))

        def get_memory_info(self) -> Any:
            free, total = cupy.cuda.Device().mem_info
            return MemoryInfo(free=free, total=total)

        def reset(self) -> None:
            super().reset()
            self._held.clear()

        def defer_cleanup(self) -> Any:
            return super().defer_cleanup()

    return CupyPool


def held_bytes() -> int:
    """Bytes that CuPy's pool holds, in use or not."""
    import cupy

    return int(cupy.get_default_memory_pool().total_bytes())


def release_unused() -> None:
    """Gives the blocks that nobody uses back to the driver."""
    import cupy

    with calling_cupy():
        cupy.get_default_memory_pool().free_all_blocks()


def as_cupy(array: DeviceArray) -> Any:
    """The memory of one of Numba's device arrays, as they lie in memory, as a CuPy array.

    Not by `cupy.asarray`: that waits for the stream that an array names, and one that came from CuPy names it.
    """
    import cupy

    if not array.size:
        return cupy.empty(array.shape, array.dtype)
    of: Any = array
    address = of.__cuda_array_interface__["data"][0]
    memory = cupy.cuda.UnownedMemory(address, array.size * array.dtype.itemsize, array, cupy.cuda.Device().id)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0))


class WithoutStream:
    """A CuPy array that does not say which stream it is used on: whoever takes it works on the same one."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self._array.__cuda_array_interface__)
        interface.pop("stream", None)
        return interface


def contiguous(array: Any) -> Any:
    """A CuPy array whose values lie one after the other: kernels are compiled for such arrays only."""
    import cupy

    return cupy.ascontiguousarray(array)


__all__ = [
    "MOST_CELLS",
    "OutOfDeviceMemory",
    "TooManyCells",
    "WithoutStream",
    "as_cupy",
    "calling_cupy",
    "contiguous",
    "held_bytes",
    "plugin",
    "release_unused",
    "says_out_of_memory",
]
