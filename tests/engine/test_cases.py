"""Every known answer of tests/cases, each by its name; none is skipped. Each is played once, and what was played must
differ from the case with any of its answers changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from cases_kinds import PLAYS
from known_answers import ANSWERS, IN_PART, Fields, differences, load_cases, unread

CASES = {case["id"]: case for case in load_cases()}


@cache
def played(name: str) -> dict[str, Any]:
    case = CASES[name]
    return PLAYS[case.get("kind", "window_agg")](case)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    found = differences(case, played(name))
    assert not found, "\n".join([f"{name}: {case.get('notes', '')}", *found])
    assert not unread(case), "nobody reads these fields of the case: play them, or say why not in NO_ASSERTION"


@pytest.mark.parametrize("name", CASES)
def test_a_changed_answer_is_a_difference(name: str) -> None:
    case, answers = CASES[name], played(name)
    for answer in ANSWERS & case.keys():
        in_part = (case.get("kind", "window_agg"), answer) in IN_PART
        for changed in changes(case[answer], ordered=ordered_lists(case, answer), in_part=in_part):
            assert differences({**case, answer: changed}, answers), f"{answer} may as well be {changed}"


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
