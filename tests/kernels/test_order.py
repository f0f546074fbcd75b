"""The counting sort of rows by a number, against NumPy's stable sort."""

import numpy as np
import pytest

from gpuwin_kernels.cpu.order import order_by_part


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("rows", "parts"), [(0, 1), (1, 1), (5, 3), (1000, 2), (1000, 200), (10, 5000)])
def test_rows_keep_their_order_within_a_part(rows: int, parts: int, dtype: type) -> None:
    part = np.random.default_rng(rows + parts).integers(0, parts, rows).astype(dtype)
    order, first = order_by_part(part, parts)
    assert order.tolist() == np.argsort(part, kind="stable").tolist()
    assert np.diff(first).tolist() == np.bincount(part, minlength=parts).tolist()
    assert (first[0], first[-1]) == (0, rows)
