"""Switches gpuwin on for a session that is about to be built."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwin.errors import DeviceError

from . import shuffle_partitions
from .jar import jar_path
from .java import SparkSetupError, prepare_environment
from .submit_arguments import appended, listed, setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("gpuwin")

PLUGIN: Final = "io.gpuwin.GpuWindowPlugin"
_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_DEVICES: Final = ("auto", "cuda", "cpu")


def configure(builder: SparkSession.Builder, device: str = "auto") -> SparkSession.Builder:
    """Adds the plugin to a ``SparkSession.builder``; the queries of its session need no change.

    Sets ``spark.plugins`` and ``spark.jars`` (adding to what the builder has), ``spark.gpuwin.device``, and, unless the
    builder or the environment names one, ``spark.gpuwin.python`` (this Python; on a cluster whose executors have
    another, set it, or ``PYSPARK_PYTHON``). Lists that ``PYSPARK_SUBMIT_ARGS`` gives (``--jars``), and that would win
    over the builder's, are added to as well. The jar is compiled on first use, in a few seconds.

    Args:
        builder: ``SparkSession.builder``, with any configuration so far.
        device: "auto" (CUDA where it can be used), "cuda" or "cpu".

    Returns:
        The same builder.

    Raises:
        DeviceError: no such device name.
        SparkSetupError: this is no builder; there is no usable Java or Spark, or the plugin cannot be compiled; or a
            session without the plugin is running, which a builder cannot change any more.
    """
    if isinstance(builder, type) or not hasattr(builder, "getOrCreate"):
        raise SparkSetupError(f"write gw.spark.configure(SparkSession.builder, ...), not {builder!r}")
    if device not in _DEVICES:
        raise DeviceError(f"device must be one of {', '.join(map(repr, _DEVICES))}, not {device!r}")
    if _get(builder, "spark.remote") or os.environ.get("SPARK_REMOTE"):
        raise SparkSetupError(
            "A Spark Connect client cannot load a plugin into its server. Start the server with "
            f"--conf spark.plugins={PLUGIN} --jars $(gpuwin jar); the client's queries need no change."
        )
    prepare_environment()
    jar = jar_path()
    _add_to_running_jvm(jar)
    _append(builder, "spark.plugins", PLUGIN)
    _append(builder, "spark.jars", jar)
    builder.config("spark.gpuwin.device", device)
    named = _get(builder, "spark.gpuwin.python") or _get(builder, "spark.pyspark.python")
    if not named and not os.environ.get("PYSPARK_PYTHON"):
        builder.config("spark.gpuwin.python", sys.executable)
    _say_if_too_many_partitions(builder)
    return builder


def _say_if_too_many_partitions(builder: SparkSession.Builder) -> None:
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return  # spark-submit has the configuration; explain() and the driver's log say it of each query
    cores = shuffle_partitions.cores_of(_known(builder, "spark.master", "--master") or "local[*]")
    said = shuffle_partitions.advice(_known(builder, shuffle_partitions.KEY), cores) if cores else None
    if said:
        log.warning("%s", said)


def _known(builder: SparkSession.Builder, key: str, flag: str = "") -> str:
    """A setting that is no list: where ``PYSPARK_SUBMIT_ARGS`` has it, that wins."""
    return setting(os.environ.get(_SUBMIT_ARGUMENTS, ""), key, flag) or _get(builder, key)


def _add_to_running_jvm(jar: str) -> None:
    """Puts the jar on the class path of a JVM that runs already: spark.jars alone would come too late for it.

    There is one after spark.stop(), since pyspark keeps its JVM, and under spark-submit.
    """
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    if running is not None:
        if PLUGIN in (running.getConf().get("spark.plugins") or ""):
            return
        raise SparkSetupError(
            "A Spark session without gpuwin is running, and Spark loads plugins only when it starts. Call spark.stop() "
            "first, or configure the builder before the first getOrCreate()."
        )
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    if jvm is None:
        return
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(PLUGIN, False, loader)
    except Exception as e:
        if "ClassNotFoundException" not in str(e):
            raise
        if "MutableURLClassLoader" not in str(loader.getClass().getName()):
            raise SparkSetupError(
                "Spark's JVM was started before gpuwin was configured, and its class path cannot be changed. "
                "Pass the jar when it starts: spark-submit --jars $(gpuwin jar) ..."
            ) from e
        loader.addURL(jvm.java.io.File(jar).toURI().toURL())


def _options(builder: SparkSession.Builder) -> dict[str, object]:
    # The builder has no public way to read a setting back.
    return dict(getattr(builder, "_options", {}))


def _get(builder: SparkSession.Builder, key: str) -> str:
    """What the session would be started with: the builder's word, else that of ``spark-defaults.conf``."""
    return str(_options(builder).get(key) or spark_defaults().get(key, ""))


def spark_defaults() -> dict[str, str]:
    """The settings of ``spark-defaults.conf``; empty where there is none."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines() if folder else []
    except FileNotFoundError:
        return {}
    # The format of java.util.Properties, as far as Spark's settings use it: "key value", "key=value", "key: value".
    pairs = (re.match(r"\s*([^\s#!=:]+)\s*[=:\s]\s*(.*?)\s*$", line) for line in lines)
    return {m[1]: m[2] for m in pairs if m}


def _append(builder: SparkSession.Builder, key: str, value: str) -> None:
    present = [v.strip() for v in _get(builder, key).split(",") if v.strip()]
    arguments = os.environ.get(_SUBMIT_ARGUMENTS, "")
    wanted = ",".join(dict.fromkeys([*present, *listed(arguments, key), value]))
    if wanted != ",".join(present):
        builder.config(key, wanted)
    if arguments:
        # When pyspark starts its JVM, what is said there wins over the builder.
        os.environ[_SUBMIT_ARGUMENTS] = appended(arguments, {key: wanted})
