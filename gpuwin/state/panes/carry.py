"""Running totals that are kept between calls, for windows that overlap much and close a few at a time.

With windows of 10,080 panes, one of which closes per batch, the cells that enter and leave are a ten-thousandth of
those in the window. Running totals are derived data: where they are missing, or belong to another branch of the state's
history, windows are totalled from their cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from gpuwin.grid import WindowGrid
from gpuwin.state.cells import empty_cells, is_exact_sum, sum_limit
from gpuwin.state.panes.kept_stacks import KeptStacks, can_keep
from gpuwin.state.panes.runs import Run
from gpuwin.state.panes.totals import FloatSum, IntSum, RunningTotals, Stale, WideSum
from gpuwin.state.panes.walks import Part, Span, WindowBatch, advance
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu import walk as kernel
from gpuwin_kernels.cpu.walk import Steps
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

_claim = Lock()
_FEWEST_PANES = 4  # windows of fewer are as cheap to total from their cells
_STEPS = 16  # kept stacks go step by step, for at most this part of a window's panes; else turning them does not pay


@dataclass(slots=True)
class _Running:
    """Running totals of the panes that lie in window `upto` and in the one after it. Changed in place: `stamp` names
    the last user.
    """

    totals: list[RunningTotals]
    key_leave: np.ndarray  # int64 per code: the last window that the key's newest cell is part of
    block_leave: np.ndarray
    stamp: int = 0

    @classmethod
    def of(cls, totals: list[RunningTotals], codes: int) -> _Running:
        return cls(totals, *kernel.none_leaves(codes))

    def widen(self, codes: int) -> None:
        if codes > len(self.key_leave):
            room = max(codes, 2 * len(self.key_leave))
            for total in self.totals:
                total.widen(room)
            for name, size in (("key_leave", room), ("block_leave", (room >> 6) + 1)):
                old = getattr(self, name)
                wider = np.full(size, INT64_MIN, np.int64)
                wider[: len(old)] = old
                setattr(self, name, wider)

    def begin(self, span: Span, window: int) -> None:
        """Takes the cells that lie in `window` and in the one before it."""
        for total, cells in zip(self.totals, span.columns, strict=True):
            if isinstance(total, KeptStacks):
                total.begin(span.code, span.start, span.leave_after, cells)
        others = [(t, c) for t, c in zip(self.totals, span.columns, strict=True) if not isinstance(t, KeptStacks)]
        self._enter(span.code, span.start, span.leave_after, window, others)

    def enter(self, part: Part, grid: WindowGrid, window: int) -> None:
        """Adds cells that lie in `window`, which has not been emitted."""
        _, leave_after = grid.windows_of(part.pane)
        pairs = list(zip(self.totals, part.columns, strict=True))
        self._enter(part.code, part.start, leave_after, window, pairs)

    def _enter(
        self,
        code: np.ndarray,
        start: np.ndarray,
        leave_after: np.ndarray,
        window: int,
        pairs: Sequence[tuple[RunningTotals, CellArrays]],
    ) -> None:
        kernel.mark_leave(code, start, leave_after, self.key_leave, self.block_leave)
        count, none = np.array([len(leave_after)]), np.zeros(2, np.int64)
        steps = Steps(code, start, leave_after, 0, 0, np.array([window]), count, none[:1], none, np.empty(0, np.int32))
        for total, cells in pairs:
            total.advance(steps, cells)


@dataclass(frozen=True, slots=True)
class Carry:
    """A state's claim on running totals: good as long as `stamp` is still theirs."""

    running: _Running
    stamp: int
    grid: WindowGrid
    upto: int  # the last window that was emitted
    held: tuple[int, int]  # the first and the last of the panes that the totals hold
    late: tuple[Run, ...] = ()  # cells of panes that the totals already hold

    @classmethod
    def after(cls, running: _Running, grid: WindowGrid, upto: int) -> Carry:
        """Claim of the state that emits the window after `upto`."""
        held = grid.panes_of(upto + 1, upto + 1)[0], grid.panes_of(upto, upto)[1]
        return cls(running, running.stamp, grid, upto, held)

    def with_run(self, run: Run) -> Carry:
        """Claim of the state with one run more."""
        some = run.between(*self.held)
        return replace(self, late=(*self.late, some.copied())) if len(some) else self

    def survives(self, pane: int) -> bool:
        """Whether the claim holds once the panes before `pane` are evicted."""
        return pane <= self.held[0]

    @property
    def nbytes(self) -> int:
        totals = sum(t.nbytes for t in self.running.totals)
        return totals + self.running.key_leave.nbytes + sum(run.nbytes for run in self.late)


def can_carry(
    layout: CellLayout, grid: WindowGrid, first: int | None, last: int | None, bounds: Sequence[tuple[int, ...]]
) -> bool:
    """Whether running totals can be kept for all columns, cannot overflow, and would save work at the next call."""
    if first is None or last is None or last >= INT64_MAX:
        return False
    overlap = grid.panes_per_window - grid.panes_per_slide
    if overlap < _FEWEST_PANES or (last - first + 1) * grid.panes_per_slide > overlap:
        return False
    if not all(column.invertible for column in layout.columns):
        if not all(column.invertible or can_keep(column) for column in layout.columns):
            return False
        if (last - first + 1) * grid.panes_per_slide * _STEPS > grid.panes_per_window:
            return False
    for i, column in enumerate(layout.columns):
        most = grid.panes_per_window * sum(b[i] for b in bounds)
        if is_exact_sum(column) and most >= sum_limit(column):
            return False
    return True


def start_carry(layout: CellLayout, runs: Sequence[Run], codes: int, grid: WindowGrid, upto: int) -> Carry | None:
    """Running totals after window `upto`. Costs the cells of one window."""
    totals = [_running_total(column, codes) for column in layout.columns]
    carry = Carry.after(_Running.of(totals, codes), grid, upto)
    held = [run.between(*carry.held) for run in runs]
    parts = [Part.of(run.pane, run.code, run.columns) for run in held if len(run)]
    if not parts:
        return carry if all(column.invertible for column in layout.columns) else None
    carry.running.begin(Span.of(parts, grid, codes), upto + 1)
    return carry


def _running_total(column: CellColumn, codes: int) -> RunningTotals:
    if not column.invertible:
        return KeptStacks(column, codes)
    if column.dtype == "float64":
        floats = FloatSum(column, codes)
        floats.whole = False
        return floats
    return WideSum(column, codes) if column.dtype == "int128" else IntSum(column, codes)


def carried_windows(
    carry: Carry, layout: CellLayout, runs: Sequence[Run], codes: int, last: int
) -> tuple[WindowBatch, Carry] | None:
    """Windows after `carry.upto` to `last`, from running totals; None if there are none to use, or they are stale.

    Costs the cells that enter and leave, and a look at each key per window.
    """
    running, grid = carry.running, carry.grid
    with _claim:
        if running.stamp != carry.stamp or last < carry.upto + 1:
            return None
        running.stamp += 1  # from here on only the carry that is returned may use them
    running.widen(codes)
    try:
        for run in carry.late:
            running.enter(Part.of(run.pane, run.code, run.columns), grid, carry.upto + 1)
    except Stale:
        return None
    following = Carry.after(running, grid, last)
    (oldest, held), (kept, entering) = carry.held, following.held
    gone = min(kept - 1, held)
    # Leaving panes come first, then entering ones; cells that stay in the windows are not read.
    leaving = [run.between(oldest, gone) for run in runs if run.first <= gone]
    coming = [run.between(held + 1, entering) for run in runs if run.last > held]
    parts = [Part.of(run.pane, run.code, run.columns) for run in (*leaving, *coming) if len(run)]
    if not parts:
        parts = [Part(np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int32), empty_cells(layout, 0))]
    span = Span.of(parts, grid, codes)
    leaves = running.key_leave, running.block_leave
    there, window, entered, left, row, code, out = kernel.find_rows(span.stretches, carry.upto, last, leaves)
    steps = Steps(span.code, span.start, span.leave_after, there, 0, window, entered, left, row, code)
    try:
        columns = advance(running.totals, steps, span.columns)
    except Stale:
        return None
    return WindowBatch(code, out, columns), following
