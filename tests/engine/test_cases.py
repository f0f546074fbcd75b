"""Every example with a known answer, each by its name."""

from __future__ import annotations

from typing import Any

import pytest
from cases_kinds import RUNNERS, SKIPPED
from cases_runner import load_cases


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in load_cases()])
def test_case(case: dict[str, Any]) -> None:
    reason = SKIPPED.get(case["id"]) or SKIPPED.get(case.get("kind", "window_agg"))
    if reason is not None:
        pytest.skip(reason)
    RUNNERS[case.get("kind", "window_agg")](case)
