"""Codes of integers by hash are those of a plain dictionary, whatever falls into one block or one slot."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpuwin.state import KeyDictionary
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
    table, known = IntTable(), dict[int | None, int]()
    want = coded(known, [x if ok else None for x, ok in zip(values.tolist(), valid.tolist(), strict=True)])
    for _ in range(2):
        assert table.encode(values, bitmap, 3).tolist() == want
    assert table.encode(values, bitmap, 3, insert=False).tolist() == want


@pytest.mark.parametrize("before", [0, 1, 7, 8, 3_000])
@pytest.mark.parametrize("offset", [0, 3])
def test_a_null_gets_its_code_where_it_first_occurs(before: int, offset: int) -> None:
    """So codes do not depend on where batches begin."""
    values = np.arange(before + 20)
    valid = np.ones(offset + len(values), bool)
    valid[offset + before :: 5] = False
    valid[:offset] = False
    bitmap = np.packbits(valid, bitorder="little")
    rows = [x if ok else None for x, ok in zip(values.tolist(), valid[offset:].tolist(), strict=True)]
    known = dict[int | None, int]()
    want = coded(known, rows)
    table = IntTable()
    assert table.encode(values, bitmap, offset).tolist() == want
    assert table.null_code == before
    small = IntTable()
    assert [small.encode(values[i : i + 1], bitmap, offset + i).item() for i in range(len(values))] == want
    text = [None if x is None else b"%d" % x for x in rows]
    array = pa.array([b"before"] * offset + text, pa.binary()).slice(offset)
    assert KeyDictionary([pa.binary()]).encode([array], len(array)).tolist() == want


def test_values_that_share_a_slot() -> None:
    values = of_one_slot(200)
    values = np.concatenate((values[:100], values, values[::-1], [LEAST, MOST], values))
    table, known = IntTable(), dict[int | None, int]()
    assert table.encode(values).tolist() == coded(known, values.tolist())
    assert table.encode(values).tolist() == coded(known, values.tolist())


@pytest.mark.parametrize("spread", [12, 1 << 20])
@pytest.mark.parametrize("first", [5, 3 * tuning.FIRST_KEYS])
def test_rows_that_nearly_all_bring_a_key(first: int, spread: int) -> None:
    """They are entered without a look at them before: by direct address if their range is small for so many."""
    table, known = IntTable(), dict[int | None, int]()
    rng = np.random.default_rng(first + spread)
    n = 12 * tuning.FIRST_KEYS
    for values in (
        rng.integers(0, n * spread, first),
        rng.integers(0, n * spread, n),
        rng.integers(-n, n * spread, n),  # the range goes on to one side
        rng.choice(n * spread, n // 2) + 5 * n,  # and to the other
        np.concatenate((rng.integers(0, n * spread, 2 * tuning.FIRST_KEYS), np.arange(n) % 100)),  # new, then known
        np.concatenate((np.arange(n) % 100, [LEAST, MOST], rng.integers(0, n * spread, n))),
    ):
        assert table.encode(values).tolist() == coded(known, values.tolist())
        if MOST not in known and table.count > 2 * first:
            assert (table._index is not None) == (spread == 12)
    assert table.values[: table.count].tolist() == list(known)
    assert table.encode(values, insert=False).tolist() == [known[x] for x in values.tolist()]


def test_new_keys_beside_nulls() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, 1 << 40, 4 * tuning.FIRST_KEYS)
    valid = rng.random(len(values)) < 0.9
    bitmap = np.packbits(valid, bitorder="little")
    table, known = IntTable(), dict[int | None, int]()
    want = coded(known, [x if ok else None for x, ok in zip(values.tolist(), valid.tolist(), strict=True)])
    assert table.encode(values, bitmap).tolist() == want


@pytest.mark.parametrize("share", [0.05, 0.95])
def test_a_table_for_kernels_is_given_up_for_new_keys(share: float) -> None:
    table, known = IntTable(), dict[int | None, int]()
    keys = np.random.default_rng(3).permutation(np.arange(4 * tuning.FIRST_KEYS))
    old, new = np.split(keys, 2)
    assert table.encode(old).tolist() == coded(known, old.tolist())
    values = np.where(np.random.default_rng(4).random(len(new)) < share, new, old)
    assert table.direct(values) is None
    assert (table.count == len(old)) == (share > 0.5)  # only looked at, or entered
    assert table.encode(values).tolist() == [known.setdefault(x, len(known)) for x in values.tolist()]
    least, index = table.direct(values) or pytest.fail("all keys are known")
    assert index[values.astype(np.uint64) - least].tolist() == [known[x] for x in values.tolist()]


@pytest.mark.parametrize("null", ["none", "first", "inside", "left out"])
@pytest.mark.parametrize("spread", [1, 1 << 40])
def test_some_of_the_keys(spread: int, null: str) -> None:
    """They are numbered in the order of their codes, and the next keys come after them."""
    rng = np.random.default_rng(5)
    values = spread * rng.permutation(3_000) + (1 << 50)
    table, known = IntTable(), dict[int | None, int]()
    if null == "first":
        assert table.encode(values[:1], np.zeros(1, np.uint8)).tolist() == coded(known, [None])
    table.encode(values[:1_000])
    coded(known, values[:1_000].tolist())
    if null in ("inside", "left out"):
        assert table.encode(values[:1], np.zeros(1, np.uint8)).tolist() == coded(known, [None])
    table.encode(values[1_000:2_000])
    coded(known, values[1_000:2_000].tolist())
    gone = known.get(None) if null == "left out" else 3
    used = np.array([c for c in known.values() if c % 3 and c != gone] + ([0] if null == "first" else []), np.int32)
    if null == "inside":
        used = np.append(used, np.int32(known[None]))
    used = np.unique(used)
    smaller = table.kept(used)
    wanted = dict(zip(np.array(list(known), object)[used].tolist(), range(len(used)), strict=True))
    assert smaller.count == len(used)
    assert smaller.null_code == wanted.get(None, -1)
    assert (smaller._index is not None) == (spread == 1)
    found = smaller.encode(values, insert=False)
    assert found.tolist() == [wanted.get(x, -1) for x in values.tolist()]
    assert smaller.encode(values).tolist() == [wanted.setdefault(x, len(wanted)) for x in values.tolist()]
    assert table.encode(values[:2_000]).tolist() == [known[x] for x in values[:2_000].tolist()]  # as it was


def test_none_of_the_keys() -> None:
    table = IntTable()
    table.encode(np.arange(1_000))
    smaller = table.kept(np.empty(0, np.int32))
    assert smaller.encode(np.array([7, 3, 7])).tolist() == [0, 1, 0]


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 500])
def test_values_of_codes(n: int) -> None:
    rng = np.random.default_rng(n)
    keys, codes = rng.integers(LEAST, MOST, 700), rng.integers(0, 700, n).astype(np.int32)
    out = np.empty(n, np.int64)
    values_of(keys, codes, out)
    assert out.tolist() == keys[codes].tolist()
