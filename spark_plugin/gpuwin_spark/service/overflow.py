"""Overflow of exact sums on their way: Spark adds one buffer after another, and raises where a sum leaves 64 bits,
though it may come back.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpuwin.state.cells import Columns, is_exact_sum, overflow_error
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

_SAFE: Final = 2.0**62


def may_overflow(layout: CellLayout, columns: Columns) -> bool:
    """Whether the magnitudes of these cells allow a sum of 64 bits to leave them, in any order."""
    return any(
        float(np.abs(_values(cells).astype(np.float64)).sum()) >= _SAFE
        for column, cells in zip(layout.columns, columns, strict=True)
        if _is_long_sum(column)
    )


def refuse_overflow(layout: CellLayout, columns: Columns, order: np.ndarray, begins: np.ndarray) -> None:
    """Raises gpuwin.OverflowError where a sum of 64 bits leaves them at any cell, with the cells added in this order.

    order: positions of the cells, int64[n]. begins: whether a new sum begins with each of them, bool[n]. It takes a
    cell at a time, so ask `may_overflow` first.
    """
    for column, cells in zip(layout.columns, columns, strict=True):
        if not _is_long_sum(column):
            continue
        total = 0
        for value, begin in zip(_values(cells)[order].tolist(), begins.tolist(), strict=True):
            total = value if begin else total + value
            if not -(1 << 63) <= total < 1 << 63:
                raise overflow_error(column)


def begins_of(*sorted_by: np.ndarray) -> np.ndarray:
    """Whether each of n sorted rows differs from the one before in any of these columns, bool[n]."""
    begins = np.ones(len(sorted_by[0]), bool)
    begins[1:] = np.logical_or.reduce([values[1:] != values[:-1] for values in sorted_by])
    return begins


def _is_long_sum(column: CellColumn) -> bool:
    return column.dtype == "int64" and is_exact_sum(column)


def _values(cells: CellArrays) -> np.ndarray:
    """Values of a column of 64 bits, 0 where there is none."""
    return cells.values[0] if cells.valid is None else np.where(cells.valid != 0, cells.values[0], 0)
