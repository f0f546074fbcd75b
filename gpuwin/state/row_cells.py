"""Rows of a batch to a run of cells, for any layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuwin.state.cells import NO_VALIDITY, is_exact_sum, overflow_error, take_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.runs import Run
from gpuwin_kernels.cpu import slots
from gpuwin_kernels.cpu.found_codes import Codes, codes_array
from gpuwin_kernels.cpu.rows import NO_MASK, Cells, RowInput, SumOverflow, aggregate_rows
from gpuwin_kernels.cpu.walk import narrow_wide
from gpuwin_kernels.layout import CellArrays, CellLayout


def run_from_rows(
    layout: CellLayout,
    inputs: Sequence[RowInput | CellArrays],
    code: Codes,
    time: np.ndarray,
    width: int,
    origin: int = 0,
    *,
    codes: int,
    mask: np.ndarray | None = None,
    heap: BytesHeap | None = None,
) -> Run:
    """The cells of some rows: pane floor((time - origin) / width), key `code` (int32[n], below `codes`, or as
    `KeyDictionary.coded` gives them).

    `inputs`, one for each column: a `RowInput` where the kernel can read the rows as they are, all of them in one pass;
    or `CellArrays` with the cell of each row by itself, for bytes (codes of `heap`) and accumulations of the user.
    `time` int64[n] and `width`, `origin` in microseconds; `mask` uint8[n], 0 for rows to leave out. Raises
    gpuwin.OverflowError if an exact sum leaves its type.
    """
    leave_out = NO_MASK if mask is None else mask
    fused = [i for i, item in enumerate(inputs) if isinstance(item, RowInput)]
    single = [i for i in range(len(inputs)) if i not in fused]
    run = None
    if single:
        code = codes_array(code)
    if fused or not single:
        sub = CellLayout(tuple(layout.columns[i] for i in fused))
        items = [item for item in inputs if isinstance(item, RowInput)]
        cells = _aggregate(sub, items, code, time, width, origin, codes, leave_out)
        if not single:
            return Run(*cells)
        run = Run(*cells)
    others = CellLayout(tuple(layout.columns[i] for i in single))
    columns = tuple(item for item in inputs if not isinstance(item, RowInput))
    shift, start = divmod(origin, width)
    pane = np.empty(len(time), np.int64)
    slots.panes_of(time, width, start, -shift, pane)
    if mask is not None:
        kept = np.flatnonzero(mask)
        pane, code, columns = pane[kept], codes_array(code)[kept], take_cells(columns, kept)
    rest = Run.from_cells(others, pane, codes_array(code), columns, heap)
    if run is None:
        return rest
    by_position = dict(zip([*fused, *single], [*run.columns, *rest.columns], strict=True))
    return Run(run.pane, run.code, tuple(by_position[i] for i in range(len(layout.columns))))


def _aggregate(
    layout: CellLayout,
    inputs: Sequence[RowInput],
    code: Codes,
    time: np.ndarray,
    width: int,
    origin: int,
    codes: int,
    mask: np.ndarray,
) -> Cells:
    try:
        return aggregate_rows(layout, inputs, code, time, width, origin, codes=codes, mask=mask)
    except SumOverflow:
        pass
    # A sum that left 64 bits on the way may fit them in the end: whether it does must not depend on the order of rows.
    narrow = [
        i for i, c in enumerate(layout.columns) if is_exact_sum(c) and c.dtype == "int64" and inputs[i].form != "count"
    ]
    wide = CellLayout(tuple(replace(c, dtype="int128") if i in narrow else c for i, c in enumerate(layout.columns)))
    try:
        cells = aggregate_rows(wide, inputs, code, time, width, origin, codes=codes, mask=mask)
    except SumOverflow:
        raise overflow_error(next(c for c in wide.columns if is_exact_sum(c) and c.dtype == "int128")) from None
    columns = list(cells.columns)
    for i in narrow:
        total = np.empty(len(cells.pane), np.int64)
        valid = columns[i].valid
        if not narrow_wide(*columns[i].values, NO_VALIDITY if valid is None else valid, total):
            raise overflow_error(layout.columns[i])
        columns[i] = CellArrays((total,), valid)
    return cells._replace(columns=tuple(columns))
