"""What windows hold at the moments at which they fire, and afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.batch.timed_rows import TimedRows
from gpuwin.engines.firing.firings import Moments, Visits
from gpuwin.planning.plan import Plan, empty_cells
from gpuwin.state.cells import Columns, concat_cells, merge_parts, take_cells
from gpuwin.state.every_row import cells_after_each
from gpuwin.state.heap import BytesHeap
from gpuwin.state.rows.row_state import RowSlices
from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels.cpu.slices import expand


@dataclass(frozen=True, slots=True)
class Contents:
    """Cells of windows, and uint8 whether there is anything in them."""

    cells: Columns
    held: np.ndarray


def totals(plan: Plan, before: Contents, rows: Columns, visits: Visits, heap: BytesHeap) -> Contents:
    """What each window holds after all its rows."""
    window = np.repeat(np.arange(len(before.held)), visits.size)
    parts = [(before.cells, np.arange(len(before.held))), (take_cells(rows, visits.row), window)]
    held = ((before.held != 0) | (visits.size > 0)).astype(np.uint8)
    return Contents(merge_parts(plan.layout, parts, len(before.held), heap), held)


def at_moments(
    plan: Plan, before: Contents, rows: Columns, visits: Visits, moments: Moments, discarding: bool, heap: BytesHeap
) -> tuple[Contents, Contents]:
    """What is reported at each moment (nothing held: nothing new since the last), and what the windows hold after the
    batch.

    Discarding, a window is emptied by each firing.
    """
    size = visits.size
    if not discarding and bool((moments.rank == size[moments.window]).all()):
        after = totals(plan, before, rows, visits, heap)
        return Contents(take_cells(after.cells, moments.window), after.held[moments.window]), after
    windows = len(size)
    window = np.repeat(np.arange(windows), size)
    if not discarding:
        steps = cells_after_each(plan.layout, rows, visits.row, window, before.cells, before.held, heap=heap)
        return _reported(before, steps, visits, moments), totals(plan, before, rows, visits, heap)
    # A stretch is what lies between two firings of a window; each begins empty, but for the first.
    fired = np.bincount(moments.window, minlength=windows)
    first_stretch = np.cumsum(fired + 1) - (fired + 1)
    moment_first = np.cumsum(fired) - fired
    stretch_of_moment = first_stretch[moments.window] + np.arange(len(moments)) - moment_first[moments.window]
    places = visits.first[moments.window] + moments.rank  # a visit at or behind this place is of a later stretch
    visit_stretch = (
        first_stretch[window] + np.searchsorted(places, np.arange(len(window)), "right") - moment_first[window]
    )
    stretches = int((fired + 1).sum())
    held = np.zeros(stretches, np.uint8)
    held[first_stretch] = before.held
    start = empty_cells(plan.layout, stretches)
    for whole, part in zip(start, before.cells, strict=True):
        for to, values in zip(whole.values, part.values, strict=True):
            to[first_stretch] = values
        if whole.valid is not None and part.valid is not None:
            whole.valid[first_stretch] = part.valid
    taken = take_cells(rows, visits.row)
    all_ = merge_parts(plan.layout, [(start, np.arange(stretches)), (taken, visit_stretch)], stretches, heap)
    got = np.bincount(visit_stretch, minlength=stretches)
    held = ((held != 0) | (got > 0)).astype(np.uint8)
    last = first_stretch + fired
    return (
        Contents(take_cells(all_, stretch_of_moment), held[stretch_of_moment]),
        Contents(take_cells(all_, last), held[last]),
    )


def _reported(before: Contents, steps: Columns, visits: Visits, moments: Moments) -> Contents:
    """`steps` are the cells after each visit; a moment of rank 0 reports what was there before."""
    moved = moments.rank > 0
    both = concat_cells([before.cells, steps])
    at = np.where(moved, len(before.held) + visits.first[moments.window] + moments.rank - 1, moments.window)
    held = np.where(moved, 1, before.held[moments.window]).astype(np.uint8)
    return Contents(take_cells(both, at), held)


def until_of(moments: Moments, visits: Visits, rows: TimedRows) -> np.ndarray:
    """int64: the number of arrival of the last row that each firing reports; the largest int64 where the batch was
    over."""
    until = np.full(len(moments), INT64_MAX)
    within = ~moments.at_end
    if within.any():
        first, rank = visits.first[moments.window[within]], moments.rank[within]
        before = int(rows.seq[0]) - 1 if len(rows) else INT64_MAX
        if not len(visits.row):
            until[within] = before
            return until
        at = visits.row[np.maximum(first + rank - 1, 0)]
        until[within] = np.where(rank > 0, rows.seq[at], before)
    return until


def reach_of(moments: Moments, visits: Visits, rows: TimedRows, until: np.ndarray) -> np.ndarray:
    """As `until`, where the watermark moves with the rows of the batch: a window that is told of when the batch is over
    may have been forgotten before its last rows, which are then not the window's, though its times hold them."""
    if not len(rows) or not len(visits.row):
        return until
    size, first = visits.size[moments.window], visits.first[moments.window]
    last = visits.row[np.maximum(first + size - 1, 0)]
    reach: np.ndarray = np.minimum(until, np.where(size > 0, rows.seq[last], int(rows.seq[0]) - 1))
    return reach


def upto(slices: RowSlices, until: np.ndarray) -> RowSlices:
    """The slices without the rows that arrived after number `until[w]`."""
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
