"""The check of a GPU goes on after parts that fail, die or hang, and has written down what they found before."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"

PARTS = """
import os, subprocess, time
from types import SimpleNamespace as Part

def good(options, tell):
    tell("seed", options.seed)

def fails(options, tell):
    tell("found", 1)
    raise ValueError("an illegal address")

def dies(options, tell):
    tell("found", 2)
    os._exit(7)

def hangs(options, tell):
    tell("found", 3)
    tell("child", subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600)

def part(run, call=0, essential=False):
    return Part(run=run, limit=1.5, call=call, essential=essential)

PARTS = {"good": part(good), "fails": part(fails, 1), "dies": part(dies, 1), "hangs": part(hangs, 2)}
PARTS["last"] = part(good, 3)
"""


def test_whatever_a_part_does_the_next_one_runs(tmp_path: Path) -> None:
    shutil.copy(BENCHMARKS / "gpu_check.py", tmp_path)
    (tmp_path / "gpu_parts.py").write_text(PARTS)
    command = [sys.executable, str(tmp_path / "gpu_check.py"), "--rows", "9", "--seed", "5", "--json", "found.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    parts = json.loads((tmp_path / "found.json").read_text())["parts"]
    assert done.returncode == 1, done.stderr
    assert list(parts) == ["good", "fails", "dies", "hangs", "last"]
    assert (parts["good"]["seed"], parts["last"]["seed"]) == (5, 5)
    assert [parts[name]["found"] for name in ("fails", "dies", "hangs")] == [1, 2, 3]
    assert parts["fails"]["failed"] == "ValueError: an illegal address"
    assert "exit code 7" in parts["dies"]["stopped"]
    assert "did not end within 2 s" in parts["hangs"]["stopped"]
    child = Path(f"/proc/{parts['hangs']['child']}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z", "what it had started goes with it"


def test_calls_write_one_file(tmp_path: Path) -> None:
    shutil.copy(BENCHMARKS / "gpu_check.py", tmp_path)
    (tmp_path / "gpu_parts.py").write_text(PARTS)
    for call in (1, 3, 1):
        command = [sys.executable, str(tmp_path / "gpu_check.py"), "--part", str(call), "--seed", str(call)]
        subprocess.run([*command, "--json", "found.json"], capture_output=True, cwd=tmp_path, timeout=60, check=False)
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(c["part"], c["seed"]) for c in found["calls"]] == [(1, 1), (3, 3), (1, 1)]
    assert found["parts"].keys() == {"good", "fails", "dies", "last"}
    assert (found["parts"]["good"]["seed"], found["parts"]["last"]["seed"]) == (1, 3)


def test_nothing_is_checked_after_something_essential_has_failed(tmp_path: Path) -> None:
    shutil.copy(BENCHMARKS / "gpu_check.py", tmp_path)
    (tmp_path / "gpu_parts.py").write_text(PARTS.replace("part(fails, 1)", "part(fails, 1, True)"))
    command = [sys.executable, str(tmp_path / "gpu_check.py"), "--json", "found.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    parts = json.loads((tmp_path / "found.json").read_text())["parts"]
    why = "fails did not end well"
    skipped = {name: part.get("skipped") for name, part in parts.items()}
    assert skipped == {"fails": None, "good": why, "dies": why, "hangs": why, "last": why}


def test_parts_at_once(tmp_path: Path) -> None:
    shutil.copy(BENCHMARKS / "gpu_check.py", tmp_path)
    (tmp_path / "gpu_parts.py").write_text(PARTS)
    command = [sys.executable, str(tmp_path / "gpu_check.py"), "--jobs", "3", "--seed", "5", "--json", "found.json"]
    subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=60, check=False)
    parts = json.loads((tmp_path / "found.json").read_text())["parts"]
    assert parts.keys() == {"good", "fails", "dies", "hangs", "last"}
    assert (parts["good"]["seed"], parts["last"]["seed"], "stopped" in parts["hangs"]) == (5, 5, True)


def test_kernels_named_by_the_sanitizer() -> None:
    said = """
========= Error: Race reported between Write access at _ZN14gpuwin_kernels4cuda4rows4_fewB2v1B92cw51cXTLSUw(Array)+0x4d0
=========     and Read access at gpuwin_kernels::cuda::cells::_mark[abi:v1](long long)+0x80 in cells.py:12
"""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from gpu_parts import kernels_in
    finally:
        sys.path.remove(str(BENCHMARKS))
    assert kernels_in(said) == {"rows._few": 1, "cells._mark": 1}


def test_what_the_sanitizer_looks_at_is_known() -> None:
    script = "import gpu_equality as g; print(set(g.SANITIZED_CASES) - {*g.CASES, *g.MORE_CASES})"
    environment = os.environ | {"PYTHONPATH": ":".join(filter(None, [str(BENCHMARKS), *sys.path]))}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "set()\n", done.stderr[-2000:]


def test_no_time_is_said(tmp_path: Path) -> None:
    shutil.copy(BENCHMARKS / "gpu_check.py", tmp_path)
    (tmp_path / "gpu_parts.py").write_text(PARTS)
    command = [sys.executable, str(tmp_path / "gpu_check.py"), "--only", "la", "--seconds", "0", "--json", "found.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "found.json").read_text())["parts"] == {"last": {"skipped": "no time was left"}}


def test_what_watches_imports_nothing_that_may_fail() -> None:
    """What is checked is imported by the processes that work, and by them only."""
    tree = ast.parse((BENCHMARKS / "gpu_check.py").read_text())
    named = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    modules = {a.name for n in named if isinstance(n, ast.Import) for a in n.names}
    modules |= {n.module or "" for n in named if isinstance(n, ast.ImportFrom)}
    assert all(module.partition(".")[0] in sys.stdlib_module_names for module in modules), modules
