"""Engine of windows with an evictor: the rows of each window are kept, in order of arrival, and visited one by one.

A trigger fires when it would without the evictor, which says only what rows a firing sees and what rows stay. What a
firing sees depends on what those before it evicted, so nothing can be merged beforehand: a batch costs a step of Python
for each row and window. The results of many firings of a batch are then computed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from gpuwin.engines.triggers.contents import until_of
from gpuwin.engines.triggers.firings import BatchTime, Firings, Visits, firings_of
from gpuwin.engines.triggers.ledger import Ledger
from gpuwin.engines.triggers.rule import TriggerRule
from gpuwin.grid import WindowGrid
from gpuwin.planning.inputs import SomeRows
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.buffers import copied
from gpuwin.state.cells import empty_cells, merge_parts
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys import dead_keys
from gpuwin.state.keys.dictionary import KeyDictionary, Names
from gpuwin.state.physical import words_of
from gpuwin.state.rows.slices import RowSlices
from gpuwin.state.spill import OnDisk, worth_a_file
from gpuwin.vocabulary.durations import INT64_MAX, micros
from gpuwin.vocabulary.evictors import KeepLast, KeepNear, KeepWithin
from gpuwin.vocabulary.triggers import Trigger
from gpuwin_kernels.cpu.distinct_codes import distinct_codes

_CHUNKS = 64  # of a column in memory, before they become one
_WINDOW, _PLACE = 420, 8  # bytes: the Python objects of a window, and a row's number in it
_AHEAD = 64  # rows that a window's next firings are sure to find in place
_ROWS = 1 << 20  # of firings whose results are computed at once


@dataclass(frozen=True, slots=True)
class Held:
    """Window: places of its rows among all rows that are kept, ascending, the count of rows as in a `Ledger`, and
    whether it has closed.
    """

    rows: np.ndarray  # int64
    count: int
    closed: bool


_NONE = np.empty(0, np.int64)
_NEW = Held(_NONE, 0, False)


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
    """State of windows with an evictor: all rows that a window holds, and the windows by (code, window).

    uses: of each row, the number of windows that hold it. first_end, first_open_end: no window ends before, and none
    that has not closed. The first `on_disk` chunks of the pool's columns are on disk.
    """

    keys: KeyDictionary
    pool: RowPool
    windows: dict[tuple[int, int], Held]
    uses: np.ndarray  # int32[rows]
    first_end: int
    first_open_end: int
    on_disk: int = 0


@dataclass(frozen=True, slots=True)
class _Firing:
    """One firing: the window, the rows that its result is made of, and its timing."""

    code: int
    window: int
    rows: np.ndarray  # int64
    timing: int


class _Reach:
    """Rows of one window while a batch is applied. What a firing sees is a part of `buffer` where it can be, so that
    firings which see almost the same rows share them.
    """

    def __init__(self, held: np.ndarray, new: np.ndarray) -> None:
        self.buffer, self.lo, self.hi = held, 0, len(held)
        self.new, self.at = new, 0  # of the rows that the batch brings, those before `at` are in the window

    def upto(self, rank: int) -> np.ndarray:
        """Rows of the window, with the first `rank` new ones."""
        more = rank - self.at
        if self.hi + more > len(self.buffer):
            size = self.hi - self.lo
            ahead = self.new[self.at : rank + size + _AHEAD]
            self.buffer, self.lo, self.hi = np.concatenate((self.buffer[self.lo : self.hi], ahead)), 0, size
        self.at, self.hi = rank, self.hi + more
        return self.buffer[self.lo : self.hi]

    def keep(self, stay: np.ndarray) -> np.ndarray:
        """Rows that go when those at these places, which ascend, stay of what `upto` gave."""
        rows = self.buffer[self.lo : self.hi]
        number = len(rows) - len(stay)
        if not len(stay) or stay[0] == number:  # the last ones stay
            self.lo += number
            return rows[:number]
        goes = np.ones(len(rows), bool)
        goes[stay] = False
        self.buffer, self.lo, self.hi = rows[stay], 0, len(stay)
        return rows[goes]

    def rows(self) -> np.ndarray:
        """All rows of the window after the batch, in memory of their own."""
        return np.concatenate((self.buffer[self.lo : self.hi], self.new[self.at :]))


class EvictingEngine:
    """Engine of windows on a grid, for a `Trigger` with an evictor."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        emit = plan.spec.emit
        assert isinstance(emit, Trigger)
        self.plan = plan
        self.rule = rule
        self.trigger = TriggerRule.of(plan.spec)
        self.evictor = emit.evict
        self.grid = WindowGrid.of(plan.spec.window)
        self.bounds = Bounds.of(plan.spec)

    def begin(self, progress: Progress = BEFORE_TIME) -> EvictingWindows:
        columns = {name: pa.chunked_array([], type_) for name, type_ in self.plan.values.items()}
        return self._of(KeyDictionary(self.plan.key_types), RowPool(columns, _NONE, _NONE), {})

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
        state = replace(state, pool=pool, windows=dict(state.windows), uses=uses)
        which, visits = self._visits(state, assigned, before, watermark)
        held = [state.windows.get(one, _NEW) for one in which]
        none = np.zeros(len(which), np.int64)
        ledger = replace(
            Ledger.fresh(len(which), 0),
            count=np.array([one.count for one in held], np.int64),
            closed=np.array([one.closed for one in held], np.int64),
        )
        # Of the times, only triggers by time take notice.
        fired, ledger = firings_of(self.trigger, ledger, visits, none, none, none, none, BatchTime(0, False))
        firings, evicted = self._visited(state, which, visits, fired, ledger, place)
        happens = np.argsort(until_of(fired, visits, rows), kind="stable")
        state, ended = self._without_ended(state, which, watermark)
        results = [
            batch for some in _parted([firings[at] for at in happens.tolist()]) for batch in self._emitted(state, some)
        ]
        np.subtract.at(state.uses, _joined([*evicted, *ended]), 1)
        return self._without_unused(state), results

    def _visits(
        self, state: EvictingWindows, assigned: Assigned, before: int, watermark: int
    ) -> tuple[list[tuple[int, int]], Visits]:
        """Windows that rows visit or that close, sorted by window and key, and the visits of each."""
        closing = self.bounds.closing(watermark)
        ending = self._ending(state, closing) if state.first_open_end <= closing else []
        rows: dict[tuple[int, int], list[int]] = {one: [] for one in ending if not state.windows[one].closed}
        for row, code, window in zip(
            assigned.row.tolist(), assigned.code.tolist(), assigned.window.tolist(), strict=True
        ):
            rows.setdefault((code, window), []).append(row)
        which = sorted(rows, key=lambda one: one[::-1])
        end = self._ends(which)
        size = np.array([len(rows[one]) for one in which], np.int64)
        was = np.array([state.windows.get(one, _NEW).closed for one in which], bool)
        opened = np.array([one not in state.windows for one in which], bool)
        after_end = opened & (end <= self.bounds.closing(before))
        # A window whose first row comes after its end fires on time with that row, or with all of the batch.
        most = np.where(after_end & self.trigger.late_by_row, 1, size)
        row = np.array([row for one in which for row in rows[one]], np.int64)
        first = np.concatenate(([0], np.cumsum(size)))
        return which, Visits(row, first, np.where(was, 0, most), ~was & (end <= closing), after_end)

    def _visited(
        self,
        state: EvictingWindows,
        which: list[tuple[int, int]],
        visits: Visits,
        fired: Firings,
        ledger: Ledger,
        place: int,
    ) -> tuple[list[_Firing], list[np.ndarray]]:
        """Firings with what the evictor leaves to each, and the rows that it took out of windows. Puts the windows as
        they are then into the state.
        """
        assert self.evictor is not None
        firings: list[_Firing] = []
        evicted: list[np.ndarray] = []
        pooled = visits.row + place
        values = self._compared(state, which, visits, fired, pooled)
        first, until = visits.first.tolist(), np.searchsorted(fired.window, np.arange(len(which)), "right").tolist()
        rank, timing = fired.rank.tolist(), fired.timing.tolist()
        for number, one in enumerate(which):
            reach = _Reach(state.windows.get(one, _NEW).rows, pooled[first[number] : first[number + 1]])
            for firing in range(len(firings), until[number]):
                rows = reach.upto(rank[firing])
                stay = self._stay(rows, state.pool.time, values)
                if len(stay) < len(rows):
                    evicted.append(reach.keep(stay))
                left = reach.upto(rank[firing])
                firings.append(_Firing(*one, rows if self.evictor.after else left, timing[firing]))
            state.windows[one] = Held(reach.rows(), int(ledger.count[number]), bool(ledger.closed[number]))
        return firings, evicted

    def _ends(self, which: list[tuple[int, int]]) -> np.ndarray:
        return self.grid.ends(np.array([window for _, window in which], np.int64))

    def _ending(self, state: EvictingWindows, upto: int) -> list[tuple[int, int]]:
        """Windows of the state that end by then."""
        distinct = np.array(list({window for _, window in state.windows}), np.int64)
        over = set(distinct[self.grid.ends(distinct) <= upto].tolist())
        return [one for one in state.windows if one[1] in over] if over else []

    def _without_ended(
        self, state: EvictingWindows, visited: list[tuple[int, int]], watermark: int
    ) -> tuple[EvictingWindows, list[np.ndarray]]:
        """State without the windows that are evicted by this watermark, and their rows. The batch `visited` some."""
        windows, upto = state.windows, self.bounds.evicting(watermark)
        first_end, first_open_end = self._first_ends((one, windows[one]) for one in visited)
        first_end, first_open_end = min(first_end, state.first_end), min(first_open_end, state.first_open_end)
        ended = [windows.pop(one).rows for one in self._ending(state, upto)] if first_end <= upto else []
        if ended or first_open_end <= self.bounds.closing(watermark):  # all those windows have closed
            first_end, first_open_end = self._first_ends(windows.items())
        return replace(state, first_end=first_end, first_open_end=first_open_end), ended

    def _first_ends(self, windows: Iterable[tuple[tuple[int, int], Held]]) -> tuple[int, int]:
        """First end of some windows, and of those that have not closed; the largest int64 where there is none."""
        every, open_ = set[int](), set[int]()
        for (_, window), held in windows:
            every.add(window)
            if not held.closed:
                open_.add(window)
        some = [self.grid.ends(np.array(list(each), np.int64)) for each in (every, open_)]
        return int(some[0].min(initial=INT64_MAX)), int(some[1].min(initial=INT64_MAX))

    # -- firings -----------------------------------------------------------------------------------------------------

    def _compared(
        self,
        state: EvictingWindows,
        which: list[tuple[int, int]],
        visits: Visits,
        fired: Firings,
        pooled: np.ndarray,
    ) -> np.ndarray:
        """Values that `KeepNear` compares, in a type that holds all of an int64, at the places of the rows that a
        window which fires may hold; empty for the other evictors.
        """
        if not isinstance(self.evictor, KeepNear):
            return np.empty(0)
        rows = []
        for number in np.unique(fired.window).tolist():
            rows += [
                state.windows.get(which[number], _NEW).rows,
                pooled[visits.first[number] : visits.first[number + 1]],
            ]
        at = _joined(rows)
        column = state.pool.columns[self.evictor.column].take(pa.array(at)).combine_chunks()
        values = np.empty(len(state.pool), np.longdouble)
        values[at] = np.where(np.asarray(column.is_valid()), words_of(column, None)[0].astype(np.longdouble), np.nan)
        return values

    def _stay(self, rows: np.ndarray, time: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Places of the rows that the evictor leaves of these, ascending."""
        evictor, n = self.evictor, len(rows)
        if not n:
            return _NONE
        if isinstance(evictor, KeepLast):
            return np.arange(n - min(evictor.rows, n), n)
        if isinstance(evictor, KeepWithin):
            assert isinstance(evictor.span, timedelta)
            times = time[rows]
            return np.flatnonzero(times > int(times.max()) - micros(evictor.span))
        assert isinstance(evictor, KeepNear)
        return np.flatnonzero(~(values[rows[-1]] - values[rows] >= evictor.threshold))

    def _emitted(self, state: EvictingWindows, firings: Sequence[_Firing]) -> list[pa.RecordBatch]:
        firings = [firing for firing in firings if len(firing.rows)]
        if not firings:
            return []
        size = np.array([len(firing.rows) for firing in firings])
        row = np.concatenate([firing.rows for firing in firings])
        number = np.repeat(np.arange(len(firings)), size)
        row = row[_in_time(state.pool.time[row], state.pool.seq[row], number)]
        rows = state.pool.take(row)
        heap = BytesHeap()
        units = tuple(part.cells(rows, heap) for part in self.plan.inputs)
        start = (empty_cells(self.plan.layout, len(firings)), np.arange(len(firings)))
        cells = merge_parts(self.plan.layout, [start, (units, number)], len(firings), heap)
        hi = np.cumsum(size)
        kept = tuple(rows.columns[name] for name in self.plan.row_names)
        slices = RowSlices(number.astype(np.int32), rows.time, rows.seq, kept, hi - size, hi)
        code = np.array([firing.code for firing in firings], np.int32)
        window = np.array([firing.window for firing in firings])
        values = finished(self.plan, cells, heap, slices)
        bounds = self.grid.starts(window), self.grid.ends(window)
        timing = np.array([firing.timing for firing in firings])
        return [result(self.plan, state.keys, code, *bounds, values, timing)]

    # -- what it takes -----------------------------------------------------------------------------------------------

    def size(self, state: EvictingWindows) -> tuple[int, int]:
        columns = (chunk for column in state.pool.columns.values() for chunk in column.chunks[state.on_disk :])
        size = sum(chunk.nbytes for chunk in columns) + 20 * len(state.pool) + state.keys.nbytes
        return len(state.pool), size + sum(_WINDOW + _PLACE * len(held.rows) for held in state.windows.values())

    def cells(self, state: EvictingWindows) -> int:
        return self.size(state)[0]

    def tidied(self, state: EvictingWindows) -> EvictingWindows:
        """State without the keys that have no window, once they are the majority of the dictionary."""
        if self.rule.per_key or not dead_keys.may_be_many(state.keys, len(state.windows)):
            return state
        used = distinct_codes(np.fromiter((code for code, _ in state.windows), np.int32, len(state.windows)))
        found = dead_keys.without(state.keys, used)
        if found is None:
            return state
        keys, new_code = found
        windows = {(int(new_code[code]), window): held for (code, window), held in state.windows.items()}
        return replace(state, keys=keys, windows=windows)

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
        held = list(state.windows.values())
        windows = pa.record_batch(
            [
                pa.array([code for code, _ in state.windows], pa.int64()),
                pa.array([window for _, window in state.windows], pa.int64()),
                pa.array([h.rows for h in held], pa.list_(pa.int64())),
                pa.array([h.count for h in held], pa.int64()),
                pa.array([h.closed for h in held], pa.bool_()),
            ],
            names=["code", "window", "rows", "count", "closed"],
        )
        return {"keys": key_part(state.keys), "pool": rows, "windows": with_numbers(windows, evicting=1)}

    def load(self, parts: Parts) -> EvictingWindows:
        pool, windows = parts["pool"], parts["windows"]
        columns = {name: pa.chunked_array([pool.column(f"column {name}")]) for name in self.plan.values}
        held = {
            (row["code"], row["window"]): Held(np.array(row["rows"], np.int64), row["count"], row["closed"])
            for row in windows.to_pylist()
        }
        rows = RowPool(columns, np.asarray(pool.column("time")), np.asarray(pool.column("seq")))
        return self._of(keys_of(self.plan.key_types, parts["keys"]), rows, held)

    def _of(self, keys: KeyDictionary, pool: RowPool, windows: dict[tuple[int, int], Held]) -> EvictingWindows:
        """State of these windows, whose columns are in memory."""
        uses = np.bincount(_joined([held.rows for held in windows.values()]), minlength=len(pool)).astype(np.int32)
        return EvictingWindows(keys, pool, windows, uses, *self._first_ends(windows.items()))

    def _without_unused(self, state: EvictingWindows) -> EvictingWindows:
        """State without the rows that no window holds any more, once these are the majority. It renumbers the rest."""
        number = int(np.count_nonzero(state.uses))
        if state.windows and len(state.pool) <= 2 * number + 64:
            return state
        used = np.flatnonzero(state.uses)
        place = np.full(len(state.pool), -1)
        place[used] = np.arange(number)
        windows = {which: replace(held, rows=place[held.rows]) for which, held in state.windows.items()}
        rows = state.pool.take(used)
        columns = {name: pa.chunked_array([column]) for name, column in rows.columns.items()}
        pool = RowPool(columns, rows.time, rows.seq)
        return replace(state, pool=pool, windows=windows, uses=state.uses[used], on_disk=0)


def _joined(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(rows) if rows else _NONE


def _parted(firings: Sequence[_Firing]) -> Iterator[Sequence[_Firing]]:
    """Firings in parts of few rows: those of one firing, or not more than `_ROWS` in all."""
    begin, size = 0, 0
    for at, firing in enumerate(firings):
        if at > begin and size + len(firing.rows) > _ROWS:
            yield firings[begin:at]
            begin, size = at, 0
        size += len(firing.rows)
    yield firings[begin:]


def _in_time(time: np.ndarray, seq: np.ndarray, number: np.ndarray) -> np.ndarray | slice:
    """Order of rows by the firing they belong to, which ascends, then by time, then by arrival."""
    later = (time[1:] > time[:-1]) | ((time[1:] == time[:-1]) & (seq[1:] >= seq[:-1]))
    if bool((later | (number[1:] != number[:-1])).all()):
        return slice(None)
    order: np.ndarray = np.lexsort((seq, time, number))
    return order
