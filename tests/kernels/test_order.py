"""Orders of rows by a number, and by code and time, against NumPy's stable sorts."""

import numpy as np
import pytest

from gpuwin_kernels.cpu.order import order_by_part, order_in_threads


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("rows", "parts"), [(0, 1), (1, 1), (5, 3), (1000, 2), (1000, 200), (10, 5000)])
def test_rows_keep_their_order_within_a_part(rows: int, parts: int, dtype: type) -> None:
    part = np.random.default_rng(rows + parts).integers(0, parts, rows).astype(dtype)
    order, first = order_by_part(part, parts)
    assert order.tolist() == np.argsort(part, kind="stable").tolist()
    assert np.diff(first).tolist() == np.bincount(part, minlength=parts).tolist()
    assert (first[0], first[-1]) == (0, rows)


@pytest.mark.parametrize("codes", [1, 3, 1000, 150_000, 10_000_000])
@pytest.mark.parametrize("rows", [10, 200_000])
@pytest.mark.parametrize("times", ["rising", "nearly", "falling", "any", "one"])
def test_order_by_all_threads(times: str, rows: int, codes: int) -> None:
    rng = np.random.default_rng(rows + codes)
    code = rng.integers(0, codes, rows).astype(np.int32)
    rising = np.arange(rows, dtype=np.int64)
    key = {
        "rising": rising,
        "nearly": rising + rng.integers(-9, 9, rows),
        "falling": rising[::-1].copy(),
        "any": rng.integers(-(2**62), 2**62, rows),
        "one": np.zeros(rows, np.int64),
    }[times]
    assert np.array_equal(order_in_threads(code, key), np.lexsort((key, code)))
