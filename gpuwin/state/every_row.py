"""Contents of a window or a session after each of its rows, for `gw.EveryRow`."""

from __future__ import annotations

import numpy as np

from gpuwin.state.cells import Columns, heap_arrays, overflow_error
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.cpu.replay import replay_kernel
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

_NO_MERGES = np.empty((0, 3), np.int64)


def cells_after_each(
    layout: CellLayout,
    rows: Columns,
    source: np.ndarray,
    group: np.ndarray,
    before: Columns,
    held: np.ndarray,
    *,
    merges: np.ndarray = _NO_MERGES,
    heap: BytesHeap | None = None,
) -> Columns:
    """Cells of accumulators, one after each step, when the steps are played in order.

    rows: a cell per row of the batch. source, group: int64[k], step j adds row `source[j]` to accumulator `group[j]` (a
    row in several windows is several steps); -1 as group: nothing is added, and the result of the step means nothing.
    before: what the accumulators hold at the start, `held` uint8[g] whether they hold anything (the cells of others
    mean nothing). merges: int64[*, 3], sorted: before step `[0]`, accumulator `[2]` is merged into `[1]` (sessions that
    a row bridges, `PlayedSteps.merges`).

    Returns k cells. Raises gpuwin.OverflowError if an exact sum leaves its type.
    """
    return tuple(
        _after_each(c, r, source, group, b, held, merges, heap)
        for c, r, b in zip(layout.columns, rows, before, strict=True)
    )


def _after_each(
    column: CellColumn,
    rows: CellArrays,
    source: np.ndarray,
    group: np.ndarray,
    before: CellArrays,
    held: np.ndarray,
    merges: np.ndarray,
    heap: BytesHeap | None,
) -> CellArrays:
    steps = len(group)
    has = held.copy() if before.valid is None else held & before.valid
    states = tuple(v.copy() for v in before.values)
    out = tuple(np.zeros(steps, v.dtype) for v in before.values)
    out_valid = np.zeros(steps, np.uint8)
    inputs = tuple(np.ascontiguousarray(v) for v in rows.values)
    kernel = replay_kernel(column)
    if kernel(group, source, merges, rows.validity, *inputs, *states, has, *out, out_valid, *heap_arrays(heap)):
        raise overflow_error(column)
    return CellArrays(out, out_valid if column.nullable else None)
