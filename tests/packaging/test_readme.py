"""What the README says to type is what CI runs, and what it shows exists."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from brief_java import brief_options
from marks import chosen

ROOT = Path(__file__).parents[2]
TESTS = ".venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder"
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_two_commands_install_and_run_the_demo_and_the_tests() -> None:
    first, second = (line for line in blocks("bash")[0].splitlines() if line.strip())
    assert first == "python3.11 -m venv .venv && .venv/bin/pip install -q -e '.[demo]' && .venv/bin/gpuwin demo"
    assert second == ".venv/bin/pip install -q -e '.[dev]' && " + TESTS


def test_ci_runs_the_readmes_test_command() -> None:
    script = ROOT / ".ci" / "run"
    text = script.read_text()
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in text
    assert "\n" + TESTS + "\n" in text
    assert "-e '.[dev]'" in text
    assert "\n" + TESTS + ' -m "long or pipelines" -rs ' in text
    assert text.index(TESTS) < text.index("\n.ci/later-pythons ")


@pytest.mark.parametrize(
    ("asked", "everything", "runs"),
    [
        ("", True, "not sweep and not long and not pipelines"),
        ("", False, "not sweep"),
        ("long or pipelines", True, "(long or pipelines) and not sweep"),
        ("sweep", True, "sweep"),
    ],
)
def test_marks_of_the_tests_that_run(asked: str, everything: bool, runs: str) -> None:
    assert chosen(asked, everything) == runs


@pytest.mark.parametrize(
    ("seconds", "says"), [(-1, r"SKIPPED \[\d+\] .*no time was left to start it"), (600, r"\d+ passed in")]
)
def test_tests_start_within_the_seconds_that_are_left(seconds: int, says: str) -> None:
    command = [sys.executable, "-m", "pytest", "-rs", "tests/packaging/test_maps.py", f"--start-within={seconds}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(says, done.stdout), done.stdout


def later_pythons(path: Path, pyenv: Path) -> dict[str, str]:
    """Which Pythons the kernels are tried with on a machine with this folder of commands, and this one of pyenv."""
    environment = os.environ | {"PATH": f"{path}:/usr/bin:/bin", "PYENV_ROOT": str(pyenv)}
    command = [str(ROOT / ".ci" / "later-pythons"), "--list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(line.split(": ") for line in done.stdout.splitlines())


def python(place: Path, says: str) -> Path:
    """A command that says it is this version of Python, and has what a virtual environment needs."""
    place.parent.mkdir(parents=True, exist_ok=True)
    body = 'case "$2" in *"{0}"*) exit 0;; esac; exit 1' if says else "echo 'pyenv: command not found' >&2; exit 127"
    place.write_text("#!/bin/bash\n" + body.format(f"!= '{says}'") + "\n")
    place.chmod(0o755)
    return place


def test_later_pythons_are_found_beside_shims_that_fail(tmp_path: Path) -> None:
    commands, pyenv = tmp_path / "bin", tmp_path / "pyenv"
    for version in ("3.12", "3.13", "3.14"):
        python(commands / f"python{version}", "")
    assert later_pythons(commands, pyenv) == {"3.12": "none", "3.13": "none", "3.14": "none"}
    behind = python(pyenv / "versions" / "3.12.1" / "bin" / "python3.12", "3.12")
    assert later_pythons(commands, pyenv) == {"3.12": str(behind), "3.13": "none", "3.14": "none"}
    python(commands / "python3.13", "3.13")
    assert later_pythons(commands, pyenv)["3.13"] == "python3.13"


def test_the_python_in_it_is_python() -> None:
    assert blocks("python")
    for block in blocks("python"):
        ast.parse(block)


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert links
    for link in links:
        assert "://" in link or (ROOT / link).exists(), link


@pytest.mark.long
def test_the_ten_lines_show_rows_and_end_quietly(tmp_path: Path) -> None:
    example = blocks("python")[0]
    waits = "query.awaitTermination(30)"
    assert example.count(waits) == 1
    script = tmp_path / "example.py"
    # As it is, but for the time: here it is until the end of the first batch with rows.
    rows = "while query.isActive and not sum(p['numInputRows'] for p in query.recentProgress): time.sleep(0.05)"
    script.write_text(example.replace(waits, rows))
    settings = {**os.environ, "JAVA_TOOL_OPTIONS": brief_options()}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 1 stateful operators on gpuwin" in done.stdout
    assert "shuffle partitions" not in done.stdout + done.stderr, "the example has as many as cores"
    assert re.search(r"^\|\s*\d+\|\{20\d\d-", done.stdout, re.MULTILINE), done.stdout
    assert not re.search(r"Exception|Traceback|^\s+at |\bERROR\b", done.stderr, re.MULTILINE), done.stderr
