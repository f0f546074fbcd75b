"""A Spark of a command's own, for the state in a checkpoint."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from .configure import append_to_list, known_setting
from .errors import SparkSetupError
from .jar import jar_path
from .java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


@contextlib.contextmanager
def state_session(name: str) -> Iterator[SparkSession]:
    """The session of this process, or a local one for as long as it is needed, which writes nothing to the log.

    Args:
        name: of the application.

    Raises:
        SparkSetupError: there is no usable Java or Spark, or ``SPARK_REMOTE`` asks for a session of Spark Connect.
    """
    from pyspark.sql import SparkSession

    if os.environ.get("SPARK_REMOTE"):
        raise SparkSetupError(
            "SPARK_REMOTE names a server of Spark Connect, and this command runs a Spark of its own on this machine. "
            "Unset SPARK_REMOTE for it."
        )
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder.master("local[*]").appName(name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",
        _JAVA_OPTIONS: _java_options(builder),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Reading needs the classes and not the plugin, which would start a service.
    prepare_environment()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the setting spark.pyspark.python is for spark-submit only
    append_to_list(builder, "spark.jars", jar_path())
    with _quiet():
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def _java_options(builder: SparkSession.Builder) -> str:
    """Options for a JVM of seconds, before those that the site has for every driver."""
    given = known_setting(builder, _JAVA_OPTIONS, "--driver-java-options")
    all_given = f"{known_setting(builder, 'spark.driver.defaultJavaOptions')} {given}"
    collector = "" if re.search(r"-XX:\+Use\w+GC\b", all_given) else "-XX:+UseSerialGC"  # a JVM takes one of them
    return " ".join(filter(None, (collector, "-XX:TieredStopAtLevel=1", given)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Standard error goes to a file, for the JVM that starts meanwhile, too; it is shown if that fails."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            said.seek(0)
            os.write(2, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
