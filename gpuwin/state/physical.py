"""Arrow values as the words that cells hold, and back: int64, float64, int128 in two halves, or codes of a byte
heap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.errors import OverflowError
from gpuwin.state.heap import BytesHeap

Words = tuple[np.ndarray, ...]
_TOP = np.uint64(1 << 63)
_MOST = 10**38 - 1


def dtype_of(type_: pa.DataType) -> str | None:
    """The physical dtype that holds every value of the type, in its order; None if there is none."""
    if pa.types.is_floating(type_):
        return "float64"
    if pa.types.is_decimal(type_):
        return "int128" if not pa.types.is_decimal256(type_) else None
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return "int64"
    if pa.types.is_temporal(type_) and not pa.types.is_interval(type_):
        return "int64"
    if is_bytes(type_):
        return "bytes"
    return None


def is_bytes(type_: pa.DataType) -> bool:
    """Whether values of a type are strings or binary, also of a fixed width."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(kind(type_) for kind in kinds) or bool(pa.types.is_fixed_size_binary(type_))


def _raw(array: pa.Array, dtype: Any) -> np.ndarray:
    """Data buffer as numpy; anything may stand at nulls."""
    if not len(array):
        return np.empty(0, dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * size)


def words_of(array: pa.Array, heap: BytesHeap | None) -> Words:
    """The words of every value; those of a null mean nothing."""
    type_ = array.type
    if pa.types.is_floating(type_):
        values = _raw(array, type_.to_pandas_dtype())
        return (values if values.dtype == np.float64 else values.astype(np.float64),)
    if pa.types.is_decimal(type_):
        if not pa.types.is_decimal128(type_):
            array = array.cast(pa.decimal128(type_.precision, type_.scale))
        if not len(array):
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        pairs = np.frombuffer(array.buffers()[1], np.uint64, 2 * len(array), array.offset * 16)
        return np.ascontiguousarray(pairs[1::2]).view(np.int64), np.ascontiguousarray(pairs[::2])
    if pa.types.is_boolean(type_):
        array = array.cast(pa.int8())
        return (_raw(array, np.int8).astype(np.int64),)
    if pa.types.is_integer(type_):
        values = _raw(array, type_.to_pandas_dtype())
        if type_ == pa.uint64():
            return ((values ^ _TOP).view(np.int64),)
        return (values if values.dtype == np.int64 else values.astype(np.int64),)
    if is_bytes(type_):
        assert heap is not None
        return (heap.put(array),)
    if type_.bit_width == 64:
        return (_raw(array, np.int64),)
    return (_raw(array, np.int32).astype(np.int64),)


def array_of(words: Words, valid: np.ndarray | None, type_: pa.DataType, heap: BytesHeap | None) -> pa.Array:
    """The inverse of `words_of`: `valid` uint8[n] is 0 where the value is null."""
    mask = None if valid is None or bool(valid.all()) else valid == 0
    values = words[0]
    if pa.types.is_floating(type_):
        return pa.array(values.astype(type_.to_pandas_dtype(), copy=False), type_, mask=mask)
    if pa.types.is_decimal(type_):
        wide = decimal_array(words[0], words[1], None if mask is None else ~mask, type_.scale)
        return wide.cast(type_)
    if pa.types.is_boolean(type_):
        return pa.array(values != 0, type_, mask=mask)
    if pa.types.is_integer(type_):
        if type_ == pa.uint64():
            return pa.array(values.view(np.uint64) ^ _TOP, type_, mask=mask)
        if mask is not None and type_ != pa.int64():
            values = np.where(mask, 0, values)
        return pa.array(values.astype(type_.to_pandas_dtype(), copy=False), type_, mask=mask)
    if is_bytes(type_):
        assert heap is not None
        if pa.types.is_fixed_size_binary(type_):
            return heap.take(values, valid, pa.binary()).cast(type_)
        return heap.take(values, valid, type_)
    if type_.bit_width == 64:
        return pa.array(values, pa.int64(), mask=mask).view(type_)
    if mask is not None:
        values = np.where(mask, 0, values)
    return pa.array(values.astype(np.int32), pa.int32(), mask=mask).view(type_)


def decimal_array(hi: np.ndarray, lo: np.ndarray, valid: np.ndarray | None, scale: int) -> pa.Array:
    """decimal128(38, scale) of 128-bit integers. Raises gw.OverflowError where one has more than 38 digits."""
    exceeds = (hi > (_MOST >> 64)) | (hi < -(_MOST >> 64) - 1)
    near = np.flatnonzero((hi == _MOST >> 64) | (hi == -(_MOST >> 64) - 1))
    if len(near):
        exact = (hi[near].astype(object) << 64) + lo[near].astype(object)
        exceeds[near] = [abs(v) > _MOST for v in exact]
    if valid is not None:
        exceeds &= valid
    if exceeds.any():
        raise OverflowError("a decimal result has more than 38 digits")
    data = np.empty((len(hi), 2), np.uint64)
    data[:, 0], data[:, 1] = lo, hi.view(np.uint64)
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(hi), [bitmap, pa.py_buffer(data)])


def widened(values: np.ndarray) -> Words:
    """int64 as 128-bit integers: (high, low)."""
    return values >> np.int64(63), values.view(np.uint64)


def rank_words(array: pa.Array) -> np.ndarray:
    """Numbers in the order of the values, int64[n]: what `min_by` and `max_by` compare. -0.0 equals 0.0, NaN is the
    largest.
    """
    type_ = array.type
    if pa.types.is_floating(type_):
        bits = (words_of(array, None)[0] + 0.0).view(np.int64)
        rank = bits ^ ((bits >> np.int64(63)) & np.int64((1 << 63) - 1))
        nan = np.isnan(words_of(array, None)[0])
        return np.where(nan, np.int64((1 << 63) - 1), rank)
    if pa.types.is_decimal(type_):
        return words_of(array, None)[1].view(np.int64)
    return words_of(array, None)[0]


def rankable(type_: pa.DataType) -> bool:
    """Whether `rank_words` takes a type."""
    if pa.types.is_decimal(type_):
        return bool(type_.precision <= 18)
    return dtype_of(type_) in ("int64", "float64")


def as_int64(array: pa.Array, name: str) -> np.ndarray:
    """The integers as int64. Raises gw.OverflowError for an unsigned one that does not fit."""
    if array.type == pa.uint64() and len(array) and (pc.max(array).as_py() or 0) >= 1 << 63:
        raise OverflowError(
            f"column {name!r} holds a uint64 that is too large for int64: cast it to decimal128(20, 0) or to float64"
        )
    if array.type == pa.uint64():
        return _raw(array, np.int64)
    return words_of(array, None)[0]
