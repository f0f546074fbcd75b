"""Byte strings to codes, where hashes are the same, and where strings differ in one byte."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numba import njit

from gpuwin.state import KeyDictionary
from gpuwin.state.keys.tables import BytesTable
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import byte_keys

LENGTHS = [*range(34), 39, 40, 41, 200]


@pytest.fixture(autouse=True, params=[1, 2, 5])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """With several, all of them enter any string."""
    monkeypatch.setattr(tuning, "threads", lambda: request.param)
    monkeypatch.setattr(tuning, "CLAIMED_KEYS", 1)
    return int(request.param)


def checked(batches: list[list[bytes | None]], type_: pa.DataType) -> KeyDictionary:
    """Encodes them all, against a plain dictionary."""
    keys, codes = KeyDictionary([type_]), dict[bytes | None, int]()
    for batch in batches:
        array = pa.array([b"before", *batch], type_).slice(1)
        unseen = np.array([codes.get(value, -1) for value in batch])
        assert (keys.lookup([array], len(batch)) == unseen).all()
        found = keys.encode([array], len(batch))
        assert found.tolist() == [codes.setdefault(value, len(codes)) for value in batch]
        assert keys.take(found)[0].to_pylist() == batch
    return keys


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_strings_that_differ_in_one_byte(type_: pa.DataType) -> None:
    strings = []
    for n in LENGTHS:
        base = bytes(i % 7 for i in range(n))
        strings += [base, *(base[:i] + b"\xff" + base[i + 1 :] for i in range(n))]
    rng = np.random.default_rng(1)
    batches: list[list[bytes | None]] = []
    for k in range(4):
        batch: list[bytes | None] = [strings[i] for i in rng.integers(0, len(strings), 900)]
        batches.append([None if k and rng.random() < 0.1 else value for value in batch])
    checked(batches, type_)


@pytest.mark.parametrize("behind", [b"", b"-the same-"])
def test_strings_of_one_hash(behind: bytes) -> None:
    """A factor of zero takes all that stands beside it with it: hundreds of strings want one slot."""
    zero = int(byte_keys._FIRST).to_bytes(8, "little")
    strings: list[bytes | None] = [zero + behind + k.to_bytes(8, "big") for k in range(300)]
    hashes = {_hash_of(np.frombuffer(s, np.uint8)) for s in strings[:9] if s is not None}
    assert len(hashes) == 1
    keys = checked([strings[:100], strings[50:][::-1], [*strings, None, b"another"]], pa.binary())
    assert len(keys) == 302


@njit
def _hash_of(data):  # type: ignore[no-untyped-def]
    return byte_keys.hash_bytes(data, 0, len(data))


def test_tables_that_grow_with_every_batch() -> None:
    rng = np.random.default_rng(2)
    strings = [f"{'x' * int(k % 23)}{k}".encode() for k in range(30_000)]
    batches: list[list[bytes | None]] = [
        [strings[i] for i in rng.integers(0, most, 2_000)] for most in (10, 300, 3_000, 30_000, 30_000, 30_000)
    ]
    keys = checked(batches, pa.binary())
    assert keys.nbytes < 400 * len(keys)


@pytest.mark.parametrize("before", [0, 1, 63, 64, 700])
def test_a_table_that_grows_around_a_null(before: int) -> None:
    """The null has a code, but no entry to find it by; strings of all lengths are found again."""
    keys = KeyDictionary([pa.binary()])
    values: list[bytes | None] = [bytes([i % 251, i // 251]) * (i % 19) + b"%d" % i for i in range(3_000)]
    values.insert(before, None)
    for part in (values[:before], [None], values[before + 1 :]):
        keys.encode([pa.array(part, pa.binary())], len(part))
    assert keys.encode([pa.array(values, pa.binary())], len(values)).tolist() == list(range(3_001))
    assert keys.take(np.arange(3_001, dtype=np.int32))[0].to_pylist() == values


@pytest.mark.parametrize("distinct", [3, 4_000, 60_000])
def test_large_batches(distinct: int) -> None:
    """In parts that were looked up before, and in those that were not; with and without nulls."""
    rng = np.random.default_rng(distinct)
    names: list[bytes | None] = [b"%d-" % k * (1 + k % 3) for k in range(distinct)]
    batches = [[names[k] for k in rng.integers(0, distinct, n).tolist()] for n in (50_000, 9_000, 70_000)]
    batches[1][7] = batches[2][8] = None
    checked(batches, pa.binary())


def test_a_batch_that_has_no_memory_leaves_no_string(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [b"some", b"of", b"them"]
    batch = [b"%d" % k * 30 for k in range(400)] + before
    table = BytesTable()

    def encoded(strings: list[bytes]) -> list[int]:
        data = np.frombuffer(b"".join(strings), np.uint8)
        found: list[int] = table.encode(data, np.cumsum([0, *map(len, strings)])).tolist()
        return found

    assert encoded(before) == [0, 1, 2]

    def fails(_table: BytesTable, length: int, more: int = 1) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(BytesTable, "_make_room", fails)
        with pytest.raises(MemoryError):
            encoded(batch)
    if threads > 1:
        assert table.count == 3
    assert np.count_nonzero(table._table != -1) == table.count
    other = [b"%d" % k * 31 for k in range(50)]  # too few for another table
    after = encoded([*other, *batch[::-1]])
    assert len(set(after)) == 453
    assert after[50:53] == [2, 1, 0]
    assert encoded(batch) == after[:49:-1]
