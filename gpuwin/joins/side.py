"""Side of a join: the rows of one input that may still find a partner, by (key code, time)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from gpuwin.joins.kernels import JoinKernels
from gpuwin.state.buffers import copied
from gpuwin.state.rows.gathering import gathered
from gpuwin.state.rows.row_runs import RowRun, runs_from_arrow, runs_to_arrow, shown, tidied_runs, whole_run
from gpuwin.state.rows.waiting_rows import WAITING_PARTS, WAITING_ROWS, WaitingRows, joined, run_of
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.distinct_codes import distinct_codes


def shifted(time: np.ndarray, by: int) -> np.ndarray:
    """Times plus `by`, saturating at both ends of int64."""
    moved: np.ndarray = np.minimum(time, INT64_MAX - by) if by >= 0 else np.maximum(time, INT64_MIN - by)
    moved = moved + by
    return moved


_LARGE = (pa.large_string(), pa.large_binary())
TEXT_BYTES = (1 << 31) - 1
"""Bytes of a column of texts in one batch of results, at most."""

Alone = Literal["semi", "anti"]
"""Left rows that come out alone: those with a partner, each once, or those without."""


def fits(values: Sequence[pa.Array]) -> bool:
    """Whether texts of stored types have room in columns with offsets of 32 bits."""
    return max((v.nbytes for v in values if v.type in _LARGE), default=0) <= TEXT_BYTES


@dataclass(frozen=True, slots=True)
class Found:
    """Pairs of rows, with values of stored types (of a cogroup, lists of plain ones); either side may be missing as a
    whole: of the unmatched rows of an outer join, and of a join that gives out left rows alone.
    """

    left: tuple[pa.Array, ...] | None
    right: tuple[pa.Array, ...] | None
    rows: int
    window_start: np.ndarray | None = None  # int64[rows], for window joins
    window_end: np.ndarray | None = None
    firsts: tuple[tuple[pa.Array, ...], tuple[pa.Array, ...]] | None = None  # cogroup: a row of each side, for the keys

    def fitting(self) -> Iterator[Found]:
        """Parts of the pairs, whose texts have room in columns with offsets of 32 bits: a row of one side may be in
        many pairs.
        """
        if self.rows < 2 or self.firsts is not None or fits((*(self.left or ()), *(self.right or ()))):
            yield self
            return
        for rows in (slice(0, self.rows // 2), slice(self.rows // 2, self.rows)):
            left, right = (v and tuple(copied(column[rows]) for column in v) for v in (self.left, self.right))
            start, end = (b if b is None else b[rows] for b in (self.window_start, self.window_end))
            yield from Found(left, right, rows.stop - rows.start, start, end).fitting()


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of one side. Immutable, like every state. `types` are those of all columns of the input, keys and time
    included.
    """

    types: tuple[pa.DataType, ...]
    runs: tuple[RowRun, ...] = ()
    before: int = INT64_MIN  # rows older than this have left, though some may still lie in a run
    waiting: tuple[WaitingRows, ...] = ()  # in order of arrival, after the rows of the runs

    @property
    def rows(self) -> int:
        return sum(run.live for run in self.runs) + sum(map(len, self.waiting))

    @property
    def newest(self) -> int | None:
        """Time of the newest row; None if there is none."""
        times = [int(run.sample[-1]) for run in self.runs] + [part.most for part in self.waiting]
        return max(times, default=None)

    def plain(self, values: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
        return tuple(shown(v, t) for v, t in zip(values, self.types, strict=True))

    def with_rows(self, rows: RowRun | WaitingRows | None) -> Side:
        """Side with new rows; see `tidied`."""
        if isinstance(rows, WaitingRows):
            return replace(self, waiting=(*self.waiting, rows))
        return self if rows is None else replace(self, runs=(*self.runs, rows))

    def tidied(self) -> Side:
        """Side in few runs, of whose rows some wait. Most rows of a batch may leave with it, so it is tidied when they
        have.
        """
        if len(self.waiting) > WAITING_PARTS or sum(map(len, self.waiting)) > WAITING_ROWS:
            return self.in_runs()
        return replace(self, runs=tidied_runs(self.runs, self.before))

    def in_runs(self) -> Side:
        """Side whose rows all lie in runs."""
        if not self.waiting:
            return self
        return replace(self, runs=tidied_runs((*self.runs, run_of(self.waiting)), self.before), waiting=())

    def partners(
        self, rows: RowRun, least: np.ndarray, most: np.ndarray, kernels: JoinKernels
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Partners of rows of the other side: (number of a run, row, position in the run) of all with an equal code and
        least <= time <= most.
        """
        least = np.maximum(least, self.before)
        for number, run in enumerate(self.runs):
            who, position = kernels.probe(run, rows.code, least, most)
            if len(who):
                yield number, who, position

    def marked(self, found: Sequence[tuple[int, np.ndarray]]) -> Side:
        """Side in which these positions (run, positions) have met a partner."""
        runs = list(self.runs)
        for number, positions in found:
            runs[number] = runs[number].with_marks(positions)
        return replace(self, runs=tuple(runs))

    def unmatched(self, before: int) -> Iterator[tuple[pa.Array, ...]]:
        """Unmatched rows with time < before, run by run."""
        for run in self.runs:
            at = run.live_in_time(self.before, before)
            at = at[run.marks()[at] == 0]
            if len(at):
                yield run.take(at)

    def unmatched_at_once(self, run: RowRun) -> Iterator[tuple[pa.Array, ...]]:
        """Unmatched new rows that are not late, but can meet only rows that are here already."""
        at = np.flatnonzero((run.time < self.before) & (run.marks() == 0))
        if len(at):
            yield run.take(at)

    def evicted(self, before: int) -> Side:
        if before <= self.before:
            return self
        waiting = tuple(part for part in (p.since(before) for p in self.waiting) if part is not None)
        return replace(self, runs=tidied_runs(self.runs, before), before=before, waiting=waiting)

    def without(self, positions: Sequence[np.ndarray]) -> Side:
        """Side without these live rows of each run."""
        runs = [run.without(at) for run, at in zip(self.runs, positions, strict=True)]
        return replace(self, runs=tidied_runs(runs, self.before))

    def in_time(self, least: int, before: int) -> RowRun | None:
        """Live rows with least <= time < before, as one run. None of them waits."""
        return whole_run(self.runs, max(least, self.before), before)

    def older(self, before: int) -> RowRun | WaitingRows | None:
        """Live rows with time < before (the largest int64: no end); None if there is none."""
        settled, _ = self.settled(before)
        if not self.runs:
            return settled
        kept = [run.kept(self.before, before) for run in self.runs]  # few of the rows, which are then merged
        runs = [run for run in kept if run is not None]
        return whole_run(runs if settled is None else [*runs, run_of([settled])], INT64_MIN)

    def settled(self, before: int) -> tuple[WaitingRows | None, Side]:
        """The waiting rows with time < before (the largest int64: no end), None for no rows, and the side without
        them.
        """
        if before == INT64_MAX:
            return joined(self.waiting) if self.waiting else None, replace(self, waiting=())
        settled = [part for part in (p.upto(before) for p in self.waiting) if part is not None]
        later = tuple(part for part in (p.since(before) for p in self.waiting) if part is not None)
        return joined(settled) if settled else None, replace(self, waiting=later)

    def gathered(self, parts: Sequence[tuple[RowRun, np.ndarray]]) -> RowRun | None:
        parts = [(run, at) for run, at in parts if len(at)]
        if not parts:
            return None
        taken = [gathered((run.code, run.time, run.seq), run.values, at) for run, at in parts]
        return whole_run([RowRun.of_sorted(n[0], n[1], n[2], values) for n, values in taken], INT64_MIN)

    def used_codes(self) -> np.ndarray:
        """Codes of live rows, int32, ascending, each once."""
        return distinct_codes(*(run.live_codes(self.before) for run in self.runs), *(p.code for p in self.waiting))

    def recoded(self, new_code: np.ndarray) -> Side:
        kept = (run.kept(self.before) for run in self.runs)
        runs = tuple(run.recoded(new_code) for run in kept if run is not None)
        return replace(self, runs=runs, waiting=tuple(part.recoded(new_code) for part in self.waiting))

    def to_arrow(self) -> pa.RecordBatch:
        return runs_to_arrow(self.in_runs().runs, self.types, self.before)

    @classmethod
    def from_arrow(cls, types: Sequence[pa.DataType], data: pa.RecordBatch) -> Side:
        return cls(tuple(types), *runs_from_arrow(types, data))
