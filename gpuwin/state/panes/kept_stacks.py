"""Totals that cannot be subtracted (minimum, first, variance, an accumulation), kept between walks.

They are the two stacks of `gpuwin_kernels.cpu.columns`, held from call to call. `front`: the cells of the panes that
were there when the totals were begun, each with the total of its key once it has left. `back`: one total per key of all
cells since. A window is front plus back. When the front has left, or late cells for it pile up, the totals are `Stale`
and are begun again from the cells of one window: each cell is merged a constant number of times, whatever the overlap,
and only now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.state.cells import empty_column, heap_arrays, overflow_error, take_cells
from gpuwin.state.panes.totals import ColumnTotals, Stale
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.columns import column_kernels
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.walk import Steps
from gpuwin_kernels.layout import CellArrays, CellColumn

_LATE = 16  # late cells for the front, at most this part of it


def can_keep(column: CellColumn) -> bool:
    """Whether `KeptStacks` serves a column. Bytes are compared through a heap, which a failed batch may roll back."""
    return not column.invertible and column.dtype != "bytes"


@dataclass(frozen=True, slots=True)
class _Walk:
    """Steps of a walk: the stretches that have `entered` and `left` before it, those that have at the end of each step,
    and the rows of each step (`row` int64[steps + 1] into `row_code` int32).
    """

    entered: int
    left: int
    step_entered: np.ndarray
    step_left: np.ndarray
    row: np.ndarray
    row_code: np.ndarray


class KeptStacks(ColumnTotals):
    """Kept totals of one partial column. `begin` first, then `advance` with the cells that enter; the steps say which
    windows leave.
    """

    def __init__(self, column: CellColumn, codes: int) -> None:
        self._column = column
        self._kernels = column_kernels(column)
        self._front = [empty(codes, w) for w in column.words]
        self._back = [empty(codes, w) for w in column.words]
        self._front_has, self._back_has = np.zeros(codes, np.uint8), np.zeros(codes, np.uint8)
        self._code, self._start = np.empty(0, np.int32), np.zeros(2, np.int64)
        self._leave_after = np.empty(0, np.int64)  # of the front's stretches
        self._rest = [np.empty(0, w) for w in column.words]
        self._rest_has = np.empty(0, np.uint8)
        self._left = 1
        self._back_leaves = INT64_MAX  # the first window without some cell of the back
        self._late: list[tuple[np.ndarray, np.ndarray, CellArrays]] = []  # code, leave_after, cells

    def begin(self, code: np.ndarray, start: np.ndarray, leave_after: np.ndarray, cells: CellArrays) -> None:
        """Takes all cells of a window, in stretches that leave in order: they become the front."""
        self._code, self._leave_after = code, leave_after
        self._start = np.concatenate((start[:1], start))  # an empty stretch that leaves makes the kernel turn the stack
        self._rest = [empty(len(code), w) for w in self._column.words]
        self._rest_has = empty(len(code), np.uint8)
        stretches = len(leave_after) + 1
        entered, left = np.array([stretches, stretches]), np.array([0, 1])
        walk = _Walk(0, 0, entered, left, np.zeros(3, np.int64), np.empty(0, np.int32))
        self._walk(cells.values, cells.validity, walk)

    def _walk(self, values: tuple[np.ndarray, ...], valid: np.ndarray, walk: _Walk) -> CellArrays:
        """Totals of the rows; `values` and `valid` are the cells of the stretches that enter."""
        out = empty_column(self._column, len(walk.row_code))
        middle = np.array([walk.entered])
        bad = self._kernels.walk(
            self._code,
            self._start,
            valid,
            *values,
            walk.entered,
            walk.left,
            middle,
            walk.step_entered,
            walk.step_left,
            walk.row,
            walk.row_code,
            *self._front,
            self._front_has,
            *self._back,
            self._back_has,
            *self._rest,
            self._rest_has,
            *out.values,
            out.validity,
            *heap_arrays(None),
        )
        if bad:
            raise overflow_error(self._column)
        return out

    def advance(self, steps: Steps, cells: CellArrays) -> CellArrays:
        """Totals of the rows of steps. Raises Stale once the front has left."""
        whole = empty_column(self._column, len(steps.row_code))
        entered = steps.entered
        for k, window in enumerate(steps.step_window):
            self._enter(steps, cells, entered, int(steps.step_entered[k]), int(window))
            entered = max(entered, int(steps.step_entered[k]))
            rows = slice(int(steps.row[k]), int(steps.row[k + 1]))
            out = self._step(int(window), steps.row_code[rows])
            for into, found in zip(whole.values, out.values, strict=True):
                into[rows] = found
            if whole.valid is not None and out.valid is not None:
                whole.valid[rows] = out.valid
        return whole

    def _enter(self, steps: Steps, cells: CellArrays, first: int, last: int, window: int) -> None:
        """Adds the stretches [first, last) of the steps, but for those that have left by this window."""
        first = max(first, int(np.searchsorted(steps.leave_after, window, "left")))
        if first >= last:
            return
        front_leaves = int(self._leave_after[-1]) if len(self._leave_after) else INT64_MIN
        behind = max(first, min(last, int(np.searchsorted(steps.leave_after, front_leaves, "right"))))
        if first < behind:
            at = slice(int(steps.start[first]), int(steps.start[behind]))
            leave_after = np.repeat(steps.leave_after[first:behind], np.diff(steps.start[first : behind + 1]))
            self._late.append((steps.code[at], leave_after, take_cells((cells,), at)[0]))
            if sum(len(late[0]) for late in self._late) > len(self._code) // _LATE:
                raise Stale
        if behind < last:
            at = slice(int(steps.start[behind]), int(steps.start[last]))
            self._merge(steps.code[at], take_cells((cells,), at)[0], self._back, self._back_has)
            self._back_leaves = min(self._back_leaves, int(steps.leave_after[behind]) + 1)

    def _merge(self, group: np.ndarray, cells: CellArrays, into: list[np.ndarray], has: np.ndarray) -> None:
        if self._kernels.scatter(group, cells.validity, *cells.values, *into, has, *heap_arrays(None)):
            raise overflow_error(self._column)

    def _step(self, window: int, row_code: np.ndarray) -> CellArrays:
        stretches = len(self._leave_after) + 1
        left = 1 + int(np.searchsorted(self._leave_after, window, "left"))
        if window >= self._back_leaves or left >= stretches:
            raise Stale
        valid = np.ones(int(self._column.nullable), np.uint8)  # the kernel reads no cells here
        nothing = tuple(np.empty(0, w) for w in self._column.words)
        row = np.array([0, len(row_code)])
        walk = _Walk(stretches, self._left, np.array([stretches]), np.array([left]), row, row_code)
        out = self._walk(nothing, valid, walk)
        self._left = max(self._left, left)
        self._late = [late for late in self._late if int(late[1].max()) >= window]
        for code, leave_after, cells in self._late:
            self._add_late(code, leave_after, cells, window, row_code, out)
        return out

    def _add_late(
        self,
        code: np.ndarray,
        leave_after: np.ndarray,
        cells: CellArrays,
        window: int,
        row_code: np.ndarray,
        out: CellArrays,
    ) -> None:
        if not len(row_code):
            return
        place = np.minimum(np.searchsorted(row_code, code), len(row_code) - 1)
        at = np.flatnonzero((leave_after >= window) & (row_code[place] == code))
        has = self._front_has[row_code] | self._back_has[row_code] if out.valid is None else out.valid
        self._merge(place[at], take_cells((cells,), at)[0], list(out.values), has)

    def widen(self, codes: int) -> None:
        for words in (self._front, self._back):
            words[:] = [np.concatenate((w, np.empty(codes - len(w), w.dtype))) for w in words]
        for name in ("_front_has", "_back_has"):
            has = getattr(self, name)
            setattr(self, name, np.concatenate((has, np.zeros(codes - len(has), np.uint8))))

    @property
    def nbytes(self) -> int:
        arrays = [*self._front, *self._back, *self._rest, self._rest_has, self._code, self._front_has, self._back_has]
        return sum(a.nbytes for a in arrays)
