"""Jars that Maven brings from Maven Central: a Kafka broker, what Spark needs to speak to it, to S3 and to others, and
the versions of Spark that are not installed.

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
from gpuwin_spark.installed_spark import Spark, find_spark, spark_with

#: The broker. slf4j-simple is of the line that this broker's slf4j-api is of, and says what the broker has to say.
KAFKA: Final = "4.4.0"
#: Kafka's own tools, in the newest version that was on Maven Central.
KAFKA_TOOLS: Final = "4.3.0"
SLF4J: Final = "1.7.36"
#: The newest builds of Spark's modules that Maven brought with all they depend on, by the line of Spark that they are
#: to run under, for when there is none of the very version that is installed: PyPI has had some versions long before
#: Maven Central, and Maven Central some modules before those that they depend on.
NEAREST: Final = {
    "spark-sql-kafka-0-10": {"3.5": "3.5.9", "4.0": "4.0.4", "4.1": "4.1.1", "4.2": "4.2.0", "4.3": "4.2.0"},
    "spark-avro": {"3.5": "3.5.7", "4.0": "4.0.2", "4.1": "4.1.1", "4.2": "4.1.1", "4.3": "4.1.1"},
    "spark-hadoop-cloud": {"3.5": "3.5.7", "4.0": "4.0.2", "4.1": "4.1.1", "4.2": "4.1.1", "4.3": "4.1.1"},
}
#: The AWS SDK of each Hadoop that Spark comes with, as Hadoop's own pom has it. (Hadoop 3.3 wants the SDK before.)
AWS_SDK: Final = {"3.4.1": "2.24.6", "3.4.2": "2.29.52", "3.4.3": "2.35.4", "3.5.0": "2.35.4"}
#: What S3A needs of it. hadoop-aws asks for a bundle of the whole SDK, which is larger than Spark.
_AWS_MODULES: Final = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client", "url-connection-client")
_AWS: Final = "software.amazon.awssdk"
#: Spark's SQL module by line of Spark, in the newest version that was on Maven Central, and the Scala it is built with.
SPARK_SQL: Final = {
    "3.5": ("3.5.9", "2.12.18"),
    "4.0": ("4.0.4", "2.13.16"),
    "4.1": ("4.1.1", "2.13.17"),
    "4.2": ("4.2.0", "2.13.18"),
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
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><exclusions>{}
    </exclusions></dependency>"""
_EXCLUSION: Final = """
      <exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"""
#: What an artifact is brought without: groups and artifacts of its dependencies.
Exclusions = tuple[tuple[str, str], ...]


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


def other_spark(line: str, folder: Path) -> Spark:
    """A Spark that is not installed, with its Scala compiler, as links in a new folder: enough to compile against.

    Raises:
        Unreachable: Maven did not bring it.
    """
    version, scala = SPARK_SQL[line]
    sql = ("org.apache.spark", f"spark-sql_{scala.rpartition('.')[0]}", version)
    folder.mkdir()
    for jar in _brought(sql, ("org.scala-lang", "scala-compiler", scala)):
        (folder / jar.name).symlink_to(jar)
    return spark_with(folder, f"Spark {version} of Maven Central")


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
    return _added(_brought((group, artifact, version)))


def s3a_jars() -> tuple[Path, ...]:
    """Hadoop's file system s3a: hadoop-aws of the Hadoop that Spark brings, and what it needs of the AWS SDK.

    Raises:
        Unreachable: Maven did not bring them, or the SDK of this Hadoop is not known.
    """
    client = next(find_spark().jars.glob("hadoop-client-api-*.jar"))
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    if hadoop not in AWS_SDK:
        raise Unreachable(f"Which AWS SDK hadoop-aws {hadoop} needs is not known here, only of {', '.join(AWS_SDK)}.")
    modules = ((_AWS, module, AWS_SDK[hadoop]) for module in _AWS_MODULES)
    without = ((_AWS, "bundle"), ("org.apache.hadoop", "hadoop-common"))
    return _added(_brought(("org.apache.hadoop", "hadoop-aws", hadoop), *modules, without=without))


def hadoop_cloud_jar() -> Path:
    """Spark's module for object stores by itself: it has the manager of a checkpoint's files that renames none.

    Raises:
        Unreachable: Maven did not bring it.
    """
    version = NEAREST["spark-hadoop-cloud"][find_spark().line]
    return _brought(("org.apache.spark", "spark-hadoop-cloud_2.13", version), without=(("*", "*"),))[0]


def _added(jars: tuple[Path, ...]) -> tuple[Path, ...]:
    """Those of the jars that Spark does not bring itself."""
    ours = {_stem(jar) for jar in find_spark().jars.glob("*.jar")}
    return tuple(jar for jar in jars if _stem(jar) not in ours)


def _stem(jar: Path) -> str:
    """The name of a jar without its version."""
    return re.sub(r"-\d[^-]*.*$", "", jar.stem)


def _brought(*artifacts: tuple[str, str, str], without: Exclusions = ()) -> tuple[Path, ...]:
    """The artifacts with their dependencies, but for those they are to come without."""
    folder = cache_folder() / "pipelines"
    folder.mkdir(exist_ok=True)
    key = hashlib.sha256(repr((artifacts, without) if without else artifacts).encode()).hexdigest()[:12]
    file = folder / f"{artifacts[0][1]}-{artifacts[0][2]}-{key}.txt"
    with locked(folder / "lock"):  # Maven's repository is not made for two that write to it
        jars = _read(file)
        if not jars:
            _ask_maven(artifacts, without, file)
            jars = _read(file)
    if not jars:
        raise RuntimeError(f"Maven has written a class path with jars that are not there: {file}")
    return jars


def _read(file: Path) -> tuple[Path, ...]:
    """The jars of a class path that was kept; none where one of them is gone."""
    jars = tuple(map(Path, file.read_text().strip().split(os.pathsep))) if file.exists() else ()
    return jars if all(jar.is_file() for jar in jars) else ()


def _ask_maven(artifacts: Sequence[tuple[str, str, str]], without: Exclusions, file: Path) -> None:
    wanted = " ".join(":".join(a) for a in artifacts)
    maven = shutil.which("mvn")
    if maven is None:
        raise Unreachable(f"Maven (mvn) is not on this machine, and brings {wanted}.")
    with tempfile.TemporaryDirectory(prefix="gpuwin-maven-") as name:
        pom, new = Path(name) / "pom.xml", Path(name) / "class-path"
        exclusions = "".join(_EXCLUSION.format(*e) for e in without)
        pom.write_text(_POM.format("".join(_DEPENDENCY.format(*a, exclusions) for a in artifacts)))
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={new}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"Maven did not bring {wanted} within {PATIENCE:.0f} s.") from None
        if done.returncode or not new.exists():
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["it said nothing"]
            raise Unreachable(f"Maven did not bring {wanted}: {errors[0].removeprefix('[ERROR] ')[:400]}")
        file.write_text(new.read_text())
