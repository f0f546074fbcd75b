"""Cells of the rows of a batch in device memory."""

from __future__ import annotations

import numpy as np

from gpuwin.batch.pane_cells import rows_to_run
from gpuwin.batch.timed_rows import TimedRows
from gpuwin.planning.inputs import Known
from gpuwin.planning.plan import Plan
from gpuwin.state.device.heap import arrays_of_heap, putting
from gpuwin.state.device.panes import DevicePaneState
from gpuwin.state.device.runs import DeviceRun, uploaded
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.cpu.rows import RowInput, SumOverflow
from gpuwin_kernels.cuda import rows as kernel
from gpuwin_kernels.cuda.cells import TooFarApart, combine
from gpuwin_kernels.cuda.ranges import RangeOverflow
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.row_source import by_atomics
from gpuwin_kernels.cuda.rows import DeviceCells, PlacedRows
from gpuwin_kernels.cuda.runtime import to_device
from gpuwin_kernels.layout import CellLayout


def rows_to_device_run(
    plan: Plan, panes: DevicePaneState, pane: np.ndarray, code: np.ndarray, rows: TimedRows
) -> DeviceRun:
    """Run of cells, one for each (pane, key) of the rows. The host has found panes (int64[n]) and codes (int32[n]) of
    the rows, at least one.

    Raises gw.OverflowError if an exact sum leaves its type, OutOfDeviceMemory. Times further apart than a packed cell
    holds, and sums that leave 64 bits on their way, are aggregated on the host.
    """
    try:
        first, last = int(pane.min()), int(pane.max())
        if last - first >= kernel.REACH:
            raise TooFarApart
        placed = PlacedRows(to_device(code), len(panes.keys), to_device(pane), (first, last))
        cells = cells_of_rows(plan, panes.heap, rows, placed)
        return DeviceRun.of(plan.layout, cells)
    except (SumOverflow, RangeOverflow, TooFarApart):
        return run_of_host(plan, panes, pane, code, rows)


def run_of_host(plan: Plan, panes: DevicePaneState, pane: np.ndarray, code: np.ndarray, rows: TimedRows) -> DeviceRun:
    """Run that is aggregated on the host and moved to the device."""
    run = rows_to_run(plan, panes, pane, code, rows)
    return DeviceRun.uploaded(plan.layout, run)


def feeds_by_atomics(plan: Plan, rows: TimedRows) -> dict[int, RowInput]:
    """Inputs of the columns that atomics can merge, by number of the column; of as many inputs as one pass over the
    rows takes.
    """
    known: Known = {}
    found: dict[int, RowInput] = {}
    inputs: set[int] = set()
    for number, (column, part) in enumerate(zip(plan.layout.columns, plan.inputs, strict=True)):
        feed = part.feed(rows, known) if by_atomics(column) else None
        if feed is None or (id(feed) not in inputs and len(inputs) == kernel.MOST_INPUTS):
            continue
        found[number] = feed
        inputs.add(id(feed))
    return found


def cells_of_rows(plan: Plan, heap: BytesHeap, rows: TimedRows, placed: PlacedRows) -> DeviceCells:
    """Cells of rows, one for each pane and code. Raises SumOverflow, RangeOverflow, TooFarApart, OutOfDeviceMemory."""
    layout = plan.layout
    fast = feeds_by_atomics(plan, rows)
    found: DeviceCells | None = None
    if fast or not layout.columns:
        sub = CellLayout(tuple(layout.columns[i] for i in fast))
        begun = kernel.started(sub, list(fast.values()), placed)
        count, overflow, _ = read(*begun.numbers)
        found = begun.cells(count, overflow)
    slow = [i for i in range(len(layout.columns)) if i not in fast]
    if not slow:
        assert found is not None
        return found
    # Columns that atomics cannot merge: each row makes a cell, and these are sorted and merged.
    texts = putting(heap)
    columns = uploaded([plan.inputs[i].cells(rows, texts) for i in slow])
    pane = kernel.panes_of(placed.time, placed.width, placed.origin, placed.panes[0])
    cells = DeviceCells(pane, placed.code, columns)
    of_rows = CellLayout(tuple(layout.columns[i] for i in slow))
    rest = combine(of_rows, [cells], placed.codes, *placed.panes, heap=arrays_of_heap(heap))
    if found is None:
        return rest
    merged = dict(zip([*fast, *slow], [*found.columns, *rest.columns], strict=True))
    return DeviceCells(found.pane, found.code, tuple(merged[i] for i in range(len(layout.columns))))
