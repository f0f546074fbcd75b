"""Totals of windows for one partial column: sums run along with the window, all others go by two stacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gpuwin.state.cells import empty_column, heap_arrays, is_exact_sum, overflow_error
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import widened
from gpuwin_kernels.cpu.columns import column_kernels
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.walk import Share, Steps, narrow_wide, walk_int, walk_wide
from gpuwin_kernels.cpu.walk_float import walk_float
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

_NEVER = np.iinfo(np.int64).min


class ColumnTotals(Protocol):
    """Totals of one column along a walk; `advance` must be given the steps of a walk in order, with the cells of their
    span.
    """

    def advance(self, steps: Steps, cells: CellArrays) -> CellArrays: ...


class RunningTotals(ColumnTotals, Protocol):
    """Totals that can be kept between walks."""

    def widen(self, codes: int) -> None: ...

    @property
    def nbytes(self) -> int: ...


def _wider(array: np.ndarray, codes: int, fill: int = 0) -> np.ndarray:
    out = np.full((codes, *array.shape[1:]), fill, array.dtype)
    out[: len(array)] = array
    return out


class SharedTotals(ABC):
    """Totals that are kept by key in arrays, so that threads can walk some keys each."""

    @abstractmethod
    def room(self, n: int) -> CellArrays:
        """Column for n rows, to be written."""

    @abstractmethod
    def walk(self, steps: Steps, share: Share, cells: CellArrays, out: CellArrays) -> None:
        """Takes the steps for some keys, and writes their rows."""

    def finished(self, out: CellArrays) -> CellArrays:
        """Column of all rows."""
        return out

    def advance(self, steps: Steps, cells: CellArrays) -> CellArrays:
        out = self.room(len(steps.row_code))
        (everything,) = steps.shares(1)
        self.walk(steps, everything, cells, out)
        return self.finished(out)


class IntSum(SharedTotals):
    """Totals of an int64 sum that stays in 64 bits on the way."""

    def __init__(self, column: CellColumn, codes: int) -> None:
        self._column = column
        self._total = np.zeros(codes, np.int64)
        self._valid_upto = np.full(codes if column.nullable else 0, _NEVER, np.int64)

    def room(self, n: int) -> CellArrays:
        return empty_column(self._column, n)

    def walk(self, steps: Steps, share: Share, cells: CellArrays, out: CellArrays) -> None:
        walk_int(steps, share, cells.given(), self._total, self._valid_upto, out.given())

    def widen(self, codes: int) -> None:
        self._total = _wider(self._total, codes)
        self._valid_upto = _wider(self._valid_upto, codes, _NEVER) if self._column.nullable else self._valid_upto

    @property
    def nbytes(self) -> int:
        return self._total.nbytes + self._valid_upto.nbytes


class WideSum(SharedTotals):
    """Totals of an int128 sum, or of an int64 sum that may need more than 64 bits on the way."""

    def __init__(self, column: CellColumn, codes: int) -> None:
        self._column = column
        self._hi, self._lo = np.zeros(codes, np.int64), np.zeros(codes, np.uint64)
        self._valid_upto = np.full(codes if column.nullable else 0, _NEVER, np.int64)

    def room(self, n: int) -> CellArrays:
        valid = np.zeros(n, np.uint8) if self._column.nullable else None
        return CellArrays((empty(n, np.int64), empty(n, np.uint64)), valid)

    def walk(self, steps: Steps, share: Share, cells: CellArrays, out: CellArrays) -> None:
        if self._column.dtype != "int128":
            cells = cells._replace(values=widened(cells.values[0]))
        bad = walk_wide(steps, share, cells.given(), (self._hi, self._lo), self._valid_upto, out.given())
        if bad and is_exact_sum(self._column):
            raise overflow_error(self._column)

    def finished(self, out: CellArrays) -> CellArrays:
        if self._column.dtype == "int128":
            return out
        narrow = empty(len(out.values[0]), np.int64)
        if not narrow_wide(*out.values, out.validity, narrow):
            raise overflow_error(self._column)
        return CellArrays((narrow,), out.valid)

    def widen(self, codes: int) -> None:
        self._hi, self._lo = _wider(self._hi, codes), _wider(self._lo, codes)
        self._valid_upto = _wider(self._valid_upto, codes, _NEVER) if self._column.nullable else self._valid_upto

    @property
    def nbytes(self) -> int:
        return self._hi.nbytes + self._lo.nbytes + self._valid_upto.nbytes


class Stale(Exception):
    """Error of running totals that cannot go on: they have to be made afresh, from the cells of the whole window."""


class FloatSum(SharedTotals):
    """Totals of a float64 sum, with twice the precision."""

    def __init__(self, column: CellColumn, codes: int) -> None:
        self._column = column
        self._total = np.zeros((codes, 7))
        self.whole = True  # whether the span of a walk holds all cells of its windows
        self._alive = np.full(codes, _NEVER, np.int64)

    def room(self, n: int) -> CellArrays:
        return empty_column(self._column, n)

    def walk(self, steps: Steps, share: Share, cells: CellArrays, out: CellArrays) -> None:
        if walk_float(steps, share, cells.given(), self._total, self._alive, self.whole, out.given()):
            raise Stale  # it lost too much of its precision

    def widen(self, codes: int) -> None:
        self._total, self._alive = _wider(self._total, codes), _wider(self._alive, codes, _NEVER)

    @property
    def nbytes(self) -> int:
        return self._total.nbytes + self._alive.nbytes


class TwoStacks:
    """Totals of a column that cannot be subtracted, by two stacks: `front` has the cells that came first, each with the
    total of its key from there on (`rest`), `back` one total per key of all cells since.
    """

    def __init__(self, column: CellColumn, codes: int, cells: int, heap: BytesHeap | None) -> None:
        self._column, self._heap = column, heap
        self._kernels = column_kernels(column)
        self.front = [empty(codes, w) for w in column.words]
        self.back = [empty(codes, w) for w in column.words]
        self.front_has, self.back_has = np.zeros(codes, np.uint8), np.zeros(codes, np.uint8)
        self.make_rest(cells)

    def make_rest(self, cells: int) -> None:
        """Makes room for a front of so many cells."""
        self._rest = [empty(cells, w) for w in self._column.words]
        self._rest_has = empty(cells, np.uint8)

    def walk(self, steps: Steps, cells: CellArrays, middle: np.ndarray) -> CellArrays:
        """Totals of the rows of steps. `cells`: those of the stretches that enter; `middle` (int64[1]): the stretches
        that are in the front, or have left it.
        """
        out = empty_column(self._column, len(steps.row_code))
        bad = self._kernels.walk(
            steps.code,
            steps.start,
            cells.validity,
            *cells.values,
            steps.entered,
            steps.left,
            middle,
            steps.step_entered,
            steps.step_left,
            steps.row,
            steps.row_code,
            *self.front,
            self.front_has,
            *self.back,
            self.back_has,
            *self._rest,
            self._rest_has,
            *out.values,
            out.validity,
            *heap_arrays(self._heap),
        )
        if bad:
            raise overflow_error(self._column)
        return out

    def merge(self, group: np.ndarray, cells: CellArrays, into: Sequence[np.ndarray], has: np.ndarray) -> None:
        """Merges cells into the totals of their groups (int32 each)."""
        if self._kernels.scatter(group, cells.validity, *cells.values, *into, has, *heap_arrays(self._heap)):
            raise overflow_error(self._column)

    def widen(self, codes: int) -> None:
        """Makes room for keys up to this code."""
        for words in (self.front, self.back):
            words[:] = [np.concatenate((w, np.empty(codes - len(w), w.dtype))) for w in words]
        self.front_has, self.back_has = _wider(self.front_has, codes), _wider(self.back_has, codes)

    @property
    def nbytes(self) -> int:
        arrays = [*self.front, *self.back, *self._rest, self._rest_has, self.front_has, self.back_has]
        return sum(a.nbytes for a in arrays)


class _StackTotals:
    """Totals of one walk, by two stacks."""

    def __init__(self, stacks: TwoStacks) -> None:
        self._stacks = stacks
        self._middle = np.zeros(1, np.int64)

    def advance(self, steps: Steps, cells: CellArrays) -> CellArrays:
        return self._stacks.walk(steps, cells, self._middle)


def totals_of(
    layout: CellLayout, codes: int, cells: int, bounds: Sequence[int], heap: BytesHeap | None
) -> list[ColumnTotals]:
    """Totals of each column. `bounds`: bounds of the magnitude of the totals, for integer sums."""
    out: list[ColumnTotals] = []
    for column, bound in zip(layout.columns, bounds, strict=True):
        if not column.invertible:
            out.append(_StackTotals(TwoStacks(column, codes, cells, heap)))
        elif column.dtype == "float64":
            out.append(FloatSum(column, codes))
        elif column.dtype == "int128" or bound >= 1 << 63:
            out.append(WideSum(column, codes))
        else:
            out.append(IntSum(column, codes))
    return out
