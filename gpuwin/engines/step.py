"""What every engine of windows does with a batch, whatever it keeps: the shape of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from gpuwin.batch.arrivals import NOTHING_DROPPED, Arrivals, Drops
from gpuwin.progress import BEFORE_TIME, Progress
from gpuwin.state.names import Names


@dataclass(frozen=True)
class Step:
    """After a batch, or a move of the watermark: the new state, where time is, the rows to hand out, and what was
    dropped."""

    state: Any
    progress: Progress
    results: list[pa.RecordBatch]
    drops: Drops = NOTHING_DROPPED
    merges: tuple[pa.RecordBatch, ...] = ()  # sessions that were made one, where they are asked for


class WindowEngine(Protocol):
    """Functions from state to state. An engine holds nothing that a batch changes; whatever raises has changed
    nothing."""

    def begin(self, progress: Progress = BEFORE_TIME) -> Any:
        """The empty state, where time is at `progress` when the first rows come."""

    def rows(self, state: Any, arrivals: Arrivals, progress: Progress, source: int) -> Step:
        """Applies the rows of a batch, moves the watermark, and closes what is due."""

    def advance(self, state: Any, progress: Progress, ended: bool) -> Step:
        """The watermark was moved from outside, or the clock moved, or (`ended`) the stream is over."""

    def size(self, state: Any) -> tuple[int, int]:
        """(cells, bytes) of the state. A cell that is held in parts may count more than once."""

    def cells(self, state: Any) -> int:
        """Live cells, or open sessions, each once, and raw rows."""

    def names(self, state: Any) -> Names:
        """The keys and texts that the state refers to by code."""

    def renamed(self, state: Any, names: Names) -> Any:
        """The same state with other tables, in which its codes mean the same."""

    def spilled(self, state: Any, excess: int, folder: str) -> Any:
        """With `excess` bytes, or what can be, on disk. Raises LimitExceeded if the folder cannot be written."""

    def open_windows(self, state: Any, progress: Progress) -> int:
        """(key, window) pairs with rows that are not yet forgotten."""

    def save(self, state: Any) -> dict[str, pa.RecordBatch]:
        """The state as named record batches."""

    def load(self, parts: dict[str, pa.RecordBatch]) -> Any:
        """The inverse of `save`. Raises ValueError for parts that are not of this engine."""
