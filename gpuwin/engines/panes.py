"""Engine of windows on a grid, by panes: each row goes into one cell, whatever the overlap, and windows are merged from
panes when they are emitted.

It serves `OnClose`, `OnUpdate` and `Complete` with one watermark for the stream. What needs a state per (key, window),
as triggers and a watermark per key do, is in `engines.triggers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa

from gpuwin.batch.pane_cells import AT_ONCE, count_open, recoded_rows, rows_to_run
from gpuwin.batch.parts import Ends, is_oversized, joined_ends, part_ends, parts_of, step_ends
from gpuwin.batch.row_log import RowLog
from gpuwin.batch.row_panes import RowPanes, TimedPanes
from gpuwin.batch.timed_rows import NOTHING_DROPPED, Drops, TimedRows, late_by_time, without
from gpuwin.bounds import Bounds
from gpuwin.drivers.grid_windows import Frontier, GridDriver, Mode
from gpuwin.engines.results import finished, result
from gpuwin.engines.saved import number, pane_parts, panes_of, row_parts, rows_of
from gpuwin.engines.step import Step
from gpuwin.errors import OverflowError
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
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.triggers import Complete, OnClose, OnUpdate
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.extremes import ends_of
from gpuwin_kernels.cpu.found_codes import Codes, codes_array

CHUNK = 1 << 20
"""Windows finished at a time."""

EVERYTHING = Frontier(INT64_MIN, INT64_MIN, None, INT64_MIN)
"""Every window is emitted, and none evicted."""

_UNCHECKED = 1 << 16
"""Windows whose results are not measured: few enough for any machine."""


@dataclass(frozen=True, slots=True)
class PaneWindows:
    """State of windows on a grid: cells, raw rows of holistic aggregates, the last window that was `emitted` because it
    closed, and the rows that are not in cells yet.
    """

    panes: PaneStore
    rows: RowState | None
    emitted: int = INT64_MIN
    log: RowLog = RowLog()  # noqa: RUF009 - frozen, so it can be shared


class PaneEngine:
    """Engine of windows made of panes, for `OnClose`, `OnUpdate` and `Complete`."""

    on_host = True  # rows of small batches may wait in a log, and large batches are cut

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
        self.driver = GridDriver(grid, mode, CHUNK, reopens=bool(self.bounds.lateness))
        #: Whether a batch emits nothing but windows that it closes.
        self.only_closes = self.closes and not self.bounds.lateness
        # Rows may wait in a log where only the close of a window reads cells; limits read them after each batch.
        self.cuts = self.on_host and self.only_closes and not (grid.endless or grid.inherited or rule.system)
        self.logs = self.on_host and self.only_closes and spec.limits == Limits()
        #: Whether rows that wait are put together by pane: each is in one window, which is one pane.
        self.groups = self.only_closes and grid.is_panes and not (grid.endless or grid.inherited)
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
        tested = self.rule.tested_against(progress)
        pane: RowPanes
        if self.rule.per_row:
            after, each = self.rule.after_each_row(progress, rows.time, source)
            kept, pane, drops = self.admitted(rows, each, tested)
        else:
            cuts = self.cuts and is_oversized(len(rows))
            steps = step_ends(rows.time) if cuts else []
            ends = joined_ends(steps) if cuts else ends_of(rows.time) if len(rows) else None
            after = progress if ends is None else self.rule.after_newest(progress, ends[1], source)
            if cuts:
                cut = self._in_parts(state, rows, steps, progress, after)
                if cut is not None:
                    return cut
            kept, pane, drops = self._admitted_at_once(rows, ends, tested) or self.admitted(rows, tested, tested)
        if self.logs:
            state, run = self._logged(state, kept, pane, self.rule.closing_progress(progress, after).watermark), None
        else:
            state, run = self.added(state, kept, pane)
        return self._stepped(state, run, progress, after, drops)

    def _in_parts(
        self, state: PaneWindows, rows: TimedRows, steps: list[Ends], progress: Progress, after: Progress
    ) -> Step[PaneWindows] | None:
        """Step of an oversized batch in parts, each of which emits the windows that no later row of the batch lies in.
        None where a cut would show, or where nothing closes between the rows. `steps`: the ends of its steps.
        """
        tested, closes_by = self.rule.tested_against(progress), self.rule.closing_progress(progress, after).watermark
        drops = NOTHING_DROPPED
        if not self._all_on_time(joined_ends(steps)[0], tested):
            rows, _, drops = self.admitted(rows, tested, tested)
            steps = step_ends(rows.time) if is_oversized(len(rows)) else []
        if closes_by == INT64_MAX or not len(rows):
            return None
        closing, closed = self.bounds.closing, self.grid.last_closed
        parts = parts_of(rows.time, lambda rest: cast("int", closed(closing(min(closes_by, rest)))), 1, steps)
        if len(parts) == 1:
            return None
        results: list[pa.RecordBatch] = []
        divides = self.grid.divides(*joined_ends(steps))
        state = self.settled(state)
        # Keys stay till the end of the batch, so that they have the codes that they have without parts.
        code = state.panes.keys.coded(rows.keys(self.plan), len(rows))
        try:
            for lo, hi, rest in parts:
                part = rows.part(lo, hi)
                ends = part_ends(steps, lo, hi - lo)
                pane: RowPanes = TimedPanes(self.grid, part.time, ends) if divides else self.grid.panes(part.time)
                run = rows_to_run(self.plan, state.panes, pane, code[lo:hi], part)
                state = replace(state, panes=state.panes.add(run), rows=self._kept_rows(state, part, code[lo:hi]))
                if hi < len(rows):
                    state, found = self._windows(state, None, tested, min(closes_by, rest))
                    results += found
                    state = self.evicted(state, min(closes_by, rest), keep_keys=True)
            step = self._stepped(state, None, progress, after, drops)
        except OverflowError:  # in a part; later rows of the batch may bring the sum back
            return None
        return replace(step, results=[*results, *step.results])

    def _all_on_time(self, oldest: int, tested: int) -> bool:
        """Whether the oldest time of rows shows that no row is late for any of its windows, or in no window."""
        if self.grid.gaps or self.grid.inherited:
            return False
        if self.bounds.by_time:
            return tested == INT64_MIN or oldest >= tested - self.bounds.lateness
        passed = self.grid.last_closed(self.bounds.evicting(tested))
        if passed is None or self.grid.endless:
            return passed is not None
        return passed == INT64_MIN or oldest >= self.grid.end_of(passed)

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

    def _admitted_at_once(
        self, rows: TimedRows, ends: tuple[int, int] | None, tested: int
    ) -> tuple[TimedRows, RowPanes, Drops] | None:
        """All rows, as of `admitted`, whose panes nobody has to write down: of a batch without a late row. None for any
        other. `ends`: the oldest and the newest time.
        """
        if ends is None or not self.on_host or self.grid.gaps or not self.grid.divides(*ends):
            return None
        if not (self.keeps_all or self.rule.system or self._all_on_time(ends[0], tested)):
            return None
        return rows, TimedPanes(self.grid, rows.time, ends), NOTHING_DROPPED

    def admitted(
        self, rows: TimedRows, watermark: int | np.ndarray, tested: int
    ) -> tuple[TimedRows, np.ndarray, Drops]:
        """Rows that are not late and lie in a window, their panes, and what was dropped."""
        grid = self.grid
        pane = grid.panes(rows.at)
        unassigned = grid.in_gap(pane) if grid.gaps else None
        late, pairs = None, 0
        if not self.keeps_all and not self.rule.system:
            late, pairs = self._late(rows.time, pane, watermark, tested)
            if late is not None and unassigned is not None:
                late = late & ~unassigned
        kept, drops = without(rows, late, unassigned)
        if pairs:
            drops = replace(drops, window_rows_late=pairs)
        if len(kept) != len(rows):
            gone = np.zeros(len(rows), bool)
            for mask in (late, unassigned):
                if mask is not None:
                    gone |= mask
            pane = pane[~gone]
        return kept, pane, drops

    def _late(
        self, time: np.ndarray, pane: np.ndarray, watermark: int | np.ndarray, tested: int
    ) -> tuple[np.ndarray | None, int]:
        """Rows that are dropped, bool[n] (None: none is), and the number of (row, window) pairs that are late."""
        if not self.bounds.by_time and not isinstance(watermark, np.ndarray):
            return self.driver.late(pane, self.grid.last_closed(self.bounds.evicting(watermark)))
        late = late_by_time(time, watermark, self.bounds.lateness) if self.bounds.by_time else None
        if not self.bounds.by_time or self.grid.inherited:  # a row may lie outside of the window that it brings along
            shut = self.grid.ends(self.grid.windows_of(pane)[1]) <= self.bounds.evicting_each(np.asarray(watermark))
            late = shut if late is None else late | shut
        if late is None or not late.any():
            return None, 0
        return late, self.driver.pairs(pane[late], None)

    def added(self, state: PaneWindows, kept: TimedRows, pane: RowPanes) -> tuple[PaneWindows, CellRun | None]:
        """State with these rows in cells, and the run of their cells."""
        if not len(kept):
            return state, None
        code = state.panes.keys.coded(kept.keys(self.plan), len(kept))
        run = rows_to_run(self.plan, state.panes, pane, code, kept)
        return replace(state, panes=state.panes.add(run), rows=self._kept_rows(state, kept, code)), run

    def _kept_rows(self, state: PaneWindows, kept: TimedRows, code: Codes) -> RowState | None:
        if state.rows is None:
            return None
        values = [kept.columns[name] for name in self.plan.row_names]
        return state.rows.add(codes_array(code), kept.at, kept.seq, values, self.grid.cells, waits=self.only_closes)

    def _logged(self, state: PaneWindows, kept: TimedRows, pane: RowPanes, closes_by: int) -> PaneWindows:
        """State with these rows, as `added`. Rows of a small batch wait in the log, and so do those of a batch of
        fewer rows than there are keys that closes no window, once the stream has paid for a kernel that takes them all.
        """
        rows, keys = len(kept), len(state.panes.keys)
        if not rows:
            return state
        waits = rows <= tuning.LOG_BATCH or (rows < keys and not self._closing(state, closes_by))
        log = None
        if waits and kept.newest_seq >= AT_ONCE:
            ends = pane.ends if isinstance(pane, TimedPanes) else None
            log = state.log.with_rows(self.plan, state.panes, kept, ends or ends_of(kept.time))
        if log is None:
            return self.added(self.settled(state), kept, pane)[0]
        state = PaneWindows(state.panes, state.rows, state.emitted, log)
        return self.settled(state) if log.is_full(keys) else state

    def _closing(self, state: PaneWindows, closes_by: int) -> bool:
        """Whether a window closes by this watermark that did not before."""
        closed = self.grid.last_closed(self.bounds.closing(closes_by))
        return closed is None or closed > state.emitted

    def settled(self, state: PaneWindows, closed: int | None = None) -> PaneWindows:
        """State with the rows of the log in cells, at least those of windows up to `closed` (None: all of them)."""
        log, rest = state.log, RowLog()
        if not log.rows:
            return state
        if closed is not None:
            later = self.grid.panes(log.newest_rows().at) > self.grid.panes_of(closed, closed)[1]
            log, rest = log.split(self.plan, later, INT64_MAX if self.grid.inherited else self.grid.end_of(closed))
            if rest.rows:
                state.log.enter_keys(self.plan, state.panes.keys)
        if log.rows:
            rows = log.joined()
            pane: RowPanes
            if self.grid.divides(*log.ends):
                pane = TimedPanes(self.grid, rows.time, log.ends)
            else:
                pane = self.grid.panes(rows.at)
            state = self.added(state, rows, pane)[0]
        return PaneWindows(state.panes, state.rows, state.emitted, rest)

    def _rows_upto(self, rows: RowState | None, closed: int | None) -> RowState | None:
        """Raw rows, of which none waits that lies in a window up to `closed` (None: in any) and is to be sorted."""
        if rows is None or (self.groups and not rows.runs):
            return rows
        if self.grid.endless or self.grid.inherited:
            return rows.settled()
        if closed is None:
            return rows.settled(INT64_MAX)
        return rows.settled(self.grid.end_of(closed)) if closed > INT64_MIN else rows

    # -- emission ----------------------------------------------------------------------------------------------------

    def _emitted(
        self, state: PaneWindows, run: CellRun | None, tested: int, closes_by: int
    ) -> tuple[PaneWindows, list[pa.RecordBatch]]:
        """State after eviction, and the results. Windows close by the watermark `closes_by`; `run` came in under the
        watermark `tested`.
        """
        if self.keeps_all:
            return state, []
        if self.only_closes and not self._closing(state, closes_by):
            # No window closes, and without a run no pane came: then there is nothing to evict either.
            return (state if run is None else self.evicted(state, closes_by)), []
        state, results = self._windows(state, run, tested, closes_by)
        return self.evicted(state, closes_by), results

    def _windows(
        self, state: PaneWindows, run: CellRun | None, tested: int, closes_by: int
    ) -> tuple[PaneWindows, list[pa.RecordBatch]]:
        """State before eviction, and the results, as `_emitted`."""
        bounds, last = self.bounds, self.grid.last_closed
        closed = last(bounds.closing(closes_by))
        at = Frontier(last(bounds.evicting(tested)), state.emitted, closed, last(bounds.evicting(closes_by)))
        emitted = state.emitted
        if self.closes and (at.closed is None or at.closed > emitted):
            state = self.settled(state, None if self.grid.endless else at.closed)
            emitted = INT64_MAX - 1 if at.closed is None else at.closed
        panes, windows = self.driver.emitted(state.panes, state.panes, run, at)
        if state.rows is not None and self.on_host:  # rows are looked through for each batch of windows
            windows = in_chunks(self.plan.layout, windows, CHUNK)
        state = PaneWindows(panes, self._rows_upto(state.rows, at.closed), emitted, state.log)
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
        slices = None
        if state.rows is not None:
            if self.grid.inherited:
                slices = state.rows.select(batch.code, end, end + 1)
            elif self.grid.endless:
                slices = state.rows.select(batch.code, np.full(len(end), INT64_MIN), np.full(len(end), INT64_MAX))
            elif self.groups:
                least = self.grid.least_times(start)
                slices = state.rows.select_panes(batch.code, batch.window, least, end, self.grid.panes)
            else:
                slices = state.rows.select(batch.code, self.grid.least_times(start), end)
        return finished(self.plan, batch.columns, state.panes.heap, slices)

    def evicted(self, state: PaneWindows, closes_by: int, keep_keys: bool = False) -> PaneWindows:
        """State without the panes that no open window needs when the watermark is at `closes_by`."""
        passed = self.grid.last_closed(self.bounds.evicting(closes_by))
        before, rows, log = state.panes, state.rows, state.log
        waiting = log.codes(self.plan, before.keys) if log.rows else ()
        panes = self.driver.evicted(before, passed, keep_keys=keep_keys, waiting=waiting)
        if panes is before:
            return state
        if rows is not None:
            if passed is None:
                rows = rows.evict(INT64_MAX)
            else:
                rows = rows.evict(passed + 1 if self.grid.inherited else self.grid.start_of(passed + 1))
            if panes.keys is not before.keys:
                rows = recoded_rows(rows, before.keys, panes.keys)
        return PaneWindows(panes, rows, state.emitted, log)

    def tidied(self, state: PaneWindows) -> PaneWindows:
        panes = state.panes.with_smaller_heap()
        return state if panes is state.panes else PaneWindows(panes, state.rows, state.emitted, state.log)

    # -- what it takes -----------------------------------------------------------------------------------------------

    def size(self, state: PaneWindows) -> tuple[int, int]:
        held = memory_of_panes(state.panes) + memory_of_rows(state.rows) + state.log.held_bytes
        state = self.settled(state)
        return state.panes.cells + (0 if state.rows is None else state.rows.cells), held

    def cells(self, state: PaneWindows) -> int:
        state = self.settled(state)
        return state.panes.on_host().distinct_cells + (0 if state.rows is None else state.rows.live_rows)

    def names(self, state: PaneWindows) -> Names:
        return Names(state.panes.keys, state.panes.heap)

    def renamed(self, state: PaneWindows, names: Names) -> PaneWindows:
        return replace(state, panes=state.panes.with_names(names.keys, names.heap))

    def spilled(self, state: PaneWindows, excess: int, folder: str) -> PaneWindows:
        state = self.settled(state)
        settled = None if state.rows is None else state.rows.settled()
        panes, rows = spilled(state.panes.on_host(), settled, excess, folder)
        return replace(state, panes=panes, rows=rows)

    def open_windows(self, state: PaneWindows, progress: Progress) -> int:
        passed = self.grid.last_closed(self.bounds.evicting(progress.watermark)) if not self.keeps_all else INT64_MIN
        return count_open(self.grid, self.settled(state).panes.on_host(), INT64_MAX if passed is None else passed)

    def save(self, state: PaneWindows) -> dict[str, pa.RecordBatch]:
        state = self.settled(state)
        return pane_parts(state.panes.on_host(), emitted=state.emitted) | row_parts(state.rows)

    def load(self, parts: dict[str, pa.RecordBatch]) -> PaneWindows:
        panes = panes_of(self.plan.layout, self.key_types, parts)
        return PaneWindows(panes, rows_of(self.plan, parts), number(parts["cells"], "emitted"))


def taken(batch: WindowBatch, at: np.ndarray) -> WindowBatch:
    """Some windows of a batch, by their places."""
    return WindowBatch(batch.code[at], batch.window[at], take_cells(batch.columns, at))
