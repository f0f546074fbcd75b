"""The pages for operators: configuration.md is what the code says, and what operators.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuwin_spark.configuration_page import configuration_page, main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ["operators", "configuration", "performance", "pipelines"]
SCALA = "\n".join(p.read_text() for p in (ROOT / "spark_plugin" / "scala").rglob("*.scala"))


def test_configuration_is_what_the_code_says(tmp_path: Path) -> None:
    page = configuration_page()
    hint = "run python -m gpuwin_spark.configuration_page docs/configuration.md"
    assert (DOCS / "configuration.md").read_text() == page, hint
    keys = set(re.findall(r"spark\.gpuwin\.[\w.]*\w", page))
    assert len(keys) == len(re.findall(r"^  val \w+: ConfEntry = entry\(", SCALA, re.MULTILINE)) >= 10
    assert main(["a", "b"]) == 2


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (DOCS / f"{page}.md").read_text())
    for link in links:
        assert "://" in link or (DOCS / link).exists(), link


def test_keys_metrics_and_tests_that_are_named_exist() -> None:
    text = (DOCS / "operators.md").read_text()
    table = (DOCS / "configuration.md").read_text()
    for key in set(re.findall(r"spark\.gpuwin\.[\w.]*\w", text)):
        assert f"| `{key}` |" in table, key
    for metric in set(re.findall(r"\bgpuwin[A-Z]\w+", text)):
        assert f'"{metric}"' in SCALA, metric
    for metric in re.findall(r'^    "(gpuwin\w+)" ->', SCALA, re.MULTILINE):
        assert metric in text, f"{metric} is not explained"
    for path, name in re.findall(r"`(tests/[\w/]+\.py)`(?:, `(test_\w+)`)?", text):
        assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).is_file(), (path, name)
