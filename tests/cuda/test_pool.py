"""Memory: what nothing has written is poison, and the pool fits the Numba that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin_kernels.cuda import packed, pool, primitives, reading, runtime
from gpuwin_kernels.cuda.counted import POISON
from gpuwin_kernels.cuda.runtime import empty, full, to_device, to_host
from gpuwin_spark.service.memory_return import return_to_system


@pytest.mark.skipif(not runtime.simulated(), reason="a device's memory is what it is")
def test_memory_that_nothing_has_written_is_poison() -> None:
    """Also where it was something else before: the simulator's kernels then cannot live on zeros."""
    for _ in range(2):
        array = empty(5, np.int64)
        assert (to_host(array).view(np.uint8) == POISON).all()
        array[:] = np.zeros(5, np.int64)
        del array
    np.testing.assert_array_equal(to_host(full(5, 0, np.int64)), 0)


def test_what_nobody_uses_goes_back_to_the_driver() -> None:
    """As the device service does once it has let go of a state; what is in use stays what it is."""
    return_to_system()
    before = runtime.pool_bytes()
    kept, large = to_device(np.arange(1000)), full(1 << 20, 7, np.int64)
    held = runtime.pool_bytes()
    assert held >= before + large.nbytes
    del large
    assert runtime.pool_bytes() == held
    return_to_system()
    assert max(before, kept.nbytes) <= runtime.pool_bytes() <= held - (8 << 20)
    np.testing.assert_array_equal(to_host(kept), np.arange(1000))


def test_what_there_is_no_room_to_put_together_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [to_device(np.arange(5)), to_device(np.ones(3, np.uint8))]

    def no_room(n: int, dtype: Any) -> Any:
        raise runtime.OutOfDeviceMemory(n)

    monkeypatch.setattr(runtime, "empty", no_room)
    before = runtime.waits()
    assert [a.tolist() for a in reading.read(*arrays)] == [[0, 1, 2, 3, 4], [1, 1, 1]]
    assert runtime.waits() == before + 2


def test_arrays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """For compute-sanitizer, which sees no more than the ends of an allocation."""
    monkeypatch.setattr(runtime, "_apart", [False])
    session = gw.WindowedAggregation(
        window=gw.SessionWindow("3 seconds"), keys=["k"], time="ts", aggregates={"n": gw.count(), "s": gw.sum("k")}
    )
    rows = pa.table({"ts": pa.array([0, 1, 9, 3]).view(pa.timestamp("s")), "k": [1, 2, 1, 2]})
    whole, (a, b) = runtime.unset((3, np.int64), (5, np.uint8))
    assert len(whole) * 8 >= 3 * 8 + 5
    runtime.keep_arrays_apart()
    whole, (a, b) = runtime.unset((3, np.int64), (5, np.uint8))
    assert (len(whole), to_host(a).tolist(), to_host(b).tolist()) == (0, [0] * 3, [0] * 5)
    host, device = (session.start(device=d) for d in ("cpu", "cuda"))
    for _ in range(3):
        before = runtime.sent.arrays
        assert device.process(rows).equals(host.process(rows))
        assert runtime.sent.arrays > before + 10, "as with an arena for the batch"
    assert device.finish().equals(host.finish())


class LargeKernel:
    """A kernel for which the driver finds memory at the n-th launch only."""

    __name__ = "large"

    def __init__(self, said: str, fails: int) -> None:
        self.said, self.fails, self.launched = said, fails, 0

    def __getitem__(self, grid: Any) -> Any:
        return self._run

    def _run(self, *arguments: Any) -> None:
        self.launched += 1
        if self.launched <= self.fails:
            raise RuntimeError(self.said)


def test_a_kernel_that_there_is_no_room_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[bool] = []
    monkeypatch.setattr(runtime, "release_unused", lambda: released.append(True))
    said = "[2] Call to cuLibraryLoadData results in CUDA_ERROR_OUT_OF_MEMORY"
    kernel = LargeKernel(said, fails=1)
    runtime.launch(kernel, 5)
    assert (kernel.launched, len(released)) == (2, 1)
    with pytest.raises(runtime.OutOfDeviceMemory, match="no memory left for what its driver needs"):
        runtime.launch_over(LargeKernel(said, fails=2), 5)
    other = LargeKernel("CUDA_ERROR_ILLEGAL_ADDRESS", fails=1)
    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
        runtime.launch(other, 5)
    assert (other.launched, len(released)) == (1, 2)


def test_more_cells_than_there_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host does what there are too many for."""
    monkeypatch.setattr(pool, "MOST_CELLS", 7)
    spec = gw.WindowedAggregation(
        window=gw.SlidingWindow("2 seconds", "1 second"), keys=["k"], time="ts", aggregates={"n": gw.count()}
    )
    host, device = (spec.start(device=d) for d in ("cpu", "cuda"))
    for second in range(5):
        rows = pa.table({"ts": pa.array([second * 1_000_000] * 3).view(pa.timestamp("us")), "k": [1, 2, 3]})
        assert device.process(rows).equals(host.process(rows))
    assert device.finish().equals(host.finish())
    with pytest.raises(runtime.OutOfDeviceMemory, match="at most 7 cells at once, and these are 8"):
        packed._count([SimpleNamespace(pane=range(3)), SimpleNamespace(pane=range(5))])


def test_the_pool_without_a_device() -> None:
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, str(Path(__file__).parent / "check_pool.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr[-3000:]


@pytest.mark.skipif(not runtime.simulated(), reason="a device is sorted on by CCCL itself")
def test_the_sorts_of_cccl_take_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The face of `cuda.compute` from 0.3.1 to 1.1, newer versions of which take keywords only."""
    calls: list[Any] = []

    def make_radix_sort(*, d_in_keys: Any, d_out_keys: Any, d_in_values: Any, d_out_values: Any, order: str) -> Any:
        assert order == "ascending"

        def sorter(
            *, temp_storage: Any, num_items: int, stream: Any, begin_bit: int, end_bit: int, **arrays: Any
        ) -> int:
            calls.append((None if temp_storage is None else len(temp_storage), begin_bit, end_bit, stream))
            assert sorted(arrays) == ["d_in_keys", "d_in_values", "d_out_keys", "d_out_values"]
            if temp_storage is not None:
                keys, values = to_host(arrays["d_in_keys"]), to_host(arrays["d_in_values"])
                order = np.argsort(keys >> np.uint64(begin_bit), kind="stable")
                arrays["d_out_keys"].copy_to_device(keys[order])
                arrays["d_out_values"].copy_to_device(values[order])
                assert num_items == len(keys)
            return 77

        return sorter

    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(Stream=SimpleNamespace(null=nullcontext()))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    compute = SimpleNamespace(make_radix_sort=make_radix_sort, SortOrder=SimpleNamespace(ASCENDING="ascending"))
    keys, values = to_device(np.array([3, 1, 2], np.uint64)), to_device(np.arange(3, dtype=np.int32))
    found, places = primitives._sorted_by_cccl(compute, keys, values, 2)
    assert (to_host(found).tolist(), to_host(places).tolist()) == ([1, 2, 3], [1, 2, 0])
    assert calls == [(None, 0, 2, None), (77, 0, 2, None)]
    found, places = primitives._sorted_by_cccl(compute, keys, values, 2, 1)
    assert (to_host(found).tolist(), to_host(places).tolist()) == ([1, 3, 2], [1, 0, 2])
    assert calls[2:] == [(None, 1, 2, None), (77, 1, 2, None)]


def test_threads_that_come_at_once_try_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver says that it is not initialised to a thread that comes while another sets it up."""
    together, tries = threading.Barrier(4), []

    def missing() -> str:
        tries.append(threading.get_ident())
        time.sleep(0.05)
        return "no device"

    monkeypatch.setattr(runtime, "_tried", [])
    monkeypatch.setattr(runtime, "_missing", missing)
    said: list[str | None] = []

    def come() -> None:
        together.wait(timeout=10)
        said.append(runtime.why_not())

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(tries), said) == (1, ["no device"] * 4)
