"""The Spark that a session would run: its version, its jars, and the Java that it needs."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import SparkSetupError

SUPPORTED_SPARK: Final = ("3.5", "4.0", "4.1", "4.2", "4.3")
#: The first patch that the plugin runs on, of a version whose first ones lack a class that it is made of.
LEAST_PATCH: Final = {"3.5": 2}
HOW_TO_GET_SPARK: Final = "pip install 'gpuwin[spark]'"
#: The newest Java of those that do not run on every one. Spark 3.5 is made for Java 17; the Hadoop of the others asks
#: the JVM for its security manager, which Java 24 took away.
_NEWEST_JAVA: Final = {"3.5": 17, "4.0": 23, "4.1": 23}
#: PySpark 3.5 imports `distutils`, which Python 3.12 took away.
_NEWEST_PYTHON: Final = {"3.5": (3, 11)}


@dataclass(frozen=True)
class Spark:
    """A Spark installation: its version ("4.3.0") and the folder with its jars."""

    version: str
    jars: Path

    @property
    def line(self) -> str:
        """The version without its patch ("4.3")."""
        return ".".join(self.version.split(".")[:2])

    @property
    def newest_java(self) -> int | None:
        """The newest Java that it runs on; None where none is known to be too new."""
        return _NEWEST_JAVA.get(self.line)

    @property
    def newest_python(self) -> tuple[int, int] | None:
        """The newest Python that it runs on; None where none is known to be too new."""
        return _NEWEST_PYTHON.get(self.line)

    @property
    def least_patch(self) -> int:
        """The first patch of this version that the plugin runs on."""
        return LEAST_PATCH.get(self.line, 0)

    @property
    def supported(self) -> bool:
        """Whether the plugin was written for this version, and this patch has what it needs."""
        patch = re.match(r"\d+\.\d+\.(\d+)", self.version)
        return self.line in SUPPORTED_SPARK and (patch is None or int(patch[1]) >= self.least_patch)

    @property
    def supported_ones(self) -> str:
        """The versions of Spark, or of this one's patches, that are supported, for a sentence: "4.0, 4.1"."""
        if self.line in SUPPORTED_SPARK and self.least_patch:
            return f"{self.line} from {self.line}.{self.least_patch} on"
        return ", ".join(SUPPORTED_SPARK)


def find_spark() -> Spark:
    """The Spark that a session started from this Python would run: ``SPARK_HOME``, else the package pyspark.

    Raises:
        SparkSetupError: there is none, or its ``jars/`` folder is incomplete.
    """
    home = os.environ.get("SPARK_HOME")
    if home:
        jars, source = Path(home) / "jars", f"SPARK_HOME={home}"
    else:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise SparkSetupError(f"pyspark is not installed in this Python, and SPARK_HOME is not set. "
                                  f"Install it: {HOW_TO_GET_SPARK}")  # fmt: skip
        jars = Path(spec.origin).parent / "jars"
        source = f"pyspark in {jars.parent}"
    return spark_with(jars, source)


def spark_with(jars: Path, source: str) -> Spark:
    """The Spark whose jars lie in this folder.

    Args:
        source: what the folder is part of, for the error.

    Raises:
        SparkSetupError: the folder is none of Spark's, or is incomplete.
    """
    for core in sorted(jars.glob("spark-core_*.jar")) if jars.is_dir() else ():
        match = re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", core.name)
        if match:
            return Spark(match.group(1), jars)
    raise SparkSetupError(f"{source} has no jars/spark-core_*.jar. Install Spark again: {HOW_TO_GET_SPARK}")
