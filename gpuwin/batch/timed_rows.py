"""Rows of a batch that have a time, with their columns in the planned types, and counts of the dropped rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from gpuwin.batch.gaps import gaps_of
from gpuwin.planning.ingest import check_bounds, instants, joined_arrays, last_instants, planned_column, planned_time
from gpuwin.planning.plan import Plan
from gpuwin.state.buffers import copied
from gpuwin.state.keys.dictionary import FEWER
from gpuwin.state.physical import as_int64
from gpuwin.vocabulary.durations import INT64_MIN
from gpuwin.vocabulary.windows import Column, InheritedWindow, SessionWindow


@dataclass(frozen=True)
class TimedRows:
    """Rows with a time, in order of arrival.

    `first`: the arrival of the batch's first row. `index` int64[n]: the places of the rows in the batch; None if they
    are all of it. `start`, `end`: the bounds of the windows that the rows of an `InheritedWindow` carry. `gap`: the
    session gap of each row, 0 where there is no valid one.
    """

    columns: dict[str, pa.Array]
    time: np.ndarray
    first: int
    index: np.ndarray | None = None
    start: np.ndarray | None = None
    end: np.ndarray | None = None
    gap: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.time)

    @property
    def at(self) -> np.ndarray:
        """Times that give rows their panes, int64[n]: of an inherited window the ends, else the times of the rows."""
        return self.time if self.end is None else self.end

    @cached_property
    def seq(self) -> np.ndarray:
        """Numbers of arrival, int64[n]."""
        if self.index is None:
            return np.arange(self.first, self.first + len(self))
        return self.first + self.index

    @property
    def newest_seq(self) -> int:
        """Largest arrival; there must be a row."""
        return self.first + (len(self) - 1 if self.index is None else int(self.index[-1]))

    def take(self, at: np.ndarray) -> TimedRows:
        """Rows at these places (int64)."""
        places = pa.array(at)
        return TimedRows(
            {name: column.take(places) for name, column in self.columns.items()},
            self.time[at],
            self.first,
            at if self.index is None else self.index[at],
            None if self.start is None else self.start[at],
            None if self.end is None else self.end[at],
            None if self.gap is None else self.gap[at],
        )

    def part(self, lo: int, hi: int) -> TimedRows:
        """Rows [lo, hi), in shared memory. Without an `index` they count as a batch of their own."""
        part = slice(lo, hi)
        first = self.first + lo if self.index is None else self.first
        index, start, end, gap = (None if a is None else a[part] for a in (self.index, self.start, self.end, self.gap))
        columns = {name: column.slice(lo, hi - lo) for name, column in self.columns.items()}
        return TimedRows(columns, self.time[part], first, index, start, end, gap)

    def copied(self, known: TimedRows | None = None) -> TimedRows:
        """Rows as these, in memory of their own. Of a dictionary far larger than the rows the values are taken.
        `known`: earlier rows, whose dictionaries serve where they are the same.
        """
        index, start, end, gap = (None if a is None else a.copy() for a in (self.index, self.start, self.end, self.gap))
        columns = {name: _copied(c, None if known is None else known.columns[name]) for name, c in self.columns.items()}
        return TimedRows(columns, self.time.copy(), self.first, index, start, end, gap)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        arrays = [a for a in (self.time, self.index, self.start, self.end, self.gap) if a is not None]
        return sum([int(a.nbytes) for a in (*arrays, *self.columns.values())])

    def keys(self, plan: Plan) -> list[pa.Array]:
        """Key columns; for an inherited window its start is one more."""
        found = [self.columns[name] for name in plan.spec.keys]
        if self.start is not None:
            found.append(pa.array(self.start))
        return found


def _copied(array: pa.Array, known: pa.Array | None) -> pa.Array:
    if pa.types.is_dictionary(array.type) and len(array.dictionary) > FEWER * len(array):
        return array.dictionary_decode()
    return copied(array, known)


def joined_rows(parts: Sequence[TimedRows]) -> TimedRows:
    """Rows of several batches, at least one, one behind the other, as of one batch."""
    if len(parts) == 1:
        return parts[0].part(0, len(parts[0]))  # which keeps what is found out about it to itself

    def whole(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
        some = [a for a in arrays if a is not None]
        return np.concatenate(some) if some else None

    head = parts[0]
    index, beyond = None, head.first
    for part in parts:
        if part.index is not None or part.first != beyond:
            index = np.concatenate([part.seq for part in parts]) - head.first
            break
        beyond += len(part)
    return TimedRows(
        {name: joined_arrays([part.columns[name] for part in parts]) for name in head.columns},
        np.concatenate([part.time for part in parts]),
        head.first,
        index,
        whole([part.start for part in parts]),
        whole([part.end for part in parts]),
        whole([part.gap for part in parts]),
    )


@dataclass(frozen=True)
class Drops:
    """Counts of rows that were not aggregated. `late`: places in the batch of late rows."""

    rows_late: int = 0
    window_rows_late: int = 0
    unassigned: int = 0
    late: tuple[np.ndarray, ...] = field(default_factory=tuple)

    def __add__(self, other: Drops) -> Drops:
        return Drops(
            self.rows_late + other.rows_late,
            self.window_rows_late + other.window_rows_late,
            self.unassigned + other.unassigned,
            self.late + other.late,
        )


NOTHING_DROPPED = Drops()


def read_rows(plan: Plan, batch: pa.Table | pa.RecordBatch, seq: int, now: int | None) -> tuple[TimedRows, int]:
    """Rows of a batch in the planned types, and the number of those without a time. `now`: the time of all rows, with a
    system clock.

    Raises SchemaError for a column that is missing or of another type, and for a window that ends before it starts,
    OverflowError for a uint64 that an accumulation cannot have.
    """
    spec = plan.spec
    n = batch.num_rows
    only_keys = plan.only_keys
    columns = {name: planned_column(batch, name, type_, name in only_keys) for name, type_ in plan.values.items()}
    for name in plan.folded_uint64:
        as_int64(columns[name], name)
    if now is not None:
        time = np.full(n, now)
        clock: Sequence[pa.Array] = ()
    elif spec.time is None:  # of rows that bring their windows along
        time = last_instants(columns["window_end"])
        clock = ()
    else:
        stamps = planned_time(batch, spec.time, plan.types[spec.time])
        time = instants(stamps)
        clock = (stamps,)
    rows = TimedRows(columns, time, seq)
    if isinstance(spec.window, InheritedWindow):
        start, end = columns["window_start"], columns["window_end"]
        check_bounds(start, end)
        rows = replace(rows, start=instants(start), end=instants(end))
        clock = (*clock, start, end)
    if isinstance(spec.window, SessionWindow) and isinstance(spec.window.gap, Column):
        rows = replace(rows, gap=gaps_of(columns[spec.window.gap.name]))
    if all(not column.null_count for column in clock):
        return rows, 0
    valid = np.ones(n, bool)
    for column in clock:
        valid &= np.asarray(column.is_valid())
    kept = np.flatnonzero(valid)
    return rows.take(kept), n - len(kept)


def without(rows: TimedRows, late: np.ndarray | None, unassigned: np.ndarray | None) -> tuple[TimedRows, Drops]:
    """Rows that are neither late nor in no window (bool[n] each, None: none of them), and the counts of the others."""
    some_late = late is not None and bool(late.any())
    some_free = unassigned is not None and bool(unassigned.any())
    if not some_late and not some_free:
        return rows, NOTHING_DROPPED
    dropped = np.zeros(len(rows), bool)
    places: tuple[np.ndarray, ...] = ()
    if some_late:
        assert late is not None
        at = np.flatnonzero(late)
        places = (at if rows.index is None else rows.index[at],)
        dropped |= late
    free = 0
    if some_free:
        assert unassigned is not None
        free = int((unassigned & ~dropped).sum())
        dropped |= unassigned
    drops = Drops(rows_late=len(places[0]) if places else 0, unassigned=free, late=places)
    return rows.take(np.flatnonzero(~dropped)), drops


def late_by_time(time: np.ndarray, watermark: int | np.ndarray, lateness: int) -> np.ndarray | None:
    """Late rows, bool[n]: those with time < watermark - lateness; None if no row is late."""
    if isinstance(watermark, np.ndarray):
        bound = np.where(watermark < INT64_MIN + lateness, INT64_MIN, watermark - min(lateness, (1 << 63) - 1))
        late = time < bound
        return late if late.any() else None
    limit = max(INT64_MIN, watermark - lateness)
    if watermark == INT64_MIN or limit == INT64_MIN or not len(time) or int(time.min()) >= limit:
        return None
    return time < limit
