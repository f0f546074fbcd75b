"""Runs of one side: a process of its own, which is followed, and ended when its time is up."""

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
from types import TracebackType
from typing import Any, Final, Literal

from .side import SideSpec

_GRACE_SECONDS: Final = 5.0
_LAST_WORDS: Final = 12  # lines


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
    """End of a side.

    Attributes:
        status: "finished"; "stopped" when the limit was reached; "failed" when the query, or Spark, died.
        seconds: from the start of the query to its end; starting Spark is not in it.
        batches: those that ended.
        explanation: of `gw.spark.explain`; empty for plain Spark.
        nodes: the nodes of Spark's own that were found in the plan of the first batch.
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


class Side:
    """A process with a Spark of its own, which starts at once; a context that leaves no process behind.

    Args:
        spec: what to run.
        log: file that gets what Spark and Python print.
    """

    def __init__(self, spec: SideSpec, log: Path) -> None:
        self._log = log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpuwin.demo.side", spec.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # a group of its own: it is ended with its JVM and its device service
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        #: What came before the query was to begin, if it is more than that Spark is there.
        self._early: Outcome | None = None
        self._ready = False
        self._ended = False

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ready(self) -> bool:
        """Whether Spark is there, or has failed to start, so that `run` will not wait for it."""
        while not self._ready:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return False
            self._take_early(line)
        return True

    def run(
        self,
        limit: float | None = None,
        on_batch: Callable[[Batch], None] = lambda batch: None,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> Outcome:
        """Runs the query and returns how it ended; the process has ended then, too. To be called once.

        Args:
            limit: seconds from the start of the query after which it is ended; None for never.
            on_batch: called after each batch.
            on_wait: called twice a second or so in between, with the seconds since the query was started.
        """
        try:
            while not self._ready:
                self._take_early(self._lines.get())
            if self._early is not None:
                return self._early
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):  # what it said last is on its way
                self._process.stdin.write("begin\n")
                self._process.stdin.flush()
            outcome = self._follow(limit, on_batch, on_wait)
            if outcome.status != "stopped":
                with suppress(subprocess.TimeoutExpired):  # it is about to go by itself
                    self._process.wait(2 * _GRACE_SECONDS)
            return outcome
        finally:
            self._end()

    def _take_early(self, line: str | None) -> None:
        report: dict[str, Any] = json.loads(line) if line is not None else {}
        self._ready = True
        if report.get("event") != "ready":
            self._early = Outcome("failed", 0.0, (), message=report.get("message") or self._last_words())

    def _follow(
        self, limit: float | None, on_batch: Callable[[Batch], None], on_wait: Callable[[float], None]
    ) -> Outcome:
        batches: list[Batch] = []
        nodes: tuple[str, ...] = ()
        began: float | None = None
        poll = 0.5 if limit is None else min(0.5, max(0.01, limit / 10))
        while True:
            try:
                line = self._lines.get(timeout=poll)
            except queue.Empty:
                line = ""
            elapsed = time.monotonic() - began if began is not None else 0.0
            if line is None:
                return Outcome("failed", elapsed, tuple(batches), nodes=nodes, message=self._last_words())
            if line:
                report: dict[str, Any] = json.loads(line)
                event = report.pop("event")
                if event == "started":
                    began = time.monotonic()
                elif event == "batch":
                    batches.append(Batch(**{**report, "operators": tuple(report["operators"])}))
                    on_batch(batches[-1])
                elif event == "planned":
                    nodes = tuple(report["nodes"])
                elif event == "failed":
                    return Outcome("failed", elapsed, tuple(batches), nodes=nodes, message=report["message"])
                elif event == "finished":
                    return Outcome("finished", report["seconds"], tuple(batches), report["explanation"], nodes)
            elif began is not None:
                on_wait(elapsed)
            if limit is not None and elapsed > limit:
                return Outcome("stopped", elapsed, tuple(batches), nodes=nodes)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _end(self) -> None:
        """Ends the process and all that it started; once."""
        if self._ended:
            return
        self._ended = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
            _wait_for_group(self._process.pid)
        self._reader.join(_GRACE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not self._reader.is_alive():
                with suppress(BrokenPipeError):
                    pipe.close()

    def _last_words(self) -> str:
        text = self._log.read_text(errors="replace").splitlines()
        said = "Its last words:\n  " + "\n  ".join(text[-_LAST_WORDS:]) if text else ""
        return f"the process ended by itself. {said}".strip()


def run_side(
    spec: SideSpec,
    log: Path,
    limit: float | None = None,
    on_batch: Callable[[Batch], None] = lambda batch: None,
    on_wait: Callable[[float], None] = lambda seconds: None,
) -> Outcome:
    """Starts a side, runs its query at once and returns how it ended; it never leaves a process behind.

    Args:
        spec: what to run.
        log: file that gets what Spark and Python print.
        limit: seconds from the start of the query after which it is ended.
        on_batch, on_wait: see `Side.run`.
    """
    with Side(spec, log) as side:
        return side.run(limit, on_batch, on_wait)


def _wait_for_group(group: int) -> None:
    until = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)
