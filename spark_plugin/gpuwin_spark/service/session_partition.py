"""One partition of one operator whose windows are sessions: what a batch does to the open sessions, and which it emits.

The log of a session state is not what came, as that of panes is, but what the batch left: the sessions that it made or
changed and did not close. A later row of a key replaces the earlier ones whose interval it contains, for a session only
grows while it is open. So a row that ends at or before the watermark is dead whatever else the log holds, segments die
whole, and any of them can be merged without looking at the others. When the values of a logged session arrived does
not matter: at its start, for the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from gpuwin.drivers.sessions import SessionDriver, SessionFrontier
from gpuwin.state.cells import Columns, concat_cells, take_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary
from gpuwin.state.sessions.assignment import assign
from gpuwin.state.sessions.session_state import SessionState
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin.state.stores import SessionStore, Trace
from gpuwin.vocabulary.durations import INT64_MIN

from .arrivals import InTime
from .buffers import BufferCodec, arriving_at, layout_of
from .cell_tables import column_of, read_chunks, record_batch
from .operator_spec import SessionSpec
from .overflow import begins_of, may_overflow, refuse_overflow
from .partition import BatchTimes, Outcome, StateSize
from .placement import again_on_host, moved_to_device
from .plain import values_of


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Rows of one or more chunks: codes of their keys, bounds in microseconds, partial columns."""

    code: np.ndarray  # int32[n]
    start: np.ndarray  # int64[n]
    end: np.ndarray  # int64[n]
    columns: Columns
    in_time: Sequence[InTime] = ()  # by hidden column; none of the log, where arrivals do not matter


@dataclass(frozen=True)
class SessionPartition:
    """The open sessions of one partition; immutable, but for its key dictionary and its heap, which only grow."""

    spec: SessionSpec
    keys: KeyDictionary
    sessions: SessionStore
    closed: int = 0  # sessions that were closed since dead keys were last looked for

    @property
    def state(self) -> StateSize:
        """Size of the state."""
        texts = 0 if self.sessions.heap is None else self.sessions.heap.nbytes
        return StateSize(self.sessions.cells, self.sessions.nbytes + self.keys.nbytes + texts)

    @property
    def is_on_device(self) -> bool:
        """Whether its sessions are in the memory of a GPU."""
        return not isinstance(self.sessions, SessionState)

    def on_device(self) -> SessionPartition:
        """This partition with its sessions on CUDA; or as it is, if the device has no room, or values have an order."""
        from gpuwin.state.device.sessions import DeviceSessionState

        if self.spec.hidden:
            return self
        return moved_to_device(
            self,
            lambda: replace(self, sessions=DeviceSessionState.of(self.sessions.on_host())),
            lambda: f"{self.sessions.cells} open sessions stay",
        )

    def on_host(self) -> SessionPartition:
        """This partition with its sessions in host memory."""
        return self if isinstance(self.sessions, SessionState) else replace(self, sessions=self.sessions.on_host())

    @classmethod
    def empty(cls, spec: SessionSpec) -> SessionPartition:
        """The state before the first batch."""
        return cls(spec, KeyDictionary(spec.key_types), SessionState.empty(layout_of(spec), BytesHeap()))

    @classmethod
    def rebuilt(cls, spec: SessionSpec, segments: Sequence[list[bytes]], through: int | None) -> SessionPartition:
        """The state that these segments of the log hold, oldest first, without the sessions that end by ``through``."""
        empty = cls.empty(spec)
        rows, _ = empty._read([chunk for chunks in segments for chunk in chunks], through, logged=True)
        found = assign(rows.code, rows.start, rows.end - rows.start)
        newest = np.empty(len(found.code), np.int64)
        newest[found.slot] = np.arange(len(rows.code))  # the last of equal indices stays, and it contains the others
        state, _ = empty.sessions.merge(found, take_cells(rows.columns, newest))
        return replace(empty, sessions=state)

    def batch(self, chunks: list[bytes], times: BatchTimes, rows: int) -> Outcome[SessionPartition]:
        """Applies one batch, in Spark's order: a row is late by its own end, what is left is merged with the open
        sessions, and those that end at or before the watermark are closed.

        Args:
            chunks: Arrow streams of proto-sessions.
            times: the watermarks of the batch.
            rows: the most sessions in one emitted record batch.

        Raises:
            gpuwin.OverflowError: an integer sum left 64 bits; the state is as it was.
        """
        return again_on_host(
            self, lambda p: p._batch(chunks, times, rows), lambda: f"{self.sessions.cells} open sessions move"
        )

    def _batch(self, chunks: list[bytes], times: BatchTimes, rows: int) -> Outcome[SessionPartition]:
        came, dropped = self._read(chunks, times.late)
        self._refuse_overflow(came)
        joined, trace = self._merged(came)
        at = None if times.evict is None else SessionFrontier(INT64_MIN, times.evict, times.evict)
        kept, emitted, gone = SessionDriver(self.spec.mode).step(joined, trace, at)
        left = trace.sessions
        if len(gone) and times.evict is not None:
            left = left.take(np.flatnonzero(left.end > times.evict))
        return Outcome(
            replace(self, sessions=kept, closed=self.closed + len(gone))._with_fewer_keys(),
            chain.from_iterable(self._tables(sessions, rows) for sessions in emitted),
            updated=len(trace.sessions),
            removed=len(gone),
            dropped=dropped,
            first=None if times.evict is None else times.evict + 1,
            logged=self._tables(left, rows, hidden=True),
            logged_cells=len(left),
            logged_last=int(left.end.max(initial=-(1 << 63))),
        )

    def _merged(self, came: _Sessions) -> tuple[SessionStore, Trace]:
        if not self.spec.hidden:
            return self.sessions.merge_rows(came.code, came.start, came.end, came.columns)
        assert isinstance(self.sessions, SessionState)

        def of_open(sessions: SessionBatch) -> Columns:
            """Their values arrived at their start, whenever that was."""
            hidden = [values.of_open(sessions.start) for values in came.in_time]
            return arriving_at(self.spec, sessions.columns, hidden)

        return self.sessions.merge_rows(came.code, came.start, came.end, came.columns, of_open=of_open)

    def _refuse_overflow(self, came: _Sessions) -> None:
        """Raises where a sum leaves 64 bits at one of these rows, though it may come back: Spark adds those of a
        session, and what was open of it, in order of their start.
        """
        layout = self.sessions.layout
        if not may_overflow(layout, came.columns):
            return
        there = self.sessions.ending(None, None)
        there = there.take(np.flatnonzero(np.isin(there.code, came.code)))
        code, start, end = (
            np.concatenate(both) for both in ((there.code, came.code), (there.start, came.start), (there.end, came.end))
        )
        order = np.lexsort((end, start, code))
        session = assign(code, start, end - start).slot[order]
        refuse_overflow(layout, concat_cells([there.columns, came.columns]), order, begins_of(session))

    def _read(self, chunks: list[bytes], late: int | None, *, logged: bool = False) -> tuple[_Sessions, int]:
        """The rows of some chunks that end after ``late``, and how many do not; ``logged``: they are of the log."""
        spec = self.spec
        table = read_chunks(chunks, spec.cell_schema)
        end = values_of(column_of(table, spec.keys + 1))
        dropped = 0
        if late is not None and len(end):
            live = end > late
            dropped = len(live) - int(np.count_nonzero(live))
            if dropped:
                table, end = table.filter(pa.array(live)), end[live]
        code = self.keys.encode([column_of(table, i) for i in range(spec.keys)], len(end))
        start = values_of(column_of(table, spec.keys))
        columns = [column_of(table, i) for i in spec.buffers_at]
        buffers, times = columns[: len(spec.buffer_types)], columns[len(spec.buffer_types) :]
        in_time = [] if logged else [InTime.of(time) for time in times]
        arrived = times if logged else [values.arrivals for values in in_time]
        assert self.sessions.heap is not None
        codec = BufferCodec(spec, self.sessions.heap)
        return _Sessions(code, start, end, codec.decode([*buffers, *arrived], None), in_time), dropped

    def open_sessions(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The sessions of the state: keys, start, end, buffers. At most ``rows`` in a batch."""
        return self._tables(self.sessions.ending(None, None), rows)

    def _tables(self, sessions: SessionBatch, rows: int, hidden: bool = False) -> Iterator[pa.RecordBatch]:
        """The columns of a window, or with the ``hidden`` ones those of a cell."""
        assert self.sessions.heap is not None
        schema = self.spec.cell_schema if hidden else self.spec.window_schema
        for at in range(0, len(sessions), rows):
            part = slice(at, at + rows)
            place = (sessions.start[part], sessions.end[part])
            columns = take_cells(sessions.columns, part)
            codec = BufferCodec(self.spec, self.sessions.heap.with_texts_of(self.sessions.layout, columns))
            yield record_batch(schema, self.keys.take(sessions.code[part]), place, codec.encode(columns, hidden))

    def _with_fewer_keys(self) -> SessionPartition:
        """Looks for keys without a session once as many were closed as there are keys and sessions, so that looking is
        paid for by what went.
        """
        keys, state, closed = self.keys, self.sessions, self.closed
        if len(keys) > FEW_KEYS and closed >= state.cells + len(keys):
            used, closed = state.used_codes(), 0
            if 2 * len(used) < len(keys):
                keys, new_code = keys.kept(used)
                state = state.recoded(new_code)
        return replace(self, keys=keys, sessions=state.with_smaller_heap(), closed=closed)


def merge_session_segments(
    spec: SessionSpec, segments: Sequence[list[bytes]], first: int, rows: int
) -> tuple[list[pa.RecordBatch], int, int]:
    """Merges segments of a log into the rows of one: (rows, how many, end of the last one in microseconds).

    Sessions that end before ``first`` (microseconds) are left out.
    """
    return merged_sessions(SessionPartition.rebuilt(spec, segments, before(first)), rows)


def before(first: int) -> int | None:
    """The watermark by which sessions are gone that end before ``first``, as of `merge_session_segments`."""
    return None if first == -(1 << 63) else first - 1


def merged_sessions(partition: SessionPartition, rows: int) -> tuple[list[pa.RecordBatch], int, int]:
    """The open sessions of a partition, as of `merge_session_segments`."""
    sessions = partition.sessions.ending(None, None)
    tables = list(partition._tables(sessions, rows, hidden=True))
    return tables, len(sessions), int(sessions.end.max(initial=-(1 << 63)))
