"""Runs: immutable batches of cells, sorted by (pane, code), each cell once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gpuwin_kernels.cpu import cells as kernel
from gpuwin_kernels.layout import CellLayout

from gpuwin.state.cells import (
    Columns,
    cells_nbytes,
    concat_cells,
    is_exact_sum,
    merge_parts,
    no_cells,
    take_cells,
)
from gpuwin.state.heap import BytesHeap


@dataclass(frozen=True, slots=True)
class Run:
    """`pane` int64[n], `code` int32[n], and the partial columns of the layout."""

    pane: np.ndarray
    code: np.ndarray
    columns: Columns

    @staticmethod
    def empty(layout: CellLayout) -> Run:
        """A run of no cells."""
        return Run(np.empty(0, np.int64), np.empty(0, np.int32), no_cells(layout))

    @staticmethod
    def from_cells(
        layout: CellLayout, pane: np.ndarray, code: np.ndarray, columns: Columns, heap: BytesHeap | None = None
    ) -> Run:
        """A run of cells in any order (pane int64[n], code int32[n]); equal ones are merged, in the order they come in.

        `heap` is needed where columns hold bytes. Raises gpuwin.OverflowError if an exact sum leaves its type.
        """
        if len(columns) != len(layout.columns):
            raise ValueError(f"the layout has {len(layout.columns)} columns, {len(columns)} were given")
        if kernel.is_increasing(pane, code):
            return Run(pane, code, columns)
        order = order_of_cells(pane, code)
        n = len(pane)
        group, out_pane, out_code = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int32)
        m = kernel.group_cells(pane, code, order, group, out_pane, out_code)
        if m == n:
            return Run(out_pane, out_code, take_cells(columns, order))
        return Run(out_pane[:m].copy(), out_code[:m].copy(), merge_parts(layout, [(columns, group)], m, heap))

    def merged(self, newer: Run, layout: CellLayout, heap: BytesHeap | None = None) -> Run:
        """The cells of both. Raises gpuwin.OverflowError if an exact sum leaves its type."""
        if not len(self) or not len(newer):
            return self if len(self) else newer
        if self._is_before(newer):
            return self._followed_by(newer)
        if newer._is_before(self):
            return newer._followed_by(self)
        na, nb = len(self), len(newer)
        to_a, to_b = np.empty(na, np.int64), np.empty(nb, np.int64)
        pane, code = np.empty(na + nb, np.int64), np.empty(na + nb, np.int32)
        m = kernel.merge_positions(self.pane, self.code, newer.pane, newer.code, to_a, to_b, pane, code)
        if m < na + nb:
            pane, code = pane[:m].copy(), code[:m].copy()
        return Run(pane, code, merge_parts(layout, [(self.columns, to_a), (newer.columns, to_b)], m, heap))

    def _is_before(self, other: Run) -> bool:
        mine, its = (self.pane[-1], self.code[-1]), (other.pane[0], other.code[0])
        return bool(mine[0] < its[0] or (mine[0] == its[0] and mine[1] < its[1]))

    def _followed_by(self, other: Run) -> Run:
        return Run(
            np.concatenate((self.pane, other.pane)),
            np.concatenate((self.code, other.code)),
            concat_cells([self.columns, other.columns]),
        )

    def slice(self, lo: int, hi: int) -> Run:
        """Cells [lo, hi); shares the arrays."""
        if lo == 0 and hi == len(self):
            return self
        part = slice(lo, max(lo, hi))
        return Run(self.pane[part], self.code[part], take_cells(self.columns, part))

    def between(self, first: int | None, last: int | None) -> Run:
        """The cells of panes from `first` to `last`, both included; None leaves an end open. Shares the arrays."""
        lo, hi = self.bounds(first, last)
        return self.slice(lo, hi)

    def bounds(self, first: int | None, last: int | None) -> tuple[int, int]:
        """The positions [lo, hi) of the panes from `first` to `last`."""
        lo = 0 if first is None else int(np.searchsorted(self.pane, first, "left"))
        hi = len(self) if last is None else int(np.searchsorted(self.pane, last, "right"))
        return lo, max(lo, hi)

    def copied(self) -> Run:
        """The same cells in arrays of their own, so that those they were cut from can be freed."""
        at = np.arange(len(self))
        return Run(self.pane.copy(), self.code.copy(), take_cells(self.columns, at))

    @property
    def shares(self) -> int:
        """How many cells the arrays hold that these were cut from."""
        base = self.pane.base
        return len(base) if isinstance(base, np.ndarray) and base.dtype == np.int64 else len(self)

    @property
    def nbytes(self) -> int:
        """Bytes of these cells."""
        return int(self.pane.nbytes + self.code.nbytes + cells_nbytes(self.columns))

    def __len__(self) -> int:
        return len(self.pane)


def order_of_cells(pane: np.ndarray, code: np.ndarray) -> np.ndarray:
    """The stable order (row numbers) of cells by (pane, code)."""
    n = len(pane)
    least = int(pane.min())
    code_bits = max(int(code.max()).bit_length(), 1)
    bits = code_bits + (int(pane.max()) - least).bit_length()
    if bits > 64 or n > np.iinfo(np.int32).max:
        return np.lexsort((code, pane))
    keys, rows = np.empty((2, n), np.uint64), np.empty((2, n), np.int32)
    kernel.pack_cells(pane, code, least, code_bits, keys[0], rows[0])
    swapped = kernel.radix_sort(keys[0], rows[0], keys[1], rows[1], bits)
    return rows[int(swapped)]


def sum_bounds(layout: CellLayout, run: Run) -> tuple[int, ...]:
    """For each column, a bound of |sum| over the cells of a run; 0 where the column cannot overflow."""
    return tuple(
        0
        if not is_exact_sum(column) or not len(run)
        else int(kernel.largest_magnitude(cells.values[0]))
        if column.dtype == "int64"
        else (int(kernel.largest_magnitude(cells.values[0])) + 1) << 64
        for column, cells in zip(layout.columns, run.columns, strict=True)
    )
