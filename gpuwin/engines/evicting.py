"""Engine of windows with an evictor: the rows of each window are kept, in order of arrival.

A trigger fires when it would without the evictor, which says only what rows a firing sees and what rows stay. What a
firing sees depends on what those before it evicted, so nothing can be merged beforehand: the windows of a batch are
visited row by row (`gpuwin_kernels.cpu.evictors`), and then the results of many firings are computed at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa

from gpuwin.batch.assignment import Assigned, assign_windows
from gpuwin.batch.timed_rows import TimedRows
from gpuwin.bounds import Bounds
from gpuwin.engines.results import finished, result
from gpuwin.engines.saved import key_part, keys_of, with_numbers
from gpuwin.engines.step import Parts, Step
from gpuwin.engines.triggers.contents import in_turn, until_of
from gpuwin.engines.triggers.firings import BatchTime, Visits, firings_of
from gpuwin.engines.triggers.ledger import Ledger
from gpuwin.engines.triggers.rule import TriggerRule
from gpuwin.errors import OverflowError
from gpuwin.grid import WindowGrid
from gpuwin.planning.inputs import SomeRows
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.buffers import copied
from gpuwin.state.cells import empty_cells, merge_parts, take_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys import dead_keys
from gpuwin.state.keys.dictionary import KeyDictionary, Names
from gpuwin.state.physical import words_of
from gpuwin.state.rows.held_windows import HeldWindows
from gpuwin.state.rows.slices import RowSlices
from gpuwin.state.spill import OnDisk, worth_a_file
from gpuwin.state.stretches import Stretches
from gpuwin.vocabulary.durations import INT64_MAX, micros
from gpuwin.vocabulary.evictors import Evictor, KeepLast, KeepWithin
from gpuwin.vocabulary.triggers import Trigger
from gpuwin_kernels.cpu.distinct_codes import distinct_codes
from gpuwin_kernels.cpu.evictors import (
    LAST,
    WITHIN,
    Keeps,
    joined_stretches,
    keeps_near,
    lessen,
    union_of_windows,
    visit_windows,
)
from gpuwin_kernels.cpu.order import order_by_code

_CHUNKS = 64  # of a column in memory, before they become one
_ROWS = 1 << 20  # of firings whose results are computed at once
_SHARED = 2  # firings that see a row, from which it pays to know the cells of blocks of rows


_NONE = np.empty(0, np.int64)
_NO_FLOATS, _NO_FLAGS = np.empty(0, np.float64), np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class RowPool:
    """Rows in order of arrival, with their columns in chunks, which are never copied together."""

    columns: dict[str, pa.ChunkedArray]
    time: np.ndarray  # int64[n]
    seq: np.ndarray  # int64[n]

    def __len__(self) -> int:
        return len(self.time)

    def with_rows(self, rows: TimedRows, keep: int) -> RowPool:
        """Pool with these rows as well. The first `keep` chunks are left as they are; there are few others."""
        columns = {}
        for name, column in self.columns.items():
            plain = rows.columns[name]
            some = [*column.chunks[keep:], copied(plain) if plain.type == column.type else plain.cast(column.type)]
            if len(some) > _CHUNKS:
                some = [pa.concat_arrays(some)]
            columns[name] = pa.chunked_array([*column.chunks[:keep], *some], column.type)
        return RowPool(columns, np.concatenate((self.time, rows.time)), np.concatenate((self.seq, rows.seq)))

    def take(self, at: np.ndarray) -> SomeRows:
        places = pa.array(at)
        columns = {name: column.take(places).combine_chunks() for name, column in self.columns.items()}
        return SomeRows(columns, self.time[at], self.seq[at])


@dataclass(frozen=True)
class EvictingWindows:
    """State of windows with an evictor: all rows that a window holds, and the windows.

    uses: of each row, the number of windows that hold it. The first `on_disk` chunks of the pool's columns are on disk.
    """

    keys: KeyDictionary
    pool: RowPool
    windows: HeldWindows
    uses: np.ndarray  # int32[rows]
    on_disk: int = 0


@dataclass(frozen=True, slots=True)
class _Taking:
    """Windows of the state and of a batch together, sorted by (window, code), and those that take part in the batch:
    that rows come to, or that close.
    """

    code: np.ndarray  # int32[n]
    window: np.ndarray  # int64[n]
    end: np.ndarray  # int64[n]
    held: np.ndarray  # int64[n], places among the windows of the state; -1: none of them
    part: np.ndarray  # bool[n]


@dataclass(frozen=True, slots=True)
class _Seen:
    """Rows that each firing sees, buffer[lo[f]:hi[f]], with its window's key and number, and its timing."""

    buffer: np.ndarray  # int64[k], places in the pool
    lo: np.ndarray  # int64[firings]
    hi: np.ndarray
    code: np.ndarray  # int32[firings]
    window: np.ndarray  # int64[firings]
    timing: np.ndarray

    def take(self, at: np.ndarray) -> _Seen:
        return _Seen(self.buffer, self.lo[at], self.hi[at], self.code[at], self.window[at], self.timing[at])

    def parts(self) -> Iterator[_Seen]:
        """Firings in parts of few rows: those of one firing, or not more than `_ROWS` in all."""
        upto = np.cumsum(self.hi - self.lo)
        begin = 0
        while begin < len(upto):
            before = upto[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(upto, before + _ROWS, "right")))
            yield self.take(np.arange(begin, end))
            begin = end


class EvictingEngine:
    """Engine of windows on a grid, for a `Trigger` with an evictor."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        emit = plan.spec.emit
        assert isinstance(emit, Trigger)
        self.plan = plan
        self.rule = rule
        self.trigger = TriggerRule.of(plan.spec)
        assert emit.evict is not None
        self.evictor: Evictor = emit.evict
        self.grid = WindowGrid.of(plan.spec.window)
        self.bounds = Bounds.of(plan.spec)

    def begin(self, progress: Progress = BEFORE_TIME) -> EvictingWindows:
        columns = {name: pa.chunked_array([], type_) for name, type_ in self.plan.kept_values.items()}
        no_rows = RowPool(columns, _NONE, _NONE)
        return EvictingWindows(KeyDictionary(self.plan.key_types), no_rows, HeldWindows.none(), _NONE.astype(np.int32))

    # -- a batch -----------------------------------------------------------------------------------------------------

    def rows(self, state: EvictingWindows, rows: TimedRows, progress: Progress, source: int) -> Step[EvictingWindows]:
        code = state.keys.encode(rows.keys(self.plan), len(rows))
        after = self.rule.after_rows(progress, rows.time, source)
        tested = np.full(len(rows), progress.watermark)
        kept, _, assigned, drops = assign_windows(self.grid, self.bounds, self.rule, rows, code, tested)
        state, results = self._applied(state, kept, assigned, progress.watermark, after.watermark)
        return Step(state, after, results, drops)

    def advance(self, state: EvictingWindows, progress: Progress) -> Step[EvictingWindows]:
        none = np.empty(0, np.int64)
        assigned = Assigned(none, none.astype(np.int32), none)
        state, results = self._applied(state, TimedRows({}, none, 0), assigned, progress.before, progress.watermark)
        return Step(state, progress, results)

    def _applied(
        self, state: EvictingWindows, rows: TimedRows, assigned: Assigned, before: int, watermark: int
    ) -> tuple[EvictingWindows, list[pa.RecordBatch]]:
        """State with these rows, with the watermark, which was `before`, at `watermark`, and the results."""
        place = len(state.pool)  # of the first row
        pool = state.pool.with_rows(rows, state.on_disk) if len(rows) else state.pool
        uses = np.concatenate((state.uses, np.bincount(assigned.row, minlength=len(rows)).astype(np.int32)))
        state = replace(state, pool=pool, uses=uses)
        taking, visits = self._visits(state.windows, assigned, before, watermark)
        some = np.flatnonzero(taking.part)
        there = taking.held[some]
        ledger = replace(
            Ledger.fresh(len(some), 0),
            count=_of_held(state.windows.count, there),
            closed=_of_held(state.windows.closed, there).astype(np.int64),
        )
        # Of the times, only triggers by time take notice.
        none = np.zeros(len(some), np.int64)
        fired, ledger = firings_of(self.trigger, ledger, visits, none, none, none, none, BatchTime(0, False))
        lo, hi = _of_held(state.windows.lo, there), _of_held(state.windows.hi, there)
        fires = np.searchsorted(fired.window, np.arange(len(some) + 1))
        new = visits.row + place
        compared = self._compared(state, lo, hi, new, visits, fires)
        buffer, seen_lo, seen_hi, *left, gone = visit_windows(
            *compared, state.windows.places.values, lo, hi, new, visits.first, fires, fired.rank
        )
        at = some[fired.window]
        seen = _Seen(buffer, seen_lo, seen_hi, taking.code[at], taking.window[at], fired.timing)
        results = self._emitted(state, seen, in_turn(until_of(fired, visits, rows)))
        windows, ended = self._left(state.windows, taking, ledger, (buffer, left[0], left[1]), watermark)
        lessen(uses, gone)
        lessen(uses, ended)
        return self._without_unused(replace(state, windows=windows)), results

    def _visits(self, windows: HeldWindows, assigned: Assigned, before: int, watermark: int) -> tuple[_Taking, Visits]:
        """Windows of the state and the batch, and the visits of those that take part in it."""
        order = _by_window(assigned)
        code, window = assigned.code[order], assigned.window[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (code[1:] != code[:-1]) | (window[1:] != window[:-1])
        first = np.append(np.flatnonzero(begins), len(order))
        code, window = code[begins], window[begins]
        held, came = union_of_windows(windows.window, windows.code, window, code)
        opened = held < 0
        of_code, of_window = _of_held(windows.code, held), _of_held(windows.window, held)
        of_code[opened], of_window[opened] = code[came[opened]], window[came[opened]]
        end = self.grid.ends(of_window)
        was = _of_held(windows.closed, held)
        closing = ~was & (end <= self.bounds.closing(watermark))
        part = (came >= 0) | closing
        size = _of_held(np.diff(first), came[part])
        after_end = opened[part] & (end[part] <= self.bounds.closing(before))
        # A window whose first row comes after its end fires on time with that row, or with all of the batch.
        most = np.where(after_end & self.trigger.late_by_row, 1, size)
        visits = Visits(
            assigned.row[order],
            np.concatenate(([0], np.cumsum(size))),
            np.where(was[part], 0, most),
            closing[part],
            after_end,
        )
        return _Taking(of_code, of_window, end, held, part), visits

    def _left(
        self,
        windows: HeldWindows,
        taking: _Taking,
        ledger: Ledger,
        visited: tuple[np.ndarray, np.ndarray, np.ndarray],
        watermark: int,
    ) -> tuple[HeldWindows, np.ndarray]:
        """Windows after a batch without those that this watermark evicts, and the rows of these. `visited`: the rows
        of windows that took part, as stretches of a buffer.
        """
        buffer, left_lo, left_hi = visited
        part, held, places = taking.part, taking.held, windows.places
        ends = taking.end <= self.bounds.evicting(watermark)
        lo, hi = _of_held(windows.lo, held), _of_held(windows.hi, held)
        count, closed = _of_held(windows.count, held), _of_held(windows.closed, held)
        lo[part], hi[part], count[part], closed[part] = left_lo, left_hi, ledger.count, ledger.closed != 0
        ended, _ = joined_stretches(places.values, buffer, part[ends], lo[ends], hi[ends])
        left = HeldWindows(taking.code, taking.window, lo, hi, places, count, closed)
        if ends.any():
            left, part = left.where(~ends), part[~ends]
        return left.with_new(buffer, part), ended

    # -- firings -----------------------------------------------------------------------------------------------------

    def _compared(
        self,
        state: EvictingWindows,
        lo: np.ndarray,
        hi: np.ndarray,
        new: np.ndarray,
        visits: Visits,
        fires: np.ndarray,
    ) -> tuple[Keeps, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rule of the evictor, and what it compares of the rows of the pool: times, and values (int64 or float64, and
        whether there is one) at the places of those that a window which fires may hold.
        """
        evictor = self.evictor
        if isinstance(evictor, KeepLast):
            rule = Keeps(LAST, evictor.after, min(evictor.rows, INT64_MAX))
            return rule, state.pool.time, _NONE, _NO_FLOATS, _NO_FLAGS
        if isinstance(evictor, KeepWithin):
            assert isinstance(evictor.span, timedelta)
            rule = Keeps(WITHIN, evictor.after, max(micros(evictor.span), 0))
            return rule, state.pool.time, _NONE, _NO_FLOATS, _NO_FLAGS
        column = state.pool.columns[evictor.column]
        some = np.flatnonzero(np.diff(fires))
        no_second = np.zeros(len(some), bool)
        held, _ = joined_stretches(state.windows.places.values, _NONE, no_second, lo[some], hi[some])
        came, _ = joined_stretches(new, _NONE, no_second, visits.first[some], visits.first[some + 1])
        at = np.concatenate((held, came))
        taken = column.take(pa.array(at)).combine_chunks()
        is_float = pa.types.is_floating(column.type)
        values = np.empty(len(state.pool), np.float64 if is_float else np.int64)
        valid = np.empty(len(state.pool), np.uint8)
        values[at], valid[at] = words_of(taken, None)[0], np.asarray(taken.is_valid())
        rule = keeps_near(evictor.threshold, evictor.after, is_float)
        return rule, state.pool.time, _NONE if is_float else values, values if is_float else _NO_FLOATS, valid

    def _emitted(self, state: EvictingWindows, seen: _Seen, happens: np.ndarray) -> list[pa.RecordBatch]:
        """Results of firings, in the order `happens` (int64[firings]), of those that see a row."""
        some = seen.lo < seen.hi
        happens = happens[some[happens]]
        if not len(happens):
            return []
        if not self.plan.of_rows:
            stretches = Stretches.of(seen.lo[some], seen.hi[some])
            if _SHARED * len(stretches.places) < int((stretches.hi - stretches.lo).sum()):
                with suppress(OverflowError):  # which may be of a part of rows that no firing sees alone
                    place = np.cumsum(some) - 1
                    return [self._of_stretches(state, seen.take(happens), stretches, seen.buffer, place[happens])]
        return [self._result(state, part) for part in seen.take(happens).parts()]

    def _of_stretches(
        self, state: EvictingWindows, seen: _Seen, stretches: Stretches, buffer: np.ndarray, at: np.ndarray
    ) -> pa.RecordBatch:
        """Results of firings whose rows are the stretches `at` (int64[firings]) of a buffer."""
        rows, heap = state.pool.take(buffer[stretches.places]), BytesHeap()
        units = tuple(part.cells(rows, heap) for part in self.plan.inputs)
        cells = take_cells(stretches.cells(self.plan.layout, units, heap), at)
        return self._batch(state, seen, finished(self.plan, cells, heap, None))

    def _result(self, state: EvictingWindows, seen: _Seen) -> pa.RecordBatch:
        """Results of firings, from the rows of each."""
        firings = len(seen.lo)
        row, first = joined_stretches(seen.buffer, _NONE, np.zeros(firings, bool), seen.lo, seen.hi)
        number = np.repeat(np.arange(firings), np.diff(first))
        row = row[_in_time(state.pool.time[row], state.pool.seq[row], number)]
        rows = state.pool.take(row)
        heap = BytesHeap()
        units = tuple(part.cells(rows, heap) for part in self.plan.inputs)
        start = (empty_cells(self.plan.layout, firings), np.arange(firings))
        cells = merge_parts(self.plan.layout, [start, (units, number)], firings, heap)
        kept = tuple(rows.columns[name] for name in self.plan.row_names)
        slices = RowSlices(number.astype(np.int32), rows.time, rows.seq, kept, first[:-1], first[1:])
        return self._batch(state, seen, finished(self.plan, cells, heap, slices))

    def _batch(self, state: EvictingWindows, seen: _Seen, values: list[pa.Array]) -> pa.RecordBatch:
        bounds = self.grid.starts(seen.window), self.grid.ends(seen.window)
        return result(self.plan, state.keys, seen.code, *bounds, values, seen.timing)

    # -- what it takes -----------------------------------------------------------------------------------------------

    def size(self, state: EvictingWindows) -> tuple[int, int]:
        columns = (chunk for column in state.pool.columns.values() for chunk in column.chunks[state.on_disk :])
        size = sum(chunk.nbytes for chunk in columns) + 20 * len(state.pool) + state.keys.nbytes
        return len(state.pool), size + state.windows.nbytes

    def cells(self, state: EvictingWindows) -> int:
        return self.size(state)[0]

    def tidied(self, state: EvictingWindows) -> EvictingWindows:
        """State without the keys that have no window, once they are the majority of the dictionary."""
        if self.rule.per_key or not dead_keys.may_be_many(state.keys, len(state.windows)):
            return state
        found = dead_keys.without(state.keys, distinct_codes(state.windows.code))
        if found is None:
            return state
        keys, new_code = found
        return replace(state, keys=keys, windows=state.windows.recoded(new_code))

    def names(self, state: EvictingWindows) -> Names:
        return Names(state.keys, BytesHeap())

    def renamed(self, state: EvictingWindows, names: Names) -> EvictingWindows:
        return replace(state, keys=names.keys)

    def spilled(self, state: EvictingWindows, excess: int, folder: str) -> EvictingWindows:
        """State with the columns of all rows on disk. Their times, and the rows of each window, stay in memory."""
        columns = state.pool.columns
        parts = [column.chunks[state.on_disk :] for column in columns.values()]
        if not all(parts) or not worth_a_file(sum(chunk.nbytes for part in parts for chunk in part)):
            return state
        here = [pa.concat_arrays(part) for part in parts]
        places = OnDisk(here, folder)
        moved = {
            name: pa.chunked_array([*column.chunks[: state.on_disk], places.array()], column.type)
            for name, column in columns.items()
        }
        return replace(state, pool=replace(state.pool, columns=moved), on_disk=state.on_disk + 1)

    def open_windows(self, state: EvictingWindows, progress: Progress) -> int:
        return len(state.windows)

    def save(self, state: EvictingWindows) -> Parts:
        pool = state.pool
        columns = [pa.array(pool.time), pa.array(pool.seq), *(c.combine_chunks() for c in pool.columns.values())]
        rows = pa.record_batch(columns, names=["time", "seq", *(f"column {name}" for name in pool.columns)])
        return {
            "keys": key_part(state.keys),
            "pool": rows,
            "windows": with_numbers(state.windows.to_arrow(), evicting=1),
        }

    def load(self, parts: Parts) -> EvictingWindows:
        pool = parts["pool"]
        columns = {name: pa.chunked_array([pool.column(f"column {name}")]) for name in self.plan.kept_values}
        rows = RowPool(columns, np.asarray(pool.column("time")), np.asarray(pool.column("seq")))
        windows = HeldWindows.from_arrow(parts["windows"])
        uses = np.bincount(windows.rows()[0], minlength=len(rows)).astype(np.int32)
        return EvictingWindows(keys_of(self.plan.key_types, parts["keys"]), rows, windows, uses)

    def _without_unused(self, state: EvictingWindows) -> EvictingWindows:
        """State without the rows that no window holds any more, once these are the majority. It renumbers the rest."""
        number = int(np.count_nonzero(state.uses))
        if len(state.windows) and len(state.pool) <= 2 * number + 64:
            return state
        used = np.flatnonzero(state.uses)
        place = np.full(len(state.pool), -1)
        place[used] = np.arange(number)
        rows = state.pool.take(used)
        columns = {name: pa.chunked_array([column]) for name, column in rows.columns.items()}
        pool = RowPool(columns, rows.time, rows.seq)
        windows = state.windows.with_places(place)
        return replace(state, pool=pool, windows=windows, uses=state.uses[used], on_disk=0)


def _by_window(assigned: Assigned) -> np.ndarray:
    """Order of visits by window, then code, int64[n], which is stable: rows stay in order of arrival."""
    window, code = assigned.window, assigned.code
    if len(window) and int(window.max()) - int(window.min()) < 1 << 31:
        return order_by_code((window - window.min()).astype(np.int32), code.astype(np.int64))
    order: np.ndarray = np.lexsort((code, window))
    return order


def _of_held(values: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Values of windows of the state at these places, 0 where the place is -1."""
    if not len(values):
        return np.zeros(len(held), values.dtype)
    found: np.ndarray = values[held]  # at -1, the last one
    found[held < 0] = 0
    return found


def _in_time(time: np.ndarray, seq: np.ndarray, number: np.ndarray) -> np.ndarray | slice:
    """Order of rows by the firing they belong to, which ascends, then by time, then by arrival."""
    later = (time[1:] > time[:-1]) | ((time[1:] == time[:-1]) & (seq[1:] >= seq[:-1]))
    if bool((later | (number[1:] != number[:-1])).all()):
        return slice(None)
    order: np.ndarray = np.lexsort((seq, time, number))
    return order
