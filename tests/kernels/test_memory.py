"""Copies of items are those of slices, and take many items at a time."""

from __future__ import annotations

import re
from typing import Any

import numba
import numpy as np
import pytest

from gpuwin_kernels.cpu import growing, memory

DTYPES = [np.uint8, np.int32, np.int64, np.uint64, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_items_are_copied_as_slices_are(dtype: Any) -> None:
    items = np.arange(1, 201).astype(dtype)
    for begin, n, at in [(0, 0, 0), (0, 200, 0), (3, 1, 199), (7, 70, 11), (199, 1, 0), (5, -3, 8)]:
        out, expected = np.zeros(200, dtype), np.zeros(200, dtype)
        memory.copy_items(items, begin, n, out, at)
        expected[at : at + max(n, 0)] = items[begin : begin + max(n, 0)]
        assert np.array_equal(out, expected)


def test_an_array_that_grows_keeps_its_items() -> None:
    flat, rows = np.arange(37), np.arange(60).reshape(15, 4)
    assert growing.wider(flat)[:37].tolist() == flat.tolist()
    assert growing.longer(rows)[:15].tolist() == rows.tolist()
    assert growing.longer(rows).shape == (30, 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_items_are_copied_many_at_a_time(dtype: Any) -> None:
    """A question for each item whether its place counts from the end would have them copied one by one: twenty times
    as long for bytes.
    """
    kernel = numba.njit(getattr(memory.copy_items, "py_func", memory.copy_items))
    kernel(np.zeros(9, dtype), 0, 9, np.zeros(9, dtype), 0)
    (code,) = kernel.inspect_llvm().values()
    assert re.search(rf"store <\d+ x i{8 * np.dtype(dtype).itemsize}>|llvm\.mem(cpy|move)", code)
