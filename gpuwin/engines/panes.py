"""Engine of windows on a grid, by panes: each row goes into one cell, whatever the overlap, and windows are merged from
panes when they are emitted.

It serves `OnClose`, `OnUpdate` and `Complete` with one watermark for the stream; `engines.closing_panes` is faster at
windows that are emitted once. What needs a state per (key, window), as triggers and a watermark per key do, is in
`engines.triggers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.pane_cells import count_open, recoded_rows, rows_to_run
from gpuwin.batch.parts import Ends
from gpuwin.batch.row_log import RowLog
from gpuwin.batch.row_panes import RowPanes
from gpuwin.batch.timed_rows import Drops, TimedRows
from gpuwin.bounds import Bounds
from gpuwin.drivers.grid_windows import Frontier, GridDriver, Mode
from gpuwin.engines.admission import GridAdmission
from gpuwin.engines.raw_rows import RawRows
from gpuwin.engines.results import finished, result
from gpuwin.engines.saved import number, pane_parts, panes_of, row_parts, rows_of
from gpuwin.engines.step import Step
from gpuwin.grid import WindowGrid
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.cells import take_cells
from gpuwin.state.keys.dictionary import Names
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import CellRun
from gpuwin.state.panes.walks import WindowBatch, in_chunks
from gpuwin.state.room import check_room
from gpuwin.state.rows.row_state import RowState
from gpuwin.state.spill import memory_of_panes, memory_of_rows, spilled
from gpuwin.state.stores import PaneStore
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Complete, OnClose, OnUpdate
from gpuwin_kernels.cpu.extremes import ends_of

CHUNK = 1 << 20
"""Windows finished at a time."""

EVERYTHING = Frontier(INT64_MIN, INT64_MIN, None, INT64_MIN)
"""Every window is emitted, and none evicted."""

_UNCHECKED = 1 << 16
"""Windows whose results are not measured: few enough for any machine."""


@dataclass(frozen=True, slots=True)
class PaneWindows:
    """State of windows on a grid: cells, raw rows of holistic aggregates, the last window that was `emitted` because it
    closed, and the rows that are not in cells yet (`engines.closing_panes`).
    """

    panes: PaneStore
    rows: RowState | None
    emitted: int = INT64_MIN
    log: RowLog = RowLog()  # noqa: RUF009 - frozen, so it can be shared


def emits_once(spec: Specification) -> bool:
    """Whether windows are emitted when they close, and at no other time."""
    return isinstance(spec.emit, OnClose) and not Bounds.of(spec).lateness


class PaneEngine:
    """Engine of windows made of panes, for `OnClose`, `OnUpdate` and `Complete`."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        spec = plan.spec
        self.plan = plan
        self.rule = rule
        self.grid = grid = WindowGrid.of(spec.window)
        self.bounds = Bounds.of(spec)
        self.updates = isinstance(spec.emit, OnUpdate)
        self.keeps_all = isinstance(spec.emit, Complete)
        self.closes = isinstance(spec.emit, OnClose)
        mode: Mode = "complete" if self.keeps_all else "update" if self.updates else "append"
        self.driver = driver = GridDriver(grid, mode, CHUNK, reopens=bool(self.bounds.lateness))
        self.admission = GridAdmission(grid, self.bounds, driver, tests=not (self.keeps_all or rule.system))
        self.only_closes = emits_once(spec)
        self.raw_rows = RawRows.of(plan, grid, waits=self.only_closes)
        self.key_types = (*plan.key_types, pa.int64()) if grid.inherited else plan.key_types

    def begin(self, progress: Progress = BEFORE_TIME) -> PaneWindows:
        rows = self.plan.no_rows()
        # Windows that end before the watermark are closed from the start: panes would hold only some of their rows,
        # those that later windows share.
        start = self.rule.tested_against(progress)
        passed = self.grid.last_closed(self.bounds.closing(start)) if start > INT64_MIN else None
        emitted = INT64_MIN if passed is None else passed
        return PaneWindows(PaneState.empty(self.plan.layout, self.key_types), rows, emitted)

    # -- a batch -----------------------------------------------------------------------------------------------------

    def rows(self, state: PaneWindows, rows: TimedRows, progress: Progress, source: int) -> Step[PaneWindows]:
        after, kept, pane, drops = self.admitted(rows, progress, source)
        state, run = self.added(state, kept, pane)
        return self._stepped(state, run, progress, after, drops)

    def admitted(
        self, rows: TimedRows, progress: Progress, source: int, ends: Ends | None = None
    ) -> tuple[Progress, TimedRows, RowPanes, Drops]:
        """Progress after a batch, the rows of it that are not late and lie in a window, their panes, and what was
        dropped. `ends`: the oldest and the newest time, where somebody has looked.
        """
        rule, tested = self.rule, self.rule.tested_against(progress)
        if rule.per_row:
            after, each = rule.after_each_row(progress, rows.time, source)
            return after, *self.admission.admitted(rows, each)
        if ends is None and len(rows):
            ends = ends_of(rows.time)
        after = progress if ends is None else rule.after_newest(progress, ends[1], source)
        return after, *(self.admission.at_once(rows, ends, tested) or self.admission.admitted(rows, tested))

    def _stepped(
        self, state: PaneWindows, run: CellRun | None, progress: Progress, after: Progress, drops: Drops
    ) -> Step[PaneWindows]:
        """Step of a batch whose rows are in the state. `progress`: before the batch; `after`: after its rows."""
        tested = self.rule.tested_against(progress)
        if self.keeps_all:
            everything = self.driver.emitted(state.panes, state.panes, run, EVERYTHING)[1]
            return Step(state, after, self._finish(state, everything), drops)
        closes_by = self.rule.closing_progress(progress, after).watermark
        after = self.rule.followed(progress, after)
        state, results = self._emitted(state, run, tested, closes_by)
        return Step(state, after, results, drops)

    def advance(self, state: PaneWindows, progress: Progress) -> Step[PaneWindows]:
        progress = self.rule.followed(progress, progress)
        state, results = self._emitted(state, None, progress.watermark, progress.watermark)
        return Step(state, progress, results)

    def added(self, state: PaneWindows, kept: TimedRows, pane: RowPanes) -> tuple[PaneWindows, CellRun | None]:
        """State with these rows in cells, and the run of their cells."""
        if not len(kept):
            return state, None
        code = state.panes.keys.coded(kept.keys(self.plan), len(kept))
        run = rows_to_run(self.plan, state.panes, pane, code, kept)
        return replace(state, panes=state.panes.add(run), rows=self.raw_rows.added(state.rows, kept, code)), run

    # -- emission ----------------------------------------------------------------------------------------------------

    def _emitted(
        self, state: PaneWindows, run: CellRun | None, tested: int, closes_by: int
    ) -> tuple[PaneWindows, list[pa.RecordBatch]]:
        """State after eviction, and the results. Windows close by the watermark `closes_by`; `run` came in under the
        watermark `tested`.
        """
        if self.keeps_all:
            return state, []
        closed = self.grid.last_closed(self.bounds.closing(closes_by))
        if self.only_closes and closed is not None and closed <= state.emitted:
            # No window closes, and without a run no pane came: then there is nothing to evict either.
            return (state if run is None else self.evicted(state, closes_by)), []
        state, results = self._windows(state, run, tested, closes_by, closed)
        return self.evicted(state, closes_by), results

    def _windows(
        self, state: PaneWindows, run: CellRun | None, tested: int, closes_by: int, closed: int | None
    ) -> tuple[PaneWindows, list[pa.RecordBatch]]:
        """State before eviction, and the results, as `_emitted`. `closed`: the last window that `closes_by` closes."""
        evicting, last, emitted = self.bounds.evicting, self.grid.last_closed, state.emitted
        at = Frontier(last(evicting(tested)), emitted, closed, last(evicting(closes_by)))
        if self.closes:
            emitted = INT64_MAX - 1 if closed is None else max(emitted, closed)
        panes, windows = self.driver.emitted(state.panes, state.panes, run, at)
        if state.rows is not None and isinstance(panes, PaneState):  # raw rows are searched for each batch of windows
            windows = in_chunks(self.plan.layout, windows, CHUNK)
        state = PaneWindows(panes, self.raw_rows.sorted_upto(state.rows, closed), emitted, state.log)
        return state, self._finish(state, windows)

    def _finish(self, state: PaneWindows, batches: Iterator[WindowBatch]) -> list[pa.RecordBatch]:
        results: list[pa.RecordBatch] = []
        windows = 0
        for batch in batches:
            if len(batch.code):
                results.append(self._result(state, batch))
                windows += len(batch.code)
                if windows > _UNCHECKED:
                    check_room(windows, sum(result.nbytes for result in results) // windows)
        return results

    def _result(self, state: PaneWindows, batch: WindowBatch) -> pa.RecordBatch:
        start, end = self.bounds_of(state, batch.code, batch.window)
        values = self.values(state, batch, start, end)
        return result(self.plan, state.panes.keys, batch.code, start, end, values)

    def bounds_of(self, state: PaneWindows, code: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of windows, int64 each."""
        if self.grid.inherited:
            return np.asarray(state.panes.keys.take(code)[-1]), self.grid.ends(window)
        if self.closes and not self.grid.endless and len(window) and window[0] == window[-1]:  # they ascend
            one, rows = int(window[0]), len(window)
            return np.full(rows, self.grid.start_of(one)), np.full(rows, self.grid.end_of(one))
        return self.grid.starts(window), self.grid.ends(window)

    def values(self, state: PaneWindows, batch: WindowBatch, start: np.ndarray, end: np.ndarray) -> list[pa.Array]:
        """Finished aggregates of windows."""
        slices = self.raw_rows.of_windows(state.rows, batch, start, end)
        return finished(self.plan, batch.columns, state.panes.heap, slices)

    def evicted(
        self,
        state: PaneWindows,
        closes_by: int,
        *,
        keep_keys: bool = False,
        waiting: Iterable[np.ndarray] = (),
    ) -> PaneWindows:
        """State without the panes that no open window needs when the watermark is at `closes_by`. `keep_keys`,
        `waiting`: see `PaneState.evict_panes` and `PaneState.evict`.
        """
        passed = self.grid.last_closed(self.bounds.evicting(closes_by))
        before = state.panes
        panes = self.driver.evicted(before, passed, keep_keys=keep_keys, waiting=waiting)
        if panes is before:
            return state
        rows = self.raw_rows.evicted(state.rows, passed)
        if rows is not None and panes.keys is not before.keys:
            rows = recoded_rows(rows, before.keys, panes.keys)
        return PaneWindows(panes, rows, state.emitted, state.log)

    def tidied(self, state: PaneWindows) -> PaneWindows:
        panes = state.panes.with_smaller_heap()
        return state if panes is state.panes else PaneWindows(panes, state.rows, state.emitted, state.log)

    # -- what it takes -----------------------------------------------------------------------------------------------

    def size(self, state: PaneWindows) -> tuple[int, int]:
        held = memory_of_panes(state.panes) + memory_of_rows(state.rows)
        return state.panes.cells + (0 if state.rows is None else state.rows.cells), held

    def cells(self, state: PaneWindows) -> int:
        return state.panes.on_host().distinct_cells + (0 if state.rows is None else state.rows.live_rows)

    def names(self, state: PaneWindows) -> Names:
        return Names(state.panes.keys, state.panes.heap)

    def renamed(self, state: PaneWindows, names: Names) -> PaneWindows:
        return replace(state, panes=state.panes.with_names(names.keys, names.heap))

    def spilled(self, state: PaneWindows, excess: int, folder: str) -> PaneWindows:
        raw_rows = None if state.rows is None else state.rows.in_runs()
        excess += memory_of_rows(raw_rows) - memory_of_rows(state.rows)  # runs of the disk may be in memory again
        panes, rows = spilled(state.panes.on_host(), raw_rows, excess, folder)
        return replace(state, panes=panes, rows=rows)

    def open_windows(self, state: PaneWindows, progress: Progress) -> int:
        passed = self.grid.last_closed(self.bounds.evicting(progress.watermark)) if not self.keeps_all else INT64_MIN
        return count_open(self.grid, state.panes.on_host(), INT64_MAX if passed is None else passed)

    def save(self, state: PaneWindows) -> dict[str, pa.RecordBatch]:
        return pane_parts(state.panes.on_host(), emitted=state.emitted) | row_parts(state.rows)

    def load(self, parts: dict[str, pa.RecordBatch]) -> PaneWindows:
        panes = panes_of(self.plan.layout, self.key_types, parts)
        return PaneWindows(panes, rows_of(self.plan, parts), number(parts["cells"], "emitted"))


def taken(batch: WindowBatch, at: np.ndarray) -> WindowBatch:
    """Some windows of a batch, by their places."""
    return WindowBatch(batch.code[at], batch.window[at], take_cells(batch.columns, at))
