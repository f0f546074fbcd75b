"""One line that follows a run: rewritten in place on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Final, TextIO

from .runs import Batch, Outcome

_QUIET_SECONDS: Final = 5.0


class ProgressLine:
    """Follows one side of one query.

    Args:
        label: what stands at the beginning of the line.
        batches: how many micro-batches there will be; Spark may add one without rows, which closes windows.
        rows: how many rows they have together.
        out: where to print; standard output by default.
    """

    def __init__(self, label: str, batches: int, rows: int, out: TextIO | None = None) -> None:
        self._label = label
        self._batches = batches
        self._total = rows
        self._out = out or sys.stdout
        self._in_place = self._out.isatty()
        self._rows = 0
        self._done = 0
        self._printed = time.monotonic()

    def starting(self) -> None:
        if self._in_place:
            self._write("starting Spark", last=False)

    def batch(self, batch: Batch) -> None:
        self._rows += batch.rows
        self._done = min(batch.number + 1, self._batches)
        self._show(batch.elapsed)

    def wait(self, seconds: float) -> None:
        self._show(seconds)

    def end(self, outcome: Outcome) -> None:
        how = {"finished": "", "stopped": "  stopped", "failed": "  failed"}[outcome.status]
        self._write(self._text(outcome.seconds) + how, last=True)

    def _text(self, seconds: float) -> str:
        speed = f"{self._rows / seconds:>8,.0f}" if seconds > 0 else f"{'-':>8}"
        return f"batch {self._done:>3} of {self._batches}  {self._rows:>9,} rows  {speed} rows/s  {seconds:6.1f} s"

    def _show(self, seconds: float) -> None:
        now = time.monotonic()
        if self._in_place or now - self._printed >= _QUIET_SECONDS:
            self._printed = now
            self._write(self._text(seconds), last=not self._in_place)

    def _write(self, text: str, *, last: bool) -> None:
        end = "\n" if last else ""
        begin = "\r\x1b[2K" if self._in_place else ""
        self._out.write(f"{begin}  {self._label:<8} {text}{end}")
        self._out.flush()
