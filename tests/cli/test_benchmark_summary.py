"""What is kept of a benchmark's runs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("spark_queries")


def run(seconds: float, mib: float, *ms: int) -> dict[str, Any]:
    batches = [{"rows": 1, "ms": 0, "trigger_ms": each, "state_rows": 0} for each in ms]
    return {
        "seconds": seconds,
        "batches": batches,
        "check": {"rows": 3},
        "memory": {"jvm_mib": mib},
        "conf": {"a": "b"},
    }


def test_a_summary_has_the_runs_without_their_batches(queries: Any) -> None:
    given_up = {"seconds": None, "timeout": 9.0}
    runs = {
        "plain": [run(8, 20, 5), given_up, run(4, 30, 7)],
        "gpuwin": [run(2, 10, 1, 9, 2), run(1, 5, 3, 4, 6), run(4, 7)],
    }
    found = queries.summary({"workload": {"size": 1}, "target": 2.0, "seconds": {}, "ratio": 4.0, "runs": runs})
    assert found == {
        "workload": {"size": 1},
        "target": 2.0,
        "best": {"plain": 4, "gpuwin": 1, "ratio": 4.0},
        "median": {"plain": 6, "gpuwin": 2, "ratio": 3.0},
        "runs": {
            "plain": {"seconds": [8, None, 4], "batches": [1, 1], "median_batch_ms": 6.0, "memory": {"jvm_mib": 30}},
            "gpuwin": {
                "seconds": [2, 1, 4],
                "batches": [3, 3, 0],
                "median_batch_ms": 3.5,
                "memory": {"jvm_mib": 10},
            },
        },
        "check": {"rows": 3},
    }
    assert queries.summary(found) == found


def test_a_side_that_never_finished_has_no_ratio(queries: Any) -> None:
    found = queries.summary({"runs": {"plain": [{"seconds": None, "timeout": 9.0}], "gpuwin": [run(2, 10, 1)]}})
    assert found["best"] == found["median"] == {"gpuwin": 2, "ratio": None}
    assert found["runs"]["plain"] == {"seconds": [None], "batches": [], "median_batch_ms": None, "memory": {}}
