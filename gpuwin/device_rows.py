"""Rows of a batch to a run of cells in device memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuwin.arrivals import Arrivals
from gpuwin.inputs import Known
from gpuwin.pane_cells import rows_to_run
from gpuwin.plan import Plan
from gpuwin.shapes import Shape
from gpuwin.state.device_panes import DevicePaneState, DeviceRun
from gpuwin.state.heap import BytesHeap
from gpuwin.state.panes import PaneState
from gpuwin_kernels.cpu.rows import RowInput, SumOverflow
from gpuwin_kernels.cuda import rows as kernel
from gpuwin_kernels.cuda.cells import TooFarApart, combine
from gpuwin_kernels.cuda.ranges import RangeOverflow
from gpuwin_kernels.cuda.row_source import by_atomics
from gpuwin_kernels.cuda.rows import DeviceCells
from gpuwin_kernels.cuda.runtime import to_device
from gpuwin_kernels.layout import CellArrays, CellLayout


def rows_to_device_run(
    plan: Plan, shape: Shape, panes: DevicePaneState, pane: np.ndarray, code: np.ndarray, rows: Arrivals
) -> DeviceRun:
    """Each row into the cell of its (pane, key). `pane` int64[n] where the host has found it already, else empty.

    Raises gw.OverflowError if an exact sum leaves its type, OutOfDeviceMemory. Times further apart than a packed cell
    holds, and sums that leave 64 bits on their way, are aggregated on the host.
    """
    if len(pane) != len(rows) and shape.endless:
        pane = np.zeros(len(rows), np.int64)
    known = len(pane) == len(rows)
    time, width, origin = (pane, 1, 0) if known else (rows.time, shape.width, shape.origin)
    least, most = int(time.min()), int(time.max())
    try:
        if most - least >= kernel.REACH:
            raise TooFarApart
        cells = cells_of_rows(
            plan, panes.heap, len(panes.keys), to_device(code), time, width, origin, rows, (least, most)
        )
        return DeviceRun.of(plan.layout, cells)
    except (SumOverflow, RangeOverflow, TooFarApart):
        names = PaneState(plan.layout, panes.keys, panes.heap)
        run = rows_to_run(plan, names, pane if known else shape.panes(rows.time), code, rows)
        return DeviceRun.uploaded(plan.layout, run)


def cells_of_rows(
    plan: Plan,
    heap: BytesHeap,
    codes: int,
    d_code: Any,
    time: np.ndarray,
    width: int,
    origin: int,
    rows: Arrivals,
    span: tuple[int, int],
) -> DeviceCells:
    """Each row into the cell of its pane, floor((time - origin) / width), and its code (int32[n] on the device, below
    `codes`). `span`: the least and the most time. Raises SumOverflow, RangeOverflow, TooFarApart, OutOfDeviceMemory.
    """
    layout = plan.layout
    source = rows.row_columns()
    seen: Known = {}
    fast: dict[int, RowInput] = {}
    for number, (column, part) in enumerate(zip(layout.columns, plan.inputs, strict=True)):
        feed = part.feed(source, seen) if by_atomics(column) else None
        if feed is not None:
            fast[number] = feed
    found: DeviceCells | None = None
    if fast or not layout.columns:
        sub = CellLayout(tuple(layout.columns[i] for i in fast))
        found = kernel.aggregate_rows(sub, list(fast.values()), d_code, time, width, origin, codes=codes, span=span)
    slow = [i for i in range(len(layout.columns)) if i not in fast]
    if not slow:
        assert found is not None
        return found
    # What atomics cannot merge: the cell of each row by itself, sorted and merged.
    pane = (time - origin) // width if origin or width != 1 else time
    columns = tuple(
        CellArrays(tuple(to_device(v) for v in c.values), None if c.valid is None else to_device(c.valid))
        for c in (plan.inputs[i].cells(source, heap) for i in slow)
    )
    cells = DeviceCells(to_device(pane), d_code, columns)
    rest = combine(CellLayout(tuple(layout.columns[i] for i in slow)), cells, codes, int(pane.min()), int(pane.max()))
    if found is None:
        return rest
    merged = dict(zip([*fast, *slow], [*found.columns, *rest.columns], strict=True))
    return DeviceCells(found.pane, found.code, tuple(merged[i] for i in range(len(layout.columns))))
