"""The version of Spark that the tests run on, and what it calls by another name than others."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

#: Major and minor.
SPARK = tuple(int(number) for number in pyspark.__version__.split(".")[:2])
#: Whether `corr` is null where one side is constant. Earlier it is divided by zero there, an error with ANSI.
HAS_CORR_OF_CONSTANT = SPARK >= (4, 3)

#: What Spark and PySpark warn of, and gpuwin cannot mend, as pytest's filters.
KNOWN_WARNINGS = ["ignore:PySpark does not yet fully support pandas:FutureWarning"]
if SPARK < (4, 2):  # earlier ones leave the sockets of toArrow to the garbage collector
    KNOWN_WARNINGS.append("ignore:unclosed <socket.socket:ResourceWarning")
if SPARK < (4, 0):
    KNOWN_WARNINGS.append("ignore:distutils Version classes are deprecated:DeprecationWarning")

#: What PySpark raises when a task of a batch query has failed.
TASK_ERROR = PySparkException if SPARK >= (4, 0) else Py4JJavaError
#: Defaults of Spark 4, on which the tests rely, for one that has others.
DEFAULTS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def streaming_class(package: str, name: str) -> str:
    """The name of a class of Structured Streaming, which Spark 4.1 moved to a package below."""
    folder = f"{package}." if SPARK >= (4, 1) else ""
    return f"org.apache.spark.sql.execution.streaming.{folder}{name}"


def arrow_of(frame: DataFrame) -> pa.Table:
    """The rows of a frame, for which Spark 3.5 has no public name."""
    if SPARK >= (4, 0):
        return frame.toArrow()
    from pyspark.sql.pandas.types import to_arrow_schema

    batches = frame._collect_as_arrow()
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(frame.schema).empty_table()


def condition_of(error: PySparkException | Py4JJavaError) -> str | None:
    """Spark's error class, which Spark 4 calls the condition."""
    if isinstance(error, Py4JJavaError):
        found = re.search(r"\[([A-Z_.]+)\]", str(error))
        return found.group(1) if found else None
    return error.getCondition() if SPARK >= (4, 0) else error.getErrorClass()


def java_sessions(spark: SparkSession) -> Any:
    """The class of sessions in the JVM, of which Spark 4 has two."""
    if SPARK >= (4, 0):
        return SparkSession._get_j_spark_session_class(spark._jvm)
    assert spark._jvm is not None
    return spark._jvm.SparkSession


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A frame with the rows of a table, which Spark 3.5 does not take as it is."""
    if SPARK >= (4, 0):
        return spark.createDataFrame(table)
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(table.to_pylist(), from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
