"""Batches and instants as they come, made to fit."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from gpuwin.durations import INT64_MAX, INT64_MIN
from gpuwin.errors import SchemaError
from gpuwin.ingest import as_table, planned_column


def fitted(batch: Any, schema: pa.Schema, side: str) -> list[pa.Array]:
    """The columns of the schema, in its order; more columns are left out. Raises SchemaError if one is missing or of
    another type.
    """
    table = as_table(batch)
    try:
        return [planned_column(table, field.name, field.type, keep_codes=False) for field in schema]
    except SchemaError as error:
        raise SchemaError(f"the {side} batch does not fit: {error}") from error


def instant(time: datetime | int) -> int:
    """A point in time as microseconds since the epoch; a datetime without a zone is UTC."""
    if isinstance(time, bool) or not isinstance(time, int | datetime):
        raise TypeError(f"a watermark is a datetime or int microseconds, not {time!r}")
    if isinstance(time, datetime):
        offset = time.utcoffset()
        whole = time.replace(tzinfo=None) - datetime(1970, 1, 1)
        exact = whole if offset is None else whole - offset
        return (exact.days * 86_400 + exact.seconds) * 1_000_000 + exact.microseconds
    return min(max(time, INT64_MIN), INT64_MAX - 1)
