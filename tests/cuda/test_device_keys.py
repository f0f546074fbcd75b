"""Dictionaries of keys on the device against the host's: the same values, under codes by first appearance."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwin as gw
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin_kernels.cuda import byte_keys, key_table, runtime
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.runtime import to_device, to_host


def rows_of(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def assert_codes(device: DeviceKeyDictionary, batches: Sequence[Sequence[pa.Array]]) -> None:
    """Codes are in the order of first rows; where two rows have one key is what the host's dictionary says; and keys
    come back as the host has them.
    """
    host = KeyDictionary(device.types)
    by_host: dict[int, int] = {}
    for columns in batches:
        n = len(columns[0])
        theirs = host.encode(columns, n)
        expected = [by_host.setdefault(code, len(by_host)) for code in theirs.tolist()]
        assert device.encode(columns, n).tolist() == expected
        assert len(device) == len(by_host)
    order = np.array(list(by_host), np.int32)
    for found, kept in zip(device.take(np.arange(len(order), dtype=np.int32)), host.take(order), strict=True):
        assert found.type == kept.type
        assert found.to_pylist() == kept.to_pylist() or pa.types.is_floating(found.type)
        if pa.types.is_floating(found.type):
            np.testing.assert_array_equal(np.asarray(found.is_valid()), np.asarray(kept.is_valid()))
            np.testing.assert_array_equal(np.asarray(found.fill_null(0)), np.asarray(kept.fill_null(0)))


NARROW = [
    pa.array([3, -128, None, 3, 127, 0, None, -1], pa.int8()),
    pa.array([3, 65_535, None, 3, 0], pa.uint16()),
    pa.array([3, (1 << 32) - 1, 3, 0], pa.uint32()),
    pa.array([3, (1 << 64) - 1, 1 << 63, 0, 1 << 63], pa.uint64()),
    pa.array([None] * 3 + [True, None, False, True, False, False, True] * 2, pa.bool_()),
    pa.array([1.5, float("nan"), -0.0, None, 0.0, float("-inf"), 5e-324, -float("nan"), 1.5], pa.float64()),
    pa.array([0.1, float("nan"), 0.0, 1e-45, -0.0, None, 0.1], pa.float32()),
    pa.array(np.array([0.1, np.nan, -0.0, 6e-8, 0.0, 0.1], np.float16)),
    pa.array([Decimal("1.50"), None, Decimal("-1.50"), Decimal("1.50")], pa.decimal64(9, 2)),
]


@pytest.mark.parametrize("column", NARROW, ids=lambda c: str(c.type))
def test_values_of_at_most_8_bytes(column: pa.Array) -> None:
    assert_codes(DeviceKeyDictionary([column.type]), [[column.slice(1)], [column[:3]]])


def random_strings(rng: np.random.Generator, n: int, most: int = 70) -> list[bytes | None]:
    """Common prefixes, lengths around those of words, embedded and final NULs, bytes above 127, empty ones, nulls."""
    stem = bytes(rng.choice(np.array([0, 97, 98, 195, 255], np.uint8), most))
    found: list[bytes | None] = []
    for length in rng.choice([0, 1, 2, 7, 8, 9, 15, 16, 17, 24, most - 1, most], n):
        end = rng.choice([b"", b"a", b"\0", b"\xff"])
        found.append(None if rng.random() < 0.1 else (stem[:length] + end)[:most])
    return found


def sliced(values: list[Any], type_: pa.DataType) -> pa.Array:
    """An array with an offset in bits and in bytes."""
    return pa.array([b"before" if pa.types.is_binary(type_) else "before", None, *values], type_).slice(2)


def test_strings_that_share_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hashes of three bits, every lookup compares strings; and the table and the heap grow in mid-batch."""
    monkeypatch.setattr(byte_keys, "_HASH_BITS", np.uint64((1 << 32) | 3))
    monkeypatch.setattr(byte_keys, "_FEWEST", 8)
    monkeypatch.setattr(key_table, "_SMALLEST", 4)
    rng = np.random.default_rng(3)
    batches = [[sliced(random_strings(rng, n), pa.binary())] for n in (3, 24, 31)]
    assert_codes(DeviceKeyDictionary([pa.binary()]), batches)


def test_a_call_that_fails_leaves_strings_and_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    device = DeviceKeyDictionary([pa.string()])
    assert device.encode([pa.array(["a", "bb"])], 2).tolist() == [0, 1]

    def fails(*_: Any) -> None:
        raise MemoryError

    for name in ("exclusive_sum", "_with_room"):
        with monkeypatch.context() as patch:
            patch.setattr(byte_keys.primitives if name == "exclusive_sum" else byte_keys, name, fails)
            with pytest.raises(MemoryError):
                device.encode([pa.array(["c", None, "bb", "d"])], 4)
        assert len(device) == 2
    assert device.encode([pa.array(["d", "bb", None, "c"])], 4).tolist() == [2, 1, 3, 4]
    assert device.take(np.arange(5, dtype=np.int32))[0].to_pylist() == ["a", "bb", "d", None, "c"]
    monkeypatch.setattr(key_table, "MOST_KEYS", 5)
    with pytest.raises(gw.LimitExceeded, match="more than 5 keys"):
        device.encode([pa.array(["e"])], 1)
    assert device.encode([pa.array(["c"])], 1).tolist() == [4]


TEXTS = [None, "", "Zürich", "Zurich", "", "a\0", "a", "東京", "a\0\0", "Zürich", None, "a" * 41, "a" * 40]


@pytest.mark.parametrize(
    "column",
    [
        sliced(TEXTS, pa.string()),
        sliced(TEXTS, pa.large_string()),
        sliced(TEXTS, pa.string_view()),
        pa.array([None, None], pa.string()),
        pa.array([Decimal("1.50"), None, Decimal("-1.50"), Decimal("1.50")], pa.decimal128(30, 2)).slice(1),
        pa.array([b"abcde", b"abcdf", b"abcde"], pa.binary(5)),
    ],
    ids=lambda c: f"{c.type}-{len(c)}",
)
def test_strings_and_wide_values(column: pa.Array) -> None:
    assert_codes(DeviceKeyDictionary([column.type]), [[column]])


@pytest.mark.skipif(not runtime.simulated(), reason="functions of the device run on the host in the simulator alone")
def test_hashes_are_spread() -> None:
    """Strings that differ in few bits, or in two of their words, share neither slots nor the upper half."""
    strings = [f"{a:08d}{b:08d}".encode() for a in range(5) for b in range(60)]
    strings += [bytes([1 << bit]) + bytes(8) for bit in range(8)] + [bytes(n) for n in range(20)]
    hashes = np.empty(len(strings), np.uint64)
    function = getattr(byte_keys._hash, "py_func", None) or byte_keys._hash._dispatcher.py_func
    with np.errstate(over="ignore"):
        for i, string in enumerate(strings):
            words = np.frombuffer(string + bytes(-len(string) % 8), np.uint64)
            hashes[i] = function(words, np.int64(0), np.int64(len(string)))
    for part in (hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)):
        assert len(np.unique(part)) >= len(strings) - 1
    few = np.bincount((hashes & np.uint64(255)).astype(np.int64), minlength=256)
    assert few.max() <= 8  # 1.3 are expected in each


def test_several_columns_of_which_one_has_a_dictionary() -> None:
    """A batch with new values, one with new tuples of known ones, one with neither, and nulls of both kinds."""
    rng = np.random.default_rng(4)
    types = [pa.string(), pa.int16(), pa.string()]
    words = pa.array(["b", None, "a", "unused", "", "c"])

    def batch(n: int, most: int, words: pa.Array = words) -> list[pa.Array]:
        index = pa.array(rng.choice([0, 1, 2, 4], n), pa.uint8(), mask=rng.random(n) < 0.2)
        few = [f"value {k}" for k in rng.integers(0, most, n)]
        numbers = pa.array(rng.integers(0, most, n), pa.int16(), mask=rng.random(n) < 0.2)
        return [pa.array(few), numbers, pa.DictionaryArray.from_arrays(index, words)]

    first, second, others = batch(12, 2), batch(20, 2), batch(9, 4, pa.array(["c", "d", "a", "e", "b"]))
    device = DeviceKeyDictionary(types)
    assert_codes(device, [first, second, second, others, [column.slice(3) for column in second]])
    known = len(device)
    smaller, renumbered = device.kept(np.arange(1, known, 2, dtype=np.int32))
    assert renumbered[1::2].tolist() == list(range(len(smaller)))
    assert rows_of(smaller.take(np.arange(len(smaller)))) == rows_of(device.take(np.arange(1, known, 2)))
    host = device.on_host()
    assert rows_of(host.take(np.arange(known))) == rows_of(device.take(np.arange(known)))
    np.testing.assert_array_equal(device.lookup(second, 20), host.encode(second, 20))


STEMS = [
    b"",
    b"\0",
    b"ab",
    "\u00e9\U0001f600".encode(),
    b"seven b",
    b"eight by",
    b"a prefix of all others, of 40 bytes, or so",
]
BYTES = st.one_of(st.none(), st.builds(lambda stem, end: stem + end, st.sampled_from(STEMS), st.binary(max_size=28)))
ROWS = st.lists(st.tuples(BYTES, st.one_of(st.none(), st.integers(-2, 2)), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=3), st.sampled_from([0, 3]), st.integers(0, 9))
def test_any_rows(batches: list[list[tuple[Any, ...]]], hashes: int, skipped: int) -> None:
    """Text, numbers, and a dictionary over both, from any offset on, with hashes that are good or hardly any."""
    types = [pa.binary(), pa.int8(), pa.large_binary()]

    def columns(rows: list[tuple[Any, ...]]) -> list[pa.Array]:
        texts, numbers, flags = zip(*[(b"", 0, False)] * skipped, *rows, strict=True)
        mixed = pa.array([text if flag else b"" for text, flag in zip(texts, flags, strict=True)], types[2])
        found = [pa.array(texts, types[0]), pa.array(numbers, types[1]), mixed.dictionary_encode()]
        return [column.slice(skipped) for column in found]

    with pytest.MonkeyPatch.context() as patch:
        if hashes:
            patch.setattr(byte_keys, "_HASH_BITS", np.uint64(hashes))
        patch.setattr(key_table, "_SMALLEST", 4)
        assert_codes(DeviceKeyDictionary(types), [columns(rows) for rows in batches])


def test_rows_that_are_gone_bring_no_key() -> None:
    texts, numbers = pa.array(["a", "late", "a", None, "late", "b"]), pa.array([1, 2, 1, 1, 1, 9])
    gone = to_device(np.array([0, 1, 0, 0, 1, 0], np.uint8))
    for types, columns in (([pa.string()], [texts]), ([pa.string(), pa.int64()], [texts, numbers])):
        device = DeviceKeyDictionary(types)
        for _ in range(2):
            found = device.looked_up(columns, gone)
            assert to_host(device.finished(found, read(*found.counters))).tolist() == [0, -1, 0, 1, -1, 2]
        assert len(device) == 3


def test_keys_that_come_again_find_their_room() -> None:
    """Where each batch closes what the one before has opened, the table grows for the first batch alone."""
    device: KeyDictionary = DeviceKeyDictionary([pa.int64()])
    grown = []
    for batch in range(4):
        device.encode([pa.array(np.arange(batch * 3_000, batch * 3_000 + 3_000))], 3_000)
        assert isinstance(device, DeviceKeyDictionary)
        grown.append(device.growths)
        device, _ = device.kept(np.arange(10, dtype=np.int32))
    assert grown[-1] - grown[1] == 0
    assert grown[0] > 0
