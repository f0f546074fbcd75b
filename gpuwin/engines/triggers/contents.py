"""Contents of windows at their firings, and after them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.batch.timed_rows import TimedRows
from gpuwin.engines.triggers.firings import Firings, Visits
from gpuwin.planning.plan import Plan
from gpuwin.state.cells import Columns, concat_cells, empty_cells, merge_parts, take_cells
from gpuwin.state.every_row import cells_after_each
from gpuwin.state.heap import BytesHeap
from gpuwin.state.rows.slices import RowSlices
from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels.cpu.order import stable_order
from gpuwin_kernels.cpu.slices import expand


@dataclass(frozen=True, slots=True)
class Contents:
    """Cells of windows, and uint8 whether there is anything in them."""

    cells: Columns
    held: np.ndarray


def totals(plan: Plan, before: Contents, rows: Columns, visits: Visits, heap: BytesHeap) -> Contents:
    """Contents of each window after all its rows."""
    window = np.repeat(np.arange(len(before.held)), visits.size)
    parts = [(before.cells, np.arange(len(before.held))), (take_cells(rows, visits.row), window)]
    held = ((before.held != 0) | (visits.size > 0)).astype(np.uint8)
    return Contents(merge_parts(plan.layout, parts, len(before.held), heap), held)


def at_firings(
    plan: Plan, before: Contents, rows: Columns, visits: Visits, firings: Firings, discarding: bool, heap: BytesHeap
) -> tuple[Contents, Contents]:
    """Contents of windows at each firing (nothing held: nothing new since the last), and after the batch.

    Discarding, a window is emptied by each firing.
    """
    size = visits.size
    if not discarding and bool((firings.rank == size[firings.window]).all()):
        after = totals(plan, before, rows, visits, heap)
        return Contents(take_cells(after.cells, firings.window), after.held[firings.window]), after
    windows = len(size)
    window = np.repeat(np.arange(windows), size)
    if not discarding:
        steps = cells_after_each(plan.layout, rows, visits.row, window, before.cells, before.held, heap=heap)
        return _at_each_firing(before, steps, visits, firings), totals(plan, before, rows, visits, heap)
    # A period lies between two firings of a window. Each begins empty, but for the first.
    count = np.bincount(firings.window, minlength=windows)
    first_period = np.cumsum(count + 1) - (count + 1)
    first_firing = np.cumsum(count) - count
    period_of_firing = first_period[firings.window] + np.arange(len(firings)) - first_firing[firings.window]
    places = visits.first[firings.window] + firings.rank  # a visit at or behind this place is of a later period
    visit_period = (
        first_period[window] + np.searchsorted(places, np.arange(len(window)), "right") - first_firing[window]
    )
    periods = int((count + 1).sum())
    held = np.zeros(periods, np.uint8)
    held[first_period] = before.held
    start = empty_cells(plan.layout, periods)
    for whole, part in zip(start, before.cells, strict=True):
        for to, values in zip(whole.values, part.values, strict=True):
            to[first_period] = values
        if whole.valid is not None and part.valid is not None:
            whole.valid[first_period] = part.valid
    taken = take_cells(rows, visits.row)
    all_ = merge_parts(plan.layout, [(start, np.arange(periods)), (taken, visit_period)], periods, heap)
    got = np.bincount(visit_period, minlength=periods)
    held = ((held != 0) | (got > 0)).astype(np.uint8)
    last = first_period + count
    return (
        Contents(take_cells(all_, period_of_firing), held[period_of_firing]),
        Contents(take_cells(all_, last), held[last]),
    )


def _at_each_firing(before: Contents, steps: Columns, visits: Visits, firings: Firings) -> Contents:
    """Contents at each firing, of windows that accumulate. `steps`: the cells after each visit; a firing of rank 0 has
    those from before the batch.
    """
    moved = firings.rank > 0
    both = concat_cells([before.cells, steps])
    at = np.where(moved, len(before.held) + visits.first[firings.window] + firings.rank - 1, firings.window)
    held = np.where(moved, 1, before.held[firings.window]).astype(np.uint8)
    return Contents(take_cells(both, at), held)


def until_of(firings: Firings, visits: Visits, rows: TimedRows) -> np.ndarray:
    """Arrival of the last row that each firing sees, int64; the largest int64 where the batch was over."""
    until = np.full(len(firings), INT64_MAX)
    within = ~firings.at_end
    if within.any():
        first, rank = visits.first[firings.window[within]], firings.rank[within]
        before = int(rows.seq[0]) - 1 if len(rows) else INT64_MAX
        if not len(visits.row):
            until[within] = before
            return until
        at = visits.row[np.maximum(first + rank - 1, 0)]
        until[within] = np.where(rank > 0, rows.seq[at], before)
    return until


def in_turn(until: np.ndarray) -> np.ndarray:
    """Order of firings, int64[n], by the rows until which they wait (`until_of`); it is stable."""
    at_end = until == INT64_MAX
    turn = until
    if at_end.any():
        within = until[~at_end]
        turn = np.where(at_end, int(within.max()) + 1 if len(within) else 0, until)
    order: np.ndarray = stable_order(turn)
    return order


def reach_of(firings: Firings, visits: Visits, rows: TimedRows, until: np.ndarray) -> np.ndarray:
    """Arrival of the last row of its window that each firing may see, int64: as `until`, where the watermark moves with
    the rows of a batch. A window that fires when the batch is over may have been evicted before the last rows, which
    then are not the window's, though their times lie in it.
    """
    if not len(rows) or not len(visits.row):
        return until
    size, first = visits.size[firings.window], visits.first[firings.window]
    last = visits.row[np.maximum(first + size - 1, 0)]
    reach: np.ndarray = np.minimum(until, np.where(size > 0, rows.seq[last], int(rows.seq[0]) - 1))
    return reach


def upto(slices: RowSlices, until: np.ndarray) -> RowSlices:
    """Slices without the rows that arrived after number `until[w]`."""
    if not len(slices.code) or bool((until == INT64_MAX).all()):
        return slices
    row, window, _ = expand(slices.lo, slices.hi, np.ones(len(slices.code), np.uint8))
    kept = slices.seq[row] <= until[window]
    row, window = row[kept], window[kept]
    edges = np.searchsorted(window, np.arange(len(slices.lo) + 1))
    at = pa.array(row)
    return RowSlices(
        slices.code[row],
        slices.time[row],
        slices.seq[row],
        tuple(v.take(at) for v in slices.values),
        edges[:-1],
        edges[1:],
    )
