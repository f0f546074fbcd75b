"""Rows as cells of their own, and the cells that they become together: of a pane, or of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuwin.batch.pane_cells import AT_ONCE
from gpuwin.grid import WindowGrid
from gpuwin.state.cells import Columns, merge_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.panes.runs import Run, order_of_cells
from gpuwin.state.sessions.assignment import assign
from gpuwin_kernels.cpu.found_codes import Codes, codes_array
from gpuwin_kernels.cpu.rows import Cells, RowInput, SumOverflow, aggregate_rows
from gpuwin_kernels.layout import MAX, MIN, MOMENTS, SUM, CellArrays, CellColumn, CellLayout

from .overflow import begins_of, may_overflow, refuse_overflow


class Made(NamedTuple):
    """Cells that rows became; ``place``: start of the pane, or start and end of the session, microseconds;
    ``cells_of_rows``: gives the number of the cell of each row, int64[n].
    """

    place: tuple[np.ndarray, ...]  # int64[m] each
    code: np.ndarray  # int32[m]
    columns: Columns
    cells_of_rows: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Units:
    """The cells of n rows, each by itself.

    Attributes:
        layout: the partial columns.
        columns: a cell of each row.
        heap: bytes that cells hold codes of.
        single: whether each is one row; else some are cells that rows became before.
        counts: positions of buffers that are 1 in each of them.
    """

    layout: CellLayout
    columns: Columns
    heap: BytesHeap
    single: bool
    counts: frozenset[int]

    def __len__(self) -> int:
        return len(self.columns[0].values[0])

    def by_pane(self, grid: WindowGrid, keys: KeyDictionary, code: Codes, time: np.ndarray) -> Made:
        """Cells by (pane, key), each once.

        Args:
            grid: the panes.
            keys: the dictionary of the codes.
            code: int32[n], keys.
            time: int64[n], microseconds, in the pane of each row.

        Raises:
            gpuwin.OverflowError: an integer sum left 64 bits at one of the rows.
        """
        pane = grid.panes(time)
        if may_overflow(self.layout, self.columns):
            known = codes_array(code)
            order = order_of_cells(pane, known)
            refuse_overflow(self.layout, self.columns, order, begins_of(pane[order], known[order]))
        found: Cells | Run | None = self._at_once(code, pane, len(keys))
        if found is None:
            found = Run.from_cells(self.layout, pane, codes_array(code), self.columns, self.heap)
        of_pane, of_key = found.pane, found.code
        return Made(
            (grid.starts_of_panes(of_pane),),
            of_key,
            found.columns,
            lambda: _numbers(of_pane, of_key, pane, codes_array(code), len(keys)),
        )

    def by_session(self, code: np.ndarray, start: np.ndarray, end: np.ndarray) -> Made:
        """Proto-sessions by (key, start): rows of a key whose sessions overlap or meet are one.

        Spark adds the rows of a session in order of its start, those of the state and of other tasks among them. So
        where a sum may leave 64 bits, only rows of equal sessions are put together here, as Spark does below the
        shuffle, too, and the rest is left to the operator above.

        Args:
            code: int32[n], keys.
            start: int64[n], microseconds, of the session of the row alone, or of cells that rows became before.
            end: int64[n], as well.

        Raises:
            gpuwin.OverflowError: an integer sum left 64 bits among rows of equal sessions.
        """
        if may_overflow(self.layout, self.columns):
            order = np.lexsort((end, start, code))
            begins = begins_of(code[order], start[order], end[order])
            refuse_overflow(self.layout, self.columns, order, begins)
            slot = np.empty(len(order), np.int32)
            slot[order] = np.cumsum(begins) - 1
            first = order[begins]
            code, start, end = code[first], start[first], end[first]
        else:
            found = assign(code, start, end - start)
            slot, code, start, end = found.slot, found.code, found.start, found.end
        made = self._at_once(slot, np.zeros(len(slot), np.int64), len(code))
        columns = merge_cells(self.layout, self.columns, slot, len(code), self.heap) if made is None else made.columns
        return Made((start, end), code, columns, lambda: slot.astype(np.int64))

    def _at_once(self, code: Codes, pane: np.ndarray, codes: int) -> Cells | None:
        """Cells by (pane, code) made in one pass over the rows; None where there are few, a column has no such kernel,
        or a sum overflowed on its way.
        """
        if len(self) < AT_ONCE:
            return None
        feeds = [self._feed(column, cells) for column, cells in zip(self.layout.columns, self.columns, strict=True)]
        if any(feed is None for feed in feeds):
            return None
        try:
            return aggregate_rows(self.layout, [f for f in feeds if f is not None], code, pane, 1, codes=codes)
        except SumOverflow:  # the other way sums in 128 bits before it gives up
            return None

    def _feed(self, column: CellColumn, cells: CellArrays) -> RowInput | None:
        """Values of rows as the kernels take them."""
        words, valid = cells.values, cells.valid
        if column.merge == MOMENTS and self.single:
            return RowInput(words[1], *_bitmap(words[0] != 0))
        if column.merge not in (SUM, MIN, MAX) or column.dtype == "bytes":
            return None
        if column.merge == SUM and column.name.isdecimal() and int(column.name) in self.counts:
            return RowInput(None)
        values = words[0] if len(words) == 1 else np.stack((words[1].view(np.int64), words[0]), axis=1)
        return RowInput(values) if valid is None else RowInput(values, *_bitmap(valid != 0))


def _bitmap(valid: np.ndarray) -> tuple[np.ndarray | None, int]:
    return (None, 0) if valid.all() else (np.packbits(valid, bitorder="little"), 0)


def _numbers(of_pane: np.ndarray, of_key: np.ndarray, pane: np.ndarray, code: np.ndarray, codes: int) -> np.ndarray:
    """The number int64[n] of each row's cell, which has its pane and key, by those of all cells, each once."""
    panes = np.unique(of_pane)
    here = np.searchsorted(panes, of_pane) * codes + of_key
    wanted = np.searchsorted(panes, pane) * codes + code
    if len(panes) * codes <= 4 * (len(here) + len(wanted)):
        number = np.empty(len(panes) * codes, np.int64)
        number[here] = np.arange(len(here))
        return np.asarray(number[wanted])
    order = np.argsort(here, kind="stable")
    return np.asarray(order[np.searchsorted(here[order], wanted)])
