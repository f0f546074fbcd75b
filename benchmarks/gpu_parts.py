"""The parts of `gpu_check.py`, in the order in which they run, and how long each may take."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tell = Callable[[str, Any], None]
"""Writes one thing that was found down at once."""

PACKAGES = (
    "numpy", "numba", "numba-cuda", "llvmlite", "cupy-cuda13x", "cupy-cuda12x", "cuda-cccl", "cuda-core",
    "cuda-bindings", "nvidia-nvjitlink", "nvidia-nvvm", "nvidia-cuda-nvrtc", "cudf-cu13", "pyarrow", "pytest",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A check. `limit`: seconds after which it is stopped. `call`: the value of --part that it belongs to, 0 for all.
    `essential`: nothing can be checked after it has failed.
    """

    run: Callable[[argparse.Namespace, Tell], None]
    limit: float
    call: int = 0
    essential: bool = False


def compiled(_: argparse.Namespace, tell: Tell) -> None:
    """One kernel, to PTX and to machine code: needs no driver, and says which part of the compiler is the trouble."""
    from gpuwin_kernels.cuda import runtime

    if runtime.simulated():
        tell("not run", "in the simulator")
        return
    command = [sys.executable, "-m", "gpuwin_kernels.cuda.compiler"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=80)
    lines = done.stdout.splitlines()
    if not lines:
        raise RuntimeError(f"no kernel compiles here: {done.stderr[-2000:]}")
    for key, value in json.loads(lines[-1]).items():
        tell(key, value)
    if done.returncode:
        raise RuntimeError(f"no kernel compiles here: {lines[-1]}")


def versions(_: argparse.Namespace, tell: Tell) -> None:
    tell("python", platform.python_version())
    for name in PACKAGES:
        try:
            tell(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            tell(name, None)
    smi = shutil.which("nvidia-smi")
    if smi:
        query = [smi, "--query-gpu=name,driver_version,memory.total,clocks.max.mem", "--format=csv,noheader"]
        tell("gpu", subprocess.run(query, capture_output=True, text=True, check=False, timeout=30).stdout.strip())
    from gpuwin_kernels.cuda import runtime

    tell("simulated", runtime.simulated())
    missing = runtime.why_not()
    tell("missing", missing)
    if missing:
        raise RuntimeError(f"there is no GPU to check: {missing}")


def first_computation(options: argparse.Namespace, tell: Tell) -> None:
    """What decides whether "auto" means cuda here, and what it costs a process: with compilation, and without."""
    from gpuwin.device.check import failed_check

    small = options.rows < 10_000
    for name in ("first", "again"):
        began = time.perf_counter()
        wrong = failed_check(40, ((3, 2), (20, 20), (20, 4_000))) if small else failed_check()
        tell(f"{name}, seconds", round(time.perf_counter() - began, 3))
        if wrong:
            raise AssertionError(wrong)


def suite(_: argparse.Namespace, tell: Tell) -> None:
    """The tests of the kernels, on the device."""
    from gpuwin_kernels.cuda import runtime

    if runtime.simulated():
        tell("not run", "in the simulator they are a part of CI")
        return
    missing = [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]
    if missing:
        tell("not run", f"{' and '.join(missing)} are not installed")
        return
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "pytest", "tests/cuda", "-q", "--no-header", "-p", "no:cacheprovider"]
    # What libraries of that machine warn of is no fault of a kernel.
    command += ["--tb=short", "--deselect", "tests/cuda/test_ptx.py", "-W", "default"]
    if importlib.util.find_spec("pytest_timeout"):
        command += ["--timeout=60"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=165)
    except subprocess.TimeoutExpired as error:
        tell("output", (error.stdout or b"").decode(errors="replace")[-3000:])
        raise
    lines = done.stdout.splitlines()
    tell("summary", lines[-1:] if lines else done.stderr[-500:])
    wrong = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    tell("wrong", wrong)
    if done.returncode:
        tell("output", done.stdout[-8000:])
        raise AssertionError(f"exit code {done.returncode}; {len(wrong)} tests")


#: Tools of compute-sanitizer. Memory comes from the driver, array by array: a pool, or a piece that several arrays are
#: cut from, would hide what lies beyond one.
SANITIZERS = ("memcheck", "initcheck", "racecheck", "synccheck")
#: Kernels in which threads meet in shared memory on purpose, and why; what racecheck says of others is a fault.
MEANT_RACES: dict[str, str] = {}
SANITIZED = """
import cupy
from gpuwin_kernels.cuda import runtime
runtime.why_not()
cupy.cuda.set_allocator(None)
runtime.keep_arrays_apart()
"""
FIRST_CELLS = """
from gpuwin.device.check import failed_check
wrong = failed_check(2048, ((5, 4), (40, 30), (300, 20000)))
assert wrong is None, wrong
"""
STREAMS = """
from argparse import Namespace
from gpu_equality import CASES, MORE_CASES, SANITIZED_CASES
for name in SANITIZED_CASES:
    (CASES | MORE_CASES)[name](Namespace(check_rows=3000, seed=1), lambda key, value: None)
    print("ENDED", name, flush=True)
"""


def kernels_in(report: str) -> dict[str, int]:
    """How often compute-sanitizer names each kernel of ours, as "module.function", mangled or not."""
    found: dict[str, int] = {}
    for plain in re.finditer(r"gpuwin_kernels(?:::cuda::(\w+)::(\w+)|4cuda(\d\w+))", report):
        module, function, mangled = plain.groups()
        if mangled:
            module, rest = _first_name(mangled)
            function, _ = _first_name(rest)
        name = f"{module}.{function}"
        found[name] = found.get(name, 0) + 1
    return found


def _first_name(mangled: str) -> tuple[str, str]:
    """The name at the beginning, which its length stands before, and what follows: "3rows8_placed" begins with rows."""
    digits = re.match(r"\d+", mangled)
    if digits is None:
        return mangled, ""
    length, rest = int(digits[0]), mangled[digits.end() :]
    return rest[:length], rest[length:]


def sanitized(tool_name: str, script: str, seconds: float) -> Callable[[argparse.Namespace, Tell], None]:
    def run(options: argparse.Namespace, tell: Tell) -> None:
        """A script under compute-sanitizer: every regime of rows, sorts, merges and windows; or some whole streams."""
        from gpuwin_kernels.cuda import runtime

        tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        if tool is None or runtime.simulated():
            tell("not run", "in the simulator" if runtime.simulated() else "compute-sanitizer is not on this machine")
            return
        command = [tool, "--tool", tool_name, "--print-limit", "50", sys.executable, "-c", SANITIZED + script]
        here = Path(__file__).parent
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=here)
        except subprocess.TimeoutExpired as error:
            tell("ended", re.findall("ENDED (.*)", (error.stdout or b"").decode(errors="replace")))
            raise
        said = done.stdout + done.stderr
        tell("ended", re.findall("ENDED (.*)", said))
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY:.*", said)
        tell("summary", summary)
        kernels = kernels_in(said)
        tell("kernels", {name: {"times": times, "meant": MEANT_RACES.get(name)} for name, times in kernels.items()})
        clean = summary and all(re.search(r": 0 (errors|hazards)", line) for line in summary)
        meant = tool_name == "racecheck" and kernels and kernels.keys() <= MEANT_RACES.keys()
        if done.returncode or not (clean or meant):
            tell("output", said[-6000:])
            raise AssertionError(f"{tool_name}: exit code {done.returncode}, {summary}, in {sorted(kernels)}")

    return run


def _parts() -> dict[str, Part]:
    import gpu_equality
    import gpu_rates

    parts = {"compiler": Part(compiled, 90, essential=True), "versions": Part(versions, 60, essential=True)}
    parts |= {"first computation": Part(first_computation, 120, 1)}
    parts |= {f"libraries: {name}": Part(run, 60, 1) for name, run in gpu_equality.LIBRARIES.items()}
    parts |= {f"equality: {name}": Part(run, 75, 1) for name, run in gpu_equality.CASES.items()}
    parts |= {f"rates: {name}": Part(run, 75, 2) for name, run in gpu_rates.RATES.items()}
    parts |= {f"sanitizer: {tool}": Part(sanitized(tool, FIRST_CELLS, 110), 120, 3) for tool in SANITIZERS}
    parts |= {"suite": Part(suite, 180, 3)}
    parts |= {f"equality: {name}": Part(run, 75, 4) for name, run in gpu_equality.MORE_CASES.items()}
    return parts | {f"sanitizer: {tool}, streams": Part(sanitized(tool, STREAMS, 270), 280, 5) for tool in SANITIZERS}


PARTS = _parts()
