"""Progress reports of streaming queries, out of JSON files and Spark's event logs, whose plans come with them."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from .errors import QualifyError

_EVENT: Final = "QueryProgressEvent"
#: The event with the plan of a batch, where one of its operators keeps state.
_PLANNED: Final = re.compile(
    r'"Event":"[\w.]*SparkListenerSQLExecutionStart".*"nodeName":"(?:\w*StateStoreSave|GpuWindow)"'
)
_RUN: Final = re.compile(r"^runId = (\S+)$", re.MULTILINE)
#: The beginning of an event log, also of a later one of several, or of a vendor's.
_EVENTS: Final = re.compile(r'\s*\{\s*"Event"\s*:')
#: Suffixes of event logs that Spark compressed, and pyarrow's name of the codec; None for forms of Spark's own.
_CODECS: Final = {".zstd": "zstd", ".zst": "zstd", ".gz": "gzip", ".lz4": None, ".snappy": None, ".lzf": None}
#: Characters of what is read as a whole: a plan, or reports that are printed over several lines.
MOST: Final = 1 << 26
_HOW: Final = (
    "Give StreamingQueryProgress as JSON (progress.json of a listener, json.dumps(query.lastProgress)), one or many to "
    "a file, or a Spark event log."
)
log = logging.getLogger("gpuwin")


@dataclass(frozen=True)
class OperatorReport:
    """Report of one stateful operator in one batch. Times in ms, summed over its partitions, as Spark reports them."""

    name: str
    updates_ms: int
    removals_ms: int
    commit_ms: int
    instances: int

    @property
    def state_ms(self) -> int:
        return self.updates_ms + self.removals_ms + self.commit_ms


@dataclass(frozen=True)
class Batch:
    """One micro-batch: rows read, and ms of the whole trigger and of its addBatch."""

    id: int
    rows: int
    trigger_ms: int
    add_batch_ms: int
    operators: tuple[OperatorReport, ...]


@dataclass
class QueryRun:
    """All batches of one run of a query that were found, and, of an event log, the text of its plan."""

    id: str
    run: str
    name: str | None
    batches: dict[int, Batch] = field(default_factory=dict)
    plan: str | None = None

    @property
    def label(self) -> str:
        return self.name or self.id[:8]


def read_progress(paths: list[Path], unnamed: Collection[Path] = ()) -> list[QueryRun]:
    """The runs in these files; a batch that is reported twice counts once.

    Args:
        unnamed: those that were found in a folder. One that cannot be read is skipped, which the log says.

    Raises:
        QualifyError: a file is not JSON, or there is no progress in any of them.
    """
    runs: dict[str, QueryRun] = {}
    plans: dict[str, str] = {}
    for path in paths:
        try:
            for report in _reports(path, plans):
                _add(runs, report, path)
        except QualifyError as e:
            if path not in unnamed:
                raise
            log.warning("%s It was skipped from there on.", e)
    if not runs:
        raise QualifyError(f"No progress of a streaming query in {', '.join(map(str, paths))}. {_HOW}")
    for run in runs.values():
        run.plan = plans.get(run.run)
    return list(runs.values())


def compression_of(path: Path) -> str | None:
    """The suffix that says how a file is compressed (``.zstd.inprogress``, too); None where it is not."""
    return next((suffix for suffix in reversed(path.suffixes) if suffix in _CODECS), None)


def _reports(path: Path, plans: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The progress in a file; the plans of an event log go to `plans`, by the run that they are of."""
    try:
        with _opened(path) as lines:
            head = lines.readline(MOST)
            if _EVENTS.match(head):  # an event log: large, one event a line
                yield from _events(path, head, lines, plans)
                return
            for value in _listed(path, head, lines):
                found = value.get("progress", value) if isinstance(value, dict) else value
                for one in found if isinstance(found, list) else [found]:
                    if isinstance(one, dict) and "batchId" in one:
                        yield one
                    elif not (isinstance(one, dict) and "Event" in one):
                        raise QualifyError(
                            f"{path} holds JSON that is not the progress of a query (no batchId). {_HOW}"
                        )
    except OSError as e:
        raise QualifyError(f"{path} cannot be read as text: {e}.") from e


def _opened(path: Path) -> TextIO:
    suffix = compression_of(path)
    if suffix is None:
        return path.open(encoding="utf-8", errors="replace")
    codec = _CODECS[suffix]
    if codec is None:
        raise QualifyError(
            f"{path} is compressed by {suffix[1:]}, in a form of Spark's own. Write the log with "
            "spark.eventLog.compress=false or spark.eventLog.compression.codec=zstd."
        )
    import pyarrow as pa

    return io.TextIOWrapper(pa.input_stream(str(path), compression=codec), encoding="utf-8", errors="replace")


def _events(path: Path, line: str, lines: TextIO, plans: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The progress in an event log, from its first `line` on. One that Spark still writes may end in the middle."""
    number = 1
    try:
        while line:
            if _EVENT in line:
                try:
                    yield _event(path, number, line)
                except QualifyError:
                    if line.endswith("\n"):
                        raise
                    log.warning("%s ends in the middle of line %d, which was skipped.", path, number)
            elif _PLANNED.search(line):
                _add_plan(plans, line)
            number, line = number + 1, lines.readline()
    except OSError as e:
        if compression_of(path) is None or number == 1:
            raise
        log.warning("%s is not whole after line %d, and what follows was skipped (%s).", path, number, e)


def _add_plan(plans: dict[str, str], line: str) -> None:
    """The plan of a batch, where it can be read and is the first of its run, as ``explain()`` would print it."""
    try:
        event = json.loads(line)
        if run := _RUN.search(event["description"]):
            plans.setdefault(run[1], "\n".join(_nodes(event["sparkPlanInfo"], 0)))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # The plan says more of the progress, which does without it.
        return


def _nodes(plan: dict[str, Any], depth: int) -> Iterator[str]:
    """Lines of a plan; the two nodes of code generation, which ``explain()`` has as a star, are left out."""
    if not plan["nodeName"].startswith(("WholeStageCodegen", "InputAdapter")):
        yield " " * depth + "+- " + " ".join(plan["simpleString"].splitlines())
    for child in plan["children"]:
        yield from _nodes(child, depth + 1)


def _listed(path: Path, line: str, lines: TextIO) -> Iterator[Any]:
    """JSON values, from the first `line` on: read line by line as long as each has whole ones, the rest at once."""
    before = 0
    while line:
        try:
            values = list(_values(path, line, before))
        except QualifyError:
            line += lines.read(MOST - len(line))
            if len(line) >= MOST:
                raise QualifyError(
                    f"{path}, line {before + 1}: not JSON on one line, and too large to be read at once. {_HOW}"
                ) from None
            yield from _values(path, line, before)
            return
        yield from values
        before, line = before + 1, lines.readline(MOST)


def _event(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line)["progress"])
    except (ValueError, KeyError, TypeError) as e:
        raise QualifyError(f"{path}, line {number}: a progress event that cannot be read ({type(e).__name__}).") from e


def _values(path: Path, text: str, before: int) -> Iterator[Any]:
    """JSON values one after the other, on one line each or printed over several; `before` lines of the file."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as e:
            line = before + text.count("\n", 0, at) + 1
            raise QualifyError(f"{path}, line {line}: neither JSON nor the text of a plan. {_HOW}") from e
        yield value


def _add(runs: dict[str, QueryRun], report: dict[str, Any], path: Path) -> None:
    try:
        run = runs.setdefault(
            str(report["runId"]), QueryRun(str(report["id"]), str(report["runId"]), report.get("name"))
        )
        durations = report["durationMs"]
        if not isinstance(durations, dict):
            raise KeyError("durationMs")
        batch = Batch(
            _number(report, "batchId"),
            _rows(report),
            _number(durations, "triggerExecution", 0),
            _number(durations, "addBatch", 0),
            tuple(_operator(o) for o in _objects(report, "stateOperators")),
        )
    except KeyError as e:
        raise QualifyError(f"{path}: a progress report without a usable {e}. {_HOW}") from e
    if "addBatch" in durations:  # an idle trigger is reported too, and ran nothing
        run.batches[batch.id] = batch


def _number(values: dict[str, Any], name: str, missing: int | None = None) -> int:
    """The whole number of that name. Raises KeyError of the name if it is none."""
    try:
        return int(values[name] if missing is None else values.get(name, missing))
    except (TypeError, ValueError, OverflowError) as e:
        raise KeyError(name) from e


def _objects(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in the list of that name. Raises KeyError of the name if it is none."""
    found = values[name]
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise KeyError(name)
    return found


def _rows(report: dict[str, Any]) -> int:
    """An event log has the rows of each source, and no total."""
    if "numInputRows" in report:
        return _number(report, "numInputRows")
    return sum(_number(source, "numInputRows") for source in _objects(report, "sources"))


def _operator(o: dict[str, Any]) -> OperatorReport:
    return OperatorReport(
        str(o["operatorName"]),
        _number(o, "allUpdatesTimeMs"),
        _number(o, "allRemovalsTimeMs"),
        _number(o, "commitTimeMs"),
        max(1, _number(o, "numStateStoreInstances", 1)),
    )
