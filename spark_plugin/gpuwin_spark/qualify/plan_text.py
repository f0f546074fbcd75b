"""Stateful operators out of the text of a plan, as ``df.explain(extended=True)`` or ``query.explain()`` prints it.

The text says less than the plan that the plugin sees: not the types of keys and aggregates, for instance. What is said
here is therefore never more than "can be"; ``gw.spark.explain`` on the query itself decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from .errors import QualifyError

Verdict = Literal["on gpuwin", "can be offloaded", "stays with Spark", "undecided"]

_NODE: Final = re.compile(r"^(?P<indent>[\s:|]*(?:[+:]- )?)(?:\*\(\d+\) )?(?P<name>[A-Za-z]\w*)(?P<rest>.*)$")
_MERGED: Final = re.compile(r"(?:partial_|merge_)(\w+)\(")
_SIZE: Final = re.compile(r"\+ (\d+)\), LongType, TimestampType")
_SLIDE: Final = re.compile(r"% (\d+)\)")
_ON_GPUWIN: Final = re.compile(r"(tumbling|sliding|session|each event time)\b[^,]*")
_SUM: Final = re.compile(r"partial_((?:try_)?(?:sum|avg))\(")
_DECIMAL: Final = re.compile(r"decimal\((\d+),-?\d+\)")
_READ: Final = re.compile(r"ReadSchema: struct<(.*)>")
_OF_EVERY_PANE: Final = re.compile(r"\S+ >= \S+\.start\b|\S+ < \S+\.end\b|isnotnull\([^()]*\)")
_BOUND: Final = re.compile(r"#\d+(?:-T\d+ms)?\.(?:start|end)\b")  # of a window
_EVENT_TIME: Final = re.compile(r"#\d+-T\d+ms\b")  # a column with a watermark

_OF_WINDOWS: Final = ("Expand", "Project", "OverlappingWindows")  # nodes that make windows
_MADE: Final = "named_struct(start"  # a window, made of its bounds
_CUT: Final = re.compile(r"\.\.\. \d+ more fields")  # in the place of what a node has above 25 columns

#: Sums of decimals with more digits than this have no room for ten more, and stay with Spark (`MergeSpec.scala`).
MOST_DIGITS: Final = 28
#: Nodes of a physical plan that keep state, other than the two that gpuwin may replace.
OTHER_STATEFUL: Final = (
    "StreamingDeduplicate",
    "StreamingDeduplicateWithinWatermark",
    "StreamingSymmetricHashJoin",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "StreamingGlobalLimit",
)
#: Why another stateful operator stays with Spark.
NO_AGGREGATION: Final = "gpuwin offloads aggregations by window, and this is another stateful operator"

#: Why groups without a window stay there.
NO_WINDOW: Final = "it groups neither by a window(...) nor by the event time, and spark.gpuwin.withoutWindow is false"
NO_KEY: Final = "it groups by nothing, so that its state is one row"
#: Why the upper aggregation of a pivot stays there (`MergeSpec.scala`).
PIVOT_OF_SESSIONS: Final = (
    "one value of its pivot may take the place of another, over sessions, in an order that gpuwin does not keep"
)
#: Why a node that decides says too little.
CUT: Final = "the plan was cut; set spark.sql.debug.maxToStringFields=1000 and print it again"


@cache
def merged_functions() -> frozenset[str]:
    """Spark's functions that the plugin merges, by the table of aggregates."""
    from gpuwin.planning.aggregates import ON_SPARK  # which brings in Numba

    return frozenset(name for one in ON_SPARK for name in one.functions)


@dataclass(frozen=True)
class PlannedOperator:
    """One stateful operator of a plan.

    Attributes:
        node: its name in the plan, such as "StateStoreSave".
        verdict: where it runs, or could.
        reason: why, in a sentence.
        size_us, slide_us: of its window, in microseconds; None where the text does not say, or for sessions.
    """

    node: str
    verdict: Verdict
    reason: str
    size_us: int | None = None
    slide_us: int | None = None

    @property
    def overlap(self) -> int | None:
        """In how many windows a row lies: ceil(size / slide)."""
        return None if not self.size_us or not self.slide_us else -(-self.size_us // self.slide_us)


def is_plan(text: str) -> bool:
    """Whether this looks like a plan rather than anything else."""
    return "== Physical Plan ==" in text or re.search(r"^\s*[+:]- ", text, re.MULTILINE) is not None


def read_plan(text: str) -> tuple[PlannedOperator, ...]:
    """The stateful operators of the physical plan, top down; none for a plan without state.

    Raises:
        QualifyError: there is no physical plan in the text, or it is one of ``explain("formatted")``.
    """
    lines = _physical(text).splitlines()
    nodes = [(len(m["indent"]), m["name"], m["rest"]) for m in map(_NODE.match, lines) if m]
    if not nodes:
        raise QualifyError("There is no plan under == Physical Plan ==. Give what df.explain(extended=True) prints.")
    if all(re.match(r"^ \(\d+\)", rest) for _, _, rest in nodes if rest.strip()) and any(
        r.strip() for _, _, r in nodes
    ):
        raise QualifyError(
            'This is the plan of explain("formatted"), whose tree lacks the windows and aggregates. Give what '
            "df.explain(extended=True) or query.explain(extended=True) prints."
        )
    return tuple(
        operator
        for at, (depth, name, rest) in enumerate(nodes)
        if (operator := _operator(name, rest, _below(nodes, at, depth))) is not None
    )


def _physical(text: str) -> str:
    if "== Physical Plan ==" in text:
        text = text.split("== Physical Plan ==")[-1]
    elif "== Analyzed Logical Plan ==" in text or "== Parsed Logical Plan ==" in text:
        raise QualifyError("The text has logical plans only. Give what df.explain(extended=True) prints, to its end.")
    return re.split(r"^== ", text, maxsplit=1, flags=re.MULTILINE)[0]


def _below(nodes: Sequence[tuple[int, str, str]], at: int, depth: int) -> list[tuple[str, str]]:
    found = []
    for d, name, rest in nodes[at + 1 :]:
        if d <= depth:
            break
        found.append((name, rest))
    return found


def _operator(name: str, rest: str, below: list[tuple[str, str]]) -> PlannedOperator | None:
    if name == "GpuWindow":
        window = _ON_GPUWIN.search(rest)
        return PlannedOperator(name, "on gpuwin", f"{window[0] if window else 'a window'} already runs on gpuwin")
    if name == "SessionWindowStateStoreSave":
        return _judged(name, below, None, None)
    if name == "StateStoreSave":
        return _windowed(name, rest, below)
    if name in OTHER_STATEFUL:
        return PlannedOperator(name, "stays with Spark", NO_AGGREGATION)
    return None


def _windowed(name: str, rest: str, below: list[tuple[str, str]]) -> PlannedOperator:
    at = _window_at(below)
    keys = rest.split("]")[0]
    if at is None:
        if _CUT.search(keys) or any(_CUT.search(r) for n, r in below if n in _OF_WINDOWS):
            return PlannedOperator(name, "undecided", CUT)
        if _EVENT_TIME.search(keys) and "window" not in keys:
            return _judged(name, below, 1, 1, "the event time itself")
        if "window" not in keys:
            return PlannedOperator(name, "stays with Spark", NO_WINDOW if "#" in keys else NO_KEY)
        return PlannedOperator(
            name, "undecided", "its grouping has a window column, but the plan does not show how it is computed"
        )
    first = below[at][1].split("AS ")[0]
    size, slide = _SIZE.search(first), _SLIDE.search(first)
    if size is None or slide is None:
        if _CUT.search(first):
            return PlannedOperator(name, "undecided", CUT)
        return PlannedOperator(name, "undecided", "its window expression cannot be read out of the text")
    if below[at][0] != "Project" and (reason := _above_copies(below[:at])) is not None:
        what = f"one window of a sliding one, of which Spark makes the copies, since {reason},"
        return _judged(name, below, int(size[1]), int(size[1]), what)  # rows come with their window
    return _judged(name, below, int(size[1]), int(slide[1]))


def _window_at(below: list[tuple[str, str]]) -> int | None:
    """The number of the node that makes the window of a row."""
    return next((i for i, (node, rest) in enumerate(below) if node in _OF_WINDOWS and _MADE in rest), None)


def _above_copies(nodes: list[tuple[str, str]]) -> str | None:
    """Why rows are copied into their windows in spite of gpuwin, by the nodes above the copies; see
    ``LowerToPanes.scala``."""
    for node, rest in nodes:
        if node in ("StateStoreSave", "GpuWindow"):
            return "its windows are those of an aggregation below"
        if node == "Generate":
            return "rows are made of them before the aggregation"
        if node == "Filter" and _BOUND.search(_OF_EVERY_PANE.sub("", rest)):
            return "a condition on the window is tested before the aggregation"
        if node == "Project" and _BOUND.search(rest):
            return "another column is computed from the window before the aggregation"
    return None


def _judged(
    name: str, below: list[tuple[str, str]], size: int | None, slide: int | None, what: str = "a window"
) -> PlannedOperator:
    aggregates = [r for n, r in below if n.endswith("Aggregate")] + [r for n, r in below if n == "MergingSessions"]
    functions = sorted({f for r in aggregates[:2] for f in _MERGED.findall(r)})
    merged = merged_functions()
    others = [f for f in functions if f not in merged]
    if "distinct" in " ".join(aggregates[:2]).lower():
        return PlannedOperator(name, "stays with Spark", "an aggregate is DISTINCT", size, slide)
    if others:
        names = ", ".join(others)
        return PlannedOperator(
            name, "stays with Spark", f"the buffer of {names} cannot be merged by gpuwin", size, slide
        )
    if size is None and "pivotfirst" in functions:
        return PlannedOperator(name, "stays with Spark", PIVOT_OF_SESSIONS)
    if (lost := _without_room(below)) is not None:
        return PlannedOperator(name, "stays with Spark", lost, size, slide)
    if any(_CUT.search(r) for r in aggregates[:2]):
        return PlannedOperator(name, "undecided", CUT, size, slide)
    if size is None:
        what = "a session window"
    said = (
        f"{what} with {', '.join(functions) or 'no aggregates'}; the types of its keys and values are not in the text"
    )
    if any("isEmpty#" in r for r in aggregates):  # a buffer that only sums of decimals have
        said += f", and a sum of decimals of more than {MOST_DIGITS} digits stays with Spark"
    return PlannedOperator(name, "can be offloaded", said, size, slide)


def _without_room(below: list[tuple[str, str]]) -> str | None:
    """Why a sum or an average of decimals stays with Spark, where the text says of what type its input is: by a cast,
    or by the schema of the files that are read.
    """
    read: dict[str, str] = {}
    for _, rest in below:
        if found := _READ.search(rest):
            read |= {name: kind for name, _, kind in (field.partition(":") for field in _split(found[1]))}
    for node, rest in below:
        for summed in _SUM.finditer(rest) if node.endswith("Aggregate") else ():
            value = _until_closed(rest[summed.end() :])
            cast = value.startswith("cast(") and _until_closed(value[5:]) == value[5:-1]
            kind = value[:-1].rpartition(" as ")[2] if cast else read.get(value.partition("#")[0], "")
            digits = _DECIMAL.fullmatch(kind)
            if digits and int(digits[1]) > MOST_DIGITS:
                return (
                    f"{summed[1]} over {kind} has no room for the total: Spark loses one that leaves 38 digits on the "
                    "way, which depends on the order of the rows"
                )
    return None


def _until_closed(text: str) -> str:
    """The text before the parenthesis that closes one opened before it."""
    depth = 1
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[:at]
    return text


def _split(fields: str) -> list[str]:
    """The fields of a struct type, at the commas that are in no type."""
    parts, depth = [""], 0
    for c in fields:
        depth += (c in "<(") - (c in ">)")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts
