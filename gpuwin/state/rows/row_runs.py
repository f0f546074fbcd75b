"""Runs of raw rows, sorted by (key code, time, arrival), which `RowState` and the two sides of a join are made of.

A run never changes. Two bit sets go with it and are replaced when they do: `gone`, rows that were dropped, and
`marked`, rows that a join has found a partner for. Runs fall in size as in a log-structured merge tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import with_own_dictionaries
from gpuwin.state.rows.gathering import gathered, gathered_of_two
from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels.cpu.order import merged_live, order_in_threads
from gpuwin_kernels.cpu.sessions import live_between, with_bits

_SAMPLE = 64  # times sampled of a run, to estimate how many of its rows are too old


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Type in which values are kept: runs may outgrow 32-bit offsets, and codes of a dictionary mean nothing in another
    batch.
    """
    if pa.types.is_dictionary(type_):
        return stored_type(type_.value_type)
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(type_, type_)


def stored(values: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    """Array of values of a type in the type in which they are kept. It may share their memory, but for what is not
    copied when they are gathered.
    """
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    kept = stored_type(type_)
    return with_own_dictionaries(whole if whole.type == kept else whole.cast(kept))


def shown(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Stored array in the type that went in (dictionaries come out plain)."""
    plain = type_.value_type if pa.types.is_dictionary(type_) else type_
    return array if array.type == plain else array.cast(plain)


@dataclass(frozen=True, slots=True)
class RowRun:
    """Run of rows, sorted by (key code, time, arrival), with the bit sets of those that are gone and marked."""

    code: np.ndarray  # int32[n]
    time: np.ndarray  # int64[n]
    seq: np.ndarray  # int64[n]
    values: tuple[pa.Array, ...]  # of stored types
    gone: np.ndarray  # uint8[(n + 7) // 8]
    marked: np.ndarray  # uint8[(n + 7) // 8]
    live: int
    sample: np.ndarray = field(
        compare=False
    )  # int64, sorted: times of some rows; the first and the last are the extremes

    @classmethod
    def of_sorted(
        cls,
        code: np.ndarray,
        time: np.ndarray,
        seq: np.ndarray,
        values: Sequence[pa.Array],
        marked: np.ndarray | None = None,
    ) -> RowRun:
        n = len(code)
        sample = np.sort(np.concatenate((time[:: max(1, n // _SAMPLE)], [time.min(), time.max()])))
        none = np.zeros((n + 7) // 8, np.uint8)
        return cls(code, time, seq, tuple(values), none, none if marked is None else marked, n, sample)

    @classmethod
    def of(
        cls,
        code: np.ndarray,
        time: np.ndarray,
        seq: np.ndarray,
        values: Sequence[pa.Array | pa.ChunkedArray],
        types: Sequence[pa.DataType],
    ) -> RowRun:
        """Run of rows in order of arrival, at least one; `types` are those of the values as they came."""
        return cls.of_rows(code, time, seq, [stored(v, type_) for v, type_ in zip(values, types, strict=True)])

    @classmethod
    def of_rows(cls, code: np.ndarray, time: np.ndarray, seq: np.ndarray, values: Sequence[pa.Array]) -> RowRun:
        """Run of rows in order of arrival, at least one, with values of stored types."""
        order = order_in_threads(code, time)
        found, taken = gathered((code, time, seq), values, order)
        return cls.of_sorted(found[0], found[1], found[2], taken)

    def __len__(self) -> int:
        return len(self.code)

    def take(self, positions: np.ndarray) -> tuple[pa.Array, ...]:
        return tuple(gathered((), self.values, positions)[1])

    def marks(self) -> np.ndarray:
        """Marks of rows, uint8[n]: 1 where marked."""
        return np.unpackbits(self.marked, count=len(self.code), bitorder="little")

    def kept(self, least: int, before: int = INT64_MAX) -> RowRun | None:
        """Run of the live rows with least <= time < before (the largest int64: no end); None if there is none."""
        if self.live == len(self.code) and least <= self.sample[0] and self.sample[-1] <= _last(before):
            return self
        positions = self.live_in_time(least, before)
        if not len(positions):
            return None
        (code, time, seq), values = gathered((self.code, self.time, self.seq), self.values, positions)
        marked = np.packbits(self.marks()[positions], bitorder="little") if self.marked.any() else None
        return RowRun.of_sorted(code, time, seq, values, marked)

    def mostly_dead(self, before: int) -> bool:
        old = np.searchsorted(self.sample, before) / len(self.sample)
        return bool(self.live * (1.0 - old) * 2 < len(self.code))

    def live_in_time(self, least: int, before: int) -> np.ndarray:
        """Live positions with least <= time < before (the largest int64: no end), ascending: a scan, unless the
        extremes rule it out.
        """
        if _last(before) < self.sample[0] or self.sample[-1] < least:
            return np.empty(0, np.int64)
        return live_between(self.time, self.gone, least, _last(before))  # type: ignore[no-any-return]

    def live_codes(self, least: int) -> np.ndarray:
        """Codes of the live rows with least <= time, int32 each."""
        live: np.ndarray = self.code[self.live_in_time(least, INT64_MAX)]
        return live

    def without(self, positions: np.ndarray) -> RowRun:
        """Run with these live positions dropped."""
        if not len(positions):
            return self
        return replace(self, gone=with_bits(self.gone, positions), live=self.live - len(positions))

    def with_marks(self, positions: np.ndarray) -> RowRun:
        return replace(self, marked=with_bits(self.marked, positions)) if len(positions) else self

    def recoded(self, new_code: np.ndarray) -> RowRun:
        return replace(self, code=new_code[self.code].astype(np.int32))

    @property
    def nbytes(self) -> int:
        arrays = (self.code, self.time, self.seq, self.gone, self.marked)
        return int(sum(a.nbytes for a in arrays) + sum(v.nbytes for v in self.values))


def _last(before: int) -> int:
    """Last time before this one; the largest int64 stands for no end."""
    return before if before == INT64_MAX else before - 1


def merged_runs(older: RowRun, newer: RowRun, least: int, before: int = INT64_MAX) -> RowRun | None:
    """One run of the rows of both that `RowRun.kept` keeps; None if there is none. Rows of the older run come first
    among equals.
    """
    rows = (older.code, older.time, older.gone), (newer.code, newer.time, newer.gone)
    order = merged_live(*rows, least, _last(before))
    if not len(order):
        return None
    numbers = [(older.code, newer.code), (older.time, newer.time), (older.seq, newer.seq)]
    (code, time, seq), values = gathered_of_two(numbers, list(zip(older.values, newer.values, strict=True)), order)
    marks = None
    if older.marked.any() or newer.marked.any():
        marks = np.packbits(np.concatenate((older.marks(), newer.marks()))[order], bitorder="little")
    return RowRun.of_sorted(code, time, seq, values, marks)


def whole_run(runs: Sequence[RowRun], least: int, before: int = INT64_MAX) -> RowRun | None:
    """One run of all rows that `RowRun.kept` keeps; None if there is none."""
    if not runs:
        return None
    whole = runs[-1].kept(least, before) if len(runs) == 1 else runs[-1]
    for run in reversed(runs[:-1]):  # the smallest ones are copied most often
        whole = run.kept(least, before) if whole is None else merged_runs(run, whole, least, before)
    return whole


def tidied_runs(
    runs: Sequence[RowRun], before: int, merged: Callable[[RowRun], RowRun] | None = None
) -> tuple[RowRun, ...]:
    """Runs each at least twice as large as the next, none mostly dead: a row is copied O(log rows) times in its life.
    `merged`: a function for each run that is made of others.
    """
    kept: list[RowRun] = []
    for run in runs:
        current = run.kept(before) if run.mostly_dead(before) else run
        while current is not None and kept and len(kept[-1]) < 2 * len(current):
            current = whole_run((kept.pop(), current), before)
            if current is not None and merged is not None:
                current = merged(current)
        if current is not None:
            kept.append(current)
    return tuple(kept)


def runs_to_arrow(runs: Sequence[RowRun], types: Sequence[pa.DataType], before: int) -> pa.RecordBatch:
    """Record batch of all rows, sorted: code, time, seq, marked, value_0, ...; `before` goes into the schema's
    metadata.
    """
    run = whole_run(runs, before)
    heads = (pa.int32(), pa.int64(), pa.int64(), pa.uint8())
    if run is None:
        arrays = [pa.nulls(0, t) for t in (*heads, *map(stored_type, types))]
    else:
        arrays = [pa.array(a) for a in (run.code, run.time, run.seq, run.marks())] + list(run.values)
    names = ["code", "time", "seq", "marked", *(f"value_{j}" for j in range(len(types)))]
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    return pa.record_batch(arrays, schema=pa.schema(fields, metadata={"before": str(before)}))


def runs_from_arrow(types: Sequence[pa.DataType], data: pa.RecordBatch) -> tuple[tuple[RowRun, ...], int]:
    """Inverse of `runs_to_arrow`: (runs, before). Raises ValueError if the columns are not those of `types`."""
    expected = [pa.int32(), pa.int64(), pa.int64(), pa.uint8(), *(stored_type(t) for t in types)]
    if [field.type for field in data.schema] != expected or b"before" not in (data.schema.metadata or {}):
        raise ValueError(f"not a state of rows of types {list(types)}: {data.schema}")
    before = int(data.schema.metadata[b"before"])
    if not data.num_rows:
        return (), before
    code, time, seq, marks = (np.asarray(data.column(k)) for k in range(4))
    marked = np.packbits(marks, bitorder="little")
    return (RowRun.of_sorted(code, time, seq, data.columns[4:], marked),), before
