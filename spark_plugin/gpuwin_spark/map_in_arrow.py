"""Arrow batches of a DataFrame through a function of Python, in Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from .errors import SparkSetupError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def map_in_arrow(
    df: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """``df.mapInArrow(function, schema)``, for which PySpark wants pandas on the driver, though no frame is made.

    Raises:
        SparkSetupError: pandas is missing, or too old for this Spark.
    """
    try:
        return df.mapInArrow(function, schema)
    except ImportError as e:
        raise SparkSetupError(f"{e} PySpark wants it for this: pip install 'gpuwin[spark]', or pandas alone.") from e
