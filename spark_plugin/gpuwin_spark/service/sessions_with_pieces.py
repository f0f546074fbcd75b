"""The open sessions of one partition with buffers that only Spark's code merges: their pieces, beside the others.

Spark adds the rows of a session in order of their time, and an open session as one row at its start. So do the pieces
lie: those of an open session at its start, before the rows of the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.state.sessions.assignment import assign

from .cell_tables import column_of, read_chunks
from .operator_spec import SessionSpec
from .partition import BatchTimes, Outcome, StateSize
from .pieces import Pieces, at_starts, with_buffers, without_pieces
from .plain import values_of
from .session_partition import SessionPartition, before, merged_sessions


@dataclass(frozen=True)
class SessionsWithPieces:
    """Open sessions in two parts; immutable as both are.

    Attributes:
        spec: the specification of the operator, with all buffers.
        others: the same sessions without the buffers that only Spark's code merges.
        pieces: those of open sessions, at their starts.
    """

    spec: SessionSpec
    others: SessionPartition
    pieces: Pieces

    @classmethod
    def rebuilt(cls, spec: SessionSpec, segments: Sequence[list[bytes]], through: int | None) -> SessionsWithPieces:
        """As `SessionPartition.rebuilt`. A later row of a session has all of its pieces."""
        tables = [read_chunks(chunks, spec.cell_schema) for chunks in segments]
        others = [without_pieces(spec, table) for table in tables]
        found = cls(
            spec,
            SessionPartition.rebuilt(spec.without_pieces, others, through),
            Pieces.empty(spec.key_types, spec.kept),
        )
        if not tables:
            return found
        keys, start, end, buffers = found._read(pa.concat_tables(tables).combine_chunks(), through)
        if not len(start):
            return found
        sessions = assign(found.pieces.keys.encode(keys, len(start)), start, end - start)
        newest = np.empty(len(sessions.code), np.int64)
        newest[sessions.slot] = np.arange(len(start))
        at = pa.array(newest)
        pieces = found.pieces.add([k.take(at) for k in keys], start[newest], [b.take(at) for b in buffers])
        return replace(found, pieces=pieces)

    @property
    def state(self) -> StateSize:
        """The size of the state."""
        others = self.others.state
        return StateSize(others.cells, others.nbytes + self.pieces.nbytes)

    @property
    def is_on_device(self) -> bool:
        """Whether the sessions, without their pieces, are in the memory of a GPU."""
        return self.others.is_on_device

    def on_device(self) -> SessionsWithPieces:
        """These sessions on CUDA, as far as the device has room; the pieces stay in host memory."""
        return replace(self, others=self.others.on_device())

    def batch(self, chunks: list[bytes], times: BatchTimes, rows: int) -> Outcome[SessionsWithPieces]:
        """Applies one batch; see `SessionPartition.batch`."""
        spec = self.spec
        table = read_chunks(chunks, spec.cell_schema)
        outcome = self.others.batch(without_pieces(spec, table), times, rows)
        keys, start, _, buffers = self._read(table, times.late)
        came = self.pieces.add(keys, start, buffers) if len(start) else self.pieces
        emitted = list(outcome.windows)
        touched = [batch for batch in outcome.logged if isinstance(batch, pa.RecordBatch)]
        kept, logged = came, []
        for sessions in emitted if spec.mode == "append" else ():
            kept = kept.without(*_spans(spec, sessions))
        for sessions in touched:
            keys, start, end = _spans(spec, sessions)
            kept = kept.without(keys, start, end)
            for part, joined in came.joined(keys, start, end):
                kept = kept.add([key[part] for key in keys], start[part], joined)
                logged.append(_with_pieces(spec, sessions, part, joined))
        return Outcome(
            replace(self, others=outcome.after, pieces=kept),
            _emitted(spec, came, emitted),
            outcome.updated,
            outcome.removed,
            outcome.dropped,
            outcome.first,
            logged,
            outcome.logged_cells,
            outcome.logged_last,
        )

    def open_sessions(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The sessions of the state: keys, start, end, buffers. At most ``rows`` in a batch."""
        return _emitted(self.spec, self.pieces, self.others.open_sessions(rows))

    def _read(self, table: pa.Table, late: int | None) -> tuple[list[pa.Array], np.ndarray, np.ndarray, list[pa.Array]]:
        """Keys, starts, ends and pieces of the rows of a table that end after ``late``."""
        spec = self.spec
        end = values_of(column_of(table, spec.keys + 1))
        if late is not None and len(end):
            table, end = table.filter(pa.array(end > late)), end[end > late]
        keys = [column_of(table, i) for i in range(spec.keys)]
        return keys, values_of(column_of(table, spec.keys)), end, [column_of(table, i) for i in spec.pieces_at]


def merge_session_segments_with_pieces(
    spec: SessionSpec, segments: Sequence[list[bytes]], first: int, rows: int
) -> tuple[list[pa.RecordBatch], int, int]:
    """Merges segments of a log into the rows of one, as `merge_session_segments`."""
    found = SessionsWithPieces.rebuilt(spec, segments, before(first))
    tables, count, last = merged_sessions(found.others, rows)
    return [batch for some in tables for batch in at_starts(spec, found.pieces, some, spec.PLACE)], count, last


def _emitted(spec: SessionSpec, pieces: Pieces, sessions: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sessions with their pieces."""
    for batch in sessions:
        for part, joined in pieces.joined(*_spans(spec, batch)):
            yield _with_pieces(spec, batch, part, joined)


def _with_pieces(spec: SessionSpec, sessions: pa.RecordBatch, part: slice, joined: list[pa.Array]) -> pa.RecordBatch:
    return with_buffers(spec, sessions.slice(part.start, part.stop - part.start), joined, spec.PLACE)


def _spans(spec: SessionSpec, sessions: pa.RecordBatch) -> tuple[list[pa.Array], np.ndarray, np.ndarray]:
    """Keys, starts and ends."""
    start, end = (values_of(sessions.column(spec.keys + i)) for i in (0, 1))
    return sessions.columns[: spec.keys], start, end
