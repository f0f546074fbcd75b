"""The Spark session of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from brief_java import brief_options
from pyspark import SparkContext
from pyspark.sql import SparkSession

import gpuwin as gw

from .local_files import without_child_processes
from .versions import DEFAULTS

#: Small, quiet, and the same on both sides.
BASE_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    "spark.gpuwin.python": sys.executable,
}


def start_session(
    folder: Path,
    master: str = "local[2]",
    conf: Mapping[str, str] | None = None,
    late: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the plugin loaded, its service on the CPU, and everything it writes below `folder`.

    `late` are settings that the builder is given after it was configured for gpuwin.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = gw.spark.configure(_builder(folder, master, conf or {}), device="cpu")
    for key, value in (late or {}).items():
        builder = builder.config(key, value)
    return _started(builder)


def start_plain_session(folder: Path) -> SparkSession:
    """A session of an application that knows nothing of gpuwin."""
    return _started(_builder(folder, "local[2]", {}))


def _builder(folder: Path, master: str, conf: Mapping[str, str]) -> SparkSession.Builder:
    builder = SparkSession.builder.master(master).appName("gpuwin tests")
    places = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-XX:ErrorFile={folder}/hs_err_%p.log {brief_options()}",
    }
    for key, value in {**DEFAULTS, **BASE_CONF, **places, **conf}.items():
        builder = builder.config(key, value)
    return builder


def _started(builder: SparkSession.Builder) -> SparkSession:
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    without_child_processes(spark)
    return spark


def end_jvm(spark: SparkSession | None = None) -> None:
    """Ends a session, and PySpark's JVM if there is one: the next session of this process has a JVM of its own.

    PySpark keeps its JVM after ``spark.stop()``, with the class path that it was started with.
    """
    if spark is not None:
        spark.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its standard input
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


def spark_home(folder: Path) -> Path:
    """Makes `folder`/spark, links to the installed Spark, for the environment variable SPARK_HOME.

    Workers of a cluster write what executors log and load below it, and the package pyspark is no place for that.
    """
    from gpuwin_spark.installed_spark import find_spark

    home = folder / "spark"
    home.mkdir(parents=True)
    for entry in find_spark().jars.parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home
