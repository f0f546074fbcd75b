"""The plugin's sources compile against each version of Spark that it serves and that is not installed here."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipelines_harness.maven import SPARK_SQL, Unreachable, other_spark
from scala_check import check_sources

from gpuwin_spark.installed_spark import SUPPORTED_SPARK, find_spark
from gpuwin_spark.java import find_java

pytestmark = pytest.mark.pipelines
SOURCES = Path(__file__).parents[2] / "spark_plugin" / "scala"
OTHERS = [line for line in SUPPORTED_SPARK if line != find_spark().line]


@pytest.mark.parametrize("line", OTHERS)
def test_the_sources_compile(line: str, tmp_path: Path) -> None:
    """A method that Scala 2.12 lacks, or a class that an older Spark has elsewhere, is seen before a user meets it."""
    if line not in SPARK_SQL:
        pytest.skip(f"Maven Central had no Spark {line}")
    try:
        spark = other_spark(line, tmp_path / "jars")
    except Unreachable as e:
        pytest.skip(str(e))
    check_sources(spark, find_java(), SOURCES)
