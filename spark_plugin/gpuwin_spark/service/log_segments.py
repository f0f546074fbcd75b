"""A segment of a state log, as it comes from Spark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSegment:
    """Cells that one batch left, or several whose segments were merged.

    Attributes:
        chunks: Arrow streams of cells.
        late: watermark in microseconds by which its cells were late; None where none was.
        seeds: whether its cells are windows that Spark had begun when gpuwin took its state over, with the start of the
            window in the place of that of a pane.
    """

    chunks: list[bytes]
    late: int | None
    seeds: bool = False


Segments = list[LogSegment]
"""Segments of a log, oldest first."""
