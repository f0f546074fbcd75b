"""Comet, Apache DataFusion's accelerator for Spark, switched on beside gpuwin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuwin_spark.installed_spark import find_spark

from .maven import Unreachable, added_jars

#: The newest Comet, and those lines of Spark that gpuwin has as well which it is built for.
COMET, LINES = "1.2.0", ("4.1",)
#: What switches it on in an application, as its installation page has it: all but its jar.
CONF: Final = {
    "spark.plugins": "org.apache.spark.CometPlugin",
    "spark.shuffle.manager": "org.apache.spark.sql.comet.execution.shuffle.CometShuffleManager",
    "spark.memory.offHeap.enabled": "true",
    "spark.memory.offHeap.size": "1g",
    "spark.comet.exec.enabled": "true",
    "spark.sql.extendedExplainProviders": "org.apache.comet.ExtendedExplainInfo",
}
#: The extensions of Spark's planner that the plugin adds.
EXTENSIONS: Final = "org.apache.comet.CometSparkSessionExtensions"


def comet_jar() -> Path:
    """Comet for the installed Spark.

    Raises:
        Unreachable: There is no such Comet, or Maven did not bring it.
    """
    line = find_spark().line
    if line not in LINES:
        raise Unreachable(f"Comet {COMET} is built for Spark {', '.join(LINES)}, and Spark {line} is installed.")
    name = f"comet-spark-spark{line}_2.13"
    return next(jar for jar in added_jars("org.apache.datafusion", name, COMET) if jar.name.startswith(name))
