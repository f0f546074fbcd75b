"""The runner of Spark's own suites: what it reads, and what it holds to be a fault."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "spark_suites"
XML = """<testsuite name="S" tests="4">
<testcase name="one"/>
<testcase name="two"><failure message="3 did not equal 4&#010;at a place"/></testcase>
<testcase name="three"><skipped/></testcase>
<testcase name="four"><error>java.lang.Error: no</error></testcase>
</testsuite>"""


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_suites_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_outcomes_are_read_from_scalatests_xml(suites: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "TEST-S.xml").write_text(XML)
    tests, messages = suites.outcomes(tmp_path)
    assert tests == {"one": "passed", "two": "failed", "three": "skipped", "four": "failed"}
    assert messages == {"two": "3 did not equal 4", "four": "java.lang.Error: no"}


def test_a_difference_that_is_not_listed_is_a_fault(suites: ModuleType) -> None:
    plain = suites.Result({"a": "passed", "b": "passed", "c": "failed", "d": "passed"}, {}, 0, 0, 1.0)
    ours = suites.Result({"a": "passed", "b": "failed", "c": "failed"}, {"b": "no rows"}, 3, 1, 1.0)
    suite = suites.Suite("S", plain, ours)
    assert suite.differ == {"b", "d"}
    assert suite.faults == ["b: no rows", "d: did not run"]
    assert suites.Suite("S", plain, ours, {"b": "why", "d": "why"}).faults == []


def test_a_listed_test_that_does_not_differ_is_a_fault(suites: ModuleType) -> None:
    same = suites.Result({"a": "passed"}, {}, 0, 0, 1.0)
    faults = suites.Suite("S", same, same, {"a": "why", "of another version": "why"}).faults
    assert faults == ["a: is listed in cannot_pass.json, and does not differ"]


def test_a_suite_that_did_not_come_to_its_end_is_a_fault_and_is_not_recorded(
    suites: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "RESULTS", tmp_path / "results.json")
    ended = suites.Result({}, {}, 1, 0, 1200.0, "was ended after 1200 s")
    suite = suites.Suite("S", suites.Result({}, {}, 0, 0, 0.0), ended, {"a": "why"})
    assert suite.faults == ["on gpuwin, the suite was ended after 1200 s"]
    assert suites.recorded("4.2.0", [suite]) == {}


def test_what_is_listed_of_another_version_is_not_counted(suites: ModuleType) -> None:
    plain = suites.Result({"a": "passed"}, {}, 0, 0, 1.0)
    ours = suites.Result({"a": "failed"}, {}, 1, 0, 1.0)
    suite = suites.Suite("S", plain, ours, {"a": "why", "of another version": "why"})
    assert suites.Line.of(suite) == suites.Line(1, 0, 1, 1, 0)


def test_a_suite_that_offloads_nothing_is_vacuous(suites: ModuleType) -> None:
    same = suites.Result({"a": "passed"}, {}, 0, 0, 1.0)
    other = suites.Result({"a": "passed"}, {}, 2, 0, 1.0)
    both = [suites.Suite("S", same, same), suites.Suite("T", same, other)]
    shown = suites.report({s.name: suites.Line.of(s) for s in both}, "4.3.0")
    assert "| S | 1 | 1 | 0 | 0 (vacuous) | 0 |" in shown
    assert "| T | 1 | 1 | 0 | 2 | 0 |" in shown
    assert "2 of 2 tests that can pass here pass with gpuwin (100.0 %); 1 of 2 suites offload." in shown


def test_each_listed_test_has_a_reason() -> None:
    listed = json.loads((FOLDER / "cannot_pass.json").read_text())
    assert all(len(reason) > 20 for tests in listed.values() for reason in tests.values())


def test_a_run_of_one_suite_keeps_what_was_recorded_of_others(
    suites: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "RESULTS", tmp_path / "results.json")
    one, two = suites.Result({"a": "passed"}, {}, 1, 0, 1.0), suites.Result({"a": "failed"}, {}, 2, 0, 1.0)
    suites.recorded("4.2.0", [suites.Suite("S", one, one), suites.Suite("T", one, two)])
    suites.recorded("4.1.0", [suites.Suite("S", one, one)])
    found = suites.recorded("4.2.0", [suites.Suite("T", one, one)])
    assert found == {"S": suites.Line(1, 1, 0, 1, 0), "T": suites.Line(1, 1, 0, 1, 0)}
    assert suites.recorded("4.2.0") == found


@pytest.mark.parametrize("runs", sorted(json.loads((FOLDER / "results.json").read_text())))
def test_the_reports_hold_what_was_recorded(suites: ModuleType, runs: str) -> None:
    assert (FOLDER / f"report-{runs}.md").read_text() == suites.page(suites.recorded(runs), runs)


def test_aggregations_without_a_window_have_lists_and_pages_of_their_own(suites: ModuleType, tmp_path: Path) -> None:
    suite, both = "StreamingAggregationSuite", "4.2.0-without-window"
    result = {"tests": {}, "messages": {}, "offloaded": 1, "left": 0, "seconds": 1.0}
    for runs in ("4.2.0", both):
        (tmp_path / runs).mkdir()
        (tmp_path / runs / f"{suite}.json").write_text(json.dumps({"plain": result, "gpuwin": result}))
    (windowed,), (every,) = suites.read("4.2.0", tmp_path), suites.read(both, tmp_path)
    assert windowed.listed.items() < every.listed.items()
    page = suites.page({}, both)
    assert "run.py --suites 4.2.0 --without-window` wrote" in page
    assert "Spark 4.2.0, spark.gpuwin.withoutWindow=true, spark.gpuwin.deduplicate=true\n" in page
