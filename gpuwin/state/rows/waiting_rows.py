"""Rows of batches that lie in no run yet, in order of arrival.

A row of a tumbling window is read once, when its window closes. So rows wait as they came, and those whose windows
close become one run, which is sorted by all threads: nothing is merged, and nothing is copied for the rows of windows
that stay open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import copied
from gpuwin.state.rows.gathering import gathered
from gpuwin.state.rows.row_runs import RowRun, stored
from gpuwin_kernels.cpu.extremes import ends_of

WAITING_ROWS = 1 << 21
"""Rows that wait, at most: sorting more at once costs more than merging runs of so many."""

WAITING_PARTS = 1 << 8
"""Batches that wait, at most."""


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Rows of one batch, at least one, in memory of their own, or in that of more rows, of which they are a view."""

    code: np.ndarray  # int32[n]
    time: np.ndarray  # int64[n]
    seq: np.ndarray  # int64[n]
    values: tuple[pa.Array, ...]  # of stored types
    least: int  # of the times
    most: int
    whole: int  # rows that lie in the memory, of which some may have left
    nbytes: int  # of the memory. Known from the start: every batch asks for it, of all that wait

    @classmethod
    def owned(cls, code: np.ndarray, time: np.ndarray, seq: np.ndarray, values: Sequence[pa.Array]) -> WaitingRows:
        """Rows that alone lie in their memory."""
        size = code.nbytes + time.nbytes + seq.nbytes + sum(v.nbytes for v in values)
        return cls(code, time, seq, tuple(values), *ends_of(time), len(code), int(size))

    @classmethod
    def of(
        cls,
        code: np.ndarray,
        time: np.ndarray,
        seq: np.ndarray,
        values: Sequence[pa.Array | pa.ChunkedArray],
        types: Sequence[pa.DataType],
    ) -> WaitingRows:
        """Rows in order of arrival; `types` are those of the values as they came. Codes and numbers of arrival are kept
        as they are, and must not change; times and values may be a caller's memory, and are copied.
        """
        own = [copied(stored(v, type_)) for v, type_ in zip(values, types, strict=True)]
        return cls.owned(code, time.copy(), seq, own)

    def __len__(self) -> int:
        return len(self.code)

    def taken(self, at: np.ndarray) -> WaitingRows:
        """The rows at some places, int64, at least one."""
        (code, time, seq), values = gathered((self.code, self.time, self.seq), self.values, at)
        return WaitingRows.owned(code, time, seq, values)

    def upto(self, before: int) -> WaitingRows | None:
        """The rows with `time < before`; None for no rows."""
        if self.most < before:
            return self
        return None if self.least >= before else self._of(self.time < before)

    def since(self, least: int) -> WaitingRows | None:
        """The rows with `time >= least`; None for no rows."""
        if self.least >= least:
            return self
        return None if self.most < least else self._of(self.time >= least)

    def _of(self, mask: np.ndarray) -> WaitingRows:
        """The rows of a mask, bool[n], at least one. Most of the rows in the memory, at one end, are a view, as in a
        stream in order of time; a view of a few would keep the memory of all.
        """
        count = int(np.count_nonzero(mask))
        if 2 * count >= self.whole and mask[:count].all():
            return self._part(slice(0, count))
        if 2 * count >= self.whole and mask[len(self) - count :].all():
            return self._part(slice(len(self) - count, len(self)))
        return self.taken(np.flatnonzero(mask))

    def _part(self, rows: slice) -> WaitingRows:
        time = self.time[rows]
        least, most = ends_of(time)
        values = tuple(v[rows] for v in self.values)
        return replace(self, code=self.code[rows], time=time, seq=self.seq[rows], values=values, least=least, most=most)

    def recoded(self, new_code: np.ndarray) -> WaitingRows:
        return replace(self, code=new_code[self.code].astype(np.int32))


def run_of(parts: Sequence[WaitingRows]) -> RowRun:
    """One run of all rows of some parts, at least one, which lie in order of arrival."""
    rows = joined(parts)
    return RowRun.of_rows(rows.code, rows.time, rows.seq, rows.values)


def joined(parts: Sequence[WaitingRows]) -> WaitingRows:
    """Rows of some parts, at least one, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    code, time, seq = (np.concatenate(arrays) for arrays in zip(*((p.code, p.time, p.seq) for p in parts), strict=True))
    values = [pa.concat_arrays(column) for column in zip(*(p.values for p in parts), strict=True)]
    return WaitingRows.owned(code, time, seq, values)
