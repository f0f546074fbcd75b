"""Engines and their steps: functions from a state and a batch to the next state and the rows that are emitted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from gpuwin.batch.timed_rows import NOTHING_DROPPED, Drops, TimedRows
from gpuwin.progress import BEFORE_TIME, Progress
from gpuwin.state.keys.dictionary import Names

S = TypeVar("S")

Parts = dict[str, pa.RecordBatch]
"""A state as named record batches."""


@dataclass(frozen=True)
class Step(Generic[S]):
    """Outcome of a batch, or of a move of the watermark: the new state, the progress of time, the results, and the rows
    that were dropped.
    """

    state: S
    progress: Progress
    results: list[pa.RecordBatch]
    drops: Drops = NOTHING_DROPPED
    merges: tuple[pa.RecordBatch, ...] = ()  # sessions that became one, where they are asked for


class Engine(Protocol[S]):
    """Functions from state to state, for one specification over one input schema. An engine holds nothing that a batch
    changes; a call that raises has changed nothing.
    """

    def begin(self, progress: Progress = BEFORE_TIME) -> S:
        """Empty state of a stream that begins at `progress`."""

    def rows(self, state: S, rows: TimedRows, progress: Progress, source: int) -> Step[S]:
        """Step of a batch: its rows are aggregated, the watermark moves, and windows close."""

    def advance(self, state: S, progress: Progress) -> Step[S]:
        """Step without rows: the watermark was moved from outside, the clock moved, or the stream is over."""

    def tidied(self, state: S) -> S:
        """This state without the keys and texts that nothing in it has, once they are the majority. `rows` and
        `advance` may leave them.
        """

    def size(self, state: S) -> tuple[int, int]:
        """(cells, bytes) of the state. A cell that is held in parts may count more than once."""

    def cells(self, state: S) -> int:
        """Number of live cells, or open sessions, each once, and of raw rows."""

    def names(self, state: S) -> Names:
        """Keys and texts that the state refers to by code."""

    def renamed(self, state: S, names: Names) -> S:
        """This state over other tables, in which its codes mean the same."""

    def spilled(self, state: S, excess: int, folder: str) -> S:
        """This state with `excess` bytes, or as many as it can, on disk. Raises LimitExceeded if the folder cannot be
        written.
        """

    def open_windows(self, state: S, progress: Progress) -> int:
        """Number of (key, window) pairs with rows that are not yet evicted."""

    def save(self, state: S) -> Parts:
        """The state as named record batches."""

    def load(self, parts: Parts) -> S:
        """Inverse of `save`. Raises ValueError for parts that are not of this engine."""


@dataclass(frozen=True, slots=True)
class RunningWindows(Generic[S]):
    """State of an aggregation together with its engine, for a caller who does not know the type of the state."""

    engine: Engine[S]
    state: S

    def _after(self, step: Step[S]) -> Step[RunningWindows[S]]:
        after = RunningWindows(self.engine, self.engine.tidied(step.state))
        return Step(after, step.progress, step.results, step.drops, step.merges)

    def rows(self, rows: TimedRows, progress: Progress, source: int) -> Step[RunningWindows[S]]:
        return self._after(self.engine.rows(self.state, rows, progress, source))

    def advance(self, progress: Progress) -> Step[RunningWindows[S]]:
        return self._after(self.engine.advance(self.state, progress))

    def size(self) -> tuple[int, int]:
        return self.engine.size(self.state)

    def cells(self) -> int:
        return self.engine.cells(self.state)

    def names(self) -> Names:
        return self.engine.names(self.state)

    def renamed(self, names: Names) -> RunningWindows[S]:
        return replace(self, state=self.engine.renamed(self.state, names))

    def spilled(self, excess: int, folder: str) -> RunningWindows[S]:
        return replace(self, state=self.engine.spilled(self.state, excess, folder))

    def open_windows(self, progress: Progress) -> int:
        return self.engine.open_windows(self.state, progress)

    def save(self) -> Parts:
        return self.engine.save(self.state)


@dataclass(frozen=True, slots=True)
class EngineStart(Generic[S]):
    """Engine before its first batch, or before it reads a snapshot."""

    of: Engine[S]

    def begin(self, progress: Progress = BEFORE_TIME) -> RunningWindows[S]:
        return RunningWindows(self.of, self.of.begin(progress))

    def load(self, parts: Parts) -> RunningWindows[S]:
        return RunningWindows(self.of, self.of.load(parts))
