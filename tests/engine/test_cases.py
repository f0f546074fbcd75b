"""Every example with a known answer, each by its name; none is skipped."""

from __future__ import annotations

from typing import Any

import pytest
from cases_kinds import RUNNERS
from cases_runner import load_cases


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in load_cases("*.jsonl")])
def test_case(case: dict[str, Any]) -> None:
    RUNNERS[case.get("kind", "window_agg")](case)
