"""Stateful operators out of the text of a plan, as ``df.explain(extended=True)`` or ``query.explain()`` prints it.

The text says less than the plan that the plugin sees: not the types of keys and aggregates, for instance. What is said
here is therefore never more than "can be", and "may be" where the grouping itself is not in the text;
``gw.spark.explain`` on the query itself decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Final, Literal

from .errors import QualifyError
from .window_column import NO_WINDOW, OF_WINDOWS, Node, parts, until_closed, windows_of

Verdict = Literal["on gpuwin", "can be offloaded", "may be offloaded", "stays with Spark", "undecided"]

_NODE: Final = re.compile(r"^(?P<indent>[\s:|]*(?:[+:]- )?)(?:\*\(\d+\) )?(?P<name>[A-Za-z]\w*)(?P<rest>.*)$")
_MERGED: Final = re.compile(r"(?:partial_|merge_)(\w+)\(")
_SIZE: Final = re.compile(r"\+ (\d+)\), LongType, TimestampType")
_SLIDE: Final = re.compile(r"% (\d+)\)")
_ON_GPUWIN: Final = re.compile(r"(tumbling|sliding|session|each event time)\b[^,]*")
_SUM: Final = re.compile(r"partial_((?:try_)?(?:sum|avg))\(")
_DISTINCT: Final = re.compile(r"\bdistinct ", re.IGNORECASE)  # not approx_count_distinct, nor a column's name
_BY: Final = re.compile(r"(?:partial|merge)_(max_by|min_by)\(")
_SEVERAL: Final = re.compile(r", \d+, (?:true|false), \d+, \d+$")  # the end of their arguments where there is a third
_DECIMAL: Final = re.compile(r"decimal\((\d+),-?\d+\)")
_READ: Final = re.compile(r"ReadSchema: struct<(.*)>")
_EVENT_TIME: Final = re.compile(r"#\d+-T\d+ms\b")  # a column with a watermark

_CUT: Final = re.compile(r"\.\.\. \d+ more fields")  # in the place of what a node has above 25 columns

#: Sums of decimals with more digits than this have no room for ten more, and stay with Spark (`MergeSpec.scala`).
MOST_DIGITS: Final = 28
#: Deduplications, which a setting puts on gpuwin.
DEDUPLICATIONS: Final = ("StreamingDeduplicate", "StreamingDeduplicateWithinWatermark")
#: Why they stay with Spark.
NOT_ASKED: Final = "spark.gpuwin.deduplicate is false"
#: Nodes of a physical plan that keep state, which gpuwin never replaces.
OTHER_STATEFUL: Final = (
    "StreamingSymmetricHashJoin",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "StreamingGlobalLimit",
)
#: Why another stateful operator stays with Spark.
NO_AGGREGATION: Final = "gpuwin offloads aggregations by window, and this is another stateful operator"

#: Why groups without a key stay there.
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
    nodes = [Node(len(m["indent"]), m["name"], m["rest"]) for m in map(_NODE.match, lines) if m]
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
        for at, node in enumerate(nodes)
        if (operator := _operator(node.name, node.rest, _below(nodes, at))) is not None
    )


def _physical(text: str) -> str:
    if "== Physical Plan ==" in text:
        text = text.split("== Physical Plan ==")[-1]
    elif "== Analyzed Logical Plan ==" in text or "== Parsed Logical Plan ==" in text:
        raise QualifyError("The text has logical plans only. Give what df.explain(extended=True) prints, to its end.")
    return re.split(r"^== ", text, maxsplit=1, flags=re.MULTILINE)[0]


def _below(nodes: Sequence[Node], at: int) -> list[Node]:
    return list(takewhile(lambda node: node.depth > nodes[at].depth, nodes[at + 1 :]))


def _operator(name: str, rest: str, below: list[Node]) -> PlannedOperator | None:
    if name == "GpuWindow":
        window = _ON_GPUWIN.search(rest)
        return PlannedOperator(name, "on gpuwin", f"{window[0] if window else 'a window'} already runs on gpuwin")
    if name == "SessionWindowStateStoreSave":
        return _judged(name, below, None, None)
    if name == "StateStoreSave":
        return _windowed(name, rest, below)
    if name == "GpuWindowDeduplicate":
        return PlannedOperator(name, "on gpuwin", "a deduplication already runs on gpuwin")
    if name in DEDUPLICATIONS:
        return PlannedOperator(name, "stays with Spark", NOT_ASKED)
    if name in OTHER_STATEFUL:
        return PlannedOperator(name, "stays with Spark", NO_AGGREGATION)
    return None


def _windowed(name: str, rest: str, below: list[Node]) -> PlannedOperator:
    keys = rest.split("]")[0]
    windows = windows_of(keys, below)
    if windows is None:
        if _CUT.search(keys) or any(_CUT.search(node.rest) for node in below if node.name in OF_WINDOWS):
            return PlannedOperator(name, "undecided", CUT)
        if _EVENT_TIME.search(keys) and "window" not in keys:
            return _judged(name, below, 1, 1, "the event time itself")
        if "window" not in keys:
            return PlannedOperator(name, "stays with Spark", NO_WINDOW if "#" in keys else NO_KEY)
        return PlannedOperator(
            name, "undecided", "its grouping has a window column, but the plan does not show how it is computed"
        )
    if windows.stays is not None:
        return PlannedOperator(name, "stays with Spark", windows.stays)
    first = below[windows.at].rest.split("AS ")[0]
    size, slide = _SIZE.search(first), _SLIDE.search(first)
    if size is None or slide is None:
        if _CUT.search(first):
            return PlannedOperator(name, "undecided", CUT)
        return PlannedOperator(name, "undecided", "its window expression cannot be read out of the text")
    if not windows.known:
        return _unknown(
            name, keys, _judged(name, below, int(size[1]), int(slide[1] if windows.one is None else size[1]))
        )
    if windows.one is not None:
        what = f"one window of a sliding one, of which Spark makes the copies, since {windows.one},"
        return _judged(name, below, int(size[1]), int(size[1]), what)  # rows come with their window
    return _judged(name, below, int(size[1]), int(slide[1]))


def _unknown(name: str, keys: str, judged: PlannedOperator) -> PlannedOperator:
    """Judgement where windows are made below, and no text says that the grouping has them: the results of an
    aggregation, and what a Python function returns, have other names than what they are made of.
    """
    if judged.verdict != "can be offloaded":
        return judged
    if "#" not in keys:
        return PlannedOperator(name, "stays with Spark", NO_KEY)
    if _CUT.search(keys):
        return PlannedOperator(name, "undecided", CUT)
    why = "if it groups by the windows that are made below, which the plan does not show; " + judged.reason
    return replace(judged, verdict="may be offloaded", reason=why)


def _judged(
    name: str, below: list[Node], size: int | None, slide: int | None, what: str = "a window"
) -> PlannedOperator:
    aggregates = [node.rest for node in below if node.name.endswith("Aggregate")]
    aggregates += [node.rest for node in below if node.name == "MergingSessions"]
    asked = [
        rest.partition("], output=[")[0] for rest in aggregates[:2]
    ]  # buffers, of which some have many, may be cut
    functions = sorted({f for r in asked for f in _MERGED.findall(r)})
    merged = merged_functions()
    others = [f for f in functions if f not in merged]
    if any(_DISTINCT.search(r) for r in asked):
        return PlannedOperator(name, "stays with Spark", "an aggregate is DISTINCT", size, slide)
    if others:
        names = ", ".join(others)
        return PlannedOperator(
            name, "stays with Spark", f"the buffer of {names} cannot be merged by gpuwin", size, slide
        )
    if size is None and "pivotfirst" in functions:
        return PlannedOperator(name, "stays with Spark", PIVOT_OF_SESSIONS)
    if (several := _of_several(asked)) is not None:
        return PlannedOperator(name, "stays with Spark", several, size, slide)
    if (lost := _without_room(below)) is not None:
        return PlannedOperator(name, "stays with Spark", lost, size, slide)
    if any(_CUT.search(r) for r in asked):
        return PlannedOperator(name, "undecided", CUT, size, slide)
    if size is None:
        what = "a session window"
    said = (
        f"{what} with {', '.join(functions) or 'no aggregates'}; the types of its keys and values are not in the text"
    )
    if any("isEmpty#" in r for r in aggregates):  # a buffer that only sums of decimals have
        said += f", and a sum of decimals of more than {MOST_DIGITS} digits stays with Spark"
    return PlannedOperator(name, "can be offloaded", said, size, slide)


def _of_several(aggregates: Sequence[str]) -> str | None:
    """Why a max_by or min_by of several values stays with Spark."""
    for called in (found for rest in aggregates for found in _BY.finditer(rest)):
        if _SEVERAL.search(until_closed(called.string[called.end() :])):
            return f"{called[1]} has a third argument, and gpuwin merges buffers of one value"
    return None


def _without_room(below: list[Node]) -> str | None:
    """Why a sum or an average of decimals stays with Spark, where the text says of what type its input is: by a cast,
    or by the schema of the files that are read.
    """
    read: dict[str, str] = {}
    for _, _, rest in below:
        if found := _READ.search(rest):
            read |= {name: kind for name, _, kind in (field.partition(":") for field in parts(found[1], "<(", ">)"))}
    for _, node, rest in below:
        for summed in _SUM.finditer(rest) if node.endswith("Aggregate") else ():
            value = until_closed(rest[summed.end() :])
            cast = value.startswith("cast(") and until_closed(value[5:]) == value[5:-1]
            kind = value[:-1].rpartition(" as ")[2] if cast else read.get(value.partition("#")[0], "")
            digits = _DECIMAL.fullmatch(kind)
            if digits and int(digits[1]) > MOST_DIGITS:
                return (
                    f"{summed[1]} over {kind} has no room for the total: Spark loses one that leaves 38 digits on the "
                    "way, which depends on the order of the rows"
                )
    return None
