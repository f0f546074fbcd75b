"""Puts the compiled plugin into a wheel, where the machine that builds the wheel has Spark and Java.

``GPUWIN_WHEEL_JAR`` says what to do: ``auto`` (the default; without Spark or Java the wheel has the Scala sources only,
and the jar is compiled on first use), ``require`` (for a release: fail) or ``omit``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class JarHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("GPUWIN_WHEEL_JAR", "auto")
        if wish not in ("auto", "require", "omit"):
            raise ValueError(f"GPUWIN_WHEEL_JAR is {wish!r}, and must be auto, require or omit")
        if version == "editable" or wish == "omit":
            return
        root = Path(self.root)
        sys.path[:0] = [str(root), str(root / "spark_plugin")]
        try:
            from gpuwin_spark.jar import find_spark, jar_path

            spark = find_spark()
            jar = jar_path()
        except Exception as e:
            if wish == "require":
                raise
            self.app.display_warning(f"The wheel has no jar; it is compiled on first use. {type(e).__name__}: {e}")
            return
        finally:
            del sys.path[:2]
        build_data["force_include"][jar] = f"gpuwin_spark/jars/gpuwin-spark-{spark.version}.jar"
