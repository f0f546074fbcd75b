"""The plugin's jar: found in the wheel, or compiled from the Scala sources on first use and kept.

No Maven and no sbt: the ``jars/`` folder of a Spark installation contains the Scala compiler that this Spark was itself
built with, so the plugin is compiled, in a few seconds, against exactly the Spark that will load it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from .cache import cache_folder, cache_place, locked
from .errors import SparkSetupError
from .installed_spark import HOW_TO_GET_SPARK, LEAST_PATCH, SUPPORTED_SPARK, Spark, find_spark
from .java import Java, find_java

#: Heap and stack for the compiler; one thread for the garbage and no optimising JIT: it lives for seconds.
_COMPILER: Final = ("-Xmx1g", "-Xss8m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SCALAC: Final = ("-usejavacp", "-nowarn", "-encoding", "UTF-8")
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
_NOT_IN_JARS: Final = (",", "#")
#: Resource of the jar that `SparkSupport.scala` reads.
_COMPILED_FOR: Final = "org/apache/spark/sql/gpuwin/compiled-for"
_FULL: Final = os.strerror(errno.ENOSPC)
_ROOM: Final = "Make room in the cache folder (20 MB), or set XDG_CACHE_HOME to a folder that can be written to."
log = logging.getLogger("gpuwin")


def jar_path() -> str:
    """The path of the plugin's jar for the installed Spark, for ``spark.jars`` or ``spark-submit --jars``.

    A wheel may contain the jar. Otherwise it is compiled into the cache folder (``$XDG_CACHE_HOME/gpuwin``, else
    ``~/.cache/gpuwin``) under a name made of Spark's version and a hash of the sources, once; processes that ask at the
    same time wait for one another.

    Raises:
        SparkSetupError: no Spark, no Java, a version of Spark that is not supported, or a compiler error.
    """
    spark = find_spark()
    if not spark.supported:
        raise SparkSetupError(
            f"gpuwin supports Spark {spark.supported_ones}, and {spark.jars.parent} is Spark {spark.version}. "
            f"Install a supported one: {HOW_TO_GET_SPARK}"
        )
    here = Path(__file__).parent
    checkout = here.parent / "scala"
    shipped = here / "jars" / f"gpuwin-spark-{spark.version}.jar"
    if checkout.is_dir():
        jar = cached_jar(spark, checkout)
    elif shipped.is_file():
        jar = shipped
    else:
        jar = cached_jar(spark, here / "scala")
    if any(mark in str(jar) for mark in _NOT_IN_JARS):
        raise SparkSetupError(
            f"Spark cannot load {jar}: in a list of jars a comma ends a path, and # a file's name. "
            "Set XDG_CACHE_HOME to a folder without these, or install gpuwin in one."
        )
    return str(jar)


def cached_jar(spark: Spark, sources: Path) -> Path:
    """The jar for these sources and this Spark out of the cache folder; compiled if it is not there yet.

    Raises:
        SparkSetupError: no Java, a cache folder that cannot be written to, or a compiler error.
    """
    name = f"gpuwin-spark-{spark.version}-{sources_hash(sources)}.jar"
    built = cache_place() / "jars" / name
    if _is_whole(built):
        return built
    target = cache_folder("jars") / name
    with locked(target.parent / ".lock"):
        if not _is_whole(target):  # another process may have built it while this one waited
            java = find_java()
            log.info("Compiling the Spark plugin for Spark %s (once) ...", spark.version)
            build_jar(spark, java, sources, target)
    return target


def _is_whole(jar: Path) -> bool:
    """Whether the jar is there, and not cut short, as a loss of power may leave it: its table of contents ends it."""
    return zipfile.is_zipfile(jar)


def build_jar(spark: Spark, java: Java, sources: Path, target: Path) -> None:
    """Compiles the Scala sources for this Spark, adds ``sources/resources``, and writes the jar `target`.

    The same sources give the same names and times in the jar, whatever the machine. `target` appears whole or not at
    all.

    Raises:
        SparkSetupError: there are no sources, Spark's folder has no compiler, the compiler found an error, or the jar
            cannot be written.
    """
    try:
        _build(spark, java, sources, target)
    except OSError as e:
        raise SparkSetupError(f"{e.strerror or e}, where the plugin is compiled ({target.parent}). {_ROOM}") from e


def _build(spark: Spark, java: Java, sources: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as folder:
        classes = Path(folder) / "classes"
        classes.mkdir()
        compile_sources(spark, java, sources, "-d", str(classes))
        resources = sources / "resources"
        if resources.is_dir():
            shutil.copytree(resources, classes, dirs_exist_ok=True)
        compiled_for = classes / _COMPILED_FOR
        compiled_for.parent.mkdir(parents=True, exist_ok=True)
        compiled_for.write_text(f"{spark.version}\n{', '.join(SUPPORTED_SPARK)}\n{spark.least_patch}\n")
        finished = Path(folder) / target.name
        _zip(classes, finished)
        os.replace(finished, target)


def compile_sources(spark: Spark, java: Java, sources: Path, *options: str) -> None:
    """Runs the compiler over the Scala sources for this Spark.

    Raises:
        SparkSetupError: as for `build_jar`.
    """
    files = [str(p) for p in scala_sources(spark, sources)]
    if not files:
        raise SparkSetupError(
            f"There are no Scala sources in {sources}. Install gpuwin again: pip install --force gpuwin"
        )
    if not any(spark.jars.glob("scala-compiler-*.jar")):
        raise SparkSetupError(f"{spark.jars} has no Scala compiler. Install a whole Spark: {HOW_TO_GET_SPARK}")
    compiler = [str(java.executable), *_COMPILER, "-cp", f"{spark.jars}/*", "scala.tools.nsc.Main", *_SCALAC]
    command = [*compiler, *options, *files]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        if _FULL in done.stdout:
            raise SparkSetupError(f"{_FULL}, where the plugin is compiled. {_ROOM}")
        raise SparkSetupError(
            f"The plugin could not be compiled against Spark {spark.version} with {java.description} "
            f"({java.executable}). The Scala compiler said:\n{done.stdout.strip()}"
        )


def scala_sources(spark: Spark, sources: Path) -> list[Path]:
    """The Scala sources for this Spark: all but the shims of other versions.

    A folder in ``sources/shims`` has what some versions have in common, and is named by the first and the last of them
    ("4.1-4.3"), or by the only one.
    """
    shims = sources / "shims"
    others = [folder for folder in shims.glob("*") if not _is_for(spark, folder.name)]
    files = sorted(sources.rglob("*.scala"))
    return [path for path in files if not any(path.is_relative_to(folder) for folder in others)]


def _is_for(spark: Spark, versions: str) -> bool:
    first, _, last = versions.partition("-")
    return _numbers(first) <= _numbers(spark.line) <= _numbers(last or first)


def _numbers(line: str) -> list[int]:
    return [int(part) for part in line.split(".")]


def sources_hash(sources: Path) -> str:
    """A hash of all that goes into the jar, and of how it is compiled: 16 hexadecimal digits."""
    digest = hashlib.sha256(" ".join([*_SCALAC, *SUPPORTED_SPARK, str(LEAST_PATCH)]).encode())
    files = set(sources.rglob("*.scala")) | {p for p in (sources / "resources").rglob("*") if p.is_file()}
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(sources).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _zip(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _ZIP_TIME), "Manifest-Version: 1.0\r\n\r\n")
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _ZIP_TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            jar.writestr(info, path.read_bytes())
