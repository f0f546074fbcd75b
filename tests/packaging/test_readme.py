"""What the README says to type is what CI runs, and what it shows exists."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

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
    assert text.rstrip().endswith("\n" + TESTS)
    assert "-e '.[dev]'" in text


def test_the_python_in_it_is_python() -> None:
    assert blocks("python")
    for block in blocks("python"):
        ast.parse(block)


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert links
    for link in links:
        assert "://" in link or (ROOT / link).exists(), link
