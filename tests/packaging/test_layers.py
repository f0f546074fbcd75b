"""Who may import whom within gpuwin/: each room only what stands below it, as docs/architecture.md has it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
BESIDE = {"__init__", "joins", "deduplication", "demo", "cli", "doctor", "warm"}


def rooms() -> list[str]:
    """The rooms of the page, from the ground up."""
    table = PAGE.split("## The rooms of", 1)[1].split("\nBeside them", 1)[0]
    first_cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [name for cell in first_cells for name in re.findall(r"`(\w+)(?:/|\.py)`", cell)]


def imports(source: str) -> Iterator[str]:
    """The rooms that a module imports, as it is loaded or later."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpuwin."):
            yield str(node.module).split(".")[1]


def upward(room: str, source: str, order: list[str]) -> list[str]:
    """The rooms above `room` that the source of one of its modules imports, where it must not."""
    return [other for other in imports(source) if other not in BESIDE and order.index(other) > order.index(room)]


def test_the_page_names_every_room() -> None:
    there = {
        path.stem for path in (ROOT / "gpuwin").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert set(rooms()) == there - BESIDE
    assert len(rooms()) == len(set(rooms())) > 10


def test_rooms_import_what_stands_below_them() -> None:
    order, seen = rooms(), 0
    for path in sorted((ROOT / "gpuwin").rglob("*.py")):
        room = path.relative_to(ROOT / "gpuwin").with_suffix("").parts[0]
        if room not in BESIDE:
            assert not upward(room, path.read_text(), order), f"{path.relative_to(ROOT)} imports what stands above it"
            seen += 1
    assert seen > 80


@pytest.mark.parametrize(
    ("room", "source", "found"),
    [
        ("state", "from gpuwin.engines.panes import PaneEngine", ["engines"]),
        ("engines", "from gpuwin.state.panes.pane_state import PaneState", []),
        ("vocabulary", "def start():\n    from gpuwin.operator import WindowOperator", ["operator"]),
        ("vocabulary", "from gpuwin.operator import WindowOperator", ["operator"]),
    ],
)
def test_what_is_upward(room: str, source: str, found: list[str]) -> None:
    assert upward(room, source, rooms()) == found


# -- circles -----------------------------------------------------------------------------------------------------------

PACKAGES = {"gpuwin": ROOT / "gpuwin", "gpuwin_kernels": ROOT / "kernels" / "gpuwin_kernels",
            "gpuwin_spark": ROOT / "spark_plugin" / "gpuwin_spark"}  # fmt: skip


def modules() -> dict[str, Path]:
    """The files of all packages by the names of their modules."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a module imports, as it is loaded, later, or for types alone."""
    found = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {m for a in node.names if (m := f"{base}.{a.name}") in known or (m := base) in known}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name in known}
    return found - {name}


def test_no_file_is_imported_in_a_circle() -> None:
    known = modules()
    left = {name: imported(name, path, known) for name, path in known.items()}
    assert len(left) > 200
    while ready := [name for name, others in left.items() if not others & left.keys()]:
        for name in ready:
            del left[name]
    assert not left, f"these import one another: {sorted(left)}"
