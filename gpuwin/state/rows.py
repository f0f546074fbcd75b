"""Raw values, kept for the aggregates that no fixed-size partial can answer (median, collect_list, ...).

Rows are kept in runs sorted by (key code, time, seq), of falling size as in a log-structured merge tree; `select` gathers the rows of the
windows asked for, so that each window is a contiguous slice. What they are finished to: `gpuwin.state.holistic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from gpuwin_kernels.cpu.order import lower_bounds, merged_order, order_by_code
from gpuwin_kernels.cpu.sessions import clear_positions, coalesce, with_bits
from gpuwin_kernels.cpu.slices import expand, rows_between

_INT64_MIN = int(np.iinfo(np.int64).min)
_INT64_MAX = int(np.iinfo(np.int64).max)
_SAMPLE = 64  # times sampled of a run, to estimate how many of its rows are evicted


@dataclass(frozen=True, slots=True)
class RowSlices:
    """The rows of some windows: window w holds rows [lo[w], hi[w]) of the other arrays. Windows of one key may overlap."""

    code: np.ndarray  # int32[rows]
    time: np.ndarray  # int64[rows]
    seq: np.ndarray  # int64[rows]
    values: tuple[pa.Array, ...]
    lo: np.ndarray  # int64[windows]
    hi: np.ndarray  # int64[windows]


@dataclass(frozen=True, slots=True)
class _Run:
    code: np.ndarray
    time: np.ndarray
    seq: np.ndarray
    values: tuple[pa.Array, ...]
    gone: np.ndarray  # uint8[(n + 7) // 8]: bit p is set once row p was dropped
    live: int
    sample: np.ndarray = field(compare=False)  # int64, sorted: times of some rows; the first and last are the extremes

    @classmethod
    def of(cls, code: np.ndarray, time: np.ndarray, seq: np.ndarray, values: tuple[pa.Array, ...]) -> _Run:
        n = len(code)
        step = max(1, n // _SAMPLE)
        sample = np.sort(np.concatenate((time[::step], [time.min(), time.max()])))
        return cls(code, time, seq, values, np.zeros((n + 7) // 8, np.uint8), n, sample)

    def take(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[pa.Array, ...]]:
        at = pa.array(positions)
        values = tuple(v.take(at) for v in self.values)
        return self.code[positions], self.time[positions], self.seq[positions], values

    def kept(self, before: int) -> _Run | None:
        """Without the rows that were dropped or are older than `before`."""
        positions = clear_positions(self.gone, len(self.code))
        positions = positions[self.time[positions] >= before]
        if len(positions) == len(self.code):
            return self
        return _Run.of(*self.take(positions)) if len(positions) else None

    def mostly_dead(self, before: int) -> bool:
        evicted = np.searchsorted(self.sample, before) / len(self.sample)
        return bool(self.live * (1.0 - evicted) * 2 < len(self.code))

    @property
    def nbytes(self) -> int:
        arrays = self.code.nbytes + self.time.nbytes + self.seq.nbytes + self.gone.nbytes
        return int(arrays + sum(v.nbytes for v in self.values))


def _stored(type_: pa.DataType) -> pa.DataType:
    """How values are kept: runs may outgrow 32-bit offsets, and codes of a dictionary mean nothing in another batch."""
    if pa.types.is_dictionary(type_):
        return _stored(type_.value_type)
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(type_, type_)


def _merged(older: _Run, newer: _Run) -> _Run:
    order = merged_order(older.code, older.time, newer.code, newer.time)
    at = pa.array(order)
    code, time, seq = (
        np.concatenate(pair)[order]
        for pair in ((older.code, newer.code), (older.time, newer.time), (older.seq, newer.seq))
    )
    values = tuple(pa.concat_arrays(pair).take(at) for pair in zip(older.values, newer.values, strict=True))
    return _Run.of(code, time, seq, values)


def _tidied(runs: Sequence[_Run], before: int) -> tuple[_Run, ...]:
    """Each run at least twice as large as the next, none mostly dead: so a row is copied O(log rows) times in its life."""
    kept: list[_Run] = []
    for run in runs:
        current = run.kept(before) if run.mostly_dead(before) else run
        while current is not None and kept and len(kept[-1].code) < 2 * len(current.code):
            older, newer = kept.pop().kept(before), current.kept(before)
            current = newer if older is None else older if newer is None else _merged(older, newer)
        if current is not None:
            kept.append(current)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class RowState:
    """Rows by (key code, time, seq). Immutable like the other states; keys are codes of the caller's dictionary."""

    types: tuple[pa.DataType, ...]
    runs: tuple[_Run, ...] = ()
    before: int = _INT64_MIN  # rows older than this are evicted, though some may still lie in a run

    @classmethod
    def empty(cls, types: Sequence[pa.DataType]) -> RowState:
        """`types`: the value columns that the holistic aggregates read (any Arrow type, nulls allowed)."""
        return cls(tuple(types))

    @property
    def cells(self) -> int:
        """Rows in memory."""
        return sum(run.live for run in self.runs)

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)

    def add(
        self, code: np.ndarray, time: np.ndarray, seq: np.ndarray, values: Sequence[pa.Array | pa.ChunkedArray]
    ) -> RowState:
        """`code` int32[n], `time` int64[n], `seq` int64[n] (the number of arrival, rising over the life of the stream), n values per column."""
        if not len(code):
            return self
        if len(values) != len(self.types):
            raise ValueError(f"{len(self.types)} value columns are kept, {len(values)} were given")
        order = order_by_code(code, time)
        at = pa.array(order)
        stored = []
        for column, type_ in zip(values, self.types, strict=True):
            whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            stored.append(whole.cast(_stored(type_)).take(at))
        run = _Run.of(code[order], time[order], seq[order], tuple(stored))
        return replace(self, runs=_tidied((*self.runs, run), self.before))

    def _positions(self, run: _Run, code: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Live rows of a run in these windows, each once."""
        start = np.maximum(start, self.before)
        order = np.lexsort((start, code))
        _, codes, starts, _, ends = coalesce(code[order], start[order], start[order], end[order], False)
        return rows_between(run.code, run.time, run.gone, codes, starts, ends)  # type: ignore[no-any-return]

    def select(
        self, code: np.ndarray, start: np.ndarray, end: np.ndarray, since: np.ndarray | None = None
    ) -> RowSlices:
        """The rows of each window: key `code[w]`, `start[w] <= time < end[w]` (int64; the largest as end: no end).

        `since` int64[windows]: only rows with `seq >= since[w]` (discarding). Values come in the types of `empty`.
        """
        parts = [run.take(self._positions(run, code, start, end)) for run in self.runs]
        if parts:
            codes, times, seqs = (np.concatenate([part[k] for part in parts]) for k in range(3))
            values = [pa.concat_arrays([part[3][j] for part in parts]) for j in range(len(self.types))]
            if len(parts) > 1:
                order = order_by_code(codes, times)
                codes, times, seqs = codes[order], times[order], seqs[order]
                values = [v.take(pa.array(order)) for v in values]
        else:
            codes, times, seqs = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
            values = [pa.array([], _stored(t)) for t in self.types]
        lo = lower_bounds(codes, times, code, start)
        endless = end == _INT64_MAX
        hi = lower_bounds(codes, times, code + endless.astype(np.int32), np.where(endless, _INT64_MIN, end))
        hi = np.maximum(lo, hi)
        if since is not None:
            row, window, _ = expand(lo, hi, np.ones(len(codes), np.uint8))
            fresh = seqs[row] >= since[window]
            row, window = row[fresh], window[fresh]
            codes, times, seqs = codes[row], times[row], seqs[row]
            values = [v.take(pa.array(row)) for v in values]
            edges = np.searchsorted(window, np.arange(len(code) + 1))
            lo, hi = edges[:-1], edges[1:]
        plain = (
            v.cast(t.value_type if pa.types.is_dictionary(t) else t) for v, t in zip(values, self.types, strict=True)
        )
        return RowSlices(codes, times, seqs, tuple(plain), lo, hi)

    def evict(self, before: int) -> RowState:
        """Forgets rows with `time < before`."""
        if before <= self.before:
            return self
        return replace(self, runs=_tidied(self.runs, before), before=before)

    def dropped(self, code: np.ndarray, start: np.ndarray, end: np.ndarray) -> RowState:
        """Forgets the rows of these windows (closed sessions: a later session of the key must not see them)."""
        runs = []
        for run in self.runs:
            positions = self._positions(run, code, start, end)
            if len(positions):
                run = replace(run, gone=with_bits(run.gone, positions), live=run.live - len(positions))
            runs.append(run)
        return replace(self, runs=_tidied(runs, self.before))

    def used_codes(self) -> np.ndarray:
        """int32, sorted, unique."""
        kept = [run.kept(self.before) for run in self.runs]
        codes = [np.unique(run.code) for run in kept if run is not None]
        return np.unique(np.concatenate(codes)) if codes else np.empty(0, np.int32)

    def recoded(self, new_code: np.ndarray) -> RowState:
        """After the dictionary was compacted: `new_code` int32, old -> new, order preserving (-1 for codes not in use)."""
        kept = (run.kept(self.before) for run in self.runs)
        runs = (replace(run, code=new_code[run.code].astype(np.int32)) for run in kept if run is not None)
        return replace(self, runs=tuple(runs))

    def to_arrow(self) -> pa.RecordBatch:
        """One record batch, sorted: code, time, seq, value_0, ...; the eviction bound is in the schema's metadata."""
        run: _Run | None = None
        for part in self.runs:
            kept = part.kept(self.before)
            run = kept if run is None else run if kept is None else _merged(run, kept)
        stored = [_stored(t) for t in self.types]
        if run is None:
            arrays = [pa.array([], t) for t in (pa.int32(), pa.int64(), pa.int64(), *stored)]
        else:
            arrays = [pa.array(run.code), pa.array(run.time), pa.array(run.seq), *run.values]
        names = ["code", "time", "seq", *(f"value_{j}" for j in range(len(stored)))]
        schema = pa.schema(
            [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)],
            metadata={"before": str(self.before)},
        )
        return pa.record_batch(arrays, schema=schema)

    @classmethod
    def from_arrow(cls, types: Sequence[pa.DataType], data: pa.RecordBatch) -> RowState:
        """The inverse of `to_arrow`. Raises ValueError if the columns are not those of `types`."""
        expected = [pa.int32(), pa.int64(), pa.int64(), *(_stored(t) for t in types)]
        if [field.type for field in data.schema] != expected or b"before" not in (data.schema.metadata or {}):
            raise ValueError(f"not a state of rows of types {list(types)}: {data.schema}")
        before = int(data.schema.metadata[b"before"])
        if not data.num_rows:
            return cls(tuple(types), (), before)
        code, time, seq = (np.asarray(data.column(k)) for k in range(3))
        return cls(tuple(types), (_Run.of(code, time, seq, tuple(data.columns[3:])),), before)
