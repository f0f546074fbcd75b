"""A Spark home of its own: workers write what executors log and load below it, and pyspark is no place for that."""

from __future__ import annotations

from pathlib import Path

from gpuwin_spark.jar import find_spark


def spark_home(folder: Path) -> Path:
    """Makes `folder`/spark, a folder of links to the installed Spark, for the environment variable SPARK_HOME."""
    home = folder / "spark"
    home.mkdir(parents=True)
    for entry in find_spark().jars.parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home
