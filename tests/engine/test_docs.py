"""The examples of the concept pages are run as they are printed, each page from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "page",
    ["running", "windows", "chaining", "aggregates", "watermarks", "triggers", "sessions", "semantics", "memory",
     "joins", "deduplication"],
)  # fmt: skip
def test_the_examples_of_the_page_hold(page: str) -> None:
    path = DOCS / f"{page}.md"
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), str(path), "exec"), {"__name__": page})


def test_the_example_of_the_readme_holds(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS.parent / "README.md").read_text().partition("## Without Spark")[2]
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.count("window_start") == 6
    on_close = example.replace("emit=gw.OnChange(),", "")
    exec(compile(on_close, "README.md", "exec"), {"__name__": "readme"})
    assert f"{capsys.readouterr().out.count('window_start'):,}" in example
