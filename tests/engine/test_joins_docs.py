"""The examples of docs/joins.md are run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "joins.md"


def test_the_examples_of_the_page_hold() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})
