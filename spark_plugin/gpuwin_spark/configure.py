"""Switches gpuwin on for a session that is about to be built."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, Literal

from gpuwin.errors import DeviceError

from .jar import jar_path
from .java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLUGIN: Final = "io.gpuwin.GpuWindowPlugin"
_DEVICES: Final = ("auto", "cuda", "cpu")


def configure(builder: SparkSession.Builder, device: Literal["auto", "cuda", "cpu"] = "auto") -> SparkSession.Builder:
    """Adds the plugin to a ``SparkSession.builder``; the queries of its session need no change.

    Sets ``spark.plugins`` and ``spark.jars`` (adding to what the builder has), ``spark.gpuwin.device``, and, unless the
    builder or the environment names one, ``spark.gpuwin.python`` (this Python; on a cluster whose executors have
    another, set it, or ``PYSPARK_PYTHON``). The jar is compiled on first use, in a few seconds.

    Args:
        builder: ``SparkSession.builder``, with any configuration so far.
        device: "auto" (CUDA where it can be used), "cuda" or "cpu".

    Returns:
        The same builder.

    Raises:
        DeviceError: no such device name.
        SparkSetupError: there is no usable Java or Spark, or the plugin cannot be compiled; or a session without the
            plugin is running, which a builder cannot change any more.
    """
    if device not in _DEVICES:
        raise DeviceError(f"device must be one of {', '.join(map(repr, _DEVICES))}, not {device!r}")
    prepare_environment()
    jar = jar_path()
    _append(builder, "spark.plugins", PLUGIN)
    _append(builder, "spark.jars", jar)
    builder.config("spark.gpuwin.device", device)
    named = _get(builder, "spark.gpuwin.python") or _get(builder, "spark.pyspark.python")
    if not named and not os.environ.get("PYSPARK_PYTHON"):
        builder.config("spark.gpuwin.python", sys.executable)
    return builder


def _options(builder: SparkSession.Builder) -> dict[str, object]:
    # The builder has no public way to read a setting back.
    return dict(getattr(builder, "_options", {}))


def _get(builder: SparkSession.Builder, key: str) -> str:
    return str(_options(builder).get(key) or "")


def _append(builder: SparkSession.Builder, key: str, value: str) -> None:
    present = [v.strip() for v in _get(builder, key).split(",") if v.strip()]
    if value not in present:
        builder.config(key, ",".join([*present, value]))
