"""Raw values, kept for the aggregates that no fixed-size partial can answer (median, collect_list, ...).

Rows are kept in runs sorted by (key code, time, arrival), and may wait for that in order of arrival. `select` gathers
the rows of the windows asked for, so that each window is a contiguous slice. `gpuwin.state.rows.holistic` makes results
of them. Where all aggregates are approximations, sketches stand for the values, and rows of one cell become one row:
`gpuwin.state.rows.sketches`. Where all of them look at some rows of a cell only, the others are not kept:
`gpuwin.state.rows.kept_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from gpuwin.state.rows.gathering import gathered
from gpuwin.state.rows.grouped import grouped
from gpuwin.state.rows.kept_rows import KeptRows
from gpuwin.state.rows.row_runs import (
    RowRun,
    runs_from_arrow,
    runs_to_arrow,
    shown,
    stored_type,
    tidied_runs,
    whole_run,
)
from gpuwin.state.rows.slices import RowSlices
from gpuwin.state.rows.waiting_rows import WAITING_PARTS, WAITING_ROWS, WaitingRows, run_of
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.distinct_codes import distinct_codes
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import order_by_code, order_in_threads
from gpuwin_kernels.cpu.parallel import each, ranges
from gpuwin_kernels.cpu.sessions import coalesce, live_between
from gpuwin_kernels.cpu.slices import begins_of_codes, edges_by_code, edges_of_windows, expand, rows_between

Cells = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of (code, time): equal numbers for rows that share all windows
Panes = Callable[[np.ndarray], np.ndarray]  # of times, int64[n] each


class Sketch(Protocol):
    """Sketch of one kind, for one type of values."""

    def singles(self, values: pa.Array) -> pa.Array:
        """Pieces of rows, one each, of type large_binary."""

    def merged(self, sketches: pa.Array, first: np.ndarray) -> pa.Array:
        """Sketches of groups, each made of the sketches [first[g], first[g + 1]) (int64[groups + 1])."""


def rows_of_windows(
    runs: Sequence[RowRun], before: int, code: np.ndarray, start: np.ndarray, end: np.ndarray
) -> list[np.ndarray]:
    """Per run, the live positions in the windows `start <= time < end` of key `code`, each once. Windows come in any
    order.
    """
    start = np.maximum(start, before)
    order = order_by_code(code, start)
    _, codes, starts, _, ends = coalesce(code[order], start[order], start[order], end[order], False)
    return [rows_between(run.code, run.time, run.gone, codes, starts, ends) for run in runs]


def window_edges(
    codes: np.ndarray, times: np.ndarray, code: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(lo, hi) int64[windows] of windows in rows sorted by (code, time); the largest int64 as end: no end."""
    lo, hi = empty((2, len(code)), np.int64)
    parts = ranges(len(code))
    if len(codes) and codes[-1] < 2 * len(code):
        first = empty(int(codes[-1]) + 2, np.int64)
        begins_of_codes(codes, first)
        each(lambda part: edges_by_code(first, times, code, start, end, *part, lo, hi), parts)
    else:
        each(lambda part: edges_of_windows(codes, times, code, start, end, *part, lo, hi), parts)
    return lo, hi


@dataclass(frozen=True, slots=True)
class RowState:
    """Rows by (key code, time, arrival). Immutable like the other states; keys are codes of the caller's dictionary."""

    types: tuple[pa.DataType, ...]
    runs: tuple[RowRun, ...] = ()
    before: int = INT64_MIN  # rows older than this are evicted, though some may still lie in a run
    waiting: tuple[WaitingRows, ...] = ()  # in order of arrival
    sketches: tuple[Sketch, ...] = field(default=(), compare=False)  # one for each column, or none
    keeps: KeptRows | None = field(default=None, compare=False)  # None: all rows

    @classmethod
    def empty(
        cls, types: Sequence[pa.DataType], sketches: Sequence[Sketch] = (), keeps: KeptRows | None = None
    ) -> RowState:
        """State without rows. `types`: the types of the value columns that the holistic aggregates read (any Arrow
        type, nulls allowed). `sketches`: the sketch that is kept of each column in place of its values, which are then
        of type large_binary. `keeps`: which rows of a cell stay, at least; None: all of them.
        """
        kept = tuple(pa.large_binary() for _ in sketches) if sketches else tuple(types)
        return cls(kept, sketches=tuple(sketches), keeps=keeps)

    @property
    def cells(self) -> int:
        """Number of rows held."""
        return sum(run.live for run in self.runs) + sum(map(len, self.waiting))

    @property
    def live_rows(self) -> int:
        """Number of rows that are not evicted. Costs a scan of those in runs."""
        runs = sum(len(live_between(run.time, run.gone, self.before, INT64_MAX)) for run in self.runs)
        return runs + sum(map(len, self.waiting))

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs) + sum(part.nbytes for part in self.waiting)

    def add(
        self,
        code: np.ndarray,
        time: np.ndarray,
        seq: np.ndarray,
        values: Sequence[pa.Array | pa.ChunkedArray],
        cells: Cells | None = None,
        each_row: bool = False,
        waits: bool = False,
    ) -> RowState:
        """State with rows as well: `code` int32[n], `time` int64[n], `seq` int64[n] (arrival, rising over the stream),
        n values per column.

        `cells` gives the cell of rows that may become one row, where sketches are kept, or fewer rows; `each_row`: the
        rows of this batch stay apart until the next one comes. `waits`: values may wait for `in_runs`, which a caller
        then calls before it selects; sketches never do.
        """
        if not len(code):
            return self
        if len(values) != len(self.types):
            raise ValueError(f"{len(self.types)} value columns are kept, {len(values)} were given")
        if waits and not self.sketches:
            part = WaitingRows.of(code, time, seq, values, self.types)
            state = replace(self, waiting=(*self.waiting, part))
            many = len(state.waiting) > WAITING_PARTS or sum(map(len, state.waiting)) > WAITING_ROWS
            return replace(state, waiting=())._with_run(run_of(state.waiting), cells) if many else state
        return self._with_run(RowRun.of(code, time, seq, self._sketched(values), self.types), cells, each_row)

    def _with_run(self, run: RowRun, cells: Cells | None, apart: bool = False) -> RowState:
        """State with the rows of one more run. `apart`: they stay apart until the next one comes."""
        if cells is None or not (self.sketches or self.keeps):
            return replace(self, runs=tidied_runs((*self.runs, run), self.before))

        def collapsed(run: RowRun) -> RowRun:
            return self._collapsed(run, cells)

        if apart:
            earlier = self.runs[-1].kept(self.before) if self.runs else None
            runs = self.runs if earlier is None else (*self.runs[:-1], collapsed(earlier))
            return replace(self, runs=(*tidied_runs(runs, self.before, collapsed), run))
        return replace(self, runs=tidied_runs((*self.runs, collapsed(run)), self.before, collapsed))

    def in_runs(self, before: int | None = None) -> RowState:
        """State in which no row with `time < before` waits (None: no row at all). Runs of which all rows are before
        that become one, which the windows that end by then are read from.
        """
        if not self.waiting:
            return self
        if before is None:
            return replace(self, runs=tidied_runs((*self.runs, run_of(self.waiting)), self.before), waiting=())
        due = [part for part in (p.upto(before) for p in self.waiting) if part is not None]
        if not due:
            return self
        runs = (*self.runs, run_of(due))
        if all(run.sample[-1] < before for run in runs):
            whole = whole_run(runs, self.before)
            runs = () if whole is None else (whole,)
        else:
            runs = tidied_runs(runs, self.before)
        return replace(self, runs=runs, waiting=self._waiting_since(before))

    def _sketched(self, values: Sequence[pa.Array | pa.ChunkedArray]) -> Sequence[pa.Array | pa.ChunkedArray]:
        if not self.sketches:
            return values
        whole = (v.combine_chunks() if isinstance(v, pa.ChunkedArray) else v for v in values)
        plain = (v.dictionary_decode() if pa.types.is_dictionary(v.type) else v for v in whole)
        return [sketch.singles(v) for sketch, v in zip(self.sketches, plain, strict=True)]

    def _collapsed(self, run: RowRun, cells: Cells) -> RowRun:
        """Run in which rows of one key and cell, which lie side by side, are one that has the time of the first of
        them; or in which some of them stay.
        """
        cell = cells(run.code, run.time)
        begins = np.ones(len(run), bool)
        begins[1:] = (run.code[1:] != run.code[:-1]) | (cell[1:] != cell[:-1])
        if self.keeps is not None:
            if len(run) < tuning.CROWDED_CELL * np.count_nonzero(begins):
                return run
            at = self.keeps.places((np.cumsum(begins) - 1).astype(np.int32), run.seq, run.values)
            if len(at) in (0, len(run)):
                return run
            (code, time, seq), values = gathered((run.code, run.time, run.seq), run.values, at)
            return RowRun.of_sorted(code, time, seq, values)
        at = np.flatnonzero(begins)
        if len(at) == len(run):
            return run
        first = np.append(at, len(run))
        merged = [sketch.merged(v, first) for sketch, v in zip(self.sketches, run.values, strict=True)]
        return RowRun.of_sorted(run.code[at], run.time[at], np.minimum.reduceat(run.seq, at), merged)

    def select(
        self, code: np.ndarray, start: np.ndarray, end: np.ndarray, since: np.ndarray | None = None
    ) -> RowSlices:
        """The rows of each window: key `code[w]`, `start[w] <= time < end[w]` (int64; the largest as end: no end).

        `since` int64[windows]: only rows with `seq >= since[w]` (discarding). Values come in the types of `empty`. Rows
        that wait are sorted again in each call: see `in_runs`.
        """
        if self.waiting:
            latest = int(end.max(initial=INT64_MIN))
            sorted_ = self.in_runs(None if latest == INT64_MAX else latest)
            if sorted_ is not self:
                return replace(sorted_, waiting=()).select(code, start, end, since)
        if since is None and len(self.runs) == 1 and self.runs[0].live == len(self.runs[0]):
            run = self.runs[0]
            lo, hi = window_edges(run.code, run.time, code, np.maximum(start, self.before), end)
            if 2 * int((hi - lo).sum()) >= len(run):  # most of the run, or much overlap: nothing is gathered
                plain = (shown(v, t) for v, t in zip(run.values, self.types, strict=True))
                return RowSlices(run.code, run.time, run.seq, tuple(plain), lo, hi)
        positions = rows_of_windows(self.runs, self.before, code, start, end)
        parts = [(run, at) for run, at in zip(self.runs, positions, strict=True) if len(at)]
        if parts:
            codes = np.concatenate([run.code[at] for run, at in parts])
            times = np.concatenate([run.time[at] for run, at in parts])
            seqs = np.concatenate([run.seq[at] for run, at in parts])
            taken = [run.take(at) for run, at in parts]
            values = [pa.concat_arrays(column) for column in zip(*taken, strict=True)]
            if len(parts) > 1:
                order = order_in_threads(codes, times)
                (codes, times, seqs), values = gathered((codes, times, seqs), values, order)
        else:
            codes, times, seqs = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
            values = [pa.nulls(0, stored_type(t)) for t in self.types]
        lo, hi = window_edges(codes, times, code, start, end)
        if since is not None:
            row, window, _ = expand(lo, hi, np.ones(len(codes), np.uint8))
            fresh = seqs[row] >= since[window]
            row, window = row[fresh], window[fresh]
            codes, times, seqs = codes[row], times[row], seqs[row]
            values = [v.take(pa.array(row)) for v in values]
            edges = np.searchsorted(window, np.arange(len(code) + 1))
            lo, hi = edges[:-1], edges[1:]
        plain = (shown(v, t) for v, t in zip(values, self.types, strict=True))
        return RowSlices(codes, times, seqs, tuple(plain), lo, hi)

    def select_panes(
        self, code: np.ndarray, window: np.ndarray, start: np.ndarray, end: np.ndarray, panes: Panes
    ) -> RowSlices:
        """As `select`, where `window` (int64) are panes, and each is asked for once. Rows that wait need not be in
        runs: they are put together by window, and not sorted by time, where all of them wait.
        """
        found = None if self.runs else grouped(self.waiting, self.types, code, window, panes)
        return self.select(code, start, end) if found is None else found

    def evict(self, before: int) -> RowState:
        """State without the rows with `time < before`."""
        if before <= self.before:
            return self
        runs, waiting = tidied_runs(self.runs, before), self._waiting_since(before)
        return replace(self, runs=runs, before=before, waiting=waiting)

    def _waiting_since(self, least: int) -> tuple[WaitingRows, ...]:
        return tuple(part for part in (p.since(least) for p in self.waiting) if part is not None)

    def evict_windows(self, code: np.ndarray, start: np.ndarray, end: np.ndarray) -> RowState:
        """State without the rows of these windows (closed sessions: a later session of the key must not see them)."""
        if self.waiting:
            return self.in_runs().evict_windows(code, start, end)
        positions = rows_of_windows(self.runs, self.before, code, start, end)
        runs = [run.without(at) for run, at in zip(self.runs, positions, strict=True)]
        return replace(self, runs=tidied_runs(runs, self.before))

    def used_codes(self) -> np.ndarray:
        """Key codes in use, int32, sorted, unique."""
        return distinct_codes(*(run.live_codes(self.before) for run in self.runs), *(p.code for p in self.waiting))

    def recoded(self, new_code: np.ndarray) -> RowState:
        """State with the codes of a new dictionary: `new_code` int32, old -> new, order preserving (-1: not in use)."""
        kept = (run.kept(self.before) for run in self.runs)
        runs = tuple(run.recoded(new_code) for run in kept if run is not None)
        return replace(self, runs=runs, waiting=tuple(part.recoded(new_code) for part in self.waiting))

    def to_arrow(self) -> pa.RecordBatch:
        """Record batch of all rows, for a snapshot."""
        return runs_to_arrow(self.in_runs().runs, self.types, self.before)

    @classmethod
    def from_arrow(
        cls,
        types: Sequence[pa.DataType],
        data: pa.RecordBatch,
        sketches: Sequence[Sketch] = (),
        keeps: KeptRows | None = None,
    ) -> RowState:
        """Inverse of `to_arrow`. Raises ValueError if the columns are not those of `types`, or of sketches."""
        empty = cls.empty(types, sketches, keeps)
        runs, before = runs_from_arrow(empty.types, data)
        return replace(empty, runs=runs, before=before)
