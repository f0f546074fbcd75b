"""Switching the plugin on for a session that is about to be built."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from .jar import jar_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLUGIN: Final = "io.gpuwin.GpuWindowPlugin"


def configure(builder: SparkSession.Builder, device: str = "auto") -> SparkSession.Builder:
    """Adds the plugin and its jar to a session builder, and returns the builder.

    What the builder says already about ``spark.plugins`` and ``spark.jars`` is kept. A session that is running cannot get
    a plugin any more: stop it first.

    Raises:
        ValueError: ``device`` is not "auto", "cuda" or "cpu".
        RuntimeError: the jar cannot be made (no Java, no pyspark), or a session is running without the plugin.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise ValueError(f"device must be 'auto', 'cuda' or 'cpu', not {device!r}")
    _refuse_running_session()
    options = dict(getattr(builder, "_options", {}))
    return (
        builder.config("spark.plugins", _with(options.get("spark.plugins"), PLUGIN))
        .config("spark.jars", _with(options.get("spark.jars"), jar_path()))
        .config("spark.gpuwin.device", device)
        .config("spark.gpuwin.python", options.get("spark.gpuwin.python", sys.executable))
    )


def _with(existing: str | None, value: str) -> str:
    items = [i.strip() for i in (existing or "").split(",") if i.strip()]
    return ",".join(items if value in items else [*items, value])


def _refuse_running_session() -> None:
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    if running is not None and PLUGIN not in (running.getConf().get("spark.plugins") or ""):
        raise RuntimeError(
            "a SparkSession is running without gpuwin, and plugins are loaded only when Spark starts; "
            "stop it (spark.stop()) and build a new one"
        )
