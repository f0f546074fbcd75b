"""From what the user hands in to Arrow columns of the types the operator was planned for, and times in int64
microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.durations import INT64_MAX, INT64_MIN
from gpuwin.errors import SchemaError

_DAY = 86_400_000_000
_PER_UNIT = {"s": 1_000_000, "ms": 1_000}


def as_table(batch: Any) -> pa.Table | pa.RecordBatch:
    """Any object that holds Arrow data: pyarrow, polars, pandas, duckdb, cudf, or whatever has the Arrow PyCapsule
    methods.

    Raises SchemaError if it has none of them.
    """
    if isinstance(batch, pa.Table | pa.RecordBatch):
        return batch
    try:
        if hasattr(batch, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(batch).read_all()
        if hasattr(batch, "__arrow_c_array__"):
            return pa.record_batch(batch)
        if hasattr(batch, "__dataframe__") and type(batch).__module__.startswith("pandas"):
            return pa.Table.from_pandas(batch, preserve_index=False)
        if hasattr(batch, "fetch_arrow_table"):  # duckdb relations of before the PyCapsule protocol
            return batch.fetch_arrow_table()
        if hasattr(batch, "to_arrow"):  # cudf
            return as_table(batch.to_arrow())
        if isinstance(batch, Mapping):
            return pa.table(dict(batch))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"this {type(batch).__name__} cannot be read as Arrow data: {error}") from error
    raise SchemaError(
        f"a batch is Arrow data (pyarrow, polars, pandas, duckdb, cudf, anything with __arrow_c_stream__), "
        f"not {type(batch).__name__}"
    )


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values, however they are encoded: dictionaries and views are encodings."""
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if pa.types.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if type_ == pa.string_view():
        return pa.string()
    if type_ == pa.binary_view():
        return pa.binary()
    return type_


def _same_kind(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether a value of plain type `b` may come where `a` was planned: only encodings and units of time may differ."""
    if a == b:
        return True
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b):
        return bool(a.tz == b.tz)
    texts = (pa.string(), pa.large_string())
    blobs = (pa.binary(), pa.large_binary())
    return (a in texts and b in texts) or (a in blobs and b in blobs)


def planned_column(batch: pa.Table | pa.RecordBatch, name: str, planned: pa.DataType, keep_codes: bool) -> pa.Array:
    """One contiguous column in the planned type. `keep_codes`: dictionaries are left as they are."""
    array = found_column(batch, name)
    type_ = array.type
    if type_ == planned:
        return array
    plain = plain_type(type_)
    if not _same_kind(planned, plain):
        if pa.types.is_null(plain):
            return pa.nulls(len(array), planned)
        raise SchemaError(
            f"column {name!r} is {type_}, and was {planned} in the first batch: cast it, or start another operator"
        )
    if keep_codes and pa.types.is_dictionary(type_) and type_.value_type == planned:
        return array
    if pa.types.is_run_end_encoded(type_):
        array = pc.run_end_decode(array)
    try:
        return array.cast(planned)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"column {name!r} does not fit the type of the first batch, {planned}: {error}") from error


def planned_time(batch: pa.Table | pa.RecordBatch, name: str, planned: pa.DataType) -> pa.Array:
    """The time column as it came: its unit may change from batch to batch, what it means may not."""
    array = found_column(batch, name)
    plain = plain_type(array.type)
    if pa.types.is_null(plain):
        return pa.nulls(len(array), planned)
    if plain != planned and not (is_time(plain) and _same_kind(planned, plain)):
        raise SchemaError(f"time column {name!r} is {array.type}, and was {planned} in the first batch: cast it")
    return array if array.type == plain else array.cast(plain)


def found_column(batch: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """The column of that name as one array. Raises SchemaError if there is none, or more than one."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        some = ", ".join(batch.schema.names[:20])
        several = batch.schema.names.count(name) > 1
        raise SchemaError(
            f"column {name!r} is there more than once" if several else f"no column {name!r} in the batch; it has {some}"
        )
    column = batch.column(at)
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # no chunk at all, or too large for one of 32-bit offsets
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))


def check_time(name: str, type_: pa.DataType) -> None:
    if not is_time(type_):
        raise SchemaError(
            f"the time column {name!r} is {type_}: it must be an Arrow timestamp (of any unit and zone) or a date"
        )


def instants(array: pa.Array) -> np.ndarray:
    """int64[n] microseconds since the epoch, UTC, saturated, nanoseconds floored; what stands at a null means
    nothing."""
    type_ = array.type
    if pa.types.is_date32(type_):
        return np.asarray(array.view(pa.int32()).fill_null(0)).astype(np.int64) * _DAY
    raw = array.view(pa.int64())
    values = np.frombuffer(raw.buffers()[1] or b"", np.int64)[raw.offset : raw.offset + len(raw)]
    unit = "ms" if pa.types.is_date64(type_) else type_.unit
    if unit == "us":
        return values
    if unit == "ns":
        return values // 1_000
    factor = _PER_UNIT[unit]
    most = INT64_MAX // factor
    if len(values) and (int(values.max()) > most or int(values.min()) < -most):
        exact = np.clip(values, -most, most) * factor
        return np.where(values > most, INT64_MAX, np.where(values < -most, INT64_MIN, exact))
    return values * factor


def valid_mask(array: pa.Array) -> np.ndarray | None:
    """bool[n]: where there is a value; None if everywhere."""
    return np.asarray(array.is_valid()) if array.null_count else None
