"""Cells of stretches of rows that overlap, such as the last hundred rows at each row.

Rows are cut into blocks as long as the longest stretch, so that no stretch lies in more than two. Of each block it is
found what its first rows make together, up to each row, and its last ones; a stretch is one of either, however long it
is. After van Herk, "A fast algorithm for local minimum and maximum filters on rectangular and octagonal kernels", 1992.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.state.cells import Columns, empty_cells, merge_parts, take_cells
from gpuwin.state.every_row import cells_after_each
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.layout import CellLayout

Part = tuple[Columns, np.ndarray]


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of places, and the blocks of those that lie in any."""

    places: np.ndarray  # int64[k], ascending: of all stretches, each once
    block: np.ndarray  # int64[k], of each of them, from 0
    lo: np.ndarray  # int64[n], stretch i is places[lo[i]:hi[i]]
    hi: np.ndarray  # int64[n]

    @classmethod
    def of(cls, lo: np.ndarray, hi: np.ndarray) -> Stretches:
        """Stretches [lo[i], hi[i]) of places, int64[n], none empty. Both ascend."""
        begins = np.flatnonzero(np.concatenate(([True], lo[1:] >= hi[:-1])))  # of stretches that overlap, the first
        chain = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(lo))))
        first, longest = lo[begins], np.maximum.reduceat(hi - lo, begins)
        size = hi[np.append(begins[1:], len(lo)) - 1] - first
        offset = np.cumsum(size) - size
        within = np.arange(int(size.sum())) - np.repeat(offset, size)
        blocks = -(-size // longest)
        block = within // np.repeat(longest, size) + np.repeat(np.cumsum(blocks) - blocks, size)
        moved = (offset - first)[chain]
        return cls(within + np.repeat(first, size), block, lo + moved, hi + moved)

    def cells(self, layout: CellLayout, units: Columns, heap: BytesHeap | None) -> Columns:
        """Cells of the stretches, from those of the rows at `places`.

        Raises gpuwin.OverflowError if an exact sum leaves its type, of a stretch or of a part of a block.
        """
        rows, count = len(self.places), len(self.lo)
        begin, end = self.block[self.lo], self.block[self.hi - 1]
        edge = np.flatnonzero(np.diff(self.block, prepend=-1, append=-1))
        from_start = (edge[begin] == self.lo) | (begin != end)  # its rows of the last block are that block's first
        to_end = ~from_start & (edge[begin + 1] == self.hi) | (begin != end)
        parts: list[Part] = [(empty_cells(layout, count), np.arange(count))]
        if to_end.any():
            backwards = np.arange(rows - 1, -1, -1)
            last = self._after_each(layout, units, backwards, heap)
            some = np.flatnonzero(to_end)
            parts.append((take_cells(last, rows - 1 - self.lo[some]), some))
        first = self._after_each(layout, units, np.arange(rows), heap)
        some = np.flatnonzero(from_start)
        parts.append((take_cells(first, self.hi[some] - 1), some))
        inside = np.flatnonzero(~from_start & ~to_end)
        size = self.hi[inside] - self.lo[inside]
        at = np.arange(int(size.sum())) + np.repeat(self.lo[inside] - (np.cumsum(size) - size), size)
        parts.append((take_cells(units, at), np.repeat(inside, size)))
        return merge_parts(layout, parts, count, heap)

    def _after_each(self, layout: CellLayout, units: Columns, order: np.ndarray, heap: BytesHeap | None) -> Columns:
        """Cells of the rows of its block up to each row, in this order of rows."""
        blocks = int(self.block[-1]) + 1
        before, none = empty_cells(layout, blocks), np.zeros(blocks, np.uint8)
        return cells_after_each(layout, units, order, self.block[order], before, none, heap=heap)
