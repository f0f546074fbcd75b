"""Engine of windows with an evictor: the rows of each window are kept, in order of arrival, and visited one by one.

The result of a firing depends on what the firings before it evicted, so nothing can be merged beforehand: a batch costs
a step of Python for each row and window. The results of all firings of a batch are then computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa

from gpuwin.batch.assignment import Assigned, assign_windows
from gpuwin.batch.timed_rows import TimedRows
from gpuwin.bounds import Bounds
from gpuwin.engines.results import EARLY, LATE, ON_TIME, finished, result
from gpuwin.engines.saved import key_part, keys_of, with_numbers
from gpuwin.engines.step import Parts, Step
from gpuwin.grid import WindowGrid
from gpuwin.planning.inputs import SomeRows
from gpuwin.planning.plan import Plan, empty_cells
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.buffers import copied
from gpuwin.state.cells import merge_parts
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary, Names
from gpuwin.state.physical import words_of
from gpuwin.state.rows.slices import RowSlices
from gpuwin.state.spill import OnDisk, worth_a_file
from gpuwin.vocabulary.durations import INT64_MAX, micros
from gpuwin.vocabulary.evictors import KeepLast, KeepNear, KeepWithin
from gpuwin.vocabulary.triggers import EveryRows, Trigger

_CHUNKS = 64  # of a column in memory, before they become one
_WINDOW, _PLACE = 300, 40  # bytes of Python objects: a window, and a row's number in it


@dataclass(frozen=True, slots=True)
class Held:
    """Window: places of its rows among all rows that are kept, the count of rows since its trigger last fired, and
    whether it has closed.
    """

    rows: tuple[int, ...]
    count: int
    closed: bool


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
    """State of windows with an evictor: all rows that a window holds, and the windows by (code, window). The first
    `on_disk` chunks of the pool's columns are on disk.
    """

    keys: KeyDictionary
    pool: RowPool
    windows: dict[tuple[int, int], Held]
    on_disk: int = 0


@dataclass(frozen=True, slots=True)
class _Firing:
    """One firing: the window, the rows that its result is made of, and its timing."""

    code: int
    window: int
    rows: tuple[int, ...]
    timing: int


class EvictingEngine:
    """Engine of one specification over one input schema."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        emit = plan.spec.emit
        assert isinstance(emit, Trigger)
        self.plan = plan
        self.rule = rule
        self.trigger = emit
        self.evictor = emit.evict
        self.grid = WindowGrid.of(plan.spec.window)
        self.bounds = Bounds.of(plan.spec)

    def begin(self, progress: Progress = BEFORE_TIME) -> EvictingWindows:
        none = np.empty(0, np.int64)
        columns = {name: pa.chunked_array([], type_) for name, type_ in self.plan.values.items()}
        return EvictingWindows(KeyDictionary(self.plan.key_types), RowPool(columns, none, none), {})

    # -- a batch -----------------------------------------------------------------------------------------------------

    def rows(self, state: EvictingWindows, rows: TimedRows, progress: Progress, source: int) -> Step[EvictingWindows]:
        code = state.keys.encode(rows.keys(self.plan), len(rows))
        after = self.rule.seen(progress, rows.time, source)
        tested = np.full(len(rows), progress.watermark)
        kept, _, assigned, drops = assign_windows(self.grid, self.bounds, self.rule, rows, code, tested)
        at = len(state.pool)
        state = replace(state, pool=state.pool.with_rows(kept, state.on_disk), windows=dict(state.windows))
        firings = self._visited(state, assigned, at)
        state, results = self._settled(state, firings, after)
        return Step(state, after, results, drops)

    def advance(self, state: EvictingWindows, progress: Progress, ended: bool) -> Step[EvictingWindows]:
        state, results = self._settled(replace(state, windows=dict(state.windows)), [], progress)
        return Step(state, progress, results)

    def _visited(self, state: EvictingWindows, assigned: Assigned, at: int) -> list[_Firing]:
        """Firings that rows bring about as they go into their windows one by one."""
        firings: list[_Firing] = []
        values = self._compared(state)
        visits = zip(assigned.row.tolist(), assigned.code.tolist(), assigned.window.tolist(), strict=True)
        for row, code, window in visits:
            held = state.windows.get((code, window), Held((), 0, False))
            held = Held((*held.rows, at + row), held.count + 1, held.closed)
            every = self.trigger.late if held.closed else self.trigger.early
            if isinstance(every, EveryRows) and held.count >= every.rows:
                firing, held = self._firing(held, code, window, LATE if held.closed else EARLY, state, values)
                firings.append(firing)
            state.windows[code, window] = held
        return firings

    def _settled(
        self, state: EvictingWindows, firings: list[_Firing], progress: Progress
    ) -> tuple[EvictingWindows, list[pa.RecordBatch]]:
        """State after windows closed and were evicted, and the results of all firings of the batch."""
        closing, gone = self.bounds.closing(progress.watermark), self.bounds.evicting(progress.watermark)
        values = self._compared(state)
        for (code, window), held in sorted(state.windows.items()):
            end = INT64_MAX if self.grid.endless else self.grid.end_of(window)
            if end <= closing and not held.closed:
                held = replace(held, closed=True, count=0)
                if self.trigger.on_time:
                    firing, held = self._firing(held, code, window, ON_TIME, state, values)
                    firings.append(firing)
                state.windows[code, window] = held
            if end <= gone:
                del state.windows[code, window]
        results = self._emitted(state, firings)
        return _without_unused(state), results

    # -- firings -----------------------------------------------------------------------------------------------------

    def _compared(self, state: EvictingWindows) -> np.ndarray:
        """Values that `KeepNear` compares; empty for the other evictors."""
        if not isinstance(self.evictor, KeepNear):
            return np.empty(0)
        column = state.pool.columns[self.evictor.column].combine_chunks()
        return np.where(np.asarray(column.is_valid()), words_of(column, None)[0], np.nan)

    def _firing(
        self, held: Held, code: int, window: int, timing: int, state: EvictingWindows, values: np.ndarray
    ) -> tuple[_Firing, Held]:
        assert self.evictor is not None
        left = self._left(held.rows, state.pool.time, values)
        seen = held.rows if self.evictor.after else left
        return _Firing(code, window, seen, timing), Held(left, 0, held.closed)

    def _left(self, rows: tuple[int, ...], time: np.ndarray, values: np.ndarray) -> tuple[int, ...]:
        """Rows that the evictor leaves of these."""
        evictor = self.evictor
        if not rows:
            return rows
        if isinstance(evictor, KeepLast):
            return rows[len(rows) - min(evictor.rows, len(rows)) :]
        at = np.array(rows)
        if isinstance(evictor, KeepWithin):
            assert isinstance(evictor.span, timedelta)
            return tuple(at[time[at] > int(time[at].max()) - micros(evictor.span)].tolist())
        assert isinstance(evictor, KeepNear)
        return tuple(at[~(values[at[-1]] - values[at] >= evictor.threshold)].tolist())

    def _emitted(self, state: EvictingWindows, firings: Sequence[_Firing]) -> list[pa.RecordBatch]:
        firings = [firing for firing in firings if firing.rows]
        if not firings:
            return []
        size = np.array([len(firing.rows) for firing in firings])
        row = np.concatenate([firing.rows for firing in firings])
        number = np.repeat(np.arange(len(firings)), size)
        order = np.lexsort((state.pool.seq[row], state.pool.time[row], number))
        row = row[order]
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
        size = sum(chunk.nbytes for chunk in columns) + 16 * len(state.pool) + state.keys.nbytes
        return len(state.pool), size + sum(_WINDOW + _PLACE * len(held.rows) for held in state.windows.values())

    def cells(self, state: EvictingWindows) -> int:
        return self.size(state)[0]

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
            (row["code"], row["window"]): Held(tuple(row["rows"]), row["count"], row["closed"])
            for row in windows.to_pylist()
        }
        rows = RowPool(columns, np.asarray(pool.column("time")), np.asarray(pool.column("seq")))
        return EvictingWindows(keys_of(self.plan.key_types, parts["keys"]), rows, held)


def _without_unused(state: EvictingWindows) -> EvictingWindows:
    """State without the rows that no window holds any more, once they are the majority. The rest are numbered anew."""
    used = np.unique(np.array([row for held in state.windows.values() for row in held.rows], np.int64))
    if state.windows and len(state.pool) <= 2 * len(used) + 64:
        return state
    place = np.full(len(state.pool), -1)
    place[used] = np.arange(len(used))
    windows = {which: replace(h, rows=tuple(place[list(h.rows)].tolist())) for which, h in state.windows.items()}
    rows = state.pool.take(used)
    columns = {name: pa.chunked_array([column]) for name, column in rows.columns.items()}
    return replace(state, pool=RowPool(columns, rows.time, rows.seq), windows=windows, on_disk=0)
