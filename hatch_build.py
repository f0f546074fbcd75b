"""Puts the compiled plugin into a wheel, one jar for each version of Spark, where the machine that builds it has Java.

``GPUWIN_WHEEL_JAR`` says for which versions: ``auto`` (the default) for the one that is installed, and for none without
Spark or Java, since the jar is then compiled on first use; ``require`` for the one that is installed, or fail; ``all``
(for a release) for the newest patch of every one that is supported, fetched by pip unless it is the installed one, or
fail; ``omit`` for none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from gpuwin_spark.installed_spark import Spark

WISHES = ("auto", "require", "all", "omit")


class JarHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("GPUWIN_WHEEL_JAR", "auto")
        if wish not in WISHES:
            raise ValueError(f"GPUWIN_WHEEL_JAR is {wish!r}, and must be one of {', '.join(WISHES)}")
        if version == "editable" or wish == "omit":
            return
        root = Path(self.root)
        sys.path[:0] = [str(root), str(root / "spark_plugin")]
        try:
            jars = dict(_jars(root / "spark_plugin" / "scala", every=wish == "all"))
        except Exception as e:
            if wish != "auto":
                raise
            self.app.display_warning(f"The wheel has no jar; it is compiled on first use. {type(e).__name__}: {e}")
            return
        finally:
            del sys.path[:2]
        for spark, jar in jars.items():
            build_data["force_include"][jar] = f"gpuwin_spark/jars/gpuwin-spark-{spark}.jar"
        self.app.display_info(f"The wheel has the plugin compiled for Spark {', '.join(jars)}.")


def _jars(sources: Path, *, every: bool) -> Iterator[tuple[str, str]]:
    """Versions of Spark, and the path of the jar for each."""
    from gpuwin_spark.installed_spark import SUPPORTED_SPARK, find_spark
    from gpuwin_spark.jar import SparkSetupError, cached_jar, jar_path

    if not every:
        yield find_spark().version, jar_path()
        return
    try:
        installed = find_spark()
    except SparkSetupError:
        installed = None
    for line in SUPPORTED_SPARK:
        if installed is not None and installed.line == line:
            yield installed.version, jar_path()
        else:
            with tempfile.TemporaryDirectory(prefix="gpuwin-") as folder:
                spark = fetched_spark(line, Path(folder))
                yield spark.version, str(cached_jar(spark, sources))


def fetched_spark(line: str, folder: Path) -> Spark:
    """The jars of the newest patch of a version of Spark ("4.2"), from the package pyspark, unpacked in `folder`."""
    from gpuwin_spark.installed_spark import spark_with

    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, f"pyspark=={line}.*"], check=True)
    (archive,) = folder.glob("pyspark-*")
    jars = folder / "jars"
    jars.mkdir()
    with tarfile.open(archive) as package:
        for member in package:
            if "/deps/jars/" in member.name and member.isfile():
                member.name = Path(member.name).name
                package.extract(member, jars, filter="data")
    archive.unlink()
    return spark_with(jars, f"pyspark {line}")
