"""The plugin's jar: compiled once, from these sources, against this Spark; and what is said when it cannot be."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import os
import re
import threading
import zipfile
from pathlib import Path

import pytest
from scala_check import check_sources

from gpuwin_spark import SparkSetupError, jar_path
from gpuwin_spark import jar as jar_module
from gpuwin_spark.cache import cache_folder
from gpuwin_spark.installed_spark import SUPPORTED_SPARK, Spark, find_spark
from gpuwin_spark.jar import build_jar, cached_jar, scala_sources, sources_hash
from gpuwin_spark.java import Java, find_java

SCALA = Path(__file__).parents[2] / "spark_plugin" / "scala"
SHIMS = SCALA / "shims"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "scala"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "One.scala").write_text("package one\nclass One(val spark: org.apache.spark.SparkConf)\n")
    (folder / "resources" / "META-INF" / "services").mkdir(parents=True)
    (folder / "resources" / "META-INF" / "services" / "a.Service").write_text("one.One\n")
    return folder


@pytest.fixture
def counting_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java home that writes a line to the returned file each time the compiler is run."""
    real, log = find_java().executable, tmp_path / "compilations"
    log.touch()
    home = tmp_path / "java-home"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f'#!/bin/sh\ncase "$*" in *scala.tools.nsc.Main*) echo run >> {log};; esac\nexec {real} "$@"\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return log


def test_the_jar_holds_the_plugin() -> None:
    path = Path(jar_path())
    assert path.is_file()
    assert find_spark().version in path.name
    with zipfile.ZipFile(path) as z:
        names = set(z.namelist())
    assert "io/gpuwin/GpuWindowPlugin.class" in names
    assert "org/apache/spark/sql/gpuwin/Explain.class" in names
    assert jar_path() == str(path)


def test_it_is_compiled_once_however_many_ask(
    sources: Path, counting_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spark, built = find_spark(), []
    threads = [threading.Thread(target=lambda: built.append(cached_jar(spark, sources))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(built) == 3
    assert len(set(built)) == 1
    assert counting_java.read_text() == "run\n"
    with zipfile.ZipFile(built[0]) as z:
        assert set(z.namelist()) == {
            *("META-INF/MANIFEST.MF", "META-INF/services/a.Service", "one/One.class"),
            "org/apache/spark/sql/gpuwin/compiled-for",
        }
    left = {p.name for p in built[0].parent.iterdir()}
    assert left == {".lock", built[0].name}, "something was left behind"


def test_half_a_jar_is_compiled_anew(
    sources: Path, counting_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jar = cached_jar(find_spark(), sources)
    whole = jar.read_bytes()
    jar.write_bytes(whole[: len(whole) // 2])
    assert cached_jar(find_spark(), sources) == jar
    assert jar.read_bytes() == whole
    assert counting_java.read_text() == "run\nrun\n"


def test_a_jar_that_is_there_is_found_where_nothing_can_be_written(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image that was warmed, and runs with a read-only file system."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jar = cached_jar(find_spark(), sources)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cached_jar(find_spark(), sources) == jar


@pytest.mark.parametrize("hindrance", ["jars", "jars/.lock"])
def test_a_part_of_the_cache_that_is_another_users(
    hindrance: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something of another kind stands for it: whoever runs the tests may be allowed everything."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "gpuwin" / hindrance
    place.parent.mkdir(parents=True)
    place.touch() if hindrance == "jars" else place.mkdir()
    with pytest.raises(SparkSetupError, match=rf"cannot write to its cache folder .*{hindrance}.*Set XDG_CACHE_HOME"):
        cached_jar(find_spark(), sources)


def test_a_disk_that_is_full(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "java"
    compiler.write_text("#!/bin/sh\necho 'error: unable to write: No space left on device'\nexit 1\n")
    compiler.chmod(0o755)
    java = dataclasses.replace(find_java(), executable=compiler)
    with pytest.raises(SparkSetupError, match=r"^No space left on device, where the plugin is compiled\. Make room"):
        build_jar(find_spark(), java, sources, tmp_path / "a.jar")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(jar_module, "_zip", full)
    with pytest.raises(SparkSetupError, match=r"^No space left on device, where the plugin is compiled \("):
        build_jar(find_spark(), find_java(), sources, tmp_path / "a.jar")


@pytest.mark.parametrize("name", ["a,b", "a#b"])
def test_a_path_that_spark_takes_apart(
    name: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jar_module, "cached_jar", lambda *_: tmp_path / name / "gpuwin.jar")
    with pytest.raises(SparkSetupError, match=r"cannot load .*Set XDG_CACHE_HOME"):
        jar_path()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(SparkSetupError, match=r"no home folder.*Set XDG_CACHE_HOME"):
        cache_folder()


def test_another_source_is_another_jar(sources: Path) -> None:
    before = sources_hash(sources)
    one = sources / "deep" / "One.scala"
    one.write_text(one.read_text() + "// changed\n")
    changed = sources_hash(sources)
    one.rename(sources / "One.scala")
    moved = sources_hash(sources)
    (sources / "resources" / "more").write_text("")
    assert len({before, changed, moved, sources_hash(sources)}) == 4


def test_a_compiler_error_is_shown_and_leaves_nothing(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (sources / "Two.scala").write_text('package one\nobject Two { val n: Int = "text" }\n')
    with pytest.raises(SparkSetupError, match=r"could not be compiled against Spark[\s\S]*Two.scala:2[\s\S]*mismatch"):
        cached_jar(find_spark(), sources)
    assert [p.name for p in (tmp_path / "cache" / "gpuwin" / "jars").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("source", "said"), [("object Two { Two.none }", "not a member"), ("class Two extends Runnable", "to be abstract")]
)
def test_a_check_finds_what_a_compilation_would(sources: Path, source: str, said: str) -> None:
    (sources / "Two.scala").write_text(f"package one\n{source}\n")
    with pytest.raises(SparkSetupError, match=rf"Two.scala:2[\s\S]*{said}"):
        check_sources(find_spark(), find_java(), sources)


def test_no_sources_and_no_compiler(tmp_path: Path, sources: Path) -> None:
    java = Java(tmp_path, tmp_path / "java", 17, "none", "test")
    spark = find_spark()
    with pytest.raises(SparkSetupError, match="no Scala sources"):
        build_jar(spark, java, tmp_path / "empty", tmp_path / "a.jar")
    with pytest.raises(SparkSetupError, match="no Scala compiler"):
        build_jar(dataclasses.replace(spark, jars=tmp_path), java, sources, tmp_path / "a.jar")


def test_a_spark_that_is_not_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.4.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert find_spark().version == "3.4.1"
    with pytest.raises(
        SparkSetupError, match=r"supports Spark 3\.5, 4\.0, 4\.1, 4\.2, 4\.3, and .* is Spark 3\.4\.1.*pip install"
    ):
        jar_path()


def test_a_spark_home_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SparkSetupError, match=r"SPARK_HOME=.* has no jars/spark-core"):
        jar_path()


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pyspark" else real(name, *a))
    with pytest.raises(SparkSetupError, match=r"pyspark is not installed.*pip install 'gpuwin\[spark\]'"):
        jar_path()


def test_a_cache_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SparkSetupError, match=r"cannot write to its cache folder .*Set XDG_CACHE_HOME"):
        jar_path()


def test_the_jar_says_what_it_was_compiled_for() -> None:
    with zipfile.ZipFile(jar_path()) as z:
        said = z.read("org/apache/spark/sql/gpuwin/compiled-for").decode().splitlines()
    assert said == [find_spark().version, ", ".join(SUPPORTED_SPARK), str(find_spark().least_patch)]


@pytest.mark.parametrize(
    ("version", "supported"),
    [("3.5.1", False), ("3.5.1-vendor-2", False), ("3.5.2", True), ("3.5.10", True), ("4.0.0", True),
     ("4.3.0-SNAPSHOT", True), ("4.3", True), ("4.30.0", False)],
)  # fmt: skip
def test_patches_of_spark(version: str, supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Spark(version, tmp_path).supported is supported
    if version.startswith("3.5.1-"):
        (tmp_path / "jars").mkdir()
        (tmp_path / "jars" / f"spark-core_2.12-{version}.jar").touch()
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))
        with pytest.raises(
            SparkSetupError, match=r"supports Spark 3\.5 from 3\.5\.2 on, and .* is Spark 3\.5\.1-vendor"
        ):
            jar_path()


@pytest.mark.parametrize("line", SUPPORTED_SPARK)
def test_each_version_has_every_shim_once(line: str) -> None:
    shims = [p.read_text() for p in scala_sources(Spark(f"{line}.0", SCALA), SCALA) if p.is_relative_to(SHIMS)]
    made = re.findall(r"^(?:object|trait) (\w+)", "\n".join(shims), re.MULTILINE)
    assert len(made) == len(set(made))
    imported = re.findall(r"^import org\.apache\.spark\.sql\.gpuwin\.shims\.(.+)", "\n".join(others()), re.MULTILINE)
    assert {name for names in imported for name in re.findall(r"\w+", names)} <= set(made)


def test_only_shims_name_versions() -> None:
    lines = {line for folder in SHIMS.iterdir() for line in folder.name.split("-")}
    assert lines <= set(SUPPORTED_SPARK)
    assert not [text for text in others() if re.search(r"\b(?:4\.\d+|3\.5)\b", text)]


def others() -> list[str]:
    return [p.read_text() for p in SCALA.rglob("*.scala") if not p.is_relative_to(SHIMS)]
