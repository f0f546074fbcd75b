"""Settings with which a session that is about to be built runs on gpuwin."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwin.errors import DeviceError

from . import shuffle_partitions
from .errors import SparkSetupError
from .installed_spark import find_spark
from .interpreter import how_to_install, why_not
from .jar import jar_path
from .java import prepare_environment
from .submit_arguments import appended, listed, setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("gpuwin")

PLUGIN: Final = "io.gpuwin.GpuWindowPlugin"
_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit names it to the Python that it starts
_PAIR: Final = re.compile(r"\s*([^\s=:]+)\s*[=:\s]\s*(.*?)\s*$")
_DEVICES: Final = ("auto", "cuda", "cpu")
#: Tells the plugin to take itself out of what pyspark's JVM hands to the builders that come after this one.
_CONFIGURED: Final = "spark.gpuwin.configured"
#: What gives `explain()` its section. The plugin puts it into the application's list; a builder's own list wins there.
_EXPLAIN: Final = "org.apache.spark.sql.gpuwin.GpuWindowExplain"
_EXPLAIN_LIST: Final = "spark.sql.extendedExplainProviders"


def configure(builder: SparkSession.Builder, device: str = "auto") -> SparkSession.Builder:
    """A ``SparkSession.builder`` with the plugin added; the queries of its session need no change.

    Sets ``spark.plugins`` and ``spark.jars`` (adding to what the builder has), ``spark.gpuwin.device``, and, unless the
    builder or the environment names one, ``spark.gpuwin.python`` (this Python; on a cluster whose executors have
    another, set it, or ``PYSPARK_PYTHON``). Adds to ``spark.sql.extendedExplainProviders`` where the builder has it.
    Lists that spark-submit has (``--jars``, ``--packages``) are added to, and so are those that ``PYSPARK_SUBMIT_ARGS``
    gives, which would win over the builder's.
    The jar is compiled on first use, in a few seconds.

    The plugin ends with the session: after ``spark.stop()`` a builder has it only if it was configured, too, or if
    ``spark-submit``, ``PYSPARK_SUBMIT_ARGS`` or ``spark-defaults.conf`` names the plugin for the whole process. (What
    else a builder sets stays in pyspark's JVM, for the builders after it: that is so in Spark.)

    A Python that is named and in which gpuwin's service cannot start is an error where executors run on this machine,
    and a warning where they may have another one under that path.

    Args:
        builder: ``SparkSession.builder``, with any configuration so far.
        device: "auto" (CUDA where it can be used), "cuda" or "cpu".

    Returns:
        The same builder.

    Raises:
        DeviceError: no such device name.
        SparkSetupError: this is no builder; there is no usable Java or Spark, or the plugin cannot be compiled; the
            Python that is named for the executors has no gpuwin; or a session without the plugin is running, which a
            builder cannot change any more.
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
    python = _executors_python(builder)
    prepare_environment()
    jar = jar_path()
    log.info("The plugin for Spark %s: %s", find_spark().version, jar)
    _add_to_running_jvm(jar)
    if PLUGIN not in _values_for_all("spark.plugins"):
        builder.config(_CONFIGURED, "true")
    append_to_list(builder, "spark.plugins", PLUGIN)
    append_to_list(builder, "spark.jars", jar)
    builder.config("spark.gpuwin.device", device)
    if python is None:
        builder.config("spark.gpuwin.python", sys.executable)
    others = str(_options(builder).get(_EXPLAIN_LIST) or "")
    if others and _EXPLAIN not in others:
        builder.config(_EXPLAIN_LIST, f"{_EXPLAIN},{others}")
    _say_if_too_many_partitions(builder)
    return builder


def _executors_python(builder: SparkSession.Builder) -> str | None:
    """The Python that is named for the executors, looked at; None where none is."""
    named = named_python(_options(builder))
    if named is None:
        return None
    source, python = named
    if reason := why_not(python):
        message = (
            f"{source}={python} is the Python of the executors, and gpuwin's device service cannot start there: "
            f"{reason}. Install gpuwin in it ({how_to_install(python)}), or name another one, such as this process's: "
            f".config('spark.gpuwin.python', {sys.executable!r})."
        )
        if _is_local(builder):
            raise SparkSetupError(message)
        log.warning("%s That is so on this machine; executors on others may have another one there.", message)
    return python


def named_python(options: Mapping[str, object]) -> tuple[str, str] | None:
    """Who names the Python of the executors, and which it is; None where nobody does.

    Args:
        options: those of a builder. What they leave open, spark-submit, ``spark-defaults.conf`` and ``PYSPARK_PYTHON``
            say.
    """
    for key in ("spark.gpuwin.python", "spark.pyspark.python"):
        if python := _value(options, key):
            return key, python
    python = os.environ.get("PYSPARK_PYTHON", "")
    return ("PYSPARK_PYTHON", python) if python else None


def _is_local(builder: SparkSession.Builder) -> bool:
    """Whether executors certainly run on this machine."""
    elsewhere = _GATEWAY in os.environ or "--master" in os.environ.get(_SUBMIT_ARGUMENTS, "")
    return not elsewhere and (_get(builder, "spark.master") or os.environ.get("MASTER") or "local").startswith("local")


def _values_for_all(key: str) -> list[str]:
    """Value of a list for every session of the process, whatever its builder says."""
    return [*_given().get(key, "").split(","), *listed(os.environ.get(_SUBMIT_ARGUMENTS, ""), key)]


def _say_if_too_many_partitions(builder: SparkSession.Builder) -> None:
    if _GATEWAY in os.environ:
        return  # spark-submit has the configuration; explain() and the driver's log say it of each query
    cores = shuffle_partitions.cores_of(known_setting(builder, "spark.master", "--master") or "local[*]")
    said = shuffle_partitions.advice(known_setting(builder, shuffle_partitions.KEY), cores) if cores else None
    if said:
        log.warning("%s", said)


def known_setting(builder: SparkSession.Builder, key: str, flag: str = "") -> str:
    """A setting that is no list, as a session of the builder begins with it: where ``PYSPARK_SUBMIT_ARGS`` has it, that
    wins.
    """
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
    if _GATEWAY in os.environ:
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
    """Value that the session would be started with: the builder's word, else what was given before it."""
    return _value(_options(builder), key)


def _value(options: Mapping[str, object], key: str) -> str:
    return str(options.get(key) or _given().get(key, ""))


def _given() -> dict[str, str]:
    """The settings that a session begins with where its builder says nothing: those of spark-submit (of its flags, such
    as ``--jars`` and ``--packages``, too), which has read ``spark-defaults.conf``; else those of that file.
    """
    if _GATEWAY not in os.environ:
        return spark_defaults()
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf(_jvm=SparkContext._jvm).getAll())


def spark_defaults() -> dict[str, str]:
    """The settings of ``spark-defaults.conf``; empty where there is none."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    try:
        text = Path(folder, "spark-defaults.conf").read_text("utf-8", errors="replace") if folder else ""
    except (FileNotFoundError, NotADirectoryError):
        return {}
    # The format of java.util.Properties, as far as Spark's settings use it: "key value", "key=value", "key: value", and
    # lines that go on after a backslash. A comment goes on nowhere.
    lines = re.sub(r"^\s*[#!].*", "", text, flags=re.MULTILINE)
    pairs = (_PAIR.match(line) for line in re.sub(r"\\\n\s*", "", lines).splitlines())
    return {m[1]: m[2] for m in pairs if m}


def append_to_list(builder: SparkSession.Builder, key: str, value: str) -> None:
    """Adds to a list, such as ``spark.jars``, what it has not: that of the builder, and that of
    ``PYSPARK_SUBMIT_ARGS``."""
    present = [v.strip() for v in _get(builder, key).split(",") if v.strip()]
    arguments = os.environ.get(_SUBMIT_ARGUMENTS, "")
    wanted = ",".join(dict.fromkeys([*present, *listed(arguments, key), value]))
    if wanted != ",".join(present):
        builder.config(key, wanted)
    if arguments:
        # When pyspark starts its JVM, what is said there wins over the builder.
        os.environ[_SUBMIT_ARGUMENTS] = appended(arguments, {key: wanted})
