"""Dictionary of keys: each distinct key tuple has an int32 code, dense, and keeps it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import NO_BITMAP, bitmap_of, copied, fixed_values
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.columns import Combined, Found, Ints, key_column, plain_array, value_type
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import hashing
from gpuwin_kernels.cpu.found_codes import Codes, FoundCodes, SingleCode
from gpuwin_kernels.cpu.kept_memory import empty, full
from gpuwin_kernels.cpu.parallel import each, ranges

FEWER = 4  # a dictionary is encoded by itself if it has at most this many times the rows' number of values


#: A dictionary of no more keys is never compacted.
FEW_KEYS = 1 << 12


class KeyDictionary:
    """Dense int32 codes for tuples of key values of any Arrow type; append-only. With no columns there is one group, of
    code 0.

    Nulls are values; NaN equals NaN and -0.0 equals 0.0. Several threads may encode at once.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """Raises gpuwin.SchemaError for a type whose values cannot be keys."""
        self.types = tuple(value_type(t) for t in types)
        self._columns = [_Recoded(t) for t in self.types]
        self._combined = Combined(self._columns) if len(self._columns) > 1 else None
        self._lock = Lock()

    @staticmethod
    def of_keys(types: Sequence[pa.DataType], columns: Sequence[pa.Array]) -> KeyDictionary:
        """Dictionary of keys, at least one column and all different, in the order of their codes."""
        keys = KeyDictionary(types)
        keys.encode(columns, len(columns[0]))
        return keys

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray], length: int) -> np.ndarray:
        """Codes of rows, int32[length]; keys that were not seen before get the next ones. Raises gpuwin.LimitExceeded
        at 2**31 keys.
        """
        return self._codes(columns, length, insert=True)

    def coded(self, columns: Sequence[pa.Array | pa.ChunkedArray], length: int) -> Codes:
        """Codes of rows that are read once: where it pays, a table that a kernel finds them in as it reads the rows.
        All keys of the rows are in the dictionary then.
        """
        if not self._columns and not columns:
            return SingleCode(length)
        if length < tuning.FOUND_ROWS or len(self._columns) != 1 or any(len(c) != length for c in columns):
            return self.encode(columns, length)
        chunks = _chunks(columns)
        with self._lock:
            found = self._columns[0].found(chunks[0][0]) if len(chunks) == 1 else None
        if found is None:
            return self.encode(columns, length)
        raw, least, index, enter = found

        def entered(rows: np.ndarray) -> np.ndarray:
            with self._lock:
                return enter(rows)

        return FoundCodes(raw, least, index, entered, self.__len__)

    def lookup(self, columns: Sequence[pa.Array | pa.ChunkedArray], length: int) -> np.ndarray:
        """Codes of rows, int32[length], -1 for keys that were not seen; adds nothing."""
        return self._codes(columns, length, insert=False)

    def _codes(self, columns: Sequence[pa.Array | pa.ChunkedArray], length: int, insert: bool) -> np.ndarray:
        if len(columns) != len(self._columns):
            raise ValueError(f"{len(self._columns)} key columns are encoded, {len(columns)} were given")
        if not columns:
            return np.zeros(length, np.int32)
        if any(len(c) != length for c in columns):
            raise ValueError(f"key columns of {[len(c) for c in columns]} rows, expected {length}")
        with self._lock:
            chunks = [self._encode_chunk(chunk, insert) for chunk in _chunks(columns)]
        if len(chunks) == 1:
            return chunks[0]
        return np.concatenate(chunks) if chunks else np.empty(0, np.int32)

    def _encode_chunk(self, arrays: Sequence[pa.Array], insert: bool) -> np.ndarray:
        if self._combined is not None:
            return self._combined.encode(arrays, insert)
        return self._columns[0].encode(arrays[0], insert)

    def take(self, codes: np.ndarray) -> list[pa.Array]:
        """Key columns of these codes (int32[n], from `encode`), in `types`."""
        if not self._columns:
            return []
        if self._combined is not None:
            return self._combined.take(codes)
        return [self._columns[0].take(codes)]

    def kept(self, used: np.ndarray) -> tuple[KeyDictionary, np.ndarray]:
        """Dictionary of the keys `used` (int32, ascending, unique) only, and the map from old codes to new ones
        (int32[len(self)], -1 for the others). The map keeps order: arrays that are sorted by code stay sorted.
        """
        smaller = KeyDictionary(self.types)
        renumbered = full(len(self), -1, np.int32)
        if not self._columns:
            renumbered[:] = 0
            return smaller, renumbered
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        column = self._columns[0].kept(used) if len(self._columns) == 1 else None
        if column is not None:
            smaller._columns = [column]
        else:
            for _, columns in self.parts(used):
                smaller.encode(columns, len(columns[0]))
        return smaller, renumbered

    def parts(self, codes: np.ndarray) -> Iterator[tuple[int, list[pa.Array]]]:
        """Key columns of some codes (int32[n]), as of `take`, in parts whose texts have room behind offsets of 32 bits;
        each with the place of its first code.
        """
        pending = [(0, codes)] if len(codes) else []
        while pending:
            at, some = pending.pop()
            try:
                columns = self.take(some)
            except pa.ArrowInvalid:
                if len(some) < 2:
                    raise
                half = len(some) // 2
                pending += [(at + half, some[half:]), (at, some[:half])]
            else:
                yield at, columns

    def __len__(self) -> int:
        if not self._columns:
            return 1
        return len(self._combined if self._combined is not None else self._columns[0])

    @property
    def growths(self) -> int:
        """Number of times that rows waited for a larger table on the device. On the host they never do."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._combined.nbytes if self._combined is not None else sum(c.nbytes for c in self._columns)


class _Recoded:
    """Key column that also takes dictionary arrays: their values are encoded once, rows are looked up by index."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._values = key_column(type_)
        self._last: tuple[pa.Array, np.ndarray] | None = None  # a copy of the last dictionary, and its codes

    def encode(self, array: pa.Array, insert: bool) -> np.ndarray:
        if not pa.types.is_dictionary(array.type) or len(array.dictionary) > FEWER * len(array):
            return self._values.encode(plain_array(array), insert)
        mapping = self._mapping_of(array.dictionary, insert)
        indices = array.indices
        null = -1
        if indices.null_count:
            null = int(self._values.encode(pa.nulls(1, value_type(array.type)), insert)[0])
        raw = np.frombuffer(indices.buffers()[1], indices.type.to_pandas_dtype())[indices.offset :]
        return _mapped(raw[: len(array)], *bitmap_of(indices), null, mapping)

    def found(self, array: pa.Array) -> Found | None:
        """Table that a kernel finds the codes of rows in; None if an array of codes is better."""
        if not pa.types.is_dictionary(array.type):
            return self._values.found(array) if isinstance(self._values, Ints) else None
        indices = array.indices
        if indices.null_count or indices.type not in (pa.int32(), pa.int64()):
            return None
        if len(array.dictionary) > FEWER * len(array):
            return None
        mapping = self._mapping_of(array.dictionary, insert=True)
        raw = fixed_values(indices, np.dtype(indices.type.to_pandas_dtype()))
        return raw, np.uint64(0), mapping, lambda some: _mapped(some, NO_BITMAP, 0, -1, mapping)

    def kept(self, used: np.ndarray) -> _Recoded | None:
        """Column of the values of some codes only, numbered in this order; None if they have to be encoded again."""
        if not isinstance(self._values, Ints):
            return None
        smaller = _Recoded(self._type)
        smaller._values = self._values.kept(used)
        return smaller

    def _mapping_of(self, dictionary: pa.Array, insert: bool) -> np.ndarray:
        """Codes of the dictionary's values, int32, from the last call if it is the same dictionary."""
        last = self._last
        if last is not None and last[0].equals(dictionary):
            return last[1]
        mapping = self._values.encode(plain_array(dictionary), insert)
        if insert:
            self._last = copied(dictionary), mapping
        return mapping

    def take(self, codes: np.ndarray) -> pa.Array:
        return self._values.take(codes)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        return self._values.nbytes


def _mapped(indices: np.ndarray, bitmap: np.ndarray, offset: int, null: int, mapping: np.ndarray) -> np.ndarray:
    """Codes of dictionary indices, int32, `null` where the bitmap has no bit."""
    codes = empty(len(indices), np.int32)

    def look_up(part: tuple[int, int]) -> None:
        lo, hi = part
        hashing.map_codes(indices[lo:hi], bitmap, offset + lo, null, mapping, codes[lo:hi])

    each(look_up, ranges(len(codes)))
    return codes


def _chunks(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[list[pa.Array]]:
    """Rows in chunks, cut where a chunk of any column ends."""
    if all(isinstance(c, pa.Array) for c in columns):
        return [list(columns)]
    chunked = [c if isinstance(c, pa.ChunkedArray) else pa.chunked_array([c]) for c in columns]
    edges = sorted({edge for c in chunked for edge in np.cumsum([0, *(len(k) for k in c.chunks)]).tolist()})
    if len(edges) > 1 and all(c.num_chunks == 1 for c in chunked):
        return [[c.chunk(0) for c in chunked]]
    chunks = []
    for lo, hi in itertools.pairwise(edges):
        chunks.append([_one_chunk(c.slice(lo, hi - lo)) for c in chunked])
    return chunks


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    filled = [c for c in column.chunks if len(c)]
    return filled[0] if len(filled) == 1 else column.combine_chunks()


@dataclass(frozen=True, slots=True)
class Names:
    """The dictionary of keys and the heap of bytes behind a state."""

    keys: KeyDictionary
    heap: BytesHeap

    def sizes(self) -> tuple[int, int]:
        return len(self.keys), len(self.heap)

    def back_to(self, sizes: tuple[int, int]) -> Names | None:
        """Names of the first so many keys and texts, under their old codes; None if there are no others."""
        if self.sizes() == sizes:
            return None
        keys, heap = self.keys, self.heap
        if len(keys) != sizes[0]:
            keys = keys.kept(np.arange(sizes[0], dtype=np.int32))[0]
        if len(heap) != sizes[1]:
            heap = heap.kept(np.arange(sizes[1]))[0]
        return Names(keys, heap)
