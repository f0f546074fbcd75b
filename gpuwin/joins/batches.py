"""Batches of a join, fitted to the schema of their side."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gpuwin.errors import SchemaError
from gpuwin.planning.ingest import as_table, planned_column


def fitted(batch: Any, schema: pa.Schema, side: str) -> list[pa.Array]:
    """Columns of the schema, in its order; other columns are left out. Raises SchemaError if one is missing or of
    another type.
    """
    table = as_table(batch)
    try:
        given = f"{side}_schema=..."
        return [planned_column(table, f.name, f.type, keep_codes=False, given=given) for f in schema]
    except SchemaError as error:
        raise SchemaError(f"the {side} batch does not fit: {error}") from error
