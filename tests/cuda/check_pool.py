"""What needs Numba's own CUDA package, not its simulator, and no driver: memory from a pool, with a CuPy that is none.

    python tests/cuda/check_pool.py

Raises where something is amiss; prints "sound" at the end.
"""

from __future__ import annotations

import gc
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import pytest

streams: list[str] = []
freed: list[int] = []


class Null:
    """Stands for `cupy.cuda.Stream.null`."""

    def __enter__(self) -> None:
        streams.append("null")

    def __exit__(self, *_: Any) -> None:
        streams.pop()


class Memory:
    """Stands for a block of the pool."""

    def __init__(self, size: int) -> None:
        assert streams == ["null"], "memory belongs to a stream"
        self.ptr, self.size = 0x7000_0000, size

    def __del__(self) -> None:
        freed.append(self.ptr)


class PoolIsEmpty(MemoryError):
    _size = 4096


def alloc(size: int) -> Memory:
    if size > 1 << 40:
        raise PoolIsEmpty
    held[0] += size
    return Memory(size)


held = [0]
cupy = types.ModuleType("cupy")
cupy.__spec__ = ModuleSpec("cupy", None)
cupy.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
    alloc=alloc,
    Stream=types.SimpleNamespace(null=Null()),
    Device=lambda: types.SimpleNamespace(id=0, mem_info=(1, 2)),
    UnownedMemory=lambda *told: told,
    MemoryPointer=lambda memory, at: (memory, at),
)
cupy.get_default_memory_pool = lambda: types.SimpleNamespace(total_bytes=lambda: held[0])  # type: ignore[attr-defined]
cupy.ndarray = lambda shape, dtype, memory: (shape, dtype, memory)  # type: ignore[attr-defined]
cupy.empty = lambda shape, dtype: ("empty", shape, dtype)  # type: ignore[attr-defined]
sys.modules["cupy"] = cupy


def main() -> None:
    from numba import config, cuda
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    from gpuwin_kernels.cuda import pool, runtime

    grown: list[int] = []
    manager = pool.plugin(lambda: grown.append(1))
    cuda.set_memory_manager(manager)  # looks at the version of the interface
    made = manager(context=None)
    pointer = made.memalloc(1000)
    assert (int(pointer.device_pointer), pointer.size, len(grown)) == (0x7000_0000, 1000, 1)
    array = DeviceNDArray((10,), (8,), np.int64, gpu_data=pointer)
    shape, dtype, (memory, at) = pool.as_cupy(array)
    assert (shape, dtype, memory[:2], at) == ((10,), np.int64, (0x7000_0000, 80), 0)
    assert memory[2] is array, "CuPy's array keeps the memory"
    assert pool.as_cupy(DeviceNDArray((1,), (8,), np.int64, gpu_data=pointer.view(16, 24)))[2][0][0] == 0x7000_0010
    del memory, array, pointer
    gc.collect()
    assert freed == [0x7000_0000], "a block goes back when nothing looks at it"

    told = {"shape": (1,), "typestr": "<i8", "data": (8, False), "version": 3, "stream": 1}
    without = pool.WithoutStream(types.SimpleNamespace(__cuda_array_interface__=told))
    assert "stream" not in without.__cuda_array_interface__
    assert "stream" in told

    for error, wanted in (
        (PoolIsEmpty(), 4096),
        (MemoryError("bad_alloc"), 7),
        (RuntimeError("cudaErrorMemoryAllocation: out of memory"), 7),
    ):
        with pytest.raises(pool.OutOfDeviceMemory) as found, pool.calling_cupy(7):
            raise error
        assert found.value.wanted == wanted
    with pytest.raises(RuntimeError, match="something else"), pool.calling_cupy(7):
        raise RuntimeError("something else")
    with pytest.raises(pool.OutOfDeviceMemory, match="has not 4096 bytes"):
        made.memalloc(1 << 41)
    assert not streams
    assert config.CUDA_LOW_OCCUPANCY_WARNINGS == 0 == getattr(cuda, "config", config).CUDA_LOW_OCCUPANCY_WARNINGS
    assert isinstance(runtime.why_not(), str), "no driver, or no CuPy: said, not raised"
    print("sound")


if __name__ == "__main__":
    main()
