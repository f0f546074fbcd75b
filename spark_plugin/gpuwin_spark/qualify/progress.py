"""Progress reports of streaming queries, out of JSON files and Spark's event logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .errors import QualifyError

_EVENT: Final = "QueryProgressEvent"
#: Suffixes of event logs that Spark compressed, which are not read.
COMPRESSED: Final = {".zstd", ".zst", ".lz4", ".snappy", ".lzf", ".gz"}
_HOW: Final = (
    "Give StreamingQueryProgress as JSON (progress.json of a listener, json.dumps(query.lastProgress)), one or many to "
    "a file, or a Spark event log."
)


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
    """All batches of one run of a query that were found."""

    id: str
    run: str
    name: str | None
    batches: dict[int, Batch] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.name or self.id[:8]


def read_progress(paths: list[Path]) -> list[QueryRun]:
    """The runs in these files; a batch that is reported twice counts once.

    Raises:
        QualifyError: a file is not JSON, or there is no progress in any of them.
    """
    runs: dict[str, QueryRun] = {}
    for path in paths:
        for report in _reports(path):
            _add(runs, report, path)
    if not runs:
        raise QualifyError(f"No progress of a streaming query in {', '.join(map(str, paths))}. {_HOW}")
    return list(runs.values())


def _reports(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix in COMPRESSED:
        raise QualifyError(f"{path} is compressed. Decompress it, or write the log with spark.eventLog.compress=false.")
    try:
        with path.open(encoding="utf-8") as lines:
            head = lines.readline()
            if '"Event":"SparkListener' in head.replace(" ", ""):  # an event log: large, one event a line
                for number, line in enumerate(lines, 2):
                    if _EVENT in line:
                        yield _event(path, number, line)
                return
            text = head + lines.read()
    except (OSError, UnicodeDecodeError) as e:
        raise QualifyError(f"{path} cannot be read as text: {e}.") from e
    for value in _values(path, text):
        found = value.get("progress", value) if isinstance(value, dict) else value
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, dict) and "batchId" in one:
                yield one
            elif not (isinstance(one, dict) and "Event" in one):
                raise QualifyError(f"{path} holds JSON that is not the progress of a query (no batchId). {_HOW}")


def _event(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line)["progress"])
    except (ValueError, KeyError, TypeError) as e:
        raise QualifyError(f"{path}, line {number}: a progress event that cannot be read ({type(e).__name__}).") from e


def _values(path: Path, text: str) -> Iterator[Any]:
    """JSON values one after the other, on one line each or printed over several."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as e:
            line = text.count("\n", 0, at) + 1
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
