"""The known answers of tests/cases on Spark: one specification gives the same rows on Arrow batches and on Spark.

CI plays all of them on partitions as Spark runs them (tests/engine/test_cases_on_partitions.py), and on Spark itself a
few that together have each kind of window with each kind of emission and accumulation. All the rest:
`pytest -m sweep tests/spark/test_spark_cases.py`. Joins and timers are no part of `gw.spark.aggregate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cases_runner as cases
import pytest
from known_answers import differences, load_cases
from pyspark.sql import SparkSession
from spark_harness.played_case import PlayedCase, beyond_spark, steps_of

import gpuwin as gw

ALL = [case for case in load_cases() if case.get("kind", "window_agg") == "window_agg"]
PLAYED = [case for case in ALL if beyond_spark(case) is None]


def traits_of(case: dict[str, Any]) -> set[tuple[str, ...]]:
    """What there is to see in a case: its kind of window with each kind of emission and the accumulation."""
    spec = cases.Play(case).spec
    emit, seen = spec.emit, []
    if isinstance(emit, gw.Trigger):
        parts = {name: getattr(emit, name) for name in ("early", "late")}
        seen = [f"{name} {type(firing).__name__}" for name, firing in parts.items() if firing is not None]
        seen += ["on time"] * emit.on_time + ["only updated"] * emit.only_updated
    else:
        seen = [type(emit).__name__]
    return {(type(spec.window).__name__, each, spec.accumulation) for each in seen}


def covering() -> set[str]:
    """Few and short cases that have all that any case has: those first that have most per micro-batch."""
    traits = {case["id"]: traits_of(case) for case in PLAYED}
    length = {case["id"]: len(steps_of(case)) + 2 for case in PLAYED}
    left, chosen = set().union(*traits.values()), set()
    while left:
        best = max(traits, key=lambda id: (len(traits[id] & left) / length[id], id))
        chosen.add(best)
        left -= traits[best]
    return chosen


CHOSEN = covering()
MARKED = [pytest.param(case, id=case["id"], marks=[] if case["id"] in CHOSEN else pytest.mark.sweep) for case in PLAYED]


@pytest.mark.parametrize("case", MARKED)
def test_case(case: dict[str, Any], spark: SparkSession, tmp_path: Path) -> None:
    told = {"pane", *cases.told_by_operator(case)}  # a firing's number is of no row
    expected = cases.without([row for rows in case["expected"] for row in rows], told)
    found = cases.without(PlayedCase(case, spark, tmp_path).run(), told)
    assert not differences({"expected": [expected]}, {"expected": [found]})
