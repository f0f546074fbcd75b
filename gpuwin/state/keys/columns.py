"""Key columns: distinct values of one type with dense codes, null included, and their inverse. How a value is stored
depends on its type.

Up to 8 bytes of fixed width: int64 (floats by their bits, with one NaN and one zero). Strings, binary and wider fixed
widths: byte strings. Structs: the codes of the fields, combined two at a time. Lists and maps: the byte string of the
codes of the items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.errors import SchemaError
from gpuwin.state.buffers import NO_BITMAP, arrow_bitmap, bitmap_of, bytes_array, bytes_of, fixed_values
from gpuwin.state.keys.tables import BytesTable, IntTable
from gpuwin_kernels.cpu import hashing
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each, ranges

Found = tuple[np.ndarray, np.uint64, np.ndarray, Callable[[np.ndarray], np.ndarray]]
"""The first fields of FoundCodes."""


class KeyColumn(Protocol):
    """Key column. Codes are int32, dense from 0; `encode` gives -1 to unseen values unless `insert`."""

    def encode(self, array: pa.Array, insert: bool) -> np.ndarray: ...

    def take(self, codes: np.ndarray) -> pa.Array: ...

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


def value_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values of a key column: dictionaries and run-end encoding are ways to write them."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return value_type(type_.value_type)
    return type_


def plain_array(array: pa.Array) -> pa.Array:
    """The array without dictionary or run-end encoding."""
    if pa.types.is_dictionary(array.type):
        return plain_array(array.dictionary_decode())
    if pa.types.is_run_end_encoded(array.type):
        return plain_array(pc.run_end_decode(array))
    return array


def _fixed_width(type_: pa.DataType) -> int | None:
    """Bytes of a value, or None if that varies."""
    if pa.types.is_boolean(type_):
        return 1
    try:
        return int(type_.bit_width) // 8
    except ValueError:
        return None


def narrow_array(values: np.ndarray, valid: np.ndarray | None, dtype: np.dtype, type_: pa.DataType) -> pa.Array:
    """Array of a type of at most 8 bytes, which lies in memory as `dtype`, from its stored values: int64[n], of floats
    the bits. Null where `valid` (bool[n]) is not.
    """
    if pa.types.is_boolean(type_):
        return pa.array(values != 0, mask=None if valid is None else ~valid)
    if dtype.kind == "f":
        values = values.view(np.float64)
    return pa.Array.from_buffers(
        type_, len(values), [arrow_bitmap(valid), pa.py_buffer(values.astype(dtype, copy=False))]
    )


def strings_array(data: np.ndarray, offsets: np.ndarray, valid: np.ndarray | None, type_: pa.DataType) -> pa.Array:
    """An array of strings, binary or a wide fixed width, from (data uint8, offsets int32 or int64[n + 1]), where
    nulls have no bytes.
    """
    width = _fixed_width(type_)
    if width is None:
        return bytes_array(data, offsets, valid, type_)
    n = len(offsets) - 1
    if valid is not None:  # a null has no bytes there, but takes its place in a fixed-width array
        whole = np.zeros((n, width), np.uint8)
        whole[valid] = data.reshape(np.count_nonzero(valid), width)
        data = whole
    return pa.Array.from_buffers(type_, n, [arrow_bitmap(valid), pa.py_buffer(data)])


class Ints:
    """Key column of at most 8 bytes of fixed width."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._float = bool(pa.types.is_floating(type_))
        self._bool = bool(pa.types.is_boolean(type_))
        width = _fixed_width(type_)
        assert width is not None
        unsigned = pa.types.is_unsigned_integer(type_)
        self._dtype = np.dtype(f"{'u' if unsigned else 'f' if self._float else 'i'}{width}")
        self._table = IntTable()

    def _values(self, array: pa.Array) -> np.ndarray:
        if self._bool:
            array = array.cast(pa.int8())
        values = fixed_values(array, self._dtype)
        if self._float:
            bits = empty(len(values), np.int64)
            hashing.canonical_float_bits(values.astype(np.float64, copy=False), bits)
            return bits
        if self._dtype in (np.int32, np.int64):
            return values
        return values.view(np.int64) if self._dtype == np.uint64 else values.astype(np.int64)

    def encode(self, array: pa.Array, insert: bool) -> np.ndarray:
        return self._table.encode(self._values(array), *bitmap_of(array), insert)

    def found(self, array: pa.Array) -> Found | None:
        """Table that a kernel finds the codes of most rows in; None if an array of codes is better."""
        if array.null_count:
            return None
        values = self._values(array)
        direct = self._table.direct(values)
        return None if direct is None else (values, *direct, self._table.encode)

    def take(self, codes: np.ndarray) -> pa.Array:
        valid = None if self._table.null_code < 0 else codes != self._table.null_code
        values = empty(len(codes), np.int64)

        def copy(part: tuple[int, int]) -> None:
            lo, hi = part
            hashing.values_of(self._table.values, codes[lo:hi], values[lo:hi])
            if valid is not None:  # what lies under a null depends on how the table came about
                values[lo:hi] *= valid[lo:hi]

        each(copy, ranges(len(codes)))
        return narrow_array(values, valid, self._dtype, self._type)

    def kept(self, used: np.ndarray) -> Ints:
        """Column of the values of some codes (int32, ascending, unique) only, numbered in this order."""
        smaller = Ints(self._type)
        smaller._table = self._table.kept(used)
        return smaller

    def __len__(self) -> int:
        return self._table.count

    @property
    def nbytes(self) -> int:
        return self._table.nbytes


class _Bytes:
    """Key column of strings, binary, and fixed widths above 8 bytes."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._width = _fixed_width(type_)
        self._table = BytesTable()

    def encode(self, array: pa.Array, insert: bool) -> np.ndarray:
        if not self._width:  # binary(0) has values of no bytes
            data, offsets = bytes_of(array)
        else:
            data = fixed_values(array, np.dtype((np.void, self._width))).view(np.uint8)
            offsets = np.arange(len(array) + 1, dtype=np.int64) * self._width
        return self._table.encode(data, offsets, *bitmap_of(array), insert)

    def take(self, codes: np.ndarray) -> pa.Array:
        valid = None if self._table.null_code < 0 else codes != self._table.null_code
        return strings_array(*self._table.take(codes, short=True), valid, self._type)

    def __len__(self) -> int:
        return self._table.count

    @property
    def nbytes(self) -> int:
        return self._table.nbytes


class _Nulls:
    def __init__(self, type_: pa.DataType) -> None:
        self._seen = 0

    def encode(self, array: pa.Array, insert: bool) -> np.ndarray:
        if insert and len(array):
            self._seen = 1
        return np.full(len(array), self._seen - 1, np.int32)

    def take(self, codes: np.ndarray) -> pa.Array:
        return pa.nulls(len(codes))

    def __len__(self) -> int:
        return self._seen

    nbytes = 0


def _pair(high: np.ndarray, low: np.ndarray, out: np.ndarray) -> None:
    def pair(part: tuple[int, int]) -> None:
        rows = slice(*part)
        hashing.pair_codes(high[rows], low[rows], out[rows])

    each(pair, ranges(len(out)))


class Takes(Protocol):
    """Source of values for codes."""

    def take(self, codes: np.ndarray) -> pa.Array: ...


def take_tuples(columns: Sequence[Takes], pairs: Sequence[np.ndarray], codes: np.ndarray) -> list[pa.Array]:
    """Values of each column. `pairs`, one fewer: the combined codes of the columns so far and of the next one, int64 by
    code.
    """
    out: list[pa.Array] = []
    for column, values in zip(columns[:0:-1], pairs[::-1], strict=True):
        both = values[codes]
        out.append(column.take(both.astype(np.uint32).view(np.int32)))
        codes = (both >> 32).astype(np.int32)
    out.append(columns[0].take(codes))
    return out[::-1]


class Combined:
    """Several columns, or the fields of a struct, as one key column of pairs of codes."""

    def __init__(self, columns: Sequence[KeyColumn]) -> None:
        self._columns = tuple(columns)
        self._pairs = [IntTable() for _ in columns[1:]]

    def encode(self, arrays: Sequence[pa.Array], insert: bool) -> np.ndarray:
        codes = self._columns[0].encode(arrays[0], insert)
        for column, array, pairs in zip(self._columns[1:], arrays[1:], self._pairs, strict=True):
            other = column.encode(array, insert)
            both = empty(len(codes), np.int64)
            _pair(codes, other, both)
            codes = pairs.encode(both, insert=insert)
        return codes

    def take(self, codes: np.ndarray) -> list[pa.Array]:
        return take_tuples(self._columns, [pairs.values for pairs in self._pairs], codes)

    def __len__(self) -> int:
        return self._pairs[-1].count if self._pairs else len(self._columns[0])

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in self._columns) + sum(p.nbytes for p in self._pairs)


class _Struct:
    """Key column of structs. The first part of the combination says whether the struct itself is null."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._fields = [type_.field(i) for i in range(type_.num_fields)]
        self._parts = Combined([Ints(pa.bool_()), *(key_column(f.type) for f in self._fields)])

    def encode(self, array: pa.Array, insert: bool) -> np.ndarray:
        valid = array.is_valid()
        # flatten() puts the struct's nulls into the fields: values under a null struct must not make it
        # differ from another.
        return self._parts.encode([valid, *(plain_array(f) for f in array.flatten())], insert)

    def take(self, codes: np.ndarray) -> pa.Array:
        valid, *fields = self._parts.take(codes)
        return pa.StructArray.from_arrays(fields, fields=self._stored_fields(), mask=pc.invert(valid))

    def _stored_fields(self) -> list[pa.Field]:
        return [pa.field(f.name, value_type(f.type), True, f.metadata) for f in self._fields]

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def nbytes(self) -> int:
        return self._parts.nbytes


class _List:
    """Key column of lists of any kind and maps: a value is the byte string of its items' codes."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._is_map = bool(pa.types.is_map(type_))
        items = pa.struct([type_.key_field, type_.item_field]) if self._is_map else type_.value_type
        self._items = key_column(items)
        self._lists = BytesTable()

    def encode(self, array: pa.Array, insert: bool) -> np.ndarray:
        valid = np.asarray(array.is_valid())
        lists = array.cast(pa.large_list(array.type.value_type)) if not self._is_map else array
        offsets = np.asarray(lists.offsets).astype(np.int64)
        lengths = np.where(valid, np.diff(offsets), 0)
        items = self._entries(lists)
        base = int(offsets[0]) if len(offsets) else 0
        codes = self._items.encode(plain_array(items.slice(base, int(offsets[-1]) - base)), insert)
        starts = (offsets[:-1] - base) * 4
        if not insert and bool((codes < 0).any()):
            return self._lookup(codes, starts, lengths, valid)
        return self._encode(codes, starts, lengths, valid, insert)

    def _entries(self, lists: pa.Array) -> pa.Array:
        if not self._is_map:
            return lists.values
        return pa.StructArray.from_arrays(
            [lists.keys, lists.items], fields=[self._type.key_field, self._type.item_field]
        )

    def _encode(
        self, codes: np.ndarray, starts: np.ndarray, lengths: np.ndarray, valid: np.ndarray, insert: bool
    ) -> np.ndarray:
        """Codes of lists. Null lists may cover items in the array; their place among the offsets is skipped by copying
        the others together.
        """
        data = codes.view(np.uint8)
        ends = starts + 4 * lengths
        bitmap = NO_BITMAP if valid.all() else np.packbits(valid, bitorder="little")
        if len(starts) and bool((starts[1:] != ends[:-1]).any()):
            offsets = np.concatenate(([0], np.cumsum(4 * lengths)))
            kept = np.repeat(starts - offsets[:-1], 4 * lengths) + np.arange(offsets[-1])
            data = data[kept]
        else:
            offsets = np.concatenate((starts, ends[-1:])) if len(starts) else np.zeros(1, np.int64)
        return self._lists.encode(data, offsets, bitmap, 0, insert)

    def _lookup(self, codes: np.ndarray, starts: np.ndarray, lengths: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Codes of lists; a list with an unseen item is unseen."""
        unseen = np.concatenate(([0], np.cumsum(codes < 0)))
        first = starts // 4
        bad = valid & (unseen[first + lengths] > unseen[first])
        found = self._encode(codes, starts, np.where(bad, 0, lengths), valid, insert=False)
        found[bad] = -1
        return found

    def take(self, codes: np.ndarray) -> pa.Array:
        valid = None if self._lists.null_code < 0 else codes != self._lists.null_code
        data, offsets = self._lists.take(codes)
        items = self._items.take(data.view(np.int32))
        bounds = pa.array((offsets // 4).astype(np.int64))
        if self._is_map:
            keys, values = items.flatten()
            narrow = pa.array((offsets // 4).astype(np.int32))
            whole = pa.MapArray.from_arrays(narrow, keys, values)
            return _with_nulls_nested(whole, valid, self._type)
        whole = pa.LargeListArray.from_arrays(bounds, items)
        return _with_nulls_nested(whole, valid, self._type)

    def __len__(self) -> int:
        return self._lists.count

    @property
    def nbytes(self) -> int:
        return self._lists.nbytes + self._items.nbytes


def _with_nulls_nested(array: pa.Array, valid: np.ndarray | None, type_: pa.DataType) -> pa.Array:
    if valid is not None and not valid.all():
        at = np.arange(len(array))
        array = array.take(pa.array(at, mask=~valid))  # if_else takes no lists of extension types
    return array if array.type == type_ else array.cast(type_)


class _Extension:
    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._storage = key_column(type_.storage_type)

    def encode(self, array: pa.Array, insert: bool) -> np.ndarray:
        return self._storage.encode(plain_array(array.storage), insert)

    def take(self, codes: np.ndarray) -> pa.Array:
        return self._type.wrap_array(self._storage.take(codes))

    def __len__(self) -> int:
        return len(self._storage)

    @property
    def nbytes(self) -> int:
        return self._storage.nbytes


def key_column(type_: pa.DataType) -> KeyColumn:
    """Key column for a type. Raises gpuwin.SchemaError for a type whose values cannot be keys (unions)."""
    type_ = value_type(type_)
    if isinstance(type_, pa.BaseExtensionType):
        return _Extension(type_)
    if pa.types.is_null(type_):
        return _Nulls(type_)
    if pa.types.is_struct(type_):
        return _Struct(type_)
    if pa.types.is_nested(type_):
        if pa.types.is_union(type_):
            raise SchemaError(f"a column of type {type_} cannot be a key: use one of its fields")
        return _List(type_)
    width = _fixed_width(type_)
    return (
        Ints(type_) if width is not None and width <= 8 and not pa.types.is_fixed_size_binary(type_) else _Bytes(type_)
    )


__all__ = [
    "Combined",
    "Found",
    "Ints",
    "KeyColumn",
    "key_column",
    "narrow_array",
    "plain_array",
    "strings_array",
    "take_tuples",
    "value_type",
]
