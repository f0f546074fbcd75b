"""Values and nulls of an Arrow column as NumPy arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


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
