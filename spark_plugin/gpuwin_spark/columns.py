"""The columns of a DataFrame that a specification reads."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pyarrow as pa

from gpuwin.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from gpuwin.aggregation import WindowedAggregation

_SHOWN = 20


def read_columns(df: DataFrame, spec: WindowedAggregation) -> DataFrame:
    """The columns that ``spec`` reads, in the order of its ``input_names``, whatever characters are in their names.

    Raises:
        gpuwin.SchemaError: there is none of that name. Case matters, as on Arrow batches, whatever
            ``spark.sql.caseSensitive`` says.
    """
    there = df.columns
    for name in spec.input_names:
        if name not in there:
            others = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
            raise SchemaError(f"no column {name!r} in the input; it has {others or 'no columns'}")
    return df.select(*("`" + name.replace("`", "``") + "`" for name in spec.input_names))


def arrow_schema_of(df: DataFrame) -> pa.Schema:
    """The columns of ``df`` as the engine sees them; instants are in UTC.

    Raises:
        gpuwin.SchemaError: PySpark hands no such column over as Arrow data (intervals of years and months).
    """
    from pyspark.errors import PySparkTypeError

    try:
        return in_arrow(df.schema)
    except PySparkTypeError as e:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in df.schema)
        raise SchemaError(f"not every column can be had as Arrow data, of {columns}: {e}") from e


def in_arrow(columns: StructType) -> pa.Schema:
    """Spark's columns as PySpark hands them over as Arrow data, with instants in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Without this argument, a PySpark that has it would leave the zone open, and one that has not takes UTC.
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(columns, **zone)
