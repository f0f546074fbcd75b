"""Distinct codes, against NumPy's."""

import numpy as np
import pytest

from gpuwin_kernels.cpu.distinct_codes import distinct_codes, numbered_codes


@pytest.mark.parametrize("codes", [1, 7, 1_000, 1_000_000])
@pytest.mark.parametrize("rows", [1, 2, 1_000, 50_000])
def test_codes(rows: int, codes: int) -> None:
    """Where codes are many for the rows, and where they are few."""
    rng = np.random.default_rng(rows + codes)
    code = rng.integers(0, codes, rows).astype(np.int32)
    for given in (code, np.sort(code), code[::2], np.full(rows, codes - 1, np.int32)):
        found, place = numbered_codes(given)
        expected = np.unique(given, return_inverse=True)
        assert found.dtype == place.dtype == np.int32
        assert found.tolist() == expected[0].tolist()
        assert place.tolist() == expected[1].tolist()


def test_codes_of_several_arrays() -> None:
    a, b, none = np.array([5, 0, 5], np.int32), np.array([900_000, 5, 1], np.int32), np.empty(0, np.int32)
    assert distinct_codes(a, b, none).tolist() == [0, 1, 5, 900_000]
    for nothing in ((), (none,), (none, none)):
        found = distinct_codes(*nothing)
        assert (found.dtype, found.tolist()) == (np.int32, [])
    assert [array.tolist() for array in numbered_codes(none)] == [[], []]
