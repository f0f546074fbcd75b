"""The version of Spark that the tests run on, and what it calls by another name than others."""

from __future__ import annotations

import pyspark

#: Major and minor.
SPARK = tuple(int(number) for number in pyspark.__version__.split(".")[:2])
#: Whether `corr` is null where one side is constant. Earlier it is divided by zero there, an error with ANSI.
HAS_CORR_OF_CONSTANT = SPARK >= (4, 3)


def streaming_class(package: str, name: str) -> str:
    """The name of a class of Structured Streaming, which Spark 4.1 moved to a package below."""
    folder = f"{package}." if SPARK >= (4, 1) else ""
    return f"org.apache.spark.sql.execution.streaming.{folder}{name}"
