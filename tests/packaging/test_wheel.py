"""The wheel and the source distribution hold what an installed gpuwin needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(target: str, folder: Path, jar: str) -> Path:
    """Builds with the hatchling of this environment: nothing is fetched."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    environment = {**os.environ, "GPUWIN_WHEEL_JAR": jar}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"), "require")


def tracked(folder: str, pattern: str) -> set[str]:
    found = {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob(pattern)}
    assert found
    return found


def test_every_module_and_every_scala_source_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
    for folder, package in (("gpuwin", "gpuwin"), ("kernels/gpuwin_kernels", "gpuwin_kernels"),
                            ("spark_plugin/gpuwin_spark", "gpuwin_spark")):  # fmt: skip
        assert {f"{package}/{m}" for m in tracked(folder, "*.py")} <= names
    assert {f"gpuwin_spark/scala/{s}" for s in tracked("spark_plugin/scala", "*.scala")} <= names
    assert "gpuwin/py.typed" in names
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/", "gpuwin/gpuwin"))]


def test_the_wheel_holds_the_jar_for_the_spark_it_was_built_with(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        jars = [n for n in z.namelist() if n.endswith(".jar")]
    assert len(jars) == 1
    assert jars[0].startswith("gpuwin_spark/jars/gpuwin-spark-4.3.")


@pytest.mark.long
def test_an_installed_wheel_finds_its_jar_and_without_it_compiles(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as z:
        z.extractall(site)
    code = "import gpuwin, gpuwin_spark.jar as j; print(gpuwin.__file__); print(j.jar_path())"
    environment = {**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def found() -> list[str]:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.split()

    module, shipped = found()
    assert Path(module).is_relative_to(site)
    assert Path(shipped).is_relative_to(site)
    Path(shipped).unlink()
    _, compiled = found()
    assert Path(compiled).is_relative_to(tmp_path / "cache")


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        (name,) = (n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = z.read(name).decode()
        (entry,) = (n for n in z.namelist() if n.endswith("entry_points.txt"))
        assert "gpuwin = gpuwin.cli:main" in z.read(entry).decode()
    extras = {line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Provides-Extra")}
    assert {"spark", "jdk", "cuda12", "cuda13", "cudf", "demo", "test", "dev"} <= extras
    assert "License-Expression: Apache-2.0" in metadata
    always = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert sorted(line.split()[1].split(">")[0] for line in always) == ["numba", "numpy", "pyarrow"]


def test_the_source_distribution_can_build_the_wheel(tmp_path: Path) -> None:
    archive = build("sdist", tmp_path / "out", "omit")
    with tarfile.open(archive) as t:
        names = {n.split("/", 1)[1] for n in t.getnames() if "/" in n}
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE"} <= names
    assert {f"spark_plugin/scala/{s}" for s in tracked("spark_plugin/scala", "*.scala")} <= names


def test_versions_agree() -> None:
    import gpuwin

    with open(ROOT / "pyproject.toml", "rb") as f:
        assert tomllib.load(f)["project"]["version"] == gpuwin.__version__
