"""Runs: immutable batches of cells, sorted by (pane, code), each cell once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from gpuwin.state.cells import (
    Columns,
    cell_arrays,
    cells_nbytes,
    concat_arrays,
    copied_cells,
    empty_cells,
    heap_arrays,
    is_exact_sum,
    merge_parts,
    take_cells,
)
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import cells as kernel
from gpuwin_kernels.cpu.dense_groups import dense_groups
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.run_merge import can_merge, merge_runs
from gpuwin_kernels.layout import CellLayout


class CellRun(Protocol):
    """Run in host or device memory: cells sorted by (pane, code), each once; `Run` or `DeviceRun`."""

    def __len__(self) -> int: ...

    def on_host(self) -> Run:
        """This run in host memory."""


@dataclass(frozen=True)
class Run:
    """Run in host memory: `pane` int64[n], `code` int32[n], and the partial columns of the layout."""

    pane: np.ndarray
    code: np.ndarray
    columns: Columns

    @cached_property
    def first(self) -> int:
        """Oldest pane; there must be a cell."""
        return int(self.pane[0])

    @cached_property
    def last(self) -> int:
        """Newest pane; there must be a cell."""
        return int(self.pane[-1])

    def on_host(self) -> Run:
        """This run."""
        return self

    @staticmethod
    def empty(layout: CellLayout) -> Run:
        """Run of no cells."""
        return Run(np.empty(0, np.int64), np.empty(0, np.int32), empty_cells(layout, 0))

    @staticmethod
    def from_cells(
        layout: CellLayout, pane: np.ndarray, code: np.ndarray, columns: Columns, heap: BytesHeap | None = None
    ) -> Run:
        """Run of cells in any order (pane int64[n], code int32[n]); equal ones are merged, in the order they come in.

        `heap` is needed where columns hold bytes. Raises gpuwin.OverflowError if an exact sum leaves its type.
        """
        if len(columns) != len(layout.columns):
            raise ValueError(f"the layout has {len(layout.columns)} columns, {len(columns)} were given")
        if kernel.is_increasing(pane, code):
            return Run(pane, code, columns)
        n = len(pane)
        dense = dense_groups(pane, code)
        if dense is not None:
            group, out_pane, out_code = dense
            if len(out_pane) < n:
                return Run(out_pane, out_code, merge_parts(layout, [(columns, group)], len(out_pane), heap))
            order = empty(n, np.int64)
            order[group] = np.arange(n)
            return Run(out_pane, out_code, take_cells(columns, order))
        order = order_of_cells(pane, code)
        group, out_pane, out_code = empty(n, np.int64), empty(n, np.int64), empty(n, np.int32)
        m = kernel.group_cells(pane, code, order, group, out_pane, out_code)
        if m == n:
            return Run(out_pane, out_code, take_cells(columns, order))
        return Run(out_pane[:m].copy(), out_code[:m].copy(), merge_parts(layout, [(columns, group)], m, heap))

    def merged(self, newer: Run, layout: CellLayout, heap: BytesHeap | None = None) -> Run:
        """Run of the cells of both. Raises gpuwin.OverflowError if an exact sum leaves its type."""
        if not len(self) or not len(newer):
            return self if len(self) else newer
        return concat_runs(self.merged_apart(newer, layout, heap))

    def merged_apart(self, newer: Run, layout: CellLayout, heap: BytesHeap | None = None) -> list[Run]:
        """Runs of the cells of both, none of which is empty, in the order of their panes: what only one of them has
        shares its arrays.
        """
        # Runs of a stream in order of time share few panes, or none: only these are merged cell by cell.
        if self.last < newer.first:
            return [self, newer]
        a_from, a_to = self.bounds(newer.first, newer.last)
        b_from, b_to = newer.bounds(self.first, self.last)
        head = self.slice(0, a_from) if a_from else newer.slice(0, b_from)
        tail = self.slice(a_to, len(self)) if a_to < len(self) else newer.slice(b_to, len(newer))
        middle = _merged(self.slice(a_from, a_to), newer.slice(b_from, b_to), layout, heap)
        return [part for part in (head, middle, tail) if len(part)]

    def slice(self, lo: int, hi: int) -> Run:
        """Run of the cells [lo, hi); shares the arrays."""
        if lo == 0 and hi == len(self):
            return self
        part = slice(lo, max(lo, hi))
        return Run(self.pane[part], self.code[part], take_cells(self.columns, part))

    def between(self, first: int | None, last: int | None) -> Run:
        """Run of the panes from `first` to `last`, both included; None leaves an end open. Shares the arrays."""
        lo, hi = self.bounds(first, last)
        return self.slice(lo, hi)

    def bounds(self, first: int | None, last: int | None) -> tuple[int, int]:
        """Positions [lo, hi) of the panes from `first` to `last`."""
        pane = self.pane
        lo, hi = 0, len(pane)
        if not hi:
            return 0, 0
        # In a stream in order of time most runs lie wholly on one side: no need to search these.
        if first is not None and first > self.first:
            lo = hi if first > self.last else int(pane.searchsorted(first, "left"))
        if last is not None and last < self.last:
            hi = 0 if last < self.first else int(pane.searchsorted(last, "right"))
        return lo, max(lo, hi)

    def copied(self) -> Run:
        """This run in arrays of its own, so that those it was cut from can be freed."""
        return Run(self.pane.copy(), self.code.copy(), copied_cells(self.columns))

    @property
    def shares(self) -> int:
        """Number of cells in the arrays that this run was cut from."""
        base = self.pane.base
        # Kept memory is an array of bytes.
        return base.nbytes // self.pane.itemsize if isinstance(base, np.ndarray) else len(self)

    @property
    def nbytes(self) -> int:
        """Bytes of these cells."""
        return int(self.pane.nbytes + self.code.nbytes + cells_nbytes(self.columns))

    def __len__(self) -> int:
        return len(self.pane)


def concat_runs(parts: Sequence[Run]) -> Run:
    """One run of several (at least one), each of which ends before the pane that the next begins with."""
    if len(parts) == 1:
        return parts[0]
    lists = zip(*((part.pane, part.code, *cell_arrays(part.columns)) for part in parts), strict=True)
    pane, code, *arrays = concat_arrays(list(lists))
    left = iter(arrays)
    return Run(pane, code, tuple(column.each(lambda _: next(left)) for column in parts[0].columns))


def _merged(a: Run, b: Run, layout: CellLayout, heap: BytesHeap | None) -> Run:
    """One run of two that may share any cells."""
    na, nb = len(a), len(b)
    if not na or not nb:
        return a if na else b
    if na + nb >= tuning.MERGE_AT_ONCE and can_merge(layout):
        at_once = merge_runs(layout, (a.pane, a.code, a.columns), (b.pane, b.code, b.columns), heap_arrays(heap))
        if at_once is not None:
            return Run(*at_once)
    to_a, to_b = empty(na, np.int64), empty(nb, np.int64)
    pane, code = empty(na + nb, np.int64), empty(na + nb, np.int32)
    m = kernel.merge_positions(a.pane, a.code, b.pane, b.code, to_a, to_b, pane, code)
    return Run(pane[:m], code[:m], merge_parts(layout, [(a.columns, to_a), (b.columns, to_b)], m, heap))


def order_of_cells(pane: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Stable order of cells by (pane, code), as row numbers."""
    n = len(pane)
    least = int(pane.min())
    code_bits = max(int(code.max()).bit_length(), 1)
    bits = code_bits + (int(pane.max()) - least).bit_length()
    if bits > 64 or n > np.iinfo(np.int32).max:
        order: np.ndarray = np.lexsort((code, pane))
        return order
    keys, rows = empty((2, n), np.uint64), empty((2, n), np.int32)
    kernel.pack_cells(pane, code, least, code_bits, keys[0], rows[0])
    swapped = kernel.radix_sort(keys[0], rows[0], keys[1], rows[1], bits)
    sorted_rows: np.ndarray = rows[int(swapped)]
    return sorted_rows


def sum_bounds(layout: CellLayout, run: Run) -> tuple[int, ...]:
    """Bounds of |sum| over the cells of a run, one per column; 0 where the column cannot overflow."""
    return tuple(
        0
        if not is_exact_sum(column) or not len(run)
        else int(kernel.largest_magnitude(cells.values[0]))
        if column.dtype == "int64"
        else (int(kernel.largest_magnitude(cells.values[0])) + 1) << 64
        for column, cells in zip(layout.columns, run.columns, strict=True)
    )
