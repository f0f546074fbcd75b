"""Spans of closing windows of rows: what a join knows before it lists rows window by window.

A row of a sliding window of an hour by the second is in 3,600 windows. A side that matters only in pairs has its rows
listed in those windows alone in which the other side has a row of the key, so that each listing gives a pair (unless
`keep` passes it over).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpuwin.grid import WindowGrid
from gpuwin.joins.kernels import JoinKernels
from gpuwin.state.rows.row_runs import RowRun
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.joins import common_spans
from gpuwin_kernels.cpu.order import order_by_code

_NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of windows of rows of one side, first[i] <= window < beyond[i], none empty; by (code, time, arrival) of the
    rows, and then by window.
    """

    run: RowRun | None
    row: np.ndarray  # int64[k], places in the run
    code: np.ndarray  # int32[k]
    first: np.ndarray  # int64[k]
    beyond: np.ndarray  # int64[k]

    @classmethod
    def of(cls, run: RowRun | None, grid: WindowGrid, closed: int, last: int) -> Spans:
        """Windows after `closed`, up to `last`, of the rows of a run."""
        if run is None:
            return cls(None, _NO_ROWS, _NO_ROWS.astype(np.int32), _NO_ROWS, _NO_ROWS)
        of_row = grid.windows_of(grid.panes(run.time))
        first, beyond = np.maximum(of_row[0], closed + 1), np.minimum(of_row[1], last) + 1
        return cls(run, np.arange(len(run)), run.code, first, beyond)._without_empty()

    def _without_empty(self) -> Spans:
        filled = self.first < self.beyond
        return self if filled.all() else self._taken(np.flatnonzero(filled))

    def _taken(self, at: np.ndarray) -> Spans:
        return replace(self, row=self.row[at], code=self.code[at], first=self.first[at], beyond=self.beyond[at])

    def __len__(self) -> int:
        return len(self.row)

    @property
    def members(self) -> int:
        """Rows, each counted once for each window."""
        return int((self.beyond - self.first).sum())

    def listed(self, kernels: JoinKernels) -> tuple[np.ndarray, np.ndarray]:
        """Places of rows in the run, and windows; int64 each, one for each member."""
        if self.run is None or not len(self):
            return _NO_ROWS, _NO_ROWS
        span, window = kernels.assign_windows(self.run.time[self.row], self.first, self.beyond)
        return self.row[span], window

    def met_by(self, other: Spans) -> Spans:
        """Parts of the spans, of windows in which the other side has a row with the same code. Neither was cut yet: the
        later of two rows of a code is in no earlier windows.
        """
        if not len(self) or not len(other):
            return self._taken(_NO_ROWS)
        goes_on = (other.code[1:] == other.code[:-1]) & (other.first[1:] <= other.beyond[:-1])
        begins = np.flatnonzero(np.concatenate(([True], ~goes_on)))
        ends = np.concatenate((begins[1:], [len(other)])) - 1
        apart = other.code[begins], other.first[begins], other.beyond[ends]
        at, first, beyond = common_spans(self.code, self.first, self.beyond, *apart)
        return replace(self, row=self.row[at], code=self.code[at], first=first, beyond=beyond)

    def between(self, low: tuple[np.int32, int], high: tuple[np.int32, int]) -> Spans:
        """Parts of the spans with low <= (code, window) < high."""
        at = np.arange(np.searchsorted(self.code, low[0]), np.searchsorted(self.code, high[0], side="right"))
        some = self._taken(at)
        first = np.where(some.code == low[0], np.maximum(some.first, low[1]), some.first)
        beyond = np.where(some.code == high[0], np.minimum(some.beyond, high[1]), some.beyond)
        return replace(some, first=first, beyond=beyond)._without_empty()


def in_parts(left: Spans, right: Spans, most: int) -> Iterator[tuple[Spans, Spans]]:
    """Both sides in ranges of (code, window), ascending, which is the order of what a join gives out. A range has about
    `most` members, and more only if one window of one key has.
    """
    if left.members + right.members <= most:
        yield left, right
        return
    for low, high in itertools.pairwise(_cuts(left, right, most)):
        yield left.between(low, high), right.between(low, high)


def _cuts(left: Spans, right: Spans, most: int) -> list[tuple[np.int32, int]]:
    """Ends of the ranges of `in_parts`, (code, window), from one before all members to one behind them."""
    code = np.concatenate((left.code, left.code, right.code, right.code))
    edge = np.concatenate((left.first, left.beyond, right.first, right.beyond))
    ones = (np.ones(len(left), np.int64), np.ones(len(right), np.int64))
    opened = np.concatenate((ones[0], -ones[0], ones[1], -ones[1]))
    order = order_by_code(code, edge)
    code, edge, deep = code[order], edge[order], np.cumsum(opened[order])
    # Behind the last edge of a code no span is open, so the way to the next code counts nothing.
    before = np.concatenate(([0], np.cumsum(deep[:-1] * (edge[1:] - edge[:-1]))))
    wanted = np.arange(most, before[-1], most)
    at = np.searchsorted(before, wanted, side="right") - 1
    window = edge[at] - (before[at] - wanted) // deep[at]  # rounded up
    inner = zip(code[at], window.tolist(), strict=True)
    return list(dict.fromkeys([(code[0], INT64_MIN), *inner, (code[-1], INT64_MAX)]))
