"""Totals that cannot be subtracted (minimum, first, variance, an accumulation), kept between walks.

They are the two stacks of `gpuwin_kernels.cpu.columns`, held from call to call. `front`: the cells of the panes that
were there when the totals were begun, each with the total of its key once it has left. `back`: one total per key of all
cells since. A window is front plus back. When the front has left, or late cells for it pile up, the totals are `Stale`
and are begun again from the cells of one window: each cell is merged a constant number of times, whatever the overlap,
and only now and then.
"""

from __future__ import annotations

import numpy as np

from gpuwin.state.cells import empty_column, take_cells
from gpuwin.state.panes.totals import ColumnTotals, Stale, TwoStacks
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.walk import Steps
from gpuwin_kernels.layout import CellArrays, CellColumn

_NO_ROWS = np.empty(0, np.int32)
_LATE = 16  # late cells for the front, at most this part of it


def can_keep(column: CellColumn) -> bool:
    """Whether `KeptStacks` serves a column. Bytes are compared through a heap, which a failed batch may roll back."""
    return not column.invertible and column.dtype != "bytes"


class KeptStacks(ColumnTotals):
    """Kept totals of one partial column. `begin` first, then `advance` with the cells that enter; the steps say which
    windows leave.
    """

    def __init__(self, column: CellColumn, codes: int) -> None:
        self._column = column
        self._stacks = TwoStacks(column, codes, 0, None)
        self._code, self._start = np.empty(0, np.int32), np.zeros(2, np.int64)
        self._leave_after = np.empty(0, np.int64)  # of the front's stretches
        self._left = 1
        self._back_leaves = INT64_MAX  # the first window without some cell of the back
        self._late: list[tuple[np.ndarray, np.ndarray, CellArrays]] = []  # code, leave_after, cells

    def begin(self, code: np.ndarray, start: np.ndarray, leave_after: np.ndarray, cells: CellArrays) -> None:
        """Takes all cells of a window, in stretches that leave in order: they become the front."""
        self._code, self._leave_after = code, leave_after
        self._start = np.concatenate((start[:1], start))  # an empty stretch that leaves makes the kernel turn the stack
        self._stacks.make_rest(len(code))
        stretches = len(leave_after) + 1
        turned = self._steps(0, 0, np.array([stretches, stretches]), np.array([0, 1]), np.zeros(3, np.int64))
        self._stacks.walk(turned, cells, np.zeros(1, np.int64))

    def _steps(
        self,
        entered: int,
        left: int,
        step_entered: np.ndarray,
        step_left: np.ndarray,
        row: np.ndarray,
        row_code: np.ndarray = _NO_ROWS,
    ) -> Steps:
        """Steps over the front."""
        after = self._leave_after
        return Steps(self._code, self._start, after, entered, left, after[:0], step_entered, step_left, row, row_code)

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
            self._stacks.merge(steps.code[at], take_cells((cells,), at)[0], self._stacks.back, self._stacks.back_has)
            self._back_leaves = min(self._back_leaves, int(steps.leave_after[behind]) + 1)

    def _step(self, window: int, row_code: np.ndarray) -> CellArrays:
        stretches = len(self._leave_after) + 1
        left = 1 + int(np.searchsorted(self._leave_after, window, "left"))
        if window >= self._back_leaves or left >= stretches:
            raise Stale
        nothing = CellArrays(  # the kernel reads no cells here
            tuple(np.empty(0, w) for w in self._column.words), np.ones(1, np.uint8) if self._column.nullable else None
        )
        row = np.array([0, len(row_code)])
        steps = self._steps(stretches, self._left, np.array([stretches]), np.array([left]), row, row_code)
        out = self._stacks.walk(steps, nothing, np.array([stretches]))
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
        stacks = self._stacks
        has = stacks.front_has[row_code] | stacks.back_has[row_code] if out.valid is None else out.valid
        stacks.merge(place[at], take_cells((cells,), at)[0], out.values, has)

    def widen(self, codes: int) -> None:
        self._stacks.widen(codes)

    @property
    def nbytes(self) -> int:
        return self._stacks.nbytes + self._code.nbytes
