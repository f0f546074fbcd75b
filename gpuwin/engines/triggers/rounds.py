"""Rounds of rows: rows of a batch, by key, of which a few of each key are taken at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels.cpu.order import stable_order
from gpuwin_kernels.cpu.watermark import rows_before_closing


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of a batch that wait, by key: key `code[g]` has the rows `order[lo[g]:hi[g]]`, as they came."""

    order: np.ndarray  # int64[rows]
    code: np.ndarray  # int32[keys that have rows]
    lo: np.ndarray
    hi: np.ndarray

    @staticmethod
    def of(code: np.ndarray) -> Waiting:
        order = stable_order(code)
        begins = np.ones(len(code), bool)
        begins[1:] = np.diff(code[order]) != 0
        lo = np.flatnonzero(begins)
        return Waiting(order, code[order[lo]], lo, np.append(lo[1:], len(code)))

    def __len__(self) -> int:
        return len(self.lo)

    @property
    def next_rows(self) -> np.ndarray:
        """Next row of each key, int64[keys], keys ascending."""
        rows: np.ndarray = self.order[self.lo]
        return rows

    def one_each(self) -> np.ndarray:
        """End of a round of one row of each key: a trigger may fire after each row."""
        return self.lo + 1

    def some_each(self, most: np.ndarray) -> np.ndarray:
        """End of a round of so many rows of each key (int64[keys], at least one), or of all that wait."""
        stop: np.ndarray = self.lo + np.minimum(most, self.hi - self.lo)
        return stop

    def until_closing(self, end: np.ndarray, closing: np.ndarray, unclosed: SessionBatch | None) -> np.ndarray:
        """End of a round of rows during which no session closes that could take them up.

        end: int64[rows], the end of a session of each row alone. closing: int64[rows], sessions that end up to there
        have closed when the row comes. unclosed: sessions that are open when the next rows come; None: none of them
        closes.
        """
        earliest = np.full(len(self), INT64_MAX)
        if unclosed is not None:
            np.minimum.at(earliest, np.searchsorted(self.code, unclosed.code), unclosed.end)
        stop = np.empty(len(self), np.int64)
        rows_before_closing(self.lo, self.hi, end[self.order], closing[self.order], earliest, stop)
        return stop

    def taken(self, stop: np.ndarray) -> tuple[np.ndarray, Waiting]:
        """Rows of the round, as they came, and the rows that still wait."""
        size = stop - self.lo
        places = np.repeat(self.lo - (np.cumsum(size) - size), size) + np.arange(int(size.sum()))
        left = stop < self.hi
        return np.sort(self.order[places]), Waiting(self.order, self.code[left], stop[left], self.hi[left])
