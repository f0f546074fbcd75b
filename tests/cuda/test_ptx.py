"""Every kernel compiles for sm_90 on a machine without a driver; those that run once a row hold no slow instruction."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuwin_kernels.cuda

pytestmark = pytest.mark.long

SOURCES = Path(gpuwin_kernels.cuda.__file__).parent


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, str(Path(__file__).parent / "compile_kernels.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_is_compiled(compiled: list[dict[str, Any]]) -> None:
    names = {entry["kernel"].partition("[")[0] for entry in compiled}
    written = set()
    for path in SOURCES.glob("*.py"):
        for name in re.findall(r"@kernel\((?:[^@]*?)\)\ndef (\w+)", path.read_text()):
            written.add(f"{path.stem}.{name}")
    assert len(written) >= 12
    assert written <= names, written - names
    assert {
        "rows.dense",
        "rows.few",
        "rows.hashed",
        "rows.cells",
        "ranges.fold",
        "ranges.query",
        "many.gather",
        "many.pack",
    } <= names
    assert all(entry["target"] and entry["bytes"] > 1000 for entry in compiled)


def test_what_runs_once_a_row_is_lean(compiled: list[dict[str, Any]]) -> None:
    hot = [entry for entry in compiled if entry["hot"]]
    assert len(hot) >= 9
    assert [entry["kernel"] for entry in hot if entry["divisions"]] == []
    assert [entry["kernel"] for entry in hot if entry["local"]] == []


def test_the_assembler_takes_them_and_a_block_of_256_threads_fits(compiled: list[dict[str, Any]]) -> None:
    """A launch of more registers than a multiprocessor has fails only on a device."""
    machine = {entry["kernel"]: entry["machine"] for entry in compiled if entry["machine"]}
    assert len(machine) >= 60
    assert {name: m for name, m in machine.items() if 256 * m["registers"] > 65_536} == {}
    assert {name: m for name, m in machine.items() if m["stack"] or m["spilled"]} == {}
    assert max(m["arguments"] for m in machine.values()) < 4_096
    hot = [entry["machine"]["registers"] for entry in compiled if entry["hot"]]
    assert max(hot) <= 64, "at most a quarter of the threads of a multiprocessor"


def test_integers_stay_integers(compiled: list[dict[str, Any]]) -> None:
    """For Numba, a sum of int64 and uint64 is a float64, which loses bits from 2**53 on; NumPy, and so the simulator,
    takes a constant for what it stands beside. Only what finds panes by a product, or adds floats, may convert.
    """
    floats = re.compile(
        r"admission\._admit|rows\.(_panes|cells|dense|few|hashed)|cells\.(_count_windows|_list_opened|_cells_wanted)"
        r"|ranges\.\w+\[[\w,+]*float64[\w,+]*\]"
    )
    assert [e["kernel"] for e in compiled if e["to_float"] and not floats.match(e["kernel"])] == []
    assert [e["to_float"] for e in compiled if e["kernel"] == "rows._panes"] == [1], "a conversion is seen"
    opened = [e["to_float"] for e in compiled if e["kernel"] in ("cells._count_windows", "cells._list_opened")]
    assert len(set(opened)) == 1 == len(opened) - 1, "listing adds none to counting"


def test_no_kernel_is_made_another_way() -> None:
    """Whoever imports `numba.cuda`, or calls `cuda.jit` for a kernel, is not in the registry."""
    for path in SOURCES.glob("*.py"):
        text = path.read_text()
        if path.name not in ("runtime.py", "compiler.py"):  # which has a kernel of its own, to try the compiler
            assert not re.search(
                r"from numba import .*\bcuda\b|import numba\.cuda", text.replace("numba.cuda import libdevice", "")
            ), path
            assert not re.search(r"@cuda\.jit\s*$|@cuda\.jit\((?!device=True)", text, re.MULTILINE), path
