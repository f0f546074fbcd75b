"""The pages of docs/: their links lead somewhere, and the keys, metrics and tests that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuwin_spark.configuration_page import configuration_page, main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "spark_plugin" / "README.md",
    *sorted(DOCS.glob("*.md")),
]
PRODUCTION = ["queries", "production", "checkpoints", "moving_state", "failures", "object_stores"]
SCALA = "\n".join(p.read_text() for p in (ROOT / "spark_plugin" / "scala").rglob("*.scala"))


def test_configuration_is_what_the_code_says(tmp_path: Path) -> None:
    page = configuration_page()
    hint = "run python -m gpuwin_spark.configuration_page docs/configuration.md"
    assert (DOCS / "configuration.md").read_text() == page, hint
    keys = set(re.findall(r"spark\.gpuwin\.[\w.]*\w", page))
    assert len(keys) == len(re.findall(r"^  val \w+: ConfEntry = entry\(", SCALA, re.MULTILINE)) >= 10
    assert main(["a", "b"]) == 2


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub makes anchors of them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        if "://" in link:
            continue
        file = page.parent / link if link else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), f"{link}#{anchor}"


def test_every_page_is_linked_from_the_readme() -> None:
    """A page that one cannot reach from the README is not found: by at most one page between."""
    readme = ROOT / "README.md"
    linked = {readme}
    for _ in range(2):
        for page in list(linked):
            links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
            linked |= {(page.parent / link).resolve() for link in links if "://" not in link}
    assert set(DOCS.glob("*.md")) <= linked


def test_keys_metrics_and_tests_that_are_named_exist() -> None:
    text = "\n".join((DOCS / f"{page}.md").read_text() for page in PRODUCTION)
    table = (DOCS / "configuration.md").read_text()
    for key in set(re.findall(r"spark\.gpuwin\.[\w.]*\w", text)):
        assert f"| `{key}` |" in table, key
    for metric in set(re.findall(r"\bgpuwin[A-Z]\w+", text)):
        assert f'"{metric}"' in SCALA, metric
    for metric in re.findall(r'^    "(gpuwin\w+)" ->', SCALA, re.MULTILINE):
        assert metric in text, f"{metric} is not explained"
    for path, name in re.findall(r"`(tests/[\w/]+\.py)`(?:, `(test_\w+)`)?", text):
        assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).is_file(), (path, name)
