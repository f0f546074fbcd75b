"""Rows of a batch, from host memory to a run of cells in device memory, with one wait for the device.

The host does not look at the rows. It launches the kernels that find late rows and the range of times, look up the
keys, and aggregate the rows. Then it reads the numbers of all three at once. Aggregation needs the panes and the number
of keys, which are not known yet. So it expects those of the batch before, and the panes that follow on them. Rows
elsewhere are passed over. Where the numbers show that there were any, the rows are aggregated again, for one wait more.
Where windows are expected to close with the batch, they are read with the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from gpuwin.batch.timed_rows import TimedRows
from gpuwin.device.admission import Admission
from gpuwin.device.closing import Pace
from gpuwin.device.rows import cells_of_rows, feeds_by_atomics, run_of_host
from gpuwin.grid import WindowGrid
from gpuwin.planning.plan import Plan
from gpuwin.state.device import closing_ahead
from gpuwin.state.device.closing_ahead import Ahead, WindowsToEmit
from gpuwin.state.device.foreseen import CountGuess
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin.state.device.panes import DevicePaneState
from gpuwin.state.device.runs import DeviceRun
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin_kernels.cpu.rows import RowInput, SumOverflow
from gpuwin_kernels.cuda import late as times
from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda import rows as kernel
from gpuwin_kernels.cuda.admission import LATE, only
from gpuwin_kernels.cuda.cells import MOST_BITS, TooFarApart
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.ranges import RangeOverflow
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.runtime import (
    OutOfDeviceMemory,
    Scratch,
    in_arena,
    kept,
    to_device,
    to_host,
    zeros,
)

Panes = tuple[int, int]
"""The first and the last."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Outcome of a batch. `panes`: the state with `run`, its cells, None if no row came in. `newest`: the newest of all
    its times. `late`, `unassigned`: counts of rows that are not in `run`. `before`: count of rows before the second
    limit of `Admission`.
    """

    panes: DevicePaneState
    run: DeviceRun | None
    newest: int
    late: int
    before: int
    unassigned: int
    _at: DeviceArray
    _gone: DeviceArray

    def late_places(self) -> np.ndarray:
        """Places of late rows, int64, ascending."""
        if not self.late:
            return np.empty(0, np.int64)
        return places(only(self._gone, LATE) if self.unassigned else self._gone)

    def on_time(self, rows: int) -> np.ndarray:
        """Places of the rows that came in, int64, ascending."""
        return kept_of(self._gone, rows) if self.late or self.unassigned else np.arange(rows)

    def places_before(self, limit: int) -> np.ndarray:
        """Places of the rows before a time, int64."""
        return places(times.survey(self._at, limit, limit)[0])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows in device memory, the survey of their times, and the windows that are expected to be emitted with them."""

    inputs: list[RowInput]
    code: DeviceArray
    at: DeviceArray
    surveyed: DeviceArray
    to_emit: WindowsToEmit | None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Rows on their way into cells, with the windows that are expected to be emitted. The host reads `numbers`, and
    gives them to `run` and `state`.
    """

    begun: kernel.Aggregation
    ahead: Ahead | None

    @property
    def numbers(self) -> tuple[DeviceArray, ...]:
        return (*self.begun.numbers, *(() if self.ahead is None else self.ahead.numbers))

    def run(self, panes: Panes, numbers: list[np.ndarray]) -> DeviceRun:
        """Run of the cells, which lie in `panes`. Raises SumOverflow."""
        count, overflow, magnitudes = numbers[:3]
        self.begun.check(overflow)
        made = None if self.ahead is None else self.ahead.cells_of(int(count.sum()))
        cells = self.begun.cells(count, overflow) if made is None else made
        return DeviceRun(cells, *panes, self.begun.bounds(magnitudes))

    def state(self, before: DevicePaneState, run: DeviceRun, numbers: list[np.ndarray]) -> DevicePaneState:
        """State `before` with the run, and with the windows that were found ahead."""
        state = before.appended(run)
        return state if self.ahead is None else self.ahead.with_closed(before, run, state, numbers[3:])


def places(flags: DeviceArray) -> np.ndarray:
    """Places where uint8[n] on the device is not 0, int64, ascending."""
    return to_host(primitives.select(flags)).astype(np.int64)


def kept_of(gone: DeviceArray, rows: int) -> np.ndarray:
    """Places where uint8[rows] on the device is 0, int64, ascending."""
    return np.setdiff1d(np.arange(rows), places(gone), assume_unique=True)


def host_codes(
    keys: KeyDictionary, plan: Plan, rows: TimedRows, gone: DeviceArray, some_are: Callable[[], bool]
) -> DeviceArray:
    """Codes of the host's dictionary, int32[n] on the device; -1 for rows that are gone (uint8[n], on the device, or
    empty where none can be), which bring no key. `some_are` waits, and returns whether any is.
    """
    n = len(rows)
    if not keys.types:
        code = zeros(n, np.int32)
        times.pass_over(gone, code)
        return code
    if not len(gone) or not some_are():
        return to_device(keys.encode(rows.keys(plan), n))
    came = kept_of(gone, n)
    code = np.full(n, -1, np.int32)
    code[came] = keys.encode(rows.take(came).keys(plan), len(came))
    return to_device(code)


def _some_gone(surveyed: tuple[DeviceArray, ...]) -> bool:
    """Whether a survey has found rows that are late or in no window. Waits. Raises TooFarApart."""
    numbers = np.sum(read(*surveyed), axis=0)
    if numbers[5]:
        raise TooFarApart
    return bool(numbers[2] or numbers[4])


class BatchTaker:
    """Taker of the batches of one operator. It expects of the next batch the panes of the last one; no result depends
    on that.
    """

    def __init__(self, plan: Plan, grid: WindowGrid) -> None:
        self.plan = plan
        self.grid = grid
        self.expected: Panes | None = None
        self.cells = CountGuess()
        self.pace = Pace()
        self.scratch = Scratch()

    @property
    def first_expected(self) -> int | None:
        """First pane that is expected of the next batch."""
        return None if self.expected is None else self.expected[0]

    def take(
        self, panes: DevicePaneState, rows: TimedRows, admission: Admission, to_emit: WindowsToEmit | None = None
    ) -> Taken:
        """Outcome of a batch of rows with a time, at least one, but for those that `admission` leaves out. `to_emit`:
        the windows that are expected to be emitted; the state that is returned has them, if all was as expected. Raises
        gpuwin.OverflowError, gpuwin.LimitExceeded, OutOfDeviceMemory, and TooFarApart where times lie too far apart to
        find late rows.
        """
        with in_arena(self.scratch):
            return self._taken(panes, rows, admission, to_emit)

    def _taken(
        self, panes: DevicePaneState, rows: TimedRows, admission: Admission, to_emit: WindowsToEmit | None
    ) -> Taken:
        time = to_device(rows.time)
        at = time if rows.end is None else to_device(rows.end)
        gone, surveyed = admission.survey(time, None if rows.end is None else at)
        if isinstance(panes.keys, DeviceKeyDictionary):
            looked_up = panes.keys.looked_up(rows.keys(self.plan), gone)
            code = looked_up.codes
        else:
            looked_up = None
            code = host_codes(panes.keys, self.plan, rows, gone, lambda: _some_gone(surveyed))
        feeds = feeds_by_atomics(self.plan, rows)
        lean = len(feeds) == len(self.plan.layout.columns)
        inputs = kernel.resident(list(feeds.values())) if lean else []
        guess = self._guess(len(panes.keys)) if lean else None
        moved = _Rows(inputs, code, at, surveyed[0], to_emit)
        begun = None if guess is None else self._begun(panes, moved, len(panes.keys), guess)
        counters = () if looked_up is None else looked_up.counters
        merging = () if panes.merging is None else (panes.merging.begun.count,)
        rest = read(*surveyed, *merging, *counters, *(() if begun is None else begun.numbers))
        surveys, rest = rest[: len(surveyed)], rest[len(surveyed) :]
        if merging:
            panes = panes.with_merge_ended(int(rest.pop(0)[0]))
        newest, (least, most) = int(surveys[0][1]), surveys[-1][:2].tolist()
        late, earlier, unassigned, far = np.sum(surveys, axis=0)[2:].tolist()
        self.pace.saw(newest)
        if far:
            raise TooFarApart
        known = len(panes.keys)
        if isinstance(panes.keys, DeviceKeyDictionary) and looked_up is not None:
            code = panes.keys.finished(looked_up, rest[: len(counters)])
        new = len(panes.keys) > known
        taken = Taken(panes, None, newest, late, earlier, unassigned, at, gone)
        if late + unassigned == len(rows):
            return taken
        try:
            if most - least >= kernel.REACH:
                raise TooFarApart
            found = (0, 0) if self.grid.endless else kernel.panes_between(least, most, *self._panes)
            if not lean:
                return self._with_run(taken, self._in_order(panes, rows, taken, code, found), found, new)
            numbers = rest[len(counters) :]
            if begun is None or guess is None or new or found[0] < guess[0] or guess[1] < found[1]:
                begun = None  # its memory is there for the next one
                begun = self._begun(panes, replace(moved, code=code), len(panes.keys), found)
                numbers = read(*begun.numbers)
            run = begun.run(found, numbers)
        except (SumOverflow, RangeOverflow, TooFarApart):
            run = self._on_host(panes, rows, taken, code)
            return self._with_run(taken, run, (run.first, run.last), new=True)
        return self._with_run(taken, run, found, new, begun.state(panes, run, numbers))

    # -- cells -------------------------------------------------------------------------------------------------------

    @property
    def _panes(self) -> tuple[int, int]:
        """(width, origin) of panes; a window without end is one pane of no width."""
        return (1, 0) if self.grid.endless else (self.grid.width, self.grid.origin)

    def _guess(self, codes: int) -> Panes | None:
        """Panes of the last batch, and as many after it."""
        if self.expected is None or not codes:
            return None
        first, last = self.expected
        last = 0 if self.grid.endless else 2 * last - first + 1
        bits = max(codes - 1, 1).bit_length() + (last - first).bit_length()
        within = (last - first + 1) * self._panes[0] < kernel.REACH
        return (first, last) if within and bits <= MOST_BITS else None

    def _begun(self, panes: DevicePaneState, rows: _Rows, codes: int, within: Panes) -> _Attempt:
        """Attempt whose kernels are all launched. Does not wait."""
        at = zeros(len(rows.at), np.int64) if self.grid.endless else rows.at
        codes, room = max(codes, 1), self.cells.room
        placed = kernel.PlacedRows(rows.code, codes, at, within, *self._panes)
        begun = kernel.started(self.plan.layout, rows.inputs, placed)
        ahead = None
        if rows.to_emit is not None and room is not None:
            with suppress(TooFarApart, OutOfDeviceMemory):  # then windows are asked for when they close
                ahead = closing_ahead.launched(panes, begun, room, rows.surveyed, rows.to_emit)
        return _Attempt(begun, ahead)

    def _in_order(
        self, panes: DevicePaneState, rows: TimedRows, taken: Taken, code: DeviceArray, found: Panes
    ) -> DeviceRun:
        """Run of rows that are sorted by cell and merged, after rows that do not come in were taken out."""
        at = taken._at
        if taken.late or taken.unassigned:
            on_time = taken.on_time(len(rows))
            rows, code = rows.take(on_time), to_device(to_host(code)[on_time])
            at = to_device(rows.at)
        if self.grid.endless:
            at = zeros(len(rows), np.int64)
        placed = kernel.PlacedRows(code, len(panes.keys), at, found, *self._panes)
        return DeviceRun.of(self.plan.layout, cells_of_rows(self.plan, panes.heap, rows, placed))

    def _on_host(self, panes: DevicePaneState, rows: TimedRows, taken: Taken, code: DeviceArray) -> DeviceRun:
        """Run made on the host, where sums leave 64 bits on their way, or times lie further apart than a packed cell
        holds: both are rare.
        """
        places_kept = taken.on_time(len(rows))
        came = rows.take(places_kept)
        codes = to_host(code)[places_kept]
        with kept():
            return run_of_host(self.plan, panes, self.grid.panes(came.at), codes, came)

    def _with_run(
        self, taken: Taken, run: DeviceRun, panes: Panes, new: bool, state: DevicePaneState | None = None
    ) -> Taken:
        """Outcome with the run. `state`: the state with the run, if there is one already."""
        self.expected = None if new else panes
        self.cells.last = len(run)
        return replace(taken, panes=taken.panes.appended(run) if state is None else state, run=run)


__all__ = ["BatchTaker", "Panes", "Taken", "host_codes", "kept_of", "places"]
