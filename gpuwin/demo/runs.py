"""Runs one side in a process of its own, follows it, and ends it when its time is up."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from .side import SideSpec

_GRACE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Batch:
    """One micro-batch that has ended; `elapsed` counts from the start of the query."""

    number: int
    rows: int
    milliseconds: int
    elapsed: float
    state_rows: int
    state_bytes: int
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a side ended.

    Attributes:
        status: "finished"; "stopped" when the limit was reached; "failed" when the query, or Spark, died.
        seconds: from the start of the query to its end; starting Spark is not in it.
        batches: those that ended.
        explanation: of `gw.spark.explain`; empty for plain Spark.
        nodes: the nodes of Spark's own that were found in the plan.
        message: of a failure.
    """

    status: Literal["finished", "stopped", "failed"]
    seconds: float
    batches: tuple[Batch, ...]
    explanation: str = ""
    nodes: tuple[str, ...] = ()
    message: str = ""

    @property
    def rows(self) -> int:
        return sum(b.rows for b in self.batches)

    @property
    def state_rows(self) -> int:
        """The most rows of state there were at the end of a batch."""
        return max((b.state_rows for b in self.batches), default=0)

    @property
    def offloaded(self) -> bool:
        """Whether every stateful operator of every batch was gpuwin's."""
        return bool(self.batches) and all(b.operators and set(b.operators) == {"gpuwin"} for b in self.batches)


def run_side(
    spec: SideSpec,
    log: Path,
    limit: float | None = None,
    on_batch: Callable[[Batch], None] = lambda batch: None,
    on_wait: Callable[[float], None] = lambda seconds: None,
) -> Outcome:
    """Runs `spec` and returns how it ended; it never leaves a process behind.

    Args:
        spec: what to run.
        log: file that gets what Spark and Python print.
        limit: seconds from the start of the query after which it is ended.
        on_batch: called after each batch.
        on_wait: called every second or so in between, with the seconds since the query was started.
    """
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuwin.demo.side", spec.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # a group of its own: it is ended with its JVM and its device service
        )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        outcome = _follow(lines, log, limit, on_batch, on_wait)
        if outcome.status != "stopped":
            with suppress(subprocess.TimeoutExpired):  # it is about to go by itself
                process.wait(2 * _GRACE_SECONDS)
        return outcome
    finally:
        _end(process, reader)


def _follow(
    lines: queue.Queue[str | None],
    log: Path,
    limit: float | None,
    on_batch: Callable[[Batch], None],
    on_wait: Callable[[float], None],
) -> Outcome:
    batches: list[Batch] = []
    began: float | None = None
    while True:
        try:
            line = lines.get(timeout=1.0 if limit is None or began is None else min(1.0, max(0.01, limit / 10)))
        except queue.Empty:
            line = ""
        elapsed = time.monotonic() - began if began is not None else 0.0
        if line is None:
            said = _tail(log)
            return Outcome("failed", elapsed, tuple(batches), message=f"the process ended by itself. {said}".strip())
        if line:
            report: dict[str, Any] = json.loads(line)
            event = report.pop("event")
            if event == "started":
                began = time.monotonic()
            elif event == "batch":
                batches.append(Batch(**{**report, "operators": tuple(report["operators"])}))
                on_batch(batches[-1])
            elif event == "failed":
                return Outcome("failed", elapsed, tuple(batches), message=report["message"])
            elif event == "finished":
                return Outcome(
                    "finished", report["seconds"], tuple(batches), report["explanation"], tuple(report["nodes"])
                )
        elif began is not None:
            on_wait(elapsed)
        if limit is not None and elapsed > limit:
            return Outcome("stopped", elapsed, tuple(batches))


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _end(process: subprocess.Popen[str], reader: threading.Thread) -> None:
    """Ends the process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        _wait_for_group(process.pid)
    reader.join(_GRACE_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not reader.is_alive():
            pipe.close()


def _wait_for_group(group: int) -> None:
    until = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)


def _tail(log: Path, lines: int = 12) -> str:
    text = log.read_text(errors="replace").splitlines()
    return "Its last words:\n  " + "\n  ".join(text[-lines:]) if text else ""
