"""Totals of windows for one partial column: sums run along with the window, all others go by two stacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from gpuwin.state.cells import (
    NO_VALIDITY,
    empty_column,
    heap_arrays,
    is_exact_sum,
    overflow_error,
    widened,
)
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.cpu import walk as kernel
from gpuwin_kernels.cpu.columns import column_kernels
from gpuwin_kernels.cpu.walk_float import walk_float
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

_NEVER = np.iinfo(np.int64).min
_SAMPLE = 1024  # rows that are looked at to cut codes


class Share(NamedTuple):
    """Part of a walk for some keys: of stretch j the cells [begin[j], end[j]), of step s the rows [row_begin[s],
    row_end[s]).
    """

    begin: np.ndarray
    end: np.ndarray
    row_begin: np.ndarray
    row_end: np.ndarray


class Steps(NamedTuple):
    """Some steps of a walk, and the rows to fill; see `gpuwin_kernels.cpu.walk`."""

    code: np.ndarray
    start: np.ndarray
    leave_after: np.ndarray
    entered: int  # stretches that entered before the first step
    left: int  # stretches that left before it
    step_window: np.ndarray
    step_entered: np.ndarray
    step_left: np.ndarray
    row: np.ndarray  # int64[steps + 1]: rows of each step
    row_code: np.ndarray  # int32[rows]

    def shares(self, parts: int) -> list[Share]:
        """Shares of all keys, in ranges of codes that have about as many rows each."""
        some = np.sort(self.row_code[:: len(self.row_code) // _SAMPLE + 1]) if parts > 1 else self.row_code[:0]
        cuts = [some[len(some) * k // parts] for k in range(1, parts)]
        cells = [self.start[:-1], *(kernel.cut_stretches(self.code, self.start, c) for c in cuts), self.start[1:]]
        rows = [self.row[:-1], *(kernel.cut_stretches(self.row_code, self.row, c) for c in cuts), self.row[1:]]
        return [Share(*lo_hi, *row) for lo_hi, row in zip(pairwise(cells), pairwise(rows), strict=True)]


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
        self._seen = np.full(codes if column.nullable else 0, _NEVER, np.int64)

    def room(self, n: int) -> CellArrays:
        return empty_column(self._column, n)

    def walk(self, steps: Steps, share: Share, cells: CellArrays, out: CellArrays) -> None:
        kernel.walk_int(
            steps.code,
            share.begin,
            share.end,
            NO_VALIDITY if cells.valid is None else cells.valid,
            cells.values[0],
            *steps[2:8],
            share.row_begin,
            share.row_end,
            steps.row_code,
            self._total,
            self._seen,
            out.values[0],
            NO_VALIDITY if out.valid is None else out.valid,
        )

    def widen(self, codes: int) -> None:
        self._total = _wider(self._total, codes)
        self._seen = _wider(self._seen, codes, _NEVER) if self._column.nullable else self._seen

    @property
    def nbytes(self) -> int:
        return self._total.nbytes + self._seen.nbytes


class WideSum(SharedTotals):
    """Totals of an int128 sum, or of an int64 sum that may need more than 64 bits on the way."""

    def __init__(self, column: CellColumn, codes: int) -> None:
        self._column = column
        self._hi, self._lo = np.zeros(codes, np.int64), np.zeros(codes, np.uint64)
        self._seen = np.full(codes if column.nullable else 0, _NEVER, np.int64)

    def room(self, n: int) -> CellArrays:
        valid = np.zeros(n, np.uint8) if self._column.nullable else None
        return CellArrays((np.empty(n, np.int64), np.empty(n, np.uint64)), valid)

    def walk(self, steps: Steps, share: Share, cells: CellArrays, out: CellArrays) -> None:
        bad = kernel.walk_wide(
            steps.code,
            share.begin,
            share.end,
            NO_VALIDITY if cells.valid is None else cells.valid,
            *(cells.values if self._column.dtype == "int128" else widened(cells.values[0])),
            *steps[2:8],
            share.row_begin,
            share.row_end,
            steps.row_code,
            self._hi,
            self._lo,
            self._seen,
            *out.values,
            NO_VALIDITY if out.valid is None else out.valid,
        )
        if bad and is_exact_sum(self._column):
            raise overflow_error(self._column)

    def finished(self, out: CellArrays) -> CellArrays:
        if self._column.dtype == "int128":
            return out
        narrow = np.empty(len(out.values[0]), np.int64)
        if not kernel.narrow_wide(*out.values, NO_VALIDITY if out.valid is None else out.valid, narrow):
            raise overflow_error(self._column)
        return CellArrays((narrow,), out.valid)

    def widen(self, codes: int) -> None:
        self._hi, self._lo = _wider(self._hi, codes), _wider(self._lo, codes)
        self._seen = _wider(self._seen, codes, _NEVER) if self._column.nullable else self._seen

    @property
    def nbytes(self) -> int:
        return self._hi.nbytes + self._lo.nbytes + self._seen.nbytes


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
        inexact = walk_float(
            steps.code,
            share.begin,
            share.end,
            NO_VALIDITY if cells.valid is None else cells.valid,
            cells.values[0],
            *steps[2:8],
            share.row_begin,
            share.row_end,
            steps.row_code,
            self._total,
            self._alive,
            self.whole,
            out.values[0],
            NO_VALIDITY if out.valid is None else out.valid,
        )
        if inexact:
            raise Stale  # it lost too much of its precision

    def widen(self, codes: int) -> None:
        self._total, self._alive = _wider(self._total, codes), _wider(self._alive, codes, _NEVER)

    @property
    def nbytes(self) -> int:
        return self._total.nbytes + self._alive.nbytes


class _Stacks:
    """Totals of a column that cannot be subtracted, by two stacks."""

    def __init__(self, column: CellColumn, codes: int, cells: int, heap: BytesHeap | None) -> None:
        self._column, self._heap = column, heap
        self._front = [np.empty(codes, w) for w in column.words]
        self._back = [np.empty(codes, w) for w in column.words]
        self._rest = [np.empty(cells, w) for w in column.words]
        self._front_has, self._back_has = np.zeros(codes, np.uint8), np.zeros(codes, np.uint8)
        self._rest_has = np.empty(cells, np.uint8)
        self._middle = np.zeros(1, np.int64)
        self._walk = column_kernels(column).walk

    def advance(self, steps: Steps, cells: CellArrays) -> CellArrays:
        out = empty_column(self._column, len(steps.row_code))
        bad = self._walk(
            steps.code,
            steps.start,
            NO_VALIDITY if cells.valid is None else cells.valid,
            *cells.values,
            steps.entered,
            steps.left,
            self._middle,
            steps.step_entered,
            steps.step_left,
            steps.row,
            steps.row_code,
            *self._front,
            self._front_has,
            *self._back,
            self._back_has,
            *self._rest,
            self._rest_has,
            *out.values,
            NO_VALIDITY if out.valid is None else out.valid,
            *heap_arrays(self._heap),
        )
        if bad:
            raise overflow_error(self._column)
        return out


def totals_of(
    layout: CellLayout, codes: int, cells: int, bounds: Sequence[int], heap: BytesHeap | None
) -> list[ColumnTotals]:
    """Totals of each column. `bounds`: bounds of the magnitude of the totals, for integer sums."""
    out: list[ColumnTotals] = []
    for column, bound in zip(layout.columns, bounds, strict=True):
        if not column.invertible:
            out.append(_Stacks(column, codes, cells, heap))
        elif column.dtype == "float64":
            out.append(FloatSum(column, codes))
        elif column.dtype == "int128" or bound >= 1 << 63:
            out.append(WideSum(column, codes))
        else:
            out.append(IntSum(column, codes))
    return out
