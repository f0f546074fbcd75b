"""Sort, scan, select and search on device arrays."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.runtime import concat, full, to_device, to_host, zeros


@pytest.mark.parametrize("n", [0, 1, 2, 33, 70])
def test_pairs_are_sorted_stably(n: int) -> None:
    keys = np.random.default_rng(n).integers(0, 8, n).astype(np.uint64)
    found, places = primitives.sort_pairs(to_device(keys), to_device(np.arange(n, dtype=np.int32)), bits=3)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(to_host(found), keys[order])
    np.testing.assert_array_equal(to_host(places), order)


@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_scans(n: int) -> None:
    values = np.random.default_rng(n).integers(0, 1 << 62, n)
    small = values % 1000
    np.testing.assert_array_equal(
        to_host(primitives.exclusive_sum(to_device(small))), np.concatenate(([0], np.cumsum(small)))
    )
    largest = primitives.running_max(to_device(values.astype(np.uint64)))
    np.testing.assert_array_equal(to_host(largest), np.maximum.accumulate(values.astype(np.uint64)))


def test_select_and_search() -> None:
    flags = np.array([0, 1, 0, 255, 1], np.uint8)
    np.testing.assert_array_equal(to_host(primitives.select(to_device(flags))), [1, 3, 4])
    keys = np.array([2, 4, 4, 1 << 63], np.uint64)
    wanted = np.array([0, 2, 4, 5, 1 << 63, (1 << 64) - 1], np.uint64)
    for right, side in ((False, "left"), (True, "right")):
        found = to_host(primitives.search(to_device(keys), to_device(wanted), right))
        np.testing.assert_array_equal(found, np.searchsorted(keys, wanted, side))


def test_arrays_are_made_and_joined() -> None:
    parts = [to_device(np.arange(3)), zeros(0, np.int64), full(2, -7, np.int64)]
    np.testing.assert_array_equal(to_host(concat(parts)), [0, 1, 2, -7, -7])
