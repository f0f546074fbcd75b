"""The examples of the concept pages are run as they are printed, each page from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["windows", "watermarks", "triggers", "sessions", "semantics"])
def test_the_examples_of_the_page_hold(page: str) -> None:
    path = DOCS / f"{page}.md"
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    exec(compile("\n".join(blocks), str(path), "exec"), {"__name__": page})
