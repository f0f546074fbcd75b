"""Walks over windows made of panes: the cells of a span of panes in the order in which windows need them, and their
totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from gpuwin.grid import WindowGrid
from gpuwin.state.cells import Columns, concat_cells, empty_cells, take_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.panes.totals import ColumnTotals, SharedTotals, totals_of
from gpuwin.state.room import check_room
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import walk as kernel
from gpuwin_kernels.cpu.distinct_codes import numbered_codes
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each
from gpuwin_kernels.cpu.walk import Steps, Stretches
from gpuwin_kernels.layout import CellArrays, CellLayout, joined_columns

_UNCHECKED = 1 << 20
"""Windows that are planned without a look at the memory of the machine."""

_PLANNED_BYTES = 48
"""Memory that a plan needs for each window while it is made."""

Leaves = tuple[np.ndarray, np.ndarray]
"""Until which window a key is in use, and a block of keys; see `walk.none_leaves`."""


class WindowBatch(NamedTuple):
    """Windows, one row per (key, non-empty window), sorted by (window, code): `code` int32[n], `window` int64[n], and
    the totals.
    """

    code: np.ndarray
    window: np.ndarray
    columns: Columns


@dataclass(frozen=True, slots=True)
class Part:
    """Some cells of one run, sorted by pane: stretch j is of pane[j], with the cells [start[j], start[j + 1])."""

    pane: np.ndarray  # int64[stretches]
    start: np.ndarray  # int64[stretches + 1]
    code: np.ndarray  # int32[cells]
    columns: Columns

    @classmethod
    def of(cls, pane: np.ndarray, code: np.ndarray, columns: Columns) -> Part:
        """Part made of the arrays of cells, sorted by (pane, code)."""
        panes, start = kernel.stretches_of(pane)
        return cls(panes, start, code, columns)


@dataclass(frozen=True, slots=True)
class Span:
    """Cells of some panes of all runs as one queue of stretches; see `gpuwin_kernels.cpu.walk`. Codes are below
    `codes`.
    """

    code: np.ndarray  # int32[cells]
    start: np.ndarray  # int64[stretches + 1]
    enter_at: np.ndarray  # int64[stretches]
    leave_after: np.ndarray  # int64[stretches]
    columns: Columns
    codes: int

    @classmethod
    def of(cls, parts: Sequence[Part], grid: WindowGrid, codes: int) -> Span:
        """Span of parts, at least one. Stretches of one pane stand in the order of the parts."""
        if len(parts) == 1:
            part = parts[0]
            return cls(part.code, part.start, *grid.windows_of(part.pane), part.columns, codes)
        if all(a.pane[-1] < b.pane[0] for a, b in pairwise(parts)):
            return cls._of_parts_in_order(parts, grid, codes)
        pane = np.concatenate([p.pane for p in parts])
        length = np.concatenate([np.diff(p.start) for p in parts])
        order = np.argsort(pane, kind="stable")
        start = np.zeros(len(pane) + 1, np.int64)
        np.cumsum(length[order], out=start[1:])
        target = empty(len(pane), np.int64)
        target[order] = start[:-1]
        places = np.split(target, np.cumsum([len(p.pane) for p in parts])[:-1])
        total = int(start[-1])

        def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
            out = empty(total, arrays[0].dtype)
            for part, place, array in zip(parts, places, arrays, strict=True):
                kernel.gather_stretches(array, part.start[:-1], part.start[1:], out, place)
            return out

        columns = joined_columns([p.columns for p in parts], joined)
        code = joined([p.code for p in parts])
        return cls(code, start, *grid.windows_of(pane[order]), columns, codes)

    @classmethod
    def _of_parts_in_order(cls, parts: Sequence[Part], grid: WindowGrid, codes: int) -> Span:
        pane = np.concatenate([p.pane for p in parts])
        before = accumulate([len(p.code) for p in parts], initial=0)
        code = np.concatenate([p.code for p in parts])
        starts = [p.start[:-1] + n for p, n in zip(parts, before, strict=False)]
        start = np.concatenate([*starts, np.array([len(code)])])
        return cls(code, start, *grid.windows_of(pane), concat_cells([p.columns for p in parts]), codes)

    @property
    def stretches(self) -> Stretches:
        return Stretches(self.code, self.start, self.enter_at, self.leave_after)

    def renumbered(self) -> tuple[Span, np.ndarray | None]:
        """Span with codes of its own where its keys are few among all, and the codes that these stand for (int32)."""
        if self.codes <= 4 * len(self.code) + 1024:
            return self, None
        stand_for, code = numbered_codes(self.code)
        numbered = Span(code, self.start, self.enter_at, self.leave_after, self.columns, len(stand_for))
        return numbered, stand_for


@dataclass(frozen=True, slots=True)
class Plan:
    """Non-empty windows of a walk, and the number of keys of each."""

    window: np.ndarray  # int64[steps]
    rows: np.ndarray  # int64[steps]

    def blocks(self, max_rows: int) -> Iterator[tuple[int, int]]:
        """Ranges of steps, each of which has at most `max_rows` rows, or is one step."""
        done = np.cumsum(self.rows)
        lo, before = 0, 0
        while lo < len(done):
            hi = max(int(np.searchsorted(done, before + max_rows, "right")), lo + 1)
            yield lo, hi
            lo, before = hi, int(done[hi - 1])


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of some steps: `window` int64[steps]; `entered`, the number of stretches of the `markers` that have entered
    by each step (int64[steps]), `before` of them before the first; `row` int64[steps + 1].
    """

    markers: Span
    window: np.ndarray
    before: int
    entered: np.ndarray
    row: np.ndarray

    def fill(self, code: np.ndarray, window: np.ndarray, leave: Leaves) -> Leaves:
        """Writes `code` int32[rows] and `window` int64[rows], by several threads if that pays. `leave`: the leaves of
        the keys that entered before; it is changed. Returns the leaves after the last step.
        """
        middle = int(np.searchsorted(self.row, len(code) // 2))
        if len(code) <= tuning.SPLIT_ROWS or tuning.threads() == 1 or not 0 < middle < len(self.window):
            self._fill(0, len(self.window), self.before, code, window, leave)
            return leave
        # The second half begins with the stretches that are in its first window, whenever they entered.
        alive = int(np.searchsorted(self.markers.leave_after, self.window[middle], "left"))
        again = int(self.markers.start[self.entered[middle - 1]] - self.markers.start[alive])
        if 4 * again > len(code):
            self._fill(0, len(self.window), self.before, code, window, leave)
            return leave
        then = kernel.none_leaves(self.markers.codes)
        halves = [(0, middle, self.before, leave), (middle, len(self.window), alive, then)]
        each(lambda half: self._fill(*half[:3], code, window, half[3]), halves)
        return then

    def _fill(self, lo: int, hi: int, entered: int, code: np.ndarray, window: np.ndarray, leave: Leaves) -> None:
        kernel.list_rows(
            self.markers.stretches,
            entered,
            self.window[lo:hi],
            self.entered[lo:hi],
            leave,
            self.row[lo : hi + 1],
            code,
            window,
        )


def _windows_of(markers: Span, first: int, last: int) -> int:
    """Number of windows in [first, last] that contain a cell, as near as float64 is, which no difference overflows."""
    enter, leave = markers.enter_at.astype(np.float64), markers.leave_after.astype(np.float64)
    since = np.maximum(enter[1:], leave[:-1] + 1.0)  # windows that no stretch before lies in: both are in order
    new = np.minimum(leave, last) - np.maximum(np.concatenate((enter[:1], since)), first) + 1.0
    return int(new[new > 0.0].sum())


def walk_windows(
    layout: CellLayout,
    span: Span,
    markers: Span,
    bounds: Sequence[int],
    first: int,
    last: int,
    max_rows: int,
    heap: BytesHeap | None,
) -> Iterator[WindowBatch]:
    """Windows in [first, last] that contain a cell of `markers` (codes as in `span`), with their totals over `span`, by
    (window, code).

    `bounds`: for each column, a bound of the magnitude of one cell's sum. Batches of at most `max_rows` rows.
    Raises gpuwin.OverflowError if an exact total leaves its type, and gpuwin.LimitExceeded for more windows than the
    memory of the machine has room to plan.
    """
    if last - first > _UNCHECKED:
        check_room(_windows_of(markers, first, last), _PLANNED_BYTES)
    plan = Plan(*kernel.plan_steps(markers.stretches, first, last, markers.codes))
    if not len(plan.window):
        return
    entered = np.searchsorted(span.enter_at, plan.window, "right")
    left = np.searchsorted(span.leave_after, plan.window, "left")
    marked = entered if markers is span else np.searchsorted(markers.enter_at, plan.window, "right")
    parts = int((entered - left).max())
    totals = totals_of(layout, span.codes, len(span.code), [b * parts for b in bounds], heap)
    leave = kernel.none_leaves(markers.codes)
    for lo, hi in plan.blocks(max_rows):
        row = np.concatenate(([0], np.cumsum(plan.rows[lo:hi])))
        n = int(row[-1])
        before = int(marked[lo - 1]) if lo else 0
        listing = Listing(markers, plan.window[lo:hi], before, marked[lo:hi], row)
        code, window = empty(n, np.int32), empty(n, np.int64)
        leave = listing.fill(code, window, leave)
        steps = Steps(
            span.code,
            span.start,
            span.leave_after,
            int(entered[lo - 1]) if lo else 0,
            int(left[lo - 1]) if lo else 0,
            plan.window[lo:hi],
            entered[lo:hi],
            left[lo:hi],
            row,
            code,
        )
        columns = advance(totals, steps, span.columns)
        for at in range(0, n, max_rows):
            rows = slice(at, min(at + max_rows, n))
            yield WindowBatch(code[rows], window[rows], take_cells(columns, rows))


def advance(totals: Sequence[ColumnTotals], steps: Steps, columns: Columns) -> Columns:
    """Totals of all columns after the same steps, by several threads if that pays: each takes some keys of all columns
    whose totals are shared by keys, and some of the other columns.
    """
    work = len(steps.row_code) + int(steps.start[steps.step_entered[-1]] - steps.start[steps.entered])
    threads = tuning.threads()
    if work <= tuning.SPLIT_ROWS or threads == 1:
        return tuple(total.advance(steps, cells) for total, cells in zip(totals, columns, strict=True))
    shared = {
        c: (total, columns[c], total.room(len(steps.row_code)))
        for c, total in enumerate(totals)
        if isinstance(total, SharedTotals)
    }
    whole = [c for c in range(len(totals)) if c not in shared]
    shares = steps.shares(threads)

    def some(part: int) -> list[tuple[int, CellArrays]]:
        for total, cells, room in shared.values():
            total.walk(steps, shares[part], cells, room)
        return [(c, totals[c].advance(steps, columns[c])) for c in whole[part::threads]]

    found = dict(pair for pairs in each(some, range(threads)) for pair in pairs)
    found |= {c: total.finished(room) for c, (total, _, room) in shared.items()}
    return tuple(found[c] for c in range(len(totals)))


def with_codes(batch: WindowBatch, stand_for: np.ndarray | None) -> WindowBatch:
    """Batch with the codes that its own stand for."""
    return batch if stand_for is None else batch._replace(code=stand_for[batch.code])


def joined_batches(layout: CellLayout, batches: Sequence[WindowBatch]) -> WindowBatch:
    """One batch of several, one after the other."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return WindowBatch(np.empty(0, np.int32), np.empty(0, np.int64), empty_cells(layout, 0))
    return WindowBatch(
        np.concatenate([b.code for b in batches]),
        np.concatenate([b.window for b in batches]),
        concat_cells([b.columns for b in batches]),
    )


def in_chunks(layout: CellLayout, batches: Iterable[WindowBatch], most: int) -> Iterator[WindowBatch]:
    """Windows of these batches, of which those that follow each other are one while it has at most `most` rows."""
    some: list[WindowBatch] = []
    for batch in batches:
        if some and sum(len(b.code) for b in some) + len(batch.code) > most:
            yield joined_batches(layout, some)
            some = []
        some.append(batch)
    if some:
        yield joined_batches(layout, some)
