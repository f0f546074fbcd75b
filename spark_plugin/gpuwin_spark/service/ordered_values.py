"""Buffers of ``min_by`` and ``max_by`` whose ordering does not fit 64 bits: texts, and decimals of many digits.

A cell keeps one string of bytes, the smallest or the largest of those that came: the ordering, in bytes that have its
order and of which none begins another; the arrival, by which the last of equals is kept; and the value, behind which
its length stands. Structs and arrays come as bytes that have their order (``SortableBytes.scala``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.state.buffers import bytes_array, bytes_of
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import array_of, dtype_of, rankable, words_of
from gpuwin_kernels.layout import MAX, MIN, CellArrays, CellColumn

from . import decimals
from .arrivals import ranked
from .operator_spec import Merge
from .plain import validity_of, values_of

_SIGN: Final = np.uint64(1 << 63)
_ARRIVAL: Final = 8
#: A byte that says whether the value is null, and its length in four.
_TAIL: Final = 5
#: A zero within an ordering, and its end.
_ZERO, _END = b"\0\xff", b"\0\0"
_NOTHING: Final = pa.scalar(b"", pa.large_binary())


def is_wide(ordering: pa.DataType) -> bool:
    """Whether an ordering of this type does not fit 64 bits."""
    return not rankable(ordering)


def columns_of(m: Merge, kind: str) -> list[CellColumn]:
    """The partial column; ``kind``, the dtype of the value, does not matter."""
    return [CellColumn(f"{m.number}", MIN if m.merge == "min_by" else MAX, "bytes", nullable=True)]


def decode(m: Merge, buffers: Sequence[pa.Array], arrived: int | None, heap: BytesHeap) -> list[CellArrays]:
    """The buffers (value, ordering) and the arrivals of n cells as the partial column."""
    value, ordering, arrival = buffers
    arrivals = ranked(values_of(arrival), validity_of(arrival), arrived)
    number = arrivals.view(np.uint64) ^ _SIGN
    held = _bytes_of_values(value)
    lengths = np.diff(bytes_of(held)[1]).astype(np.uint32)
    tail = np.empty((len(value), _TAIL), np.uint8)
    tail[:, 0] = validity_of(value)
    tail[:, 1:] = lengths.astype(">u4").view(np.uint8).reshape(-1, 4)
    parts = [_sortable(ordering), _of_width(_big(~number if m.merge == "min_by" else number)), held, _of_width(tail)]
    joined = pc.binary_join_element_wise(*parts, _NOTHING)
    return [CellArrays((heap.put(joined),), validity_of(ordering))]


def encode(m: Merge, columns: Sequence[CellArrays], types: Sequence[pa.DataType], heap: BytesHeap) -> list[pa.Array]:
    """The opposite: [value, ordering, arrival]."""
    (codes,), valid = columns[0].values, columns[0].validity
    known = np.flatnonzero(valid)
    data, offsets = bytes_of(heap.take(codes[known], None, pa.large_binary()))
    ends, begins = offsets[1:].astype(np.int64), offsets[:-1].astype(np.int64)
    tail = data[(ends - _TAIL)[:, None] + np.arange(_TAIL)]
    lengths = np.ascontiguousarray(tail[:, 1:]).view(">u4").reshape(-1).astype(np.int64)
    to = ends - _TAIL
    at = to - lengths
    number = np.ascontiguousarray(data[(at - _ARRIVAL)[:, None] + np.arange(_ARRIVAL)]).view(">u8").reshape(-1)
    arrival = (number.astype(np.uint64) ^ _SIGN).view(np.int64)
    found = (
        _values(*_cut(data, at, to), tail[:, 0], types[0]),
        _orderings(*_cut(data, begins, at - _ARRIVAL), types[1]),
        pa.array(~arrival if m.merge == "min_by" else arrival),
    )
    place = np.zeros(len(valid), np.int64)
    place[known] = np.arange(len(known))
    taken = pa.array(place, mask=valid == 0)
    return [array.take(taken) for array in found]


def _sortable(ordering: pa.Array) -> pa.Array:
    """Bytes in the order of the values; of nulls any."""
    if pa.types.is_decimal(ordering.type):
        high, low = words_of(ordering, None)
        return _of_width(np.concatenate((_big(high.view(np.uint64) ^ _SIGN), _big(low)), axis=1))
    texts = ordering.cast(pa.large_binary()).fill_null(b"")
    end = pa.scalar(_END, pa.large_binary())
    return pc.binary_join_element_wise(pc.replace_substring(texts, b"\0", _ZERO), _NOTHING, end)


def _orderings(data: np.ndarray, offsets: np.ndarray, type_: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(type_):
        words = data.view(">u8").reshape(-1, 2).astype(np.uint64)
        return decimals.join((words[:, 0] ^ _SIGN).view(np.int64), words[:, 1], type_, None)
    texts, ends = _cut(data, offsets[:-1], offsets[1:] - len(_END))
    escaped = bytes_array(texts, ends, None, pa.large_binary())
    return pc.replace_substring(escaped, _ZERO, b"\0").cast(type_)


def _bytes_of_values(value: pa.Array) -> pa.Array:
    if dtype_of(value.type) == "bytes":
        return value.cast(pa.large_binary()).fill_null(b"")
    return _of_width(np.stack([word.view(np.uint64) for word in words_of(value, None)], axis=1).view(np.uint8))


def _values(data: np.ndarray, offsets: np.ndarray, valid: np.ndarray, type_: pa.DataType) -> pa.Array:
    if dtype_of(type_) == "bytes":
        return bytes_array(data, offsets, valid, type_)
    dtypes = {"int64": ("int64",), "float64": ("float64",), "int128": ("int64", "uint64")}[str(dtype_of(type_))]
    words = data.view(np.uint64).reshape(-1, len(dtypes))
    found = tuple(np.ascontiguousarray(words[:, i]).view(dtype) for i, dtype in enumerate(dtypes))
    return array_of(found, valid, type_, None)


def _big(numbers: np.ndarray) -> np.ndarray:
    """uint8[n, 8]: the bytes of uint64[n], the highest first."""
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)


def _of_width(rows: np.ndarray) -> pa.Array:
    """Binary values, of rows of bytes."""
    n, width = rows.shape
    return bytes_array(np.ascontiguousarray(rows).reshape(-1), np.arange(n + 1) * width, None, pa.large_binary())


def _cut(data: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes data[begins[i]:ends[i]] one behind the other, and where each begins, int64[n + 1]."""
    offsets = np.concatenate(([0], np.cumsum(ends - begins)))
    return data[np.repeat(begins - offsets[:-1], ends - begins) + np.arange(offsets[-1])], offsets
