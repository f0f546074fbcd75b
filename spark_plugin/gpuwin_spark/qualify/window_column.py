"""Where the windows that an aggregation groups by come from, by the nodes below it in the text of a plan.

The rules are those of ``LowerToPanes.scala`` and ``ComputedWindow.scala``, as far as a text tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

OF_WINDOWS: Final = ("Expand", "Project", "OverlappingWindows")  # nodes that make windows
_MADE: Final = "named_struct(start"  # a window, made of its bounds
_COPIES: Final = ("Expand", "OverlappingWindows")  # nodes that make one of each window of a row
_AGGREGATIONS: Final = ("StateStoreSave", "GpuWindow")
_PASSED: Final = re.compile(r"Project|Filter|Expand|Sort|\w*EvalPython")  # nodes that panes are made through

_COLUMN: Final = re.compile(r"#(\d+)L?(?:-T\d+ms)?")
_ATTRIBUTE: Final = re.compile(r"[^#]*#(\d+)L?(?:-T\d+ms)?")
_NAMED: Final = re.compile(r"(?s)(.*) AS [^#]*#(\d+)L?(?:-T\d+ms)?")
_BOUND: Final = re.compile(r"#\d+(?:-T\d+ms)?\.(?:start|end)\b")  # of a window
_OF_EVERY_PANE: Final = re.compile(r"\S+ >= \S+\.start\b|\S+ < \S+\.end\b")
#: What Spark computes of the bounds of a window and is never null.
_NEVER_NULL: Final = re.compile(
    r"(?:[\s(),+\-*%<>=\d]|\w+#\d+(?:-T\d+ms)?\.(?:start|end)\b|precisetimestampconversion|knownnullable"
    r"|TimestampType|TimestampNTZType|LongType|\b(?:CASE|WHEN|THEN|ELSE|END)\b)*"
)
_JOIN: Final = re.compile(r", (Inner|Cross|LeftSemi|LeftAnti|LeftOuter|RightOuter|FullOuter|ExistenceJoin)\b(?!#)")

#: Why groups without a window stay with Spark.
NO_WINDOW: Final = "it groups neither by a window(...) nor by the event time, and spark.gpuwin.withoutWindow is false"
COMPUTED: Final = "its window column is computed by an expression other than window(...)"
NOT_IN_ALL: Final = "rows are expanded for grouping sets that do not all have the window"
OF_UNION: Final = "its window is a column of a union whose sides have sliding windows, or windows of different grids"
MAY_BE_NULL: Final = "its window comes through an outer join, which may put nulls in its place"


class Node(NamedTuple):
    """A line of a plan: how far it is indented, the name of the node, and the rest."""

    depth: int
    name: str
    rest: str


@dataclass(frozen=True)
class Windows:
    """Origin of the windows of an aggregation's rows.

    Attributes:
        at: the number of the node that does, among those below the aggregation.
        stays: why the aggregation stays with Spark because of it, if it does.
        one: why a row comes with one of its sliding windows, of which Spark makes the copies; None where gpuwin makes
            panes in their place.
        known: whether the grouping was followed down to this node.
    """

    at: int
    stays: str | None
    one: str | None
    known: bool


def windows_of(keys: str, below: Sequence[Node]) -> Windows | None:
    """The windows of an aggregation's rows; None where no node makes any.

    Args:
        keys: the grouping columns, as the node of the aggregation lists them.
        below: the nodes below that node, as the text has them.
    """
    found = [way for column in _COLUMN.findall(keys) if (way := _followed(column, below)) is not None]
    ways = [way for way in found if way[1] is None] or found
    places = (i for i, node in enumerate(below) if node.name in OF_WINDOWS and _MADE in node.rest)
    at, stays = ways[0] if ways else (next(places, None), None)
    if at is None:
        return None
    aggregates, between = _between(below, at)
    one = None if below[at].name == "Project" else _why_one(aggregates, [below[i] for i in between])
    return Windows(at, stays or _not_of_one_grid(below, between, at), one, bool(ways))


def _followed(column: str, below: Sequence[Node], start: int = 0) -> tuple[int, str | None] | None:
    """The node that makes the window of a column, and why that window is none of gpuwin's, if it is none; None for a
    column that is no window.
    """
    for at in range(start, len(below)):
        made = _made(column, below[at])
        if made is None:
            continue
        if all(value.startswith(_MADE) for value in made):
            return at, None
        if len(made) == 1 and (renamed := _ATTRIBUTE.fullmatch(made[0])):
            column = renamed[1]
            continue
        used = [c for value in made for c in _COLUMN.findall(value)]
        sources = (_followed(c, below, at + 1) for c in used)
        source = next((s for s in sources if s is not None), None)
        if source is None and not any(_MADE in value for value in made):
            return None
        reason = NOT_IN_ALL if "null" in made else NO_WINDOW if all(_BOUND.search(v) for v in made) else COMPUTED
        return at if source is None else source[0], reason
    return None


def _made(column: str, node: Node) -> Sequence[str] | None:
    """The expressions that a node makes the column of, one for each copy of a row; None where it only passes it on."""
    lists = [text for text in parts(node.rest) if text.startswith("[")]
    if node.name == "Project" and lists:
        named = (_NAMED.fullmatch(item) for item in parts(lists[0][1:-1]))
        return next(([n[1]] for n in named if n is not None and n[2] == column), None)
    if node.name == "Expand" and len(lists) == 2:
        output = [_ids(item) for item in parts(lists[1][1:-1])]
        copies = [parts(copy[1:-1]) for copy in parts(lists[0][1:-1]) if not copy.startswith("...")]  # cut
        if column not in output or any(len(copy) != len(output) for copy in copies):
            return None
        values = list(dict.fromkeys(copy[output.index(column)] for copy in copies))
        return None if [_ids(v) for v in values] == [column] else values
    if node.name == "Generate" and lists and column in map(_ids, parts(lists[-1][1:-1])):
        return [node.rest.partition(", [")[0]]
    if node.name == "OverlappingWindows" and column in _COLUMN.findall(node.rest) and _MADE in node.rest:
        return [node.rest.strip()]
    return None


def _ids(attribute: str) -> str | None:
    found = _ATTRIBUTE.fullmatch(attribute)
    return found[1] if found else None


def _between(below: Sequence[Node], at: int) -> tuple[list[Node], list[int]]:
    """The three aggregates of an aggregation, and the nodes that rows pass on their way to them from node `at`, from
    there on down.
    """
    path, depth = [], below[at].depth
    for i in range(at - 1, -1, -1):
        if below[i].depth < depth:
            path.append(i)
            depth = below[i].depth
    path.reverse()
    aggregates = [i for i, node in enumerate(path) if below[node].name.endswith("Aggregate")][:3]
    return [below[path[i]] for i in aggregates], path[aggregates[-1] + 1 :] if aggregates else path


def _why_one(aggregates: Sequence[Node], between: Sequence[Node]) -> str | None:
    if any(_BOUND.search(node.rest.rpartition("functions=[")[2]) for node in aggregates):
        return "an aggregate reads the window"
    if any(node.name in _AGGREGATIONS for node in between):
        return "its windows are those of an aggregation below"
    for node in between:
        if node.name == "Generate":
            return "rows are made of them before the aggregation"
        if node.name == "Filter" and _BOUND.search(_OF_EVERY_PANE.sub("", _without_null_checks(node.rest))):
            return "a condition on the window is tested before the aggregation"
        if node.name == "Project" and _BOUND.search(node.rest):
            return "another column is computed from the window before the aggregation"
        if not _PASSED.fullmatch(node.name):
            return f"{node.name} stands between them and the aggregation"
    return None


def _without_null_checks(condition: str) -> str:
    """The condition without those that Spark derives: that what it computes of the window is not null."""
    kept, _, rest = condition.partition("isnotnull(")
    while rest:
        checked = until_closed(rest)
        kept += "" if _NEVER_NULL.fullmatch(checked) else checked
        text, _, rest = rest[len(checked) :].partition("isnotnull(")
        kept += text
    return kept


def _not_of_one_grid(below: Sequence[Node], between: Sequence[int], at: int) -> str | None:
    """Why what stands between leaves no window of one grid, as far as it is not an aggregation."""
    for i, node in enumerate(between):
        if below[node].name in _AGGREGATIONS:
            return None
        if below[node].name == "Union" and _is_of_several_grids(below, node):
            return OF_UNION
        kind = _JOIN.search(below[node].rest)
        if kind is not None and "Join" in below[node].name:
            first = (between[i + 1] if i + 1 < len(between) else at) == node + 1
            if kind[1] in ("FullOuter", "ExistenceJoin", "RightOuter" if first else "LeftOuter"):
                return MAY_BE_NULL
    return None


def _is_of_several_grids(below: Sequence[Node], union: int) -> bool:
    """Whether the sides of a union, where they aggregate nothing themselves, have sliding or different windows."""
    made = set()
    for node in _side(below, union):
        if node.name in OF_WINDOWS and _MADE in node.rest:
            if node.name in _COPIES:
                return True
            window = node.rest[node.rest.index(_MADE) :]
            made.add(_COLUMN.sub("", window[: len(_MADE) + len(until_closed(window[len("named_struct(") :]))]))
    return len(made) > 1


def _side(below: Sequence[Node], top: int) -> Iterator[Node]:
    """The nodes below one, without those below an aggregation."""
    deepest = None
    for node in below[top + 1 :]:
        if node.depth <= below[top].depth:
            return
        if deepest is not None and node.depth > deepest:
            continue
        deepest = node.depth if node.name in _AGGREGATIONS else None
        yield node


def until_closed(text: str) -> str:
    """The text before the parenthesis that closes one opened before it."""
    depth = 1
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[:at]
    return text


@lru_cache(maxsize=256)  # the copies of a row may be megabytes, and each column is looked for among them
def parts(text: str, opening: str = "([", closing: str = ")]") -> tuple[str, ...]:
    """The parts of a list, at the commas that are in no brackets."""
    found: list[str] = []
    depth = start = 0
    for mark in re.finditer(f"[{re.escape(opening + closing)},]", text):
        depth += (mark[0] in opening) - (mark[0] in closing)
        if mark[0] == "," and depth == 0:
            found.append(text[start : mark.start()])
            start = mark.end()
    found.append(text[start:])
    return tuple(part.strip() for part in found)
