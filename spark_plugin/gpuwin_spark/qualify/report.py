"""The text that ``gpuwin qualify`` prints."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .errors import QualifyError
from .gain import estimate
from .plan_text import NO_AGGREGATION, NOT_ASKED, PlannedOperator, is_plan, read_plan
from .progress import MOST, OperatorReport, QueryRun, compression_of, read_progress

_CAVEAT: Final = (
    "This is the range of an estimate from what Spark reports, not a measurement: it knows nothing of the sink, of "
    "skew or of the machine, and no report has the time of the copies of rows. Measure one query before relying on it."
)
_OFFLOADED: Final = ("may be offloaded", "can be offloaded")
_SESSIONS: Final = ("may be offloaded", "a session window; its functions are in its plan only")
#: "defaultName" is what Spark 3.5 says for sessions, and for nothing else.
_AGGREGATIONS: Final = ("stateStoreSave", "sessionWindowStateStoreSaveExec", "defaultName")
_SAVING: Final = ("StateStoreSave", "SessionWindowStateStoreSave")
_BY_NAME: Final = {
    "stateStoreSave": (
        "may be offloaded",
        "an aggregation; whether it groups by a window, and by which functions, is in its plan only",
    ),
    "sessionWindowStateStoreSaveExec": _SESSIONS,
    "defaultName": _SESSIONS,
    "dedupe": ("stays with Spark", NOT_ASKED),
    "dedupeWithinWatermark": ("stays with Spark", NOT_ASKED),
    "gpuwin": ("on gpuwin", "it runs there already"),
}
log = logging.getLogger("gpuwin")
_OTHER: Final = ("stays with Spark", NO_AGGREGATION)


def qualify(
    sources: Sequence[str], *, size_us: int | None = None, slide_us: int | None = None, cores: int | None = None
) -> str:
    """Report of what gpuwin would take over, what not and why, with a range for the gain.

    Args:
        sources: files or folders with plans, progress reports or event logs, in any mixture; "-" is standard input.
            What cannot be read in a folder is skipped, which the log says.
        size_us, slide_us: the window, where no plan says; microseconds.
        cores: cores that the query had, where fewer than partitions.

    Raises:
        QualifyError: something cannot be read, or says nothing about a query.
    """
    planned, reports, unnamed = _sorted(sources)
    if not planned and not reports:
        raise QualifyError(f"Nothing in {', '.join(sources)} can be read. Give plans, progress reports or event logs.")
    operators = [o for _, found in planned for o in found]
    lines = [line for name, found in planned for line in _about_plan(name, found)]
    overlap = -(-size_us // slide_us) if size_us and slide_us else None
    known = [o for o in operators if o.overlap]
    if overlap is None and len(known) == 1:
        overlap = known[0].overlap
    if reports:
        aggregations = [o for o in operators if o.node in _SAVING]
        for run in read_progress(reports, unnamed):
            lines += _about_run(run, overlap, cores, aggregations)
    elif any(o.verdict in _OFFLOADED for o in operators):
        lines.append("The gain cannot be told from a plan; give the query's progress reports or event log as well.")
    return "\n".join(lines)


def _sorted(sources: Sequence[str]) -> tuple[list[tuple[str, tuple[PlannedOperator, ...]]], list[Path], set[Path]]:
    """Plans by their names, files to be read as progress, and those of them that nobody named: a folder has them."""
    planned: list[tuple[str, tuple[PlannedOperator, ...]]] = []
    reports: list[Path] = []
    unnamed: set[Path] = set()
    for source in sources:
        for path in _files(source):
            try:
                if path is None or not path.is_file():  # a pipe can be read once
                    planned.append(_plan_from_pipe(path))
                elif (text := _plan_in(path)) is None:
                    reports.append(path)
                    unnamed |= {path} - {Path(source)}
                else:
                    planned.append((path.name, read_plan(text)))
            except QualifyError as e:
                if path is None or path == Path(source):
                    raise
                log.warning("%s It was skipped.", e)
    return planned, reports, unnamed


def _plan_from_pipe(path: Path | None) -> tuple[str, tuple[PlannedOperator, ...]]:
    name = "Standard input" if path is None else str(path)
    try:
        text = sys.stdin.read() if path is None else path.read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        raise QualifyError(f"{path} cannot be read: {e.strerror}.") from e
    if not is_plan(text):
        raise QualifyError(f"{name} is not the text of a plan. Progress reports are read from files.")
    return "standard input" if path is None else path.name, read_plan(text)


def _plan_in(path: Path) -> str | None:
    """The text of a plan; None where the file has JSON, or is compressed."""
    try:
        with path.open("rb") as f:
            head = f.read(1 << 16)
            if not head.strip():
                raise QualifyError(f"{path} is empty.")
            if head.lstrip()[:1] in (b"{", b"[") or compression_of(path):
                return None
            text = (head + f.read(MOST)).decode(errors="replace")
    except OSError as e:
        raise QualifyError(f"{path} cannot be read: {e.strerror}.") from e
    if not is_plan(text):
        raise QualifyError(
            f"{path} is neither the text of a plan nor JSON. Give what df.explain(extended=True) prints, progress "
            "reports as JSON, or a Spark event log."
        )
    return text


def _files(source: str) -> list[Path | None]:
    if source == "-":
        return [None]
    path = Path(source)
    if not path.exists():
        raise QualifyError(f"There is no {source}.")
    if not path.is_dir():
        return [path]
    # Of the folder of an event log, the marker of its state is empty and no log.
    found = [p for p in sorted(path.rglob("*")) if p.is_file() and p.stat().st_size and p.name[:1] not in "._"]
    if not found:
        raise QualifyError(f"The folder {source} has no files to read.")
    return list(found)


def _about_plan(name: str, operators: Sequence[PlannedOperator]) -> list[str]:
    if not operators:
        return [f"{name}: no stateful operator, so there is nothing for gpuwin to do."]
    lines = [f"{name}:"]
    for o in operators:
        window = "" if o.overlap is None else f" (a row lies in {o.overlap} window{'s' * (o.overlap > 1)})"
        lines.append(f"  {o.node}: {o.verdict}: {o.reason}{window}")
    return lines


def _about_run(run: QueryRun, overlap: int | None, cores: int | None, planned: Sequence[PlannedOperator]) -> list[str]:
    batches = [run.batches[i] for i in sorted(run.batches)]
    lines = [f"query {run.label}, run {run.run[:8]}, {len(batches)} batches:"]
    operators = next((b.operators for b in batches if b.operators), ())
    if not operators:
        return [*lines, "  no stateful operator, so there is nothing for gpuwin to do."]
    promising = False
    for at, (operator, plan) in enumerate(zip(operators, _plans(run, operators, planned), strict=True)):
        verdict, reason = (plan.verdict, plan.reason) if plan else _BY_NAME.get(operator.name, _OTHER)
        lines.append(f"  operator {at} ({operator.name}): {verdict}: {reason}")
        if verdict in _OFFLOADED:
            known = plan.overlap if plan and plan.overlap else overlap
            gain = estimate(batches, at, known if operator.name == "stateStoreSave" else None, cores)
            if gain is None:
                lines.append("    expected gain: unknown; no batch with rows was reported")
                continue
            promising = True
            lines.append(f"    expected gain: between {gain.low:.1f} and {gain.high:.1f} times")
            lines += [f"      {line}" for line in gain.arithmetic]
            if known is None and operator.name == "stateStoreSave":
                lines.append(
                    "      for overlapping windows say --window and --slide, or give the plan: the gain grows with k"
                )
    return [*lines, f"  {_CAVEAT}"] if promising else lines


def _plans(
    run: QueryRun, operators: Sequence[OperatorReport], given: Sequence[PlannedOperator]
) -> list[PlannedOperator | None]:
    """Plan of each operator: by the plan in the event log, which has all of them, top down as the reports
    do; else of the only aggregation, by the plan that is given; None where no plan says.
    """
    aggregations = [o.name in _AGGREGATIONS for o in operators]
    logged = read_plan(run.plan) if run.plan else ()
    if [o.node in _SAVING for o in logged] == aggregations:
        return list(logged)
    one = given[0] if sum(aggregations) == len(given) == 1 else None
    return [one if aggregation else None for aggregation in aggregations]
