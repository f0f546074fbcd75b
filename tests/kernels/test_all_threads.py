"""Reductions and maps over whole arrays give by several threads what NumPy gives by one, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.aliases import alias_of
from gpuwin_kernels.cpu.extremes import ends_of
from gpuwin_kernels.cpu.linear import linear
from gpuwin_kernels.cpu.means import means_of

LEAST, MOST = -(1 << 63), (1 << 63) - 1
SPLIT = tuning.SPLIT_ROWS
SIZES = [1, 2, 7, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 3]


@pytest.fixture(autouse=True, params=[1, 2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "threads", lambda: request.param)


@pytest.mark.parametrize("n", SIZES)
def test_ends(n: int) -> None:
    rng = np.random.default_rng(n)
    values = rng.integers(-1000, 1000, n)
    for at in {0, n // 2, n - 1}:
        for end in (LEAST, MOST, -1001, 1001):
            changed = values.copy()
            changed[at] = end
            changed.flags.writeable = False
            assert ends_of(changed) == (int(changed.min()), int(changed.max()))
    assert ends_of(np.full(n, MOST)) == (MOST, MOST)
    assert ends_of(np.full(n, LEAST)) == (LEAST, LEAST)
    assert ends_of(values[::-1]) == (int(values.min()), int(values.max()))


def test_no_values_have_no_ends() -> None:
    with pytest.raises(ValueError, match="no values"):
        ends_of(np.empty(0, np.int64))


@pytest.mark.parametrize("n", [0, *SIZES])
def test_linear(n: int) -> None:
    rng = np.random.default_rng(n)
    number = rng.integers(-1000, 1000, n)
    for factor, offset in ((60_000_000, -7), (1, 0), (1 << 40, -(1 << 62)), (-(1 << 52), 1 << 62)):
        assert linear(number, factor, offset).tolist() == [x * factor + offset for x in number.tolist()]
    assert linear(np.full(n, LEAST), 1, 0).tolist() == [LEAST] * n


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize("n", [0, *SIZES])
@pytest.mark.parametrize("some_empty", [False, True])
def test_means(n: int, dtype: type, some_empty: bool) -> None:
    rng = np.random.default_rng(n)
    total = (rng.normal(size=n) * 1e18).astype(dtype)
    size = rng.integers(1, 9, n)
    if dtype is np.float64 and n > 6:
        total[:6] = np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324
    if dtype is np.int64 and n > 1:
        total[:2] = LEAST, MOST
    if some_empty and n:
        size[n - 1] = 0
        total[n - 1] = 0
    means, empty = means_of(total, size)
    assert empty == bool((size == 0).any())
    assert means.tobytes() == (total / np.where(size == 0, 1, size)).tobytes()


def test_an_alias_is_the_same_memory() -> None:
    array = np.arange(5)
    assert alias_of(array) is array
    array.flags.writeable = False
    alias = alias_of(array[1:])
    assert alias.flags.writeable
    assert alias.flags.c_contiguous
    assert alias.tolist() == [1, 2, 3, 4]
    assert np.shares_memory(alias, array)
    del array
    assert alias.tolist() == [1, 2, 3, 4]
    assert alias_of(np.frombuffer(b"", np.int64)).tolist() == []
