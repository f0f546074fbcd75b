"""Known answers: the cases of tests/cases, and the differences between what a case says and what was played of it.

The format is described in tests/cases/README.md. A case is an object of JSON; some of its fields are answers, all
others say what to play. Answers are compared exactly, field by field and row by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import ItemsView, Iterator
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent.parent / "cases"

#: Fields that are answers: each is compared whole with what was played.
ANSWERS = {
    "expected",
    "expected_by_system",
    "expected_state_after",
    "full_emission_window_count",
    "late_dropped",
    "late_side_output",
    "state_rows",
    "state_rows_after",
    "watermarks_emitted",
}

#: Fields that say nothing to check, each with the reason; "kind:" before a field of one kind of case alone.
NO_ASSERTION = {
    "id": "the name of the case",
    "source": "where the answer is from",
    "verified_by": "who else gives the answer",
    "notes": "prose",
    "conflict": "the case that says otherwise, for readers",
    "oracle": "whether the reference that made the answer could run the case",
    "close_rule": "the rule of the dialect, in prose",
    "late_rule": "the rule of the dialect, in prose",
    "watermark.close_rule": "the rule of the dialect, in prose",
    "watermark.applied": "the rule of the dialect, in prose",
    "watermark.timer_rule": "the rule of the dialect, in prose",
    "watermark.test_run": "where the watermarks of the case are from, in prose",
    "stages.evict": "the rule of the dialect, in prose",
    "assign:dialect": "all dialects assign as one",
    "session_merge:dialect": "`touch` and `end_rule` are the rules",
    "join:dialect": "`join` is the rules",
    "compare:dialect": "each label of `expected_by_system` has its own",
    "spark_numRowsDroppedByWatermark": "Spark's own metric, which counts late groups; `late_dropped` counts rows",
}

#: Answers in which an object states a part of what is known, and so is compared in the fields that it has.
IN_PART = {("window_agg", "expected_state_after"), ("watermark", "expected")}

#: What may follow an answer in words: the condition under which it was asked, and why it is so.
REMARK = re.compile(r"( when lateness 0)?( \(.*\))?$")

#: How deep the lists lie whose order says nothing: 0 is the answer itself, 1 the lists in it (the rows of a batch).
UNORDERED = {"window_agg": 1, "assign": 1, "timer": 1, "chain": 1, "session_merge": 0, "join": 0}


class Fields(dict[str, Any]):
    """An object of JSON that knows which of its fields nobody has read."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.unread = set(fields)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.unread.discard(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.unread.discard(name)
        return super().get(name, default)

    def items(self) -> ItemsView[str, Any]:
        self.unread.clear()
        return super().items()


def load_cases(pattern: str = "*.jsonl") -> list[Fields]:
    """The cases of the files of tests/cases that match, in the order of the files' names."""
    lines = [line for path in sorted(CASES.glob(pattern)) for line in path.read_text().splitlines() if line]
    return [json.loads(line, object_hook=Fields) for line in lines]


def unread(case: Fields) -> set[str]:
    """Fields of a played case that are no answer, have no reason in NO_ASSERTION, and were read by nobody."""
    return {
        field
        for field in _unread(case, "")
        if field not in ANSWERS | NO_ASSERTION.keys() and f"{case['kind']}:{field}" not in NO_ASSERTION
    }


def _unread(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _unread(each, path)
    elif isinstance(value, Fields):
        for name, each in dict.items(value):
            inner = f"{path}.{name}" if path else name
            if name in value.unread:
                yield inner
            elif inner not in ANSWERS:
                yield from _unread(each, inner)


def differences(case: dict[str, Any], played: dict[str, Any]) -> list[str]:
    """The answers of `case` that are not what was played, a text for each; empty if all are. played: by name."""
    kind = case.get("kind", "window_agg")
    found = []
    for name in sorted(ANSWERS & case.keys()):
        expected, actual = case[name], played.get(name, "nothing")
        if name == "expected_by_system":
            expected = {label: REMARK.sub("", e) if isinstance(e, str) else e for label, e in expected.items()}
        if (kind, name) in IN_PART and len(expected) == len(actual):
            pairs = zip(expected, actual, strict=True)
            actual = [{n: a.get(n) for n in e} if isinstance(e, dict) else a for e, a in pairs]
        unordered = UNORDERED.get(kind) if name == "expected" and not case.get("ordered", False) else None
        left, right = exact(expected, unordered), exact(actual, unordered)
        if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
            places = [(f"{name}[{i}]", *pair) for i, pair in enumerate(zip(left, right, strict=True))]
        else:
            places = [(name, left, right)]
        found += [f"{place}\n  expected {e}\n  played   {p}" for place, e, p in places if e != p]
    return found


def exact(value: Any, unordered: int | None = None) -> Any:
    """A value to be compared by ==: lists at depth `unordered` sorted, floats to 12 digits, all else as it is, and
    values of several types (1, 1.0, true, "1") apart from each other."""
    if isinstance(value, list):
        items = [exact(each, None if unordered is None else unordered - 1) for each in value]
        return sorted(items, key=str) if unordered == 0 else items
    if isinstance(value, dict):
        return {name: exact(each) for name, each in sorted(value.items())}
    if isinstance(value, float):
        return f"float {value:.12g}"
    return value if value is None or type(value) is int else f"{type(value).__name__} {value}"
