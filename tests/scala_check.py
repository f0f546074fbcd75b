"""Check of the plugin's Scala sources by the compiler, which makes nothing."""

from __future__ import annotations

from pathlib import Path

from gpuwin_spark.installed_spark import Spark
from gpuwin_spark.jar import compile_sources
from gpuwin_spark.java import Java


def check_sources(spark: Spark, java: Java, sources: Path) -> None:
    """Looks for what keeps the sources from being compiled for this Spark, in half the time of a compilation.

    Raises:
        SparkSetupError: as for `build_jar`.
    """
    compile_sources(spark, java, sources, "-Ystop-before:cleanup")
