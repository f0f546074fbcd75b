"""Progress bars: a line that is rewritten in place on a terminal. Elsewhere only its end is printed."""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

from .runs import Batch, Outcome

_WIDEST_BAR: Final = 30
#: Columns of a line of `ProgressLine` beside its bar.
_TEXT_COLUMNS: Final = 68


class ProgressLine:
    """Progress of one side of one query: a bar of its micro-batches, rows and seconds.

    Args:
        label: what stands at the beginning of the line.
        batches: how many micro-batches there will be; Spark may add one without rows, which closes windows.
        out: where to print; standard output by default.
    """

    def __init__(self, label: str, batches: int, out: TextIO | None = None) -> None:
        self._label = label
        self._batches = batches
        self._line = InPlace(out)
        self._rows = 0
        self._done = 0

    def starting(self) -> None:
        self._line.show(f"  {self._label:<11}  starting Spark")

    def batch(self, batch: Batch) -> None:
        self._rows += batch.rows
        self._done = min(batch.number + 1, self._batches)
        self._line.show(self._text(batch.elapsed))

    def wait(self, seconds: float) -> None:
        self._line.show(self._text(seconds))

    def note(self, text: str) -> None:
        """Prints a line of its own above this one."""
        self._line.end(text)

    def end(self, outcome: Outcome) -> None:
        how = {"finished": "", "stopped": "  stopped", "failed": "  failed"}[outcome.status]
        self._line.end(self._text(outcome.seconds) + how)

    def _text(self, seconds: float) -> str:
        bar = self._line.bar(self._done / self._batches, _TEXT_COLUMNS)
        return (
            f"  {self._label:<11}  {bar}{self._done:>2} of {self._batches} batches  {self._rows:>10,} rows  "
            f"{seconds:5.1f} s"
        )


class InPlace:
    """A line of a terminal that is rewritten. Where there is no terminal, only `end` prints anything."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._blocks = "█░" if speaks_unicode(self._out) else "#."

    def bar(self, share: float, beside: int) -> str:
        """A bar of which so much, from 0 to 1, is full, and two blanks; empty where there is no room or no terminal.

        Args:
            share: from 0 to 1.
            beside: columns of what else is in the line.
        """
        width = min(_WIDEST_BAR, self._columns() - beside - 2)
        if not self._terminal or width < 4:
            return ""
        full = round(share * width)
        return self._blocks[0] * full + self._blocks[1] * (width - full) + "  "

    def show(self, text: str) -> None:
        if self._terminal:  # a line that is broken could not be rewritten
            self._out.write(f"\r\x1b[2K{text[: self._columns() - 1]}")
            self._out.flush()

    def end(self, text: str) -> None:
        begin = "\r\x1b[2K" if self._terminal else ""
        self._out.write(f"{begin}{text}\n")
        self._out.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or 80
        except OSError:
            return 80


def speaks_unicode(out: TextIO) -> bool:
    """Whether blocks can be printed there."""
    return (out.encoding or "").lower().replace("-", "") == "utf8"
