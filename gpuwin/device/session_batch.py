"""Rows of a batch, from host memory into the open sessions in device memory, with one wait for the device.

As in `gpuwin.device.batch`, the host does not look at the rows. It launches the kernels that find the range of times
and the late rows, look up the keys, cut the rows into proto-sessions, aggregate these and join them with the open
sessions. Then it reads the numbers of all of it at once. For that it expects no new keys, times like those of the last
batch, in order within each key if those were, and about as many proto-sessions. Where the numbers show that it was
wrong, it takes the rows again, with what is known then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from gpuwin.batch.timed_rows import TimedRows
from gpuwin.device.batch import host_codes, kept_of, places
from gpuwin.device.closing import Pace
from gpuwin.device.rows import feeds_by_atomics
from gpuwin.planning.plan import Plan
from gpuwin.state.cells import Columns
from gpuwin.state.device.foreseen import CountGuess
from gpuwin.state.device.heap import arrays_of_heap, putting
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin.state.device.runs import uploaded
from gpuwin.state.device.sessions import DeviceSessionState, DeviceTrace
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.sessions.assignment import Assignment
from gpuwin.state.sessions.session_state import SessionTrace
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.rows import RowInput
from gpuwin_kernels.cuda import ranges, sessions
from gpuwin_kernels.cuda import rows as kernel
from gpuwin_kernels.cuda.admission import LATE, only
from gpuwin_kernels.cuda.byte_keys import HeapArrays
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.packed import TooFarApart
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.runtime import (
    OutOfDeviceMemory,
    Scratch,
    in_arena,
    kept,
    to_device,
    to_host,
    unset,
)
from gpuwin_kernels.cuda.session_join import Closing, DeviceSessions, Joining, blank_for
from gpuwin_kernels.cuda.sessions import DeviceProtos, Span
from gpuwin_kernels.cuda.watermark import Watermark
from gpuwin_kernels.layout import CellArrays, CellLayout

_FIRST_ROOM = 1 << 16
"""Proto-sessions that there is room for while nothing is known of a stream."""

Cut = Callable[[TimedRows, np.ndarray], tuple[Assignment, Columns]]
"""What cuts rows, with the codes of their keys, on the host."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Outcome of a batch. `sessions`: the open sessions with its rows. `trace`: what the batch touched, None if no row
    is in a session. `newest`: the newest of all its times. `late`, `free`: counts of rows that are late, and that have
    no gap.
    """

    sessions: DeviceSessionState
    trace: DeviceTrace | SessionTrace | None
    newest: int
    late: int
    free: int
    _gone: DeviceArray

    def late_places(self) -> np.ndarray:
        """Places of late rows, int64, ascending."""
        if not self.late:
            return np.empty(0, np.int64)
        return places(only(self._gone, LATE) if self.free else self._gone)

    def kept_places(self, rows: int) -> np.ndarray:
        """Places of the rows that are in a session, int64, ascending."""
        return kept_of(self._gone, rows) if self.late or self.free else np.arange(rows)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows in device memory. `inputs`: of the columns that atomics merge, by their number. `slow`: the cell of each row
    of the others. `surveyed`: the survey of their times. `closes_by`: the watermark that sessions are expected to close
    by.
    """

    time: DeviceArray
    gap: int | DeviceArray
    surveyed: DeviceArray
    closes_by: Watermark | None
    inputs: dict[int, RowInput]
    slow: dict[int, CellArrays]
    heap: HeapArrays | None  # of the texts of rows


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Rows on their way into the open sessions. The host reads `numbers`."""

    joining: Joining
    protos: DeviceProtos
    in_order: bool  # the rows of each key are taken as they came
    disorder: DeviceArray
    overflows: tuple[DeviceArray, ...]
    closing: tuple[DeviceArray, Closing] | None  # an instant, and sessions that end by it, if that was worth a look

    @property
    def numbers(self) -> tuple[DeviceArray, ...]:
        """Numbers for the host: count of proto-sessions; whether rows were out of order; numbers of `joining`; flags of
        sums; and, of sessions that close, the bound and the numbers.
        """
        numbers = (self.protos.count, self.disorder, *self.joining.numbers, *self.overflows)
        return numbers if self.closing is None else (*numbers, self.closing[0], *self.closing[1].numbers)

    def with_closed(self, state: DeviceSessionState, numbers: list[np.ndarray]) -> DeviceSessionState:
        """State after the batch, with the sessions that close, if they were found."""
        if self.closing is None:
            return state
        upto, *closed = numbers[5 + len(self.overflows) :]
        return state.with_closed(self.closing[1], int(upto[0]), closed)


class SessionTaker:
    """Taker of the batches of one operator. It expects the next batch to be like the last; no result depends on
    that.
    """

    def __init__(self, plan: Plan, gap: int | None, strict: bool) -> None:
        """`gap`: microseconds, None if each row has its own."""
        self.plan = plan
        self.gap = gap
        self.strict = strict
        self.scratch = Scratch()
        self.reset()

    def reset(self) -> None:
        """Expects nothing: the next batch is taken step by step."""
        self.span: Span | None = None
        self.step = 0
        self.in_order = False
        self.protos = CountGuess()
        self.pace = Pace()

    def take(
        self,
        state: DeviceSessionState,
        keys: KeyDictionary,
        rows: TimedRows,
        before: int,
        passed: int,
        by_host: Cut,
        closes_by: Watermark | None = None,
    ) -> Taken:
        """Outcome of a batch of rows with a time, at least one. Late are rows earlier than `before`, and those that end
        at or before `passed`; see `sessions.survey`. `by_host` cuts rows whose times and keys fit no packed word, or
        whose sums leave 64 bits on their way. `closes_by`: the watermark that sessions are expected to close by; the
        state that is returned has them, if all was as expected. Raises gpuwin.OverflowError, gpuwin.LimitExceeded,
        OutOfDeviceMemory.
        """
        with in_arena(self.scratch):
            return self._taken(state, keys, rows, (before, passed), by_host, closes_by)

    def _taken(
        self,
        state: DeviceSessionState,
        keys: KeyDictionary,
        rows: TimedRows,
        late: tuple[int, int],
        by_host: Cut,
        closes_by: Watermark | None,
    ) -> Taken:
        n = len(rows)
        time = to_device(rows.time)
        gap = self.gap if rows.gap is None else to_device(rows.gap)
        assert gap is not None
        gone, surveyed = sessions.survey(time, gap, *late)
        looked_up = None
        if isinstance(keys, DeviceKeyDictionary):
            looked_up = keys.looked_up(rows.keys(self.plan), gone)
            code = looked_up.codes
        else:
            code = host_codes(keys, self.plan, rows, gone, lambda: bool(to_host(surveyed)[3:].any()))
        moved = self._moved(state, rows, time, gap, surveyed, closes_by)
        known = len(keys)
        guess = self._guess(known)
        begun = None if guess is None else self._begun(state, moved, code, known, guess, self._room(n))
        counters = () if looked_up is None else looked_up.counters
        survey, *rest = read(surveyed, *counters, *(() if begun is None else begun.numbers))
        least, newest, furthest, gone_late, free = survey.tolist()
        self.pace.saw(newest)
        if isinstance(keys, DeviceKeyDictionary) and looked_up is not None:
            code = keys.finished(looked_up, rest[: len(counters)])
        taken = Taken(state, None, newest, gone_late, free, gone)
        if gone_late + free == n:
            return taken
        new, span = len(keys) > known, Span(least, newest, furthest)
        numbers = rest[len(counters) :]
        if guess is None or new or not guess.holds(least, newest, furthest):
            begun = None
        self._expect(None if new else span)
        try:
            while begun is None or not self._as_expected(begun, numbers):
                begun = None  # its memory is there for the next one
                begun = self._begun(state, moved, code, len(keys), span, self._room(n))
                numbers = read(*begun.numbers)
            after, trace = self._joined(state, begun, numbers, least + (self.gap or 1))
        except (ranges.RangeOverflow, TooFarApart):
            came = taken.kept_places(n)
            some, codes = rows if len(came) == n else rows.take(came), to_host(code)[came]
            with kept():
                after, by_host_trace = state.merge(*by_host(some, codes))
            return replace(taken, sessions=after, trace=by_host_trace)
        return replace(taken, sessions=after, trace=trace)

    # -- guesses -------------------------------------------------------------------------------------------------------

    def _expect(self, span: Span | None) -> None:
        """Expects that the next batch lies as this one does, and as far behind it as this one behind the last."""
        self.step = 0 if span is None or self.span is None else abs(span.most - self.span.most)
        self.span = span

    def _guess(self, codes: int) -> Span | None:
        """Times of the last batch, as much before them and twice as much after them, by its width or the step that it
        made; None if there is none, or it does not fit a packed word.
        """
        if self.span is None or not codes:
            return None
        least, most, end = self.span.least, self.span.most, self.span.end
        width = max(most - least + 1, self.step)
        wide = Span(max(least - width, INT64_MIN), most + 2 * width, end + 2 * width + (end - most))
        if wide.end >= INT64_MAX or wide.most - wide.least >= kernel.REACH:
            return None
        return wide if wide.fits(codes) else None

    def _room(self, rows: int) -> int:
        room = self.protos.room
        return min(rows, _FIRST_ROOM if room is None else room)

    def _as_expected(self, begun: _Attempt, numbers: list[np.ndarray]) -> bool:
        """Whether an attempt holds all proto-sessions, and in order. Remembers their number and order."""
        count = int(numbers[0][0])
        self.protos.last = max(count, (self.protos.last or 0) * 3 // 4)  # batches may be small and large in turn
        self.in_order = not numbers[1][0]
        return count <= len(begun.protos.code) and (self.in_order or not begun.in_order)

    # -- rows to sessions ----------------------------------------------------------------------------------------------

    def _moved(
        self,
        state: DeviceSessionState,
        rows: TimedRows,
        time: DeviceArray,
        gap: int | DeviceArray,
        surveyed: DeviceArray,
        closes_by: Watermark | None,
    ) -> _Rows:
        assert state.heap is not None
        feeds = feeds_by_atomics(self.plan, rows)
        inputs = dict(zip(feeds, kernel.resident(list(feeds.values())), strict=True))
        slow = [i for i in range(len(self.plan.layout.columns)) if i not in feeds]
        texts = putting(state.heap)
        cells = uploaded([self.plan.inputs[i].cells(rows, texts) for i in slow])
        return _Rows(
            time, gap, surveyed, closes_by, inputs, dict(zip(slow, cells, strict=True)), arrays_of_heap(state.heap)
        )

    def _begun(
        self, state: DeviceSessionState, rows: _Rows, code: DeviceArray, codes: int, span: Span, room: int
    ) -> _Attempt:
        """Attempt whose kernels are all launched, with room for so many proto-sessions. Does not wait. Raises
        TooFarApart.
        """
        if span.most - span.least >= kernel.REACH:
            raise TooFarApart(f"times lie {span.most - span.least} microseconds apart")
        in_order = self.in_order
        cuts = sessions.cutting(code, rows.time, rows.gap, self.strict, max(codes, 1), span, in_order)
        lengths = blank_for(self.plan.layout, len(state) + room)
        of_join = len(lengths)
        if rows.inputs:
            lengths += kernel.zeros_for(self._part(rows.inputs), list(rows.inputs.values()), room)
        whole, blank = unset(*lengths)
        protos = cuts.protos(room, whole)
        columns, overflows = self._cells(rows, protos, span, blank[of_join:])
        new = DeviceSessions(protos.code, protos.start, protos.last, protos.end, columns)
        closes_by = None if rows.closes_by is None else (rows.surveyed, rows.closes_by)
        joining = state.joining(new, protos.count, self.strict, blank[:of_join], closes_by)
        ahead = None
        if closes_by is not None:
            with suppress(OutOfDeviceMemory):  # then sessions are asked for when they close
                ahead = state.closing_ahead(joining)
        return _Attempt(joining, protos, in_order, cuts.disorder, overflows, ahead)

    def _cells(
        self, rows: _Rows, protos: DeviceProtos, span: Span, zero: list[DeviceArray]
    ) -> tuple[tuple[CellArrays, ...], tuple[DeviceArray, ...]]:
        """Cells of proto-sessions, and flags that are not 0 where an exact sum left its type. `zero`: arrays of zeros,
        as of `rows.zeros_for`.
        """
        columns: dict[int, CellArrays] = {}
        overflows = []
        if rows.inputs:
            layout = self._part(rows.inputs)
            width = span.most - span.least + 1  # one pane holds all rows
            placed = kernel.PlacedRows(protos.slot, len(protos.code), rows.time, (0, 0), width, span.least)
            begun = kernel.started(layout, list(rows.inputs.values()), placed, dense=True, zero=zero)
            columns.update(zip(rows.inputs, begun.all_records(), strict=True))
            overflows.append(begun.numbers[1])
        if rows.slow:
            layout, cells = self._part(rows.slow), tuple(rows.slow.values())
            merged, overflow = ranges.started(layout, cells, protos.lo, protos.hi, None, rows.heap, protos.place)
            columns.update(zip(rows.slow, merged, strict=True))
            overflows.append(overflow)
        return tuple(columns[i] for i in range(len(self.plan.layout.columns))), tuple(overflows)

    def _part(self, numbers: Iterable[int]) -> CellLayout:
        return CellLayout(tuple(self.plan.layout.columns[i] for i in numbers))

    def _joined(
        self, state: DeviceSessionState, begun: _Attempt, numbers: list[np.ndarray], least_end: int
    ) -> tuple[DeviceSessionState, DeviceTrace]:
        count, _, made, first_end = numbers[:4]
        for flags in numbers[4 : 5 + len(begun.overflows)]:
            ranges.raise_if_any(flags)
        after, trace = state.joined(begun.joining, int(made[0]), int(first_end[0]), int(count[0]), least_end)
        return begun.with_closed(after, numbers), trace


__all__ = ["SessionTaker", "Taken"]
