"""The check of a GPU goes on after parts that fail, die or hang, and has written down what they found before."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"

PARTS = """
import os, time
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
    time.sleep(600)

PARTS = {name: Part(run=run, limit=1.5) for name, run in
         {"good": good, "fails": fails, "dies": dies, "hangs": hangs, "last": good}.items()}
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
