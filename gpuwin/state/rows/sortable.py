"""Arrow columns of any type as int64 keys: equal keys for equal values, and in the order that the engine gives to
values.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin_kernels.cpu.slices import float_keys


def valid_mask(array: pa.Array) -> np.ndarray:
    """Validity, uint8[n]: 1 where there is a value."""
    if not array.null_count:
        return np.ones(len(array), np.uint8)
    return np.asarray(array.is_valid()).astype(np.uint8)


def is_orderable(type_: pa.DataType) -> bool:
    """Whether `order_keys` knows an order of this type (nested values have equality only)."""
    return not pa.types.is_nested(type_)


def order_keys(array: pa.Array) -> np.ndarray:
    """Keys in the order of the values, int64[n]: NaN is the largest number and equal to itself, -0.0 equals 0.0,
    strings and binary go by bytes.

    Where the value is null the key means nothing. Raises TypeError for nested types, which have no order.
    """
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return order_keys(array.cast(type_.value_type))
    if pa.types.is_nested(type_):
        raise TypeError(f"values of type {type_} have no order")
    if pa.types.is_null(type_):
        return np.zeros(len(array), np.int64)
    if pa.types.is_floating(type_):
        return float_keys(filled(array.cast(pa.float64())))  # type: ignore[no-any-return]
    if pa.types.is_uint64(type_):
        return (filled(array) ^ np.uint64(1 << 63)).view(np.int64)
    if pa.types.is_integer(type_):
        return filled(array.cast(pa.int64()))
    if pa.types.is_temporal(type_) and type_ != pa.month_day_nano_interval():
        return filled(array.view(pa.int64() if type_.bit_width == 64 else pa.int32()).cast(pa.int64()))
    if pa.types.is_decimal32(type_) or pa.types.is_decimal64(type_):  # pyarrow ranks the wider ones only
        array = array.cast(pa.decimal128(type_.precision, type_.scale))
    elif pa.types.is_string_view(type_):
        array = array.cast(pa.large_string())
    elif pa.types.is_binary_view(type_):
        array = array.cast(pa.large_binary())
    return np.asarray(pc.rank(array, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)


def equality_keys(array: pa.Array) -> np.ndarray:
    """Keys that are equal for equal values, int64[n], for any type; the order of the keys is that of the values where
    they have one.
    """
    if is_orderable(array.type):
        return order_keys(array)
    return KeyDictionary([array.type]).encode([array], len(array)).astype(np.int64)


def filled(array: pa.Array) -> np.ndarray:
    """A primitive array as numpy, with 0 for null."""
    if array.null_count:
        array = array.fill_null(0)
    return np.asarray(array.to_numpy(zero_copy_only=False))
