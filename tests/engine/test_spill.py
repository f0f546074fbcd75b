"""State on disk gives the rows that state in memory gives, whatever the specification."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import Options, answers, options, streams
from test_properties import EXAMPLES

from gpuwin import operator, spill

KINDS = ["panes", "by row", "firings", "sessions", "session firings", "changes", "complete"]


@pytest.fixture
def all_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """After each batch everything that can leave memory does. Yields the bytes of each time that something did."""
    freed: list[int] = []

    def spilled(self: Any, engine: Any, after: Any) -> Any:
        before = engine.size(after.windows)
        windows = engine.spilled(after.windows, 1 << 62, os.fspath(tmp_path))
        assert engine.open_windows(windows, after.progress) == engine.open_windows(after.windows, after.progress)
        cells, size = engine.size(windows)
        assert cells == before[0]
        freed.append(before[1] - size)
        return operator.replace(after, windows=windows)

    monkeypatch.setattr(spill, "_LEAST", 1)
    monkeypatch.setattr(operator.WindowOperator, "_within_limits", spilled)
    yield freed
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [*KINDS, "event time", "any windows", "any sessions"])
def test_all_on_disk(kind: str, all_on_disk: list[int]) -> None:
    plain = operator.WindowOperator._within_limits

    @settings(EXAMPLES, max_examples=15)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        chosen: Options = data.draw(options(kind))
        stream = data.draw(streams())
        restored = data.draw(st.booleans())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operator.WindowOperator, "_within_limits", lambda self, engine, after: after)
            expected = answers(chosen, stream)
        assert operator.WindowOperator._within_limits is plain
        assert answers(chosen, stream, restore=restored) == expected

    run()
    assert max(all_on_disk) > 0
