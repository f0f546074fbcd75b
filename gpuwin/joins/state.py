"""State of a running join, and its counters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from gpuwin.batch.late_rows import LateRows
from gpuwin.joins.interval import Sides
from gpuwin.joins.windows import WindowSides
from gpuwin.progress import BEFORE_TIME, Progress
from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary
from gpuwin.state.spill import memory_of_rows, memory_of_sessions, spilled_rows_of, spilled_sessions


@dataclass(frozen=True, slots=True)
class JoinMetrics:
    """Counters of a join since its start (rows of both sides together), and the size of its state now."""

    rows_in: int = 0
    rows_late: int = 0
    rows_unassigned: int = 0  # window joins: in a gap between windows
    rows_null_time: int = 0
    rows_out: int = 0
    rows_kept: int = 0  # in memory; some may already have left, and wait to be cleared away with others
    state_bytes: int = 0
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class JoinState:
    """State that a batch may change, replaced as a whole when the batch has succeeded."""

    sides: Sides | WindowSides
    schemas: tuple[pa.Schema | None, pa.Schema | None]
    keys: KeyDictionary
    keys_known: int = (
        0  # as of the last batch that succeeded; one that fails may leave codes without a row behind these
    )
    keys_checked: int = FEW_KEYS  # how many there were when dead ones were last looked for
    progress: Progress = BEFORE_TIME  # of two inputs, the left side and the right
    seq: int = 0
    finished: bool = False
    batches: tuple[pa.Schema | None, pa.Schema | None] = (None, None)  # of the last batch, in its encodings
    late: tuple[LateRows, LateRows] = ((), ())  # of the left side and the right, that nobody has asked for yet
    late_bytes: int = 0
    metrics: JoinMetrics = field(default_factory=JoinMetrics)

    def with_batch(self, number: int, schema: pa.Schema) -> JoinState:
        """State after a batch of one side (0: left, 1: right) with this schema."""
        left, right = self.batches
        return replace(self, batches=(schema, right) if number == 0 else (left, schema))


def memory_of(state: JoinState) -> int:
    """Bytes of memory: the rows of both sides, open sessions, keys, and late rows that nobody has asked for yet."""
    sides = state.sides
    size = memory_of_rows(sides.left) + memory_of_rows(sides.right) + state.keys.nbytes + state.late_bytes
    return size + memory_of_sessions(sides.sessions) if isinstance(sides, WindowSides) else size


def spilled(state: JoinState, excess: int, folder: str) -> JoinState:
    """State with the largest parts on disk, until `excess` bytes have left memory. Raises LimitExceeded if the folder
    cannot be written.
    """
    sides = state.sides
    both = (sides.left.in_runs(), sides.right.in_runs())  # which may take rows of the disk back into a larger run
    excess += sum(map(memory_of_rows, both)) - memory_of_rows(sides.left) - memory_of_rows(sides.right)
    if isinstance(sides, WindowSides):
        sessions, (left, right) = spilled_sessions(sides.sessions, both, excess, folder)
        return replace(state, sides=replace(sides, left=left, right=right, sessions=sessions))
    left, right = spilled_rows_of(both, excess, folder)
    return replace(state, sides=replace(sides, left=left, right=right))
