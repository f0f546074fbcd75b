"""`SessionState` with its sessions in device memory, immutable as well: every method returns a new state, and a batch
that fails needs no undo.

There are no tiers: one sorted list, which each batch joins with its proto-sessions and writes anew. On the host tiers
spare a batch the sessions that it does not touch, at some nanoseconds each. Here a session is some 50 bytes, of which a
join moves six times as much: two gathers, a fold and the copy. At 4 TB/s that is 75 microseconds for a million open
sessions, less than the launches of a batch take, and 0.75 milliseconds for ten million; a million rows of 20 bytes need
0.4 milliseconds to come over PCIe alone. A second, small list would save most of it from about ten million sessions on,
and would cost every batch a search in both, a list of what has left the large one, and the waits to learn how long that
is.

The join compares keys and times as they are, so nothing here depends on how far apart times lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from gpuwin.state.cells import Columns
from gpuwin.state.device.foreseen import CountGuess
from gpuwin.state.device.heap import arrays_of_heap, heap_of, heap_of_host, smaller_there
from gpuwin.state.device.runs import columns_like, uploaded
from gpuwin.state.heap import BytesHeap
from gpuwin.state.sessions.assignment import Assignment, Touch
from gpuwin.state.sessions.session_state import SessionState, SessionTrace
from gpuwin.state.sessions.tiers import SessionBatch, Tier
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cuda import ranges
from gpuwin_kernels.cuda import session_join as kernel
from gpuwin_kernels.cuda.cells import TooFarApart
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.runtime import to_device, to_host
from gpuwin_kernels.cuda.session_join import Closing, DeviceSessions, Joining
from gpuwin_kernels.cuda.sessions import Span, cutting
from gpuwin_kernels.cuda.watermark import Watermark
from gpuwin_kernels.layout import CellArrays, CellLayout


@dataclass(frozen=True)
class DeviceTrace:
    """Sessions that a batch touched, as `SessionTrace`. They come to the host when they are asked for."""

    joined: Joining
    most: int  # no more than so many sessions were touched
    least_end: int = INT64_MIN  # none of which ends before this
    bridges: None = None  # which sessions became one is not known: that takes rows one by one

    @cached_property
    def sessions(self) -> SessionBatch:
        """Sessions with a row of the batch. Waits."""
        return self.ending(INT64_MAX)

    def ending(self, upto: int) -> SessionBatch:
        """Touched sessions that end at or before `upto`. Waits, unless the times of the batch show that there
        are none.
        """
        if upto < self.least_end:
            return _none(self.joined.layout)
        taken = self.joined.touched(self.most, upto)
        count, *arrays = read(taken.count, *taken.sessions.arrays())
        return _batch(taken.sessions, [a[: int(count.sum())] for a in arrays])


@dataclass(frozen=True, slots=True)
class Closed:
    """Sessions that end at or before `upto`, found before they were asked for, and the state without them."""

    upto: int
    batch: SessionBatch
    left: DeviceSessionState


@dataclass(frozen=True)
class DeviceSessionState:
    """Open sessions of all keys, on the device. None of them is emptied: only engines of the host do that. They have no
    ids there: those are given anew when the state moves to the host.
    """

    layout: CellLayout
    open: DeviceSessions
    first_end: int = INT64_MAX  # the least end of all
    heap: BytesHeap | None = None
    expected: CountGuess = field(default_factory=CountGuess, compare=False)  # sessions that close at a time
    expected_ended: CountGuess = field(default_factory=CountGuess, compare=False)  # sessions that close and stay
    closed: Closed | None = field(default=None, compare=False)  # of these very sessions

    @classmethod
    def empty(cls, layout: CellLayout, heap: BytesHeap | None = None) -> DeviceSessionState:
        """State without sessions. Raises OutOfDeviceMemory."""
        return cls.of(SessionState.empty(layout, heap))

    @classmethod
    def of(cls, state: SessionState) -> DeviceSessionState:
        """This state in device memory. Raises OutOfDeviceMemory."""
        sessions = state.ending(None, None)
        if not sessions.filled.all():
            raise ValueError("sessions that were emptied stay on the host")
        first = int(sessions.end.min(initial=INT64_MAX))
        columns = uploaded(sessions.columns)
        opened = DeviceSessions.of(map(to_device, sessions.bounds()[:4]), columns)
        heap = None if state.heap is None else heap_of(state.layout, state.heap)
        return cls(state.layout, opened, first, heap)

    def on_host(self) -> SessionState:
        """This state in host memory. It moves array by array: the device may have no room for a copy of it."""
        return replace(self._sessions_on_host(), heap=None if self.heap is None else heap_of_host(self.heap))

    def _sessions_on_host(self) -> SessionState:
        """This state in host memory, but for the heap, which stays: for sessions that the host merges now and then."""
        sessions = _batch(self.open, [to_host(array) for array in self.open.arrays()])
        tiers = (Tier.of(sessions),) if len(sessions) else ()
        return SessionState(self.layout, tiers, len(sessions), self.heap)

    @property
    def cells(self) -> int:
        """Number of open sessions."""
        return len(self.open)

    def __len__(self) -> int:
        return self.cells

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(len(a) * a.dtype.itemsize for a in self.open.arrays())

    # -- what is open --------------------------------------------------------------------------------------------------

    def ending(self, after: int | None, upto: int | None) -> SessionBatch:
        """Sessions with `after < end <= upto`; None is open on that side. Waits once, if there are at most about as
        many as the last time; else once more to learn how many.
        """
        if after is None and upto is None:
            return _batch(self.open, read(*self.open.arrays())) if len(self) else _none(self.layout)
        least = INT64_MIN if after is None else min(after, INT64_MAX - 1) + 1
        most = INT64_MAX if upto is None else upto
        if not len(self) or max(least, self.first_end) > most or after == INT64_MAX:
            return _none(self.layout)
        room = self.expected_ended.room
        taken = kernel.ending(self.open, least, most, min(64, len(self)) if room is None else room)
        count, *arrays = read(taken.count, *taken.sessions.arrays())
        self.expected_ended.last = n = int(count.sum())
        if n > len(taken.sessions):
            taken = kernel.ending(self.open, least, most, n)
            arrays = read(*taken.sessions.arrays())
        return _batch(taken.sessions, [a[:n] for a in arrays])

    def evict(self, upto: int) -> DeviceSessionState:
        """State without the sessions with `end <= upto`."""
        return self.close(upto)[1]

    def close(self, upto: int | np.ndarray) -> tuple[SessionBatch, DeviceSessionState]:
        """`ending(None, upto)` and `evict(upto)` in one. Does not wait where nothing ends by then, or where these
        sessions were found ahead; else as `ending`. Raises ValueError for a bound per key, which the host closes by.
        """
        if isinstance(upto, np.ndarray):
            raise ValueError("sessions with a watermark per key are closed on the host")
        if not len(self) or self.first_end > upto:
            return _none(self.layout), self
        if self.closed is not None and self.closed.upto == upto:
            return self.closed.batch, replace(self.closed.left, heap=self.heap)  # which a failed batch may have renewed
        room = self.expected.room
        found = kernel.closing(self.open, upto, min(64, len(self)) if room is None else room)
        closed = found.closed.sessions
        count, (first,), *arrays = read(*found.numbers)
        self.expected.last = n = int(count.sum())
        if n > len(closed):
            closed = kernel.ending(self.open, INT64_MIN, upto, n).sessions
            arrays = read(*closed.arrays())
        return _batch(closed, [a[:n] for a in arrays]), self._left(found, n, int(first))

    def _left(self, found: Closing, closed: int, first_end: int) -> DeviceSessionState:
        return replace(self, open=found.left.first(len(self) - closed), first_end=first_end, closed=None)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def joining(
        self,
        protos: DeviceSessions,
        count: DeviceArray,
        strict: bool,
        blank: Sequence[DeviceArray] | None = None,
        closes_by: tuple[DeviceArray, Watermark] | None = None,
    ) -> Joining:
        """Launch of the join of the open sessions with others on the device; see `kernel.joining`. Does not wait."""
        heap = arrays_of_heap(self.heap)
        return kernel.joining(self.layout, self.open, protos, count, strict, heap, blank, closes_by)

    def closing_ahead(self, begun: Joining) -> tuple[DeviceArray, Closing] | None:
        """Launch of the kernels that take the sessions that close by the watermark from those that `joining` makes,
        with room for about as many as the last time; None if that is not known. Does not wait.
        """
        room = self.expected.room
        return None if room is None else begun.closing(room)

    def with_closed(self, found: Closing, upto: int, numbers: Sequence[np.ndarray]) -> DeviceSessionState:
        """This state, which `joined` has made, with the sessions that close, if there was room for them. `numbers`: of
        `found`, on the host.
        """
        count, (first,), *arrays = numbers
        n = int(count.sum())
        if not n:
            return self
        self.expected.last = n
        closed = found.closed.sessions
        if n > len(closed):
            return self
        batch = _batch(closed, [a[:n] for a in arrays])
        return replace(self, closed=Closed(upto, batch, self._left(found, n, int(first))))

    def joined(
        self, begun: Joining, made: int, first_end: int, most: int, least_end: int = INT64_MIN
    ) -> tuple[DeviceSessionState, DeviceTrace]:
        """State after the join that `joining` has launched. The host has read the number of sessions, and the least
        end. `most`: at most so many were joined to the others, and none of these ends before `least_end`.
        """
        state = replace(self, open=begun.sessions.first(made), first_end=first_end, closed=None)
        return state, DeviceTrace(begun, most, least_end)

    def _read(self, begun: Joining, most: int) -> tuple[DeviceSessionState, DeviceTrace]:
        """State as of `joined`; waits. Raises RangeOverflow."""
        made, first_end, overflow = read(*begun.numbers)
        ranges.raise_if_any(overflow)
        return self.joined(begun, int(made[0]), int(first_end[0]), most)

    def merge(
        self, assignment: Assignment, columns: Sequence[CellArrays]
    ) -> tuple[DeviceSessionState, SessionTrace | DeviceTrace]:
        """State with proto-sessions that the host has made, and the trace; see `SessionState.merge`. Raises
        gpuwin.OverflowError, OutOfDeviceMemory.
        """
        n = len(assignment.code)
        if assignment.joined is not None:
            raise ValueError("rows that were played one by one are merged on the host")
        if not n:
            return self, SessionTrace.nothing(self.layout)
        bounds = (assignment.code, assignment.start, assignment.last, assignment.end)
        protos = DeviceSessions.of(map(to_device, bounds), uploaded(columns))
        begun = self.joining(protos, to_device(np.array([n])), assignment.touch == "split")
        try:
            return self._read(begun, n)
        except ranges.RangeOverflow:  # the host sums in 128 bits before it gives up
            state, trace = self._sessions_on_host().merge(assignment, columns)
            return self._again(state), trace

    def merge_rows(
        self,
        code: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
        columns: Columns,
        touch: Touch = "merge",
    ) -> tuple[DeviceSessionState, SessionTrace | DeviceTrace]:
        """State with intervals of the host in any order, with a cell each, and the trace; see
        `SessionState.merge_rows`. Waits once. Raises gpuwin.OverflowError, OutOfDeviceMemory.
        """
        n, strict = len(code), touch == "split"
        if not n:
            return self, SessionTrace.nothing(self.layout)
        try:
            span = Span(int(start.min()), int(start.max()), int(end.max()))
            codes = int(code.max()) + 1
            gap = to_device(end - start)
            protos = cutting(to_device(code), to_device(start), gap, strict, codes, span).protos(n)
            rows, heap = uploaded(columns), arrays_of_heap(self.heap)
            cells, overflow = ranges.started(self.layout, rows, protos.lo, protos.hi, None, heap, protos.place)
            merged = DeviceSessions(protos.code, protos.start, protos.last, protos.end, cells)
            begun = self.joining(merged, protos.count, strict)
            made, first_end, some, others = read(*begun.numbers, overflow)
            ranges.raise_if_any(some | others)
            return self.joined(begun, int(made[0]), int(first_end[0]), n)
        except (ranges.RangeOverflow, TooFarApart):
            state, trace = self._sessions_on_host().merge_rows(code, start, end, columns, touch)
            return self._again(state), trace

    def _again(self, state: SessionState) -> DeviceSessionState:
        return replace(DeviceSessionState.of(state), expected=self.expected, expected_ended=self.expected_ended)

    # -- keys and snapshots --------------------------------------------------------------------------------------------

    def used_codes(self) -> np.ndarray:
        """Key codes in use, int32, sorted, unique."""
        return to_host(kernel.used_codes(self.open)) if len(self) else np.empty(0, np.int32)

    def recoded(self, new_code: np.ndarray) -> DeviceSessionState:
        """State with the codes of a new dictionary: `new_code` int32, old -> new, order preserving (-1: not in use)."""
        return replace(self, open=kernel.recoded(self.open, to_device(new_code.astype(np.int32))), closed=None)

    def with_heap(self, heap: BytesHeap) -> DeviceSessionState:
        """State with another heap, in which the codes of its cells mean the same."""
        return replace(self, heap=heap)

    def with_smaller_heap(self) -> DeviceSessionState:
        """State with a heap of the texts in use; see `SessionState.with_smaller_heap`."""
        found = smaller_there(self.layout, self.heap, [self.open.columns])
        return (
            self
            if found is None
            else replace(self, heap=found[0], open=replace(self.open, columns=found[1][0]), closed=None)
        )

    def to_arrow(self) -> pa.RecordBatch:
        """Sessions as of `SessionState.to_arrow`."""
        return self.on_host().to_arrow()


def _none(layout: CellLayout) -> SessionBatch:
    return SessionBatch.empty(layout)


def _batch(like: DeviceSessions, arrays: Sequence[np.ndarray]) -> SessionBatch:
    """Sessions on the host, of the arrays of sessions on the device."""
    code, start, last, end, *rest = arrays
    ids, filled = np.arange(len(code)), np.ones(len(code), np.uint8)
    return SessionBatch(code, start, last, end, ids, filled, columns_like(like.columns, rest))


__all__ = ["DeviceSessionState", "DeviceTrace"]
