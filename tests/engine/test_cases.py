"""Every known answer of tests/cases, each by its name; none is skipped. Each is played once, and what was played must
differ from the case with any of its answers changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from cases_kinds import PLAYS
from known_answers import ANSWERS, CASES, IN_PART, NO_ASSERTION, Fields, differences, load_cases, unread

KNOWN = {case["id"]: case for case in load_cases()}
README = (CASES / "README.md").read_text()


@cache
def played(name: str) -> dict[str, Any]:
    case = KNOWN[name]
    return PLAYS[case.get("kind", "window_agg")](case)


@pytest.mark.parametrize("name", KNOWN)
def test_case(name: str) -> None:
    case = KNOWN[name]
    found = differences(case, played(name))
    assert not found, "\n".join([f"{name}: {case.get('notes', '')}", *found])
    assert not unread(case), "nobody reads these fields of the case: play them, or say why not in NO_ASSERTION"


@pytest.mark.parametrize("name", KNOWN)
def test_a_changed_answer_is_a_difference(name: str) -> None:
    case, answers = KNOWN[name], played(name)
    for answer in ANSWERS & case.keys():
        in_part = (case.get("kind", "window_agg"), answer) in IN_PART
        for changed in changes(case[answer], ordered=ordered_lists(case, answer), in_part=in_part):
            assert differences({**case, answer: changed}, answers), f"{answer} may as well be {changed}"


def test_every_case_has_its_own_name() -> None:
    assert len(KNOWN) == len(load_cases())


def example(**renamed: str) -> Fields:
    """The case of the README, with fields of it called otherwise."""
    (text,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    return json.loads(text, object_hook=lambda fields: Fields({renamed.get(n, n): v for n, v in fields.items()}))


def test_the_example_of_the_readme_is_a_case() -> None:
    case = example()
    assert differences(case, PLAYS[case["kind"]](case)) == []
    assert unread(case) == set()


def test_a_field_that_nobody_reads_is_found() -> None:
    case = example(value="valve", late_dropped="late_droped", advance="advances")
    PLAYS[case["kind"]](case)
    assert unread(case) == {"batches.valve", "late_droped", "watermark.advances"}


def test_the_readme_names_every_field() -> None:
    def names(value: Any, path: str = "") -> Iterator[str]:
        for each in value if isinstance(value, list) else []:
            yield from names(each, path)
        for name, inner in dict.items(value) if isinstance(value, dict) else []:
            if path not in ("agg", "expected", "expected_by_system"):  # whose fields are names of the case's own
                yield from (name, *names(inner, name))

    fields = {name for case in KNOWN.values() for name in names(case)}
    prose = {name.rpartition(".")[2] for name in NO_ASSERTION}
    missing = {name for name in fields - prose if not re.search(rf"\b{name}\b", README)}
    assert not missing


def ordered_lists(case: Fields, answer: str) -> int:
    """How deep the lists lie whose order is a part of an answer: 0 is none, 1 the answer itself."""
    return {"session_merge": 0, "join": 0}.get(case.get("kind", "window_agg"), 1) if answer == "expected" else 1


def changes(value: Any, ordered: int = 0, in_part: bool = False) -> Iterator[Any]:
    """A value with one thing changed, for each thing in it: a leaf, an item or a field left out, an item twice, two
    neighbours exchanged."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if in_part and name == "batch":  # which state is meant
                continue
            yield from ({**value, name: changed} for changed in changes(inner, ordered - 1))
            if not in_part:
                yield {n: v for n, v in value.items() if n != name}
    elif isinstance(value, list):
        yield [*value, *(value[-1:] or [0])]
        for i, inner in enumerate(value):
            yield from ([*value[:i], changed, *value[i + 1 :]] for changed in changes(inner, ordered - 1, in_part))
            yield [*value[:i], *value[i + 1 :]]
            yield [*value[: i + 1], *value[i:]]
            if ordered > 0 and i and value[i - 1] != inner:
                yield [*value[: i - 1], inner, value[i - 1], *value[i + 1 :]]
    elif value is None or value != value:
        yield 0
    elif isinstance(value, bool):
        yield not value
    else:
        yield f"another {value}" if isinstance(value, str) else value + 1
