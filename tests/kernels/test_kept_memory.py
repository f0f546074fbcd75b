"""Memory that is kept for the next array: used again when nothing sees it, and never before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import numpy as np
import pyarrow as pa
import pytest

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import kept_memory
from gpuwin_kernels.cpu.kept_memory import empty

LARGE = tuning.KEPT_FROM // 8


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    kept_memory.release()
    yield
    kept_memory.release()


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("shape", [LARGE, np.int64(LARGE), (4, LARGE), (LARGE, 3), 0, 1, (0, 5), LARGE - 1])
@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint8, "datetime64[us]", bool])
def test_an_array_is_as_that_of_numpy(shape: int | tuple[int, ...], dtype: str) -> None:
    found, expected = empty(shape, dtype), np.empty(shape, dtype)
    assert (found.shape, found.dtype, found.strides) == (expected.shape, expected.dtype, expected.strides)
    assert found.flags.writeable
    assert found.flags.c_contiguous


def test_memory_is_used_again_when_the_last_view_is_gone() -> None:
    first = empty(LARGE + 5, np.int64)
    first[:] = np.arange(LARGE + 5)
    at, view = address(first), first[5:].view(np.uint64)
    del first
    second = empty(LARGE + 5, np.int64)
    second[:] = -1
    assert address(second) != at
    np.testing.assert_array_equal(view, np.arange(5, LARGE + 5))
    exported = pa.array(view)
    del view
    third = empty(LARGE + 5, np.int64)
    third[:] = -2
    assert exported.to_pylist() == list(range(5, LARGE + 5)), "Arrow's view holds it, too"
    del exported
    assert address(empty(LARGE + 7, np.int64)) == at, "and a size that is nearly the same finds it"


def test_memory_begins_at_a_line_of_the_cache() -> None:
    arrays = [empty(8 * LARGE + i, np.uint8) for i in range(9)]
    assert all(address(array) % 64 == 0 for array in arrays)


def test_small_arrays_are_not_kept() -> None:
    empty(LARGE - 1, np.int64)
    assert kept_memory.kept() == 0
    empty(LARGE, np.int64)
    assert kept_memory.kept() >= tuning.KEPT_FROM


def test_no_more_is_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_memory, "_most", lambda: 5 * tuning.KEPT_FROM)
    arrays = [empty(LARGE * (1 + i % 3), np.int64) for i in range(20)]
    newest = address(arrays[-1])
    while arrays:
        del arrays[0]
        assert kept_memory.kept() <= 5 * tuning.KEPT_FROM
    assert address(empty(LARGE * 2, np.int64)) == newest, "the oldest went"


def test_what_lies_unused_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    empty(LARGE, np.int64)
    sleep(0.05)
    empty(2 * LARGE, np.int64)
    kept_memory.release(unused_for=0.04)
    assert 2 * tuning.KEPT_FROM <= kept_memory.kept() < 3 * tuning.KEPT_FROM
    # By itself, too.
    monkeypatch.setattr(tuning, "KEPT_SECONDS", 0.01)
    monkeypatch.setattr(kept_memory, "_sweeper", None)
    empty(LARGE, np.int64)
    for _ in range(1000):
        if kept_memory.kept() == 0:
            break
        sleep(0.01)
    assert kept_memory.kept() == 0


def test_an_array_that_is_too_large_leaves_nothing_behind() -> None:
    empty(LARGE, np.int64)
    before = kept_memory._used
    with pytest.raises(MemoryError):
        empty(1 << 60, np.uint8)
    assert kept_memory._used == before
    assert kept_memory.kept() == 0, "what was kept may be what was missing"


class Cycle:
    """An object that only a collection of garbage finds, with an array."""

    def __init__(self) -> None:
        self.me, self.array = self, empty(LARGE, np.int64)


def test_a_collection_of_garbage_may_give_back_at_any_time() -> None:
    """Also while the lock is held, and what is free is looked through."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for i in range(200):
            Cycle()
            array = empty(LARGE * (1 + i % 5), np.int64)
            array[:] = i
            if i % 50 == 0:
                kept_memory.release()
            assert (array == i).all()
    finally:
        gc.set_threshold(*before)
    assert kept_memory.kept() > 0


def test_arrays_of_many_threads_are_apart() -> None:
    def fill(seed: int) -> None:
        rng = np.random.default_rng(seed)
        held: list[tuple[np.ndarray, int]] = []
        for step in range(300):
            array = empty(LARGE + int(rng.integers(0, 9)) * 1000, np.int64)
            array[:] = value = seed * 1000 + step
            held.append((array, value))
            if len(held) > 4:
                old, value = held.pop(int(rng.integers(0, len(held))))
                assert (old == value).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(4)))


PROGRAM = """
from gpuwin_kernels.cpu.kept_memory import empty
import numpy as np, os

class Node: pass

node = Node(); node.self = node; node.array = empty(1 << 20, np.int64)
kept = empty(1 << 20, np.int64)
empty(1 << 20, np.int64)
if os.fork() == 0:
    again = empty(1 << 20, np.int64)
    again[:] = 1
    os._exit(0 if int(again.sum()) == 1 << 20 else 1)
assert os.wait()[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_forks_and_ends_quietly() -> None:
    # From 3.12 on, Python warns of a fork of a process with threads, such as NumPy's.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
