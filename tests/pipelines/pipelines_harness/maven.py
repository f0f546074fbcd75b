"""Jars that Maven brings from Maven Central: a Kafka broker, and what Spark needs to speak to it and to others.

Maven keeps the jars in its own repository; gpuwin's cache folder keeps their paths, so that Maven is asked once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuwin_spark.cache import cache_folder, locked
from gpuwin_spark.installed_spark import find_spark

#: The broker. slf4j-simple is of the line that this broker's slf4j-api is of, and says what the broker has to say.
KAFKA: Final = "4.4.0"
#: Kafka's own tools, in the newest version that was on Maven Central.
KAFKA_TOOLS: Final = "4.3.0"
SLF4J: Final = "1.7.36"
#: The newest builds that were on Maven Central of Spark's modules, by the line of Spark that they are to run under, for
#: when there is none of the very version that is installed: PyPI has had some versions long before Maven Central.
NEAREST: Final = {
    "spark-sql-kafka-0-10": {"3.5": "3.5.9", "4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0", "4.3": "4.2.0"},
    "spark-avro": {"3.5": "3.5.7", "4.0": "4.0.2", "4.1": "4.1.1", "4.2": "4.1.1", "4.3": "4.1.1"},
}
#: Seconds after which a download is given up.
PATIENCE: Final = 120.0

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>io.gpuwin</groupId><artifactId>pipelines</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}
  </dependencies>
</project>
"""
_DEPENDENCY: Final = """
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"""


class Unreachable(Exception):
    """Maven, or what it should bring, that is not to be had here: nothing can be tested, and nothing has failed."""


@dataclass(frozen=True)
class Module:
    """A module of Spark that is not among Spark's own jars, and the jars that it adds to them."""

    name: str
    version: str
    jars: tuple[Path, ...]


def broker_jars() -> tuple[Path, ...]:
    """The class path of a Kafka broker.

    Raises:
        Unreachable: Maven did not bring it.
    """
    return _brought(("org.apache.kafka", "kafka_2.13", KAFKA), ("org.slf4j", "slf4j-simple", SLF4J))


def kafka_tools_jars() -> tuple[Path, ...]:
    """The class path of Kafka's command line tools.

    Raises:
        Unreachable: Maven did not bring it.
    """
    return _brought(("org.apache.kafka", "kafka-tools", KAFKA_TOOLS), ("org.slf4j", "slf4j-simple", SLF4J))


def spark_module(name: str) -> Module:
    """One of the modules of `NEAREST`, built for the installed Spark or else for the nearest that there is.

    Raises:
        Unreachable: Maven did not bring it.
    """
    spark = find_spark()
    said: list[str] = []
    for version in dict.fromkeys([spark.version, NEAREST[name][spark.line]]):
        try:
            return Module(name, version, added_jars("org.apache.spark", f"{name}_2.13", version))
        except Unreachable as e:
            said.append(str(e))
    raise Unreachable(" ".join(said))


def added_jars(group: str, artifact: str, version: str) -> tuple[Path, ...]:
    """An artifact and those of its dependencies that Spark does not bring itself.

    Raises:
        Unreachable: Maven did not bring them.
    """
    ours = {_stem(jar) for jar in find_spark().jars.glob("*.jar")}
    return tuple(jar for jar in _brought((group, artifact, version)) if _stem(jar) not in ours)


def _stem(jar: Path) -> str:
    """The name of a jar without its version."""
    return re.sub(r"-\d[^-]*.*$", "", jar.stem)


def _brought(*artifacts: tuple[str, str, str]) -> tuple[Path, ...]:
    """The artifacts with their dependencies."""
    folder = cache_folder() / "pipelines"
    folder.mkdir(exist_ok=True)
    key = hashlib.sha256(repr(artifacts).encode()).hexdigest()[:12]
    file = folder / f"{artifacts[0][1]}-{artifacts[0][2]}-{key}.txt"
    with locked(folder / "lock"):  # Maven's repository is not made for two that write to it
        jars = _read(file)
        if not jars:
            _ask_maven(artifacts, file)
            jars = _read(file)
    if not jars:
        raise RuntimeError(f"Maven has written a class path with jars that are not there: {file}")
    return jars


def _read(file: Path) -> tuple[Path, ...]:
    """The jars of a class path that was kept; none where one of them is gone."""
    jars = tuple(map(Path, file.read_text().strip().split(os.pathsep))) if file.exists() else ()
    return jars if all(jar.is_file() for jar in jars) else ()


def _ask_maven(artifacts: Sequence[tuple[str, str, str]], file: Path) -> None:
    wanted = " ".join(":".join(a) for a in artifacts)
    maven = shutil.which("mvn")
    if maven is None:
        raise Unreachable(f"Maven (mvn) is not on this machine, and brings {wanted}.")
    with tempfile.TemporaryDirectory(prefix="gpuwin-maven-") as name:
        pom, new = Path(name) / "pom.xml", Path(name) / "class-path"
        pom.write_text(_POM.format("".join(_DEPENDENCY.format(*a) for a in artifacts)))
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={new}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"Maven did not bring {wanted} within {PATIENCE:.0f} s.") from None
        if done.returncode or not new.exists():
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["it said nothing"]
            raise Unreachable(f"Maven did not bring {wanted}: {errors[0].removeprefix('[ERROR] ')[:400]}")
        file.write_text(new.read_text())
