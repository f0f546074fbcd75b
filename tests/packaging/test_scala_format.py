"""Scala sources keep to their format."""

from __future__ import annotations

import pytest
from scala_format import SOURCES, faults

JSON = ['s"""{"n":$n}"""\n', 's"{\\"n\\":$n}"\n']


def test_sources() -> None:
    paths = sorted(SOURCES.rglob("*.scala"))
    assert len(paths) > 30
    assert [fault for path in paths for fault in faults(path.name, path.read_text())] == []


@pytest.mark.parametrize("text", ["x" * 121 + "\n", "a\tb\n", "a \n", "a", "a\n\n", *JSON])
def test_faults(text: str) -> None:
    assert len(list(faults("F.scala", text))) == 1


def test_what_is_right() -> None:
    assert list(faults("F.scala", "x" * 120 + "\n")) == []
