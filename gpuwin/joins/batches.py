"""Batches as they come: to Arrow tables that fit a schema, and times to int64 microseconds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.errors import SchemaError
from gpuwin.state.row_runs import INT64_MAX, INT64_MIN

_SCALE = {"s": 1_000_000, "ms": 1_000, "us": 1}


def as_table(batch: Any) -> pa.Table:
    """Whatever speaks the Arrow PyCapsule protocol, as a table."""
    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, pa.RecordBatch):
        return pa.Table.from_batches([batch])
    if hasattr(batch, "__arrow_c_stream__") or hasattr(batch, "__arrow_c_array__"):
        return pa.table(batch)
    raise SchemaError(f"a batch must be Arrow data (pyarrow, polars, pandas, duckdb, ...), not {type(batch).__name__}")


def fitted(table: pa.Table, schema: pa.Schema, side: str) -> pa.Table:
    """The columns of the schema, in its order; more columns are left out."""
    columns = []
    for field in schema:
        places = table.schema.get_all_field_indices(field.name)
        if len(places) != 1:
            problem = "lacks" if not places else "has twice"
            raise SchemaError(f"the {side} batch {problem} column {field.name!r}; it has {table.column_names}")
        found = table.schema.field(places[0]).type
        if found != field.type:
            raise SchemaError(
                f"column {field.name!r} of the {side} batch is {found}, and was {field.type} in its first batch: cast it"
            )
        columns.append(table.column(places[0]))
    return pa.table(columns, schema=schema)


def is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))


def micros(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """(microseconds int64[n], bool[n] where there is a time); saturating, and rounding towards minus infinity."""
    array = column.combine_chunks()
    known = np.ones(len(array), bool) if not array.null_count else np.asarray(array.is_valid())
    type_ = array.type
    if pa.types.is_date32(type_):
        days = np.asarray(array.view(pa.int32()).fill_null(0)).astype(np.int64)
        return days * 86_400_000_000, known
    raw = np.asarray(array.view(pa.int64()).fill_null(0))
    unit = "ms" if pa.types.is_date64(type_) else type_.unit
    if unit == "ns":
        return np.floor_divide(raw, 1000), known
    scale = _SCALE[unit]
    return np.clip(raw, -(INT64_MAX // scale), INT64_MAX // scale) * scale, known


def instant(time: datetime | int) -> int:
    """A point in time as microseconds since the epoch; a datetime without a zone is UTC."""
    if isinstance(time, bool) or not isinstance(time, int | datetime):
        raise TypeError(f"a watermark is a datetime or int microseconds, not {time!r}")
    if isinstance(time, datetime):
        whole = np.datetime64(time.replace(tzinfo=None), "us").astype(np.int64)
        offset = time.utcoffset()
        return int(whole) - (0 if offset is None else round(offset.total_seconds() * 1_000_000))
    return min(max(time, INT64_MIN), INT64_MAX - 1)

