"""Keys of any Arrow type to codes and back, against a plain dictionary."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin.errors import SchemaError
from gpuwin.state import BytesHeap, KeyDictionary

ints = st.integers(-(1 << 63), (1 << 63) - 1)
floats = st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.5, -1.5])
text = st.text(max_size=20)
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), ints | st.integers(0, 50)),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-5, 5)),
    (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 65535)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), floats | st.floats(width=64)),
    (pa.float32(), floats | st.floats(width=32)),
    (pa.string(), text),
    (pa.large_string(), text),
    (pa.string_view(), text),
    (pa.binary(), st.binary(max_size=20)),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(dt.datetime(1900, 1, 1), timezones=st.just(dt.UTC))),
    (pa.decimal128(20, 3), st.integers(-(10**15), 10**15).map(lambda i: decimal.Decimal(i).scaleb(-3))),
    (pa.decimal256(50, 0), st.integers(-(10**40), 10**40).map(decimal.Decimal)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("abcdé")),
    (pa.list_(pa.int16()), st.lists(st.none() | st.integers(0, 3), max_size=3)),
    (pa.large_list(pa.string()), st.lists(st.none() | st.sampled_from(["", "a", "bc"]), max_size=3)),
    (pa.list_(pa.int32(), 2), st.lists(st.integers(0, 2), min_size=2, max_size=2)),
    (pa.list_(pa.list_(pa.bool_())), st.lists(st.none() | st.lists(st.booleans(), max_size=2), max_size=2)),
    (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 2), "b": st.none() | st.sampled_from("xy")}),
    ),
    (pa.map_(pa.string(), pa.int32()), st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 1)), max_size=2)),
    (pa.null(), st.none()),
]


def canonical(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return tuple(map(canonical, value))
    if isinstance(value, dict):
        return tuple((k, canonical(v)) for k, v in value.items())
    return value


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_batches_of_any_types(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    keys, codes = KeyDictionary([t for t, _ in kinds]), dict[Any, int]()
    for _ in range(data.draw(st.integers(1, 4))):
        n = data.draw(st.integers(0, 12))
        lists = [data.draw(st.lists(st.none() | s, min_size=n, max_size=n)) for _, s in kinds]
        arrays = [chunked(pa.array(v, t), data) for v, (t, _) in zip(lists, kinds, strict=True)]
        plain = [a.to_pylist() for a in arrays]
        rows = [tuple(map(canonical, r)) for r in zip(*plain, strict=True)] if n else []
        found = keys.lookup(arrays, n).tolist()
        assert found == [codes.get(r, -1) for r in rows]
        got = keys.encode(arrays, n)
        assert got.dtype == np.int32
        for row, code in zip(rows, got.tolist(), strict=True):
            assert codes.setdefault(row, code) == code
        assert len(set(codes.values())) == len(codes)
        assert all(code < len(keys) for code in codes.values())
        taken = keys.take(got)
        for array, type_ in zip(taken, keys.types, strict=True):
            array.validate(full=True)
            assert array.type == type_
        back = [tuple(map(canonical, r)) for r in zip(*(a.to_pylist() for a in taken), strict=True)] if n else []
        assert back == rows
        check_kept(keys, got[: n // 2])


def chunked(array: pa.Array, data: st.DataObject) -> pa.Array | pa.ChunkedArray:
    how = data.draw(st.integers(0, 2))
    if how == 0 or not len(array):
        return array
    if how == 1:  # behind an offset
        return pa.concat_arrays([array.slice(0, 1), array]).slice(1)
    at = data.draw(st.integers(0, len(array)))
    return pa.chunked_array([array.slice(0, at), array.slice(at)], array.type)


def check_kept(keys: KeyDictionary, some: np.ndarray) -> None:
    used = np.unique(some)
    smaller, new_code = keys.kept(used)
    assert len(smaller) >= len(used)
    assert new_code[used].tolist() == list(range(len(used)))
    assert (np.delete(new_code, used) == -1).all()
    old, new = keys.take(used), smaller.take(new_code[used])
    assert [repr(a.to_pylist()) for a in old] == [repr(a.to_pylist()) for a in new]
    assert (smaller.lookup(old, len(used)) == new_code[used]).all()


@pytest.mark.parametrize("types", [[pa.string()], [pa.binary(), pa.int64()]])
def test_keys_whose_texts_have_no_room_in_one_column(types: list[pa.DataType], monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys that are left of many: of more than 2 GiB, for which nine at once stand here."""
    columns = [pa.array([f"{i}" for i in range(100)]).cast(types[0]), pa.array([None, *range(99)])][: len(types)]
    keys, take = KeyDictionary(types), KeyDictionary.take
    keys.encode(columns, 100)

    def fits(self: KeyDictionary, codes: np.ndarray) -> list[pa.Array]:
        if len(codes) > 8:
            raise pa.ArrowInvalid("Failed casting from large_binary to binary: input array too large")
        return take(self, codes)

    monkeypatch.setattr(KeyDictionary, "take", fits)
    used = np.arange(3, 100, 3, dtype=np.int32)
    smaller, renumbered = keys.kept(used)
    assert renumbered[used].tolist() == list(range(len(used)))
    assert take(smaller, np.arange(len(used), dtype=np.int32)) == [column.take(pa.array(used)) for column in columns]
    monkeypatch.setattr(KeyDictionary, "take", lambda self, codes: fits(self, np.arange(9)))
    with pytest.raises(pa.ArrowInvalid):
        keys.kept(used)


def test_many_keys_in_parallel_parts() -> None:
    rng = np.random.default_rng(5)
    for spread in (1 << 12, 1 << 40):
        values = rng.integers(-spread, spread, 400_000)
        keys = KeyDictionary([pa.int64()])
        codes = np.concatenate([keys.encode([pa.array(v)], len(v)) for v in np.array_split(values, 3)])
        distinct, inverse = np.unique(values, return_inverse=True)
        assert len(keys) == len(distinct)
        assert (keys.take(codes)[0].to_numpy() == values).all()
        assert (np.unique(codes[np.unique(inverse, return_index=True)[1]]) == np.arange(len(distinct))).all()
        words = pa.array([f"key {v}" for v in values[:100_000].tolist()])
        strings = KeyDictionary([pa.string()])
        codes = strings.encode([words], len(words))
        assert strings.take(codes)[0].equals(words)
        both = KeyDictionary([pa.string(), pa.int64()])
        numbers = pa.array(values[:100_000] % 7)
        codes = both.encode([words.dictionary_encode(), numbers], len(words))
        assert [a.to_pylist() for a in both.take(codes)] == [words.to_pylist(), numbers.to_pylist()]


def test_a_range_that_moves_with_the_stream() -> None:
    keys = KeyDictionary([pa.int64()])
    seen = []
    for batch in range(200):
        values = np.arange(batch * 900 - 50_000, batch * 900 - 49_000)
        codes = keys.encode([pa.array(values)], 1000)
        assert (keys.take(codes)[0].to_numpy() == values).all()
        seen.append(values)
    assert len(keys) == len(np.unique(np.concatenate(seen)))
    assert keys.nbytes < 100 * len(keys)


def test_a_dictionary_is_not_taken_for_the_last_one() -> None:
    keys = KeyDictionary([pa.string()])
    for words in (["a", "b"], ["b", "a"], ["c", None]):
        array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(words))
        codes = keys.encode([array], 4)
        assert keys.take(codes)[0].to_pylist() == [words[0], words[1], None, words[0]]


def test_no_columns_are_one_group() -> None:
    keys = KeyDictionary([])
    assert keys.encode([], 3).tolist() == [0, 0, 0]
    assert len(keys) == 1
    assert keys.take(np.zeros(3, np.int32)) == []
    assert keys.kept(np.array([0], np.int32))[1].tolist() == [0]


def test_what_cannot_be_a_key() -> None:
    with pytest.raises(SchemaError, match="cannot be a key"):
        KeyDictionary([pa.dense_union([pa.field("a", pa.int8())])])
    with pytest.raises(ValueError, match="1 key columns"):
        KeyDictionary([pa.int8()]).encode([], 0)
    with pytest.raises(ValueError, match="expected 3"):
        KeyDictionary([pa.int8()]).encode([pa.array([1], pa.int8())], 3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.none() | st.binary(max_size=30), max_size=9), max_size=5))
def test_heap(batches: list[list[bytes | None]]) -> None:
    heap = BytesHeap()
    kept = []
    for batch in batches:
        codes = heap.put(pa.array(batch, pa.binary()))
        valid = np.array([v is not None for v in batch], np.uint8)
        kept.append((codes, valid, batch))
    for codes, valid, batch in kept:
        assert heap.take(codes, valid, pa.binary()).to_pylist() == batch
        used = np.unique(codes[valid != 0])
        smaller, new_code = heap.kept(used)
        assert len(smaller) == len(used)
        assert smaller.take(new_code[codes], valid, pa.large_binary()).to_pylist() == batch
