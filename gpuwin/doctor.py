"""``gpuwin doctor``: what is on this machine, what is missing, and the command that mends it."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gpuwin_spark import shuffle_partitions
from gpuwin_spark.configure import named_python, spark_defaults
from gpuwin_spark.errors import SparkSetupError
from gpuwin_spark.installed_spark import Spark, find_spark
from gpuwin_spark.interpreter import how_to_install, why_not
from gpuwin_spark.jar import jar_path
from gpuwin_spark.java import find_java, java_requirement

Status = Literal["ok", "missing", "broken", "absent"]
MINIMUM_PYTHON: Final = (3, 11)


def pip(requirement: str, *options: str) -> str:
    """The command that installs something for the Python that runs this."""
    return shlex.join([sys.executable, "-m", "pip", "install", *options, requirement])


#: distribution, lowest version that works, the command that brings it
REQUIRED: Final = (
    ("numpy", "1.26", pip("numpy>=1.26")),
    ("numba", "0.61", pip("numba>=0.61")),
    ("pyarrow", "17", pip("pyarrow>=17")),
    ("pyspark", "3.5", pip("gpuwin[spark]")),
)
#: what a GPU needs; the names of the distributions differ by CUDA version
FOR_CUDA: Final = (
    ("numba-cuda", ("numba-cuda",)),
    ("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy")),
    ("cuda-cccl", ("cuda-cccl",)),
)
OPTIONAL: Final = (("cudf", ("cudf-cu13", "cudf-cu12", "cudf")),)
_SERVICE_SECONDS: Final = 120
_COMPILE_SECONDS: Final = 120
#: Bytes of a folder in which the socket of a service has a folder of its own.
_LONGEST_FOLDER: Final = 75


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what.
        status: "ok"; "missing" or "broken" where the CPU path needs it; "absent" where it can do without.
        found: what there is, in a few words.
        mend: the command that mends it, or "" where there is nothing to mend.
    """

    name: str
    status: Status
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Gpu:
    """Answer of the NVIDIA driver: its CUDA version as (major, minor), and each device in words."""

    cuda: tuple[int, int]
    driver: str
    devices: tuple[str, ...]


def examine() -> list[Finding]:
    """Looks at everything, and never raises."""
    findings: list[Finding] = []
    for look in (_python, _executors_python, _java, _required, _spark, _jar, _service, _partitions, _gpu):
        try:
            findings.extend(look())
        except Exception as e:  # a doctor does not faint: whatever is wrong here is a finding
            findings.append(Finding(look.__name__.strip("_"), "broken", f"{type(e).__name__}: {e}"))
    return findings


def healthy(findings: list[Finding]) -> bool:
    """Whether the CPU path works, Spark included."""
    return all(f.status in ("ok", "absent") for f in findings)


def report(findings: list[Finding]) -> str:
    """The findings for a reader: one line each, with the command that mends it below."""
    marks: dict[Status, str] = {"ok": "ok", "missing": "MISSING", "broken": "BROKEN", "absent": "-"}
    width = max(len(f.name) for f in findings)
    lines = []
    for f in findings:
        said = f.found.replace("\n", "\n" + " " * (width + 11))
        lines.append(f"{marks[f.status]:<8} {f.name:<{width}}  {said}")
        if f.mend:
            lines.append(f"{'':<8} {'':<{width}}  -> {f.mend}")
    wrong = [f.name for f in findings if f.status in ("missing", "broken")]
    verdict = f"Not ready: {', '.join(wrong)}." if wrong else "Ready. Try: gpuwin demo"
    return "\n".join([*lines, "", verdict])


def as_json(findings: list[Finding]) -> dict[str, object]:
    """Findings for a program: ``{"ok": bool, "findings": [{"name", "status", "found", "mend"}, ...]}``."""
    return {"ok": healthy(findings), "findings": [dataclasses.asdict(f) for f in findings]}


def find_gpu() -> Gpu | None:
    """Asks the driver's own library; None where there is no driver or no device. Leaves no CUDA context behind."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    found = []
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for number in range(count.value):
            device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
            cuda.cuDeviceGet(ctypes.byref(device), number)
            cuda.cuDeviceGetName(name, len(name), device)
            cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
            capability = [_attribute(cuda, device, a) for a in (75, 76)]  # compute capability, major and minor
            label = f"{name.value.decode()}, {memory.value / 2**30:.0f} GiB, sm_{capability[0]}{capability[1]}"
            found.append(label)
    major, minor = version.value // 1000, version.value % 1000 // 10
    return Gpu((major, minor), _driver_version(), tuple(found))


def _attribute(cuda: ctypes.CDLL, device: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value


def _driver_version() -> str:
    try:
        match = re.search(r"Kernel Module\D*([\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return match[1] if match else ""


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    text = f"{platform.python_implementation()} {version}, {sys.executable}"
    if sys.version_info >= MINIMUM_PYTHON:
        yield Finding("Python", "ok", text)
    else:
        yield Finding("Python", "broken", f"{text}; 3.11 or later is needed", "python3.11 -m venv .venv")


def _executors_python() -> Iterator[Finding]:
    """The Python of the executors, where the environment or Spark's configuration names one."""
    named = named_python({})
    if named is None:
        return
    source, python = named
    if reason := why_not(python):
        yield Finding("executors' Python", "broken", f"{source}={python}; {reason}", how_to_install(python))
    else:
        yield Finding("executors' Python", "ok", f"{source}={python}; gpuwin is installed there")


def _java() -> Iterator[Finding]:
    try:
        java = find_java()
    except SparkSetupError as e:
        yield Finding("Java", "missing", str(e), pip(java_requirement()))
        return
    yield Finding("Java", "ok", f"{java.description}, {java.executable} (from {java.source})")


def _required() -> Iterator[Finding]:
    for name, least, mend in REQUIRED:
        version = _version(name)
        if version is None:
            if name == "pyspark" and os.environ.get("SPARK_HOME"):
                yield Finding(name, "ok", f"not installed; SPARK_HOME={os.environ['SPARK_HOME']} is used")
            else:
                yield Finding(name, "missing", "not installed", mend)
        elif _numbers(version) < _numbers(least):
            yield Finding(name, "broken", f"{version}; {least} or later is needed", mend)
        else:
            yield Finding(name, "ok", version)
    version = _version("pandas")
    if version is None:
        why = "not installed; PySpark wants it for gpuwin state show and give-back, and gw.spark.aggregate of batches"
        yield Finding("pandas", "absent", why, pip("pandas>=2.2"))
    else:
        yield Finding("pandas", "ok", version)


def _spark() -> Iterator[Finding]:
    try:
        spark = find_spark()
    except SparkSetupError as e:
        yield Finding("Spark", "missing", str(e), pip("gpuwin[spark]"))
        return
    yield _spark_finding(spark)


def _spark_finding(spark: Spark) -> Finding:
    text = f"{spark.version}, {spark.jars.parent}"
    newest = spark.newest_python
    if newest is not None and sys.version_info[:2] > newest:
        said = "{}.{}".format(*newest)
        return Finding("Spark", "broken", f"{text}; it needs Python {said} or older", f"python{said} -m venv .venv")
    if spark.supported:
        return Finding("Spark", "ok", text)
    return Finding("Spark", "broken", f"{text}; gpuwin supports {spark.supported_ones}", pip("gpuwin[spark]"))


def _jar() -> Iterator[Finding]:
    try:
        path = jar_path()
    except SparkSetupError as e:
        needs_java = "Java" in str(e).split(".")[0]
        mend = pip("gpuwin[jdk]") if needs_java else pip("gpuwin[spark]")
        yield Finding("jar", "missing", str(e), "" if "XDG_CACHE_HOME" in str(e) else mend)
        return
    yield Finding("jar", "ok", path)


def _service() -> Iterator[Finding]:
    """Starts the device service as an executor does, and ends it."""
    with tempfile.TemporaryDirectory(prefix="gpuwin-", dir=_place_of_socket()) as folder:
        command = [sys.executable, "-P", "-m", "gpuwin_spark.service", "--socket", f"{folder}/s"]
        try:
            done = subprocess.run(
                command, input=secrets.token_hex(32) + "\n", capture_output=True, text=True, timeout=_SERVICE_SECONDS
            )
        except subprocess.TimeoutExpired:
            yield Finding("service", "broken", f"did not start in {_SERVICE_SECONDS} s", _REINSTALL)
            return
    if done.stdout.splitlines()[:1] == ["ready"]:
        yield Finding("service", "ok", "starts in this Python")
    else:
        if "pthread_create failed" in done.stderr:  # what NumPy's library says; then it interrupts its own process
            few = "this user may start no more threads (ulimit -u, or the container's limit of processes)"
            yield Finding("service", "broken", few)
            return
        said = (done.stderr.strip() or f"it ended with code {done.returncode}").splitlines()[-1]
        yield Finding("service", "broken", said, _REINSTALL)


def _place_of_socket() -> str | None:
    """A folder in which a Unix socket can have a path: the path is short, and ``TMPDIR`` may not be."""
    for folder in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/dev/shm", "/tmp"):
        if folder and len(os.fsencode(folder)) <= _LONGEST_FOLDER and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


def _partitions() -> Iterator[Finding]:
    """The number of shuffle partitions that a session of this machine starts with, beside its cores."""
    setting, cores = spark_defaults().get(shuffle_partitions.KEY, ""), shuffle_partitions.cores_here()
    said = shuffle_partitions.advice(setting, cores)
    if said is None:
        yield Finding("partitions", "ok", f"{setting or shuffle_partitions.DEFAULT} on {cores} cores")
    else:
        mend = f'SparkSession.builder.config("{shuffle_partitions.KEY}", {cores})'
        yield Finding("partitions", "absent", said, mend)


def _gpu() -> Iterator[Finding]:
    gpu = find_gpu()
    if gpu is None:
        yield Finding("GPU", "absent", "no NVIDIA driver (libcuda.so.1); the CPU is used")
        yield Finding("driver", "absent", "none")
    else:
        devices = "; ".join(gpu.devices) or "the driver sees no device; the CPU is used"
        yield Finding("GPU", "ok" if gpu.devices else "absent", devices)
        yield _driver(gpu)
    usable = gpu is not None and bool(gpu.devices)
    extra = "cuda13" if gpu is None or gpu.cuda >= (13, 0) else "cuda12"
    for name, distributions in (*FOR_CUDA, *OPTIONAL):
        found = [(d, v) for d in distributions if (v := _version(d)) is not None]
        if found:
            yield Finding(name, "ok", ", ".join(f"{d} {v}" for d, v in found))
        elif name == "cudf":
            yield Finding(name, "absent", "not installed; optional", pip("gpuwin[cudf]") if usable else "")
        else:
            mend = pip(f"gpuwin[{extra}]") if usable else ""
            yield Finding(name, "absent", "not installed; the GPU needs it" if usable else "not installed", mend)
    if _version("numba-cuda") is None:
        yield Finding("compiler", "absent", "numba-cuda is not installed")
    else:
        yield _compiler()
    yield _device()


@functools.cache
def _compiler() -> Finding:
    """Compiles a CUDA kernel, which needs no device, in a process of its own: this one may have Numba's simulator."""
    command = [sys.executable, "-m", "gpuwin_kernels.cuda.compiler"]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return Finding("compiler", "absent", f"one kernel took more than {_COMPILE_SECONDS} s")
    try:
        report = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):  # it could not even be imported
        said = (done.stderr.strip() or f"it ended with code {done.returncode}").splitlines()[-1]
        return Finding("compiler", "absent", f"no kernel compiles: {said}", pip("gpuwin[cuda13]"))
    fault = report["fault"]
    if fault is None:
        return Finding("compiler", "ok", f"a kernel compiles for {report['target']} (PTX {report['ptx']})")
    said = f"no kernel compiles for {report['target']}, because of {fault['part']}: {fault['said']}"
    return Finding("compiler", "absent", said, str(fault["mend"]))


def _driver(gpu: Gpu) -> Finding:
    text = f"{gpu.driver or 'version unknown'}, CUDA {gpu.cuda[0]}.{gpu.cuda[1]}"
    if gpu.cuda < (12, 0):
        return Finding(
            "driver", "absent", f"{text}; CUDA 12 or later is needed", "install the NVIDIA driver 525 or later"
        )
    return Finding("driver", "ok", text)


def _device() -> Finding:
    from gpuwin.device.choice import why_auto_is_cpu

    reason = why_auto_is_cpu()
    if reason is None:
        return Finding("device", "ok", "auto means cuda here")
    return Finding("device", "ok", f"auto means cpu here: {reason}")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


_REINSTALL: Final = pip("gpuwin", "--force-reinstall")
