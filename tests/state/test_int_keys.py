"""Codes of integers by hash are those of a plain dictionary, whatever falls into one block or one slot."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwin.state.keys.tables import IntTable
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.hashing import hash_int, values_of

LEAST, MOST = -(1 << 63), (1 << 63) - 1
BLOCK = 64


def coded(known: dict[int | None, int], values: list[int | None]) -> list[int]:
    """Codes by a dictionary, which gets the values that it has not."""
    return [known.setdefault(value, len(known)) for value in values]


def of_one_slot(n: int) -> np.ndarray:
    """Values that begin their search in the same slot of any table up to 2**12 slots."""
    found: list[int] = []
    x = 1 << 50
    while len(found) < n:
        x += 1_000_003
        if (int(hash_int(np.int64(x))) >> 20) & 0xFFF == 77:
            found.append(x)
    return np.array(found)


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "threads", lambda: request.param)


@pytest.mark.parametrize("n", [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 1_000, 50_000])
def test_as_a_dictionary(n: int) -> None:
    table, known = IntTable(), dict[int | None, int]()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        values = rng.integers(LEAST, MOST, n)
        if n > 1:
            values[n // 2 :] = rng.choice(values, n - n // 2)  # again, some of them in the block of the first
            values[:2] = LEAST, MOST
        assert table.encode(values).tolist() == coded(known, values.tolist())
        strange = rng.integers(LEAST, MOST, n)
        assert table.encode(strange, insert=False).tolist() == [known.get(x, -1) for x in strange.tolist()]
        assert table.encode(values, insert=False).tolist() == [known[x] for x in values.tolist()]
        assert table.count == len(known)
        assert table.values[: table.count].tolist() == list(known)


def test_nulls_beside_values() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(LEAST, MOST, 3 * BLOCK + 5)
    valid = rng.random(len(values)) < 0.8
    bitmap = np.packbits(np.concatenate((np.zeros(3, bool), valid)), bitorder="little")
    table, known = IntTable(), dict[int | None, int]({None: 0})
    want = coded(known, [x if ok else None for x, ok in zip(values.tolist(), valid.tolist(), strict=True)])
    for _ in range(2):
        assert table.encode(values, bitmap, 3).tolist() == want
    assert table.encode(values, bitmap, 3, insert=False).tolist() == want


def test_values_that_share_a_slot() -> None:
    values = of_one_slot(200)
    values = np.concatenate((values[:100], values, values[::-1], [LEAST, MOST], values))
    table, known = IntTable(), dict[int | None, int]()
    assert table.encode(values).tolist() == coded(known, values.tolist())
    assert table.encode(values).tolist() == coded(known, values.tolist())


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 500])
def test_values_of_codes(n: int) -> None:
    rng = np.random.default_rng(n)
    keys, codes = rng.integers(LEAST, MOST, 700), rng.integers(0, 700, n).astype(np.int32)
    out = np.empty(n, np.int64)
    values_of(keys, codes, out)
    assert out.tolist() == keys[codes].tolist()
