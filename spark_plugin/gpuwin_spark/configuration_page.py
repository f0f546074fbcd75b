"""Writes docs/configuration.md from the plugin's table of keys: ``python -m gpuwin_spark.configuration_page FILE``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from .errors import SparkSetupError
from .installed_spark import find_spark
from .jar import jar_path
from .java import find_java

_MAIN: Final = "org.apache.spark.sql.gpuwin.ConfigurationPage"


def configuration_page() -> str:
    """The page as Markdown.

    Raises:
        SparkSetupError: there is no usable Java or Spark, or the plugin's jar does not run.
    """
    jars = ":".join([jar_path(), f"{find_spark().jars}/*"])
    command = [str(find_java().executable), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", jars, _MAIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise SparkSetupError(f"The plugin's jar does not run: {done.stderr.strip()}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Writes the page to the file named, or prints it."""
    if len(arguments) > 1:
        print("usage: python -m gpuwin_spark.configuration_page [FILE]", file=sys.stderr)
        return 2
    page = configuration_page()
    if arguments:
        Path(arguments[0]).write_text(page)
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
