"""The maps of the sources: what they name is there, and each module of the plugin's Python is in its map."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "spark_plugin"
PACKAGES = (ROOT / "gpuwin", ROOT / "kernels" / "gpuwin_kernels", PLUGIN / "gpuwin_spark")


def plugin_map() -> dict[str, list[str]]:
    """The names in the map of the plugin's README, by the folder that they stand under."""
    page = (PLUGIN / "README.md").read_text()
    folder, named = "", dict[str, list[str]]()
    for line in page[page.index("    scala/ ") : page.index("\n## ")].splitlines():
        if heading := re.match(r"( +)([\w/]+)/(?:  |$)", line):
            folder = heading[2] if len(heading[1]) == 4 else f"scala/{heading[2]}"
            named[folder] = []
        elif entry := re.match(r" {6,8}(\S.*?)(?:  |$)", line):  # a line further in is the text of the one above
            named[folder] += re.findall(r"\w+", entry[1])
    return named


MAP = plugin_map()


@pytest.mark.parametrize(
    "package", sorted({p.parent for p in (PLUGIN / "gpuwin_spark").rglob("*.py")}), ids=lambda p: p.name
)
def test_every_module_of_the_plugin_is_in_the_map_once(package: Path) -> None:
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    assert sorted(MAP[str(package.relative_to(PLUGIN))]) == sorted(modules)


@pytest.mark.parametrize("folder", [folder for folder in MAP if MAP[folder] and folder.startswith("scala/")])
def test_classes_in_the_map_are_in_their_folder(folder: str) -> None:
    sources = list((PLUGIN / folder).rglob("*.scala"))
    defined = set(re.findall(r"\b(?:class|object|trait) (\w+)", "\n".join(path.read_text() for path in sources)))
    assert [name for name in MAP[folder] if name not in defined | {path.stem for path in sources}] == []


def test_files_that_the_architecture_names_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = [f"{root.name}/{path.relative_to(root)}" for root in PACKAGES for path in root.rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", page)
    assert len(named) > 50
    gone = [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in paths)]
    assert [name for name in gone if not (ROOT / name).is_file()] == []
    classes = re.findall(r"`((?:plan|mapside|operator|service|state|sessions)/[A-Z]\w+)`", page)
    assert len(classes) > 15
    assert [name for name in classes if not (PLUGIN / "scala" / f"{name}.scala").is_file()] == []
