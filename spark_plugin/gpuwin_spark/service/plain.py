"""Values of one column as the words of a partial column, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.state.heap import BytesHeap

from . import decimals

Words = tuple[np.ndarray, ...]


def physical(t: pa.DataType) -> str:
    """The dtype of a partial column that holds values of this type."""
    if pa.types.is_floating(t):
        return "float64"
    if pa.types.is_decimal(t):
        return "int128"
    if pa.types.is_string(t) or pa.types.is_binary(t):
        return "bytes"
    return "int64"


@dataclass(frozen=True)
class PlainCodec:
    """``heap`` holds the bytes of strings and binary."""

    heap: BytesHeap

    def words(self, array: pa.Array) -> Words:
        """The values as arrays of n words; what they hold where the value is null means nothing."""
        if pa.types.is_decimal(array.type):
            return decimals.split(array)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            return (self.heap.put(array),)
        return (values_of(array),)

    def array(self, words: Words, valid: np.ndarray | None, t: pa.DataType) -> pa.Array:
        """The words as an array of type ``t``, null where ``valid`` (uint8[n]) is 0."""
        if pa.types.is_decimal(t):
            hi, lo = words
            return decimals.join(hi, lo, t, valid=valid)
        if pa.types.is_string(t) or pa.types.is_binary(t):
            return self.heap.take(words[0], valid, t)
        mask = None if valid is None else valid == 0
        values = words[0]
        if pa.types.is_boolean(t):
            values = values != 0
        elif values.dtype != t.to_pandas_dtype():
            if mask is not None:
                values = np.where(mask, 0, values)
            values = values.astype(t.to_pandas_dtype())
        return pa.array(values, t, mask=mask)


def values_of(array: pa.Array) -> np.ndarray:
    """The values of a numeric or boolean array as int64 or float64, whatever its nulls hold; shape (n,)."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    values = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype())[array.offset : array.offset + len(array)]
    return values.astype(np.float64 if pa.types.is_floating(array.type) else np.int64, copy=False)


def validity_of(array: pa.Array) -> np.ndarray:
    """uint8[n]: 1 where the array has a value."""
    if array.null_count == 0:
        return np.ones(len(array), np.uint8)
    return values_of(pc.is_valid(array)).astype(np.uint8)
