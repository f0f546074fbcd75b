"""Engine of `OnChange`: windows are emitted as they close, but only where the value differs from that of the key's
window before.

With `Semantics.change_windows="timers"` it does as Reduction's tutorial: a window is compared where a row has set a
timer; a timer that was reached is set again at the first window that is still open. So windows that the watermark jumps
over are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.timed_rows import TimedRows
from gpuwin.engines.panes import PaneEngine, PaneWindows, taken
from gpuwin.engines.results import finished, result
from gpuwin.engines.step import Parts, Step
from gpuwin.engines.triggers.emitted import no_values, pooled, same_rows
from gpuwin.planning.plan import Plan
from gpuwin.progress import BEFORE_TIME, Progress, WatermarkRule
from gpuwin.state.cells import concat_cells, empty_cells
from gpuwin.state.keys.dictionary import Names
from gpuwin.state.panes.walks import WindowBatch
from gpuwin.state.rows.slices import RowSlices
from gpuwin.state.spill import OnDisk, is_on_disk, worth_a_file
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.distinct_codes import distinct_codes
from gpuwin_kernels.cpu.order import order_by_code

_CHUNK = 1 << 20
_FEW = 8  # windows that are read one by one


@dataclass(frozen=True, slots=True)
class ChangeWindows:
    """State of `OnChange`: panes, and per key (code, ascending) with a window that is not empty, that window and its
    values.

    `timer_code`, `timer_window`: pending timers, sorted by (code, window).
    """

    panes: PaneWindows
    code: np.ndarray
    window: np.ndarray
    values: list[pa.Array]
    timer_code: np.ndarray
    timer_window: np.ndarray


@dataclass(frozen=True, slots=True)
class _Looked:
    """Windows to compare and their values, sorted by (code, window); empty windows too."""

    code: np.ndarray
    window: np.ndarray
    empty: np.ndarray
    values: list[pa.Array]


class ChangeEngine:
    """Engine of windows made of panes, for `OnChange`."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        self.plan = plan
        self.rule = rule
        self.base = PaneEngine(plan, rule)
        self.grid = self.base.grid
        self.by_timers = plan.spec.semantics.change_windows == "timers"

    def begin(self, progress: Progress = BEFORE_TIME) -> ChangeWindows:
        none = np.empty(0, np.int64)
        return ChangeWindows(self.base.begin(progress), none, none, no_values(self.plan), none, none)

    def rows(self, state: ChangeWindows, rows: TimedRows, progress: Progress, source: int) -> Step[ChangeWindows]:
        base = self.base
        tested = self.rule.tested_against(progress)
        after = self.rule.after_rows(progress, rows.time, source)
        kept, pane, drops = base.admission.admitted(rows, tested)
        state = self._followed(state, base.added(state.panes, kept, pane)[0])
        if self.by_timers and len(kept):
            code = state.panes.panes.keys.lookup(kept.keys(self.plan), len(kept))
            first = self.grid.windows_of(pane)[0]
            ahead = first > state.panes.emitted
            state = self._with_timers(state, code[ahead], first[ahead])
        state, results = self._closed(state, self.rule.closing_progress(progress, after).watermark)
        return Step(state, self.rule.followed(progress, after), results, drops)

    def advance(self, state: ChangeWindows, progress: Progress) -> Step[ChangeWindows]:
        progress = self.rule.followed(progress, progress)
        state, results = self._closed(state, progress.watermark)
        return Step(state, progress, results)

    # -- closing -----------------------------------------------------------------------------------------------------

    def _closed(self, state: ChangeWindows, closes_by: int) -> tuple[ChangeWindows, list[pa.RecordBatch]]:
        """State after the windows that close by `closes_by` were compared and evicted, and the results."""
        closed = self.grid.last_closed(self.base.bounds.closing(closes_by))
        if closed is not None and closed <= state.panes.emitted:
            return state, []
        results: list[pa.RecordBatch] = []
        if self.by_timers:
            state, results = self._timers_reached(state, closed)
        else:
            first = None if state.panes.emitted == INT64_MIN else state.panes.emitted + 1
            for batch in state.panes.panes.closing_chunks(self.base.grid, first, closed, _CHUNK):
                state, found = self._compared(state, self._with_gaps(state, batch))
                results += found
        if closed is None or not self.by_timers:
            state, found = self._compared(state, self._run_out(state, closed))
            results += found
        panes = replace(state.panes, emitted=INT64_MAX - 1 if closed is None else closed)
        return self._followed(state, self.base.evicted(panes, closes_by)), results

    def _with_gaps(self, state: ChangeWindows, batch: WindowBatch) -> _Looked:
        """Windows of a batch, and the empty window behind each, where the key's next one with rows does not follow at
        once.
        """
        order = order_by_code(batch.code, batch.window)
        batch = taken(batch, order)
        place = np.searchsorted(state.code, batch.code)
        known = np.zeros(len(batch.code), bool)
        inside = place < len(state.code)
        known[inside] = state.code[place[inside]] == batch.code[inside]
        before = np.full(len(batch.code), INT64_MAX)  # the key's window before this one, if it has rows
        before[known] = state.window[place[known]]
        follows = np.flatnonzero(batch.code[1:] == batch.code[:-1]) + 1
        before[follows] = batch.window[follows - 1]
        gap = np.flatnonzero((before != INT64_MAX) & (before < batch.window - 1))
        code = np.concatenate((batch.code, batch.code[gap])).astype(np.int64)
        window = np.concatenate((batch.window, before[gap] + 1))
        empty = np.arange(len(code)) >= len(batch.code)
        return self._sorted(code, window, empty, pooled(self._values(state, batch), self._empty(len(gap))))

    def _run_out(self, state: ChangeWindows, closed: int | None) -> _Looked:
        """First empty window of each key whose last window with rows has closed."""
        over = np.ones(len(state.code), bool) if closed is None else state.window < closed
        code, window = state.code[over], state.window[over]
        if self.by_timers:  # windows with rows may have been skipped
            newest = self._newest_panes(state)[code]
            some = newest != INT64_MIN
            window[some] = np.maximum(window[some], self.grid.windows_of(newest[some])[1])
        window = window + 1
        return self._sorted(code, window, np.ones(len(code), bool), self._empty(len(code)))

    def _compared(self, state: ChangeWindows, looked: _Looked) -> tuple[ChangeWindows, list[pa.RecordBatch]]:
        """State and results of windows whose value differs from that of the key's window before. Before its first
        window, a key has the value of an empty one.
        """
        if not len(looked.code):
            return state, []
        pool = pooled(pooled(state.values, looked.values), self._empty(1))
        nothing = len(pool[0]) - 1
        now = len(state.code) + np.arange(len(looked.code))
        before = np.full(len(looked.code), nothing)
        place = np.searchsorted(state.code, looked.code)
        inside = np.flatnonzero(place < len(state.code))
        known = inside[state.code[place[inside]] == looked.code[inside]]
        before[known] = place[known]
        follows = np.flatnonzero(looked.code[1:] == looked.code[:-1]) + 1
        before[follows] = now[follows - 1]
        changed = np.flatnonzero(~same_rows(pool, now, before))
        order = changed[np.lexsort((looked.code[changed], looked.window[changed]))]
        code, window = looked.code[order].astype(np.int32), looked.window[order]
        start, end = self.base.bounds_of(state.panes, code, window)
        at = pa.array(now[order])
        batch = result(self.plan, state.panes.panes.keys, code, start, end, [c.take(at) for c in pool])
        last = np.flatnonzero(np.append(looked.code[1:] != looked.code[:-1], True))
        stays = ~np.isin(state.code, looked.code)
        kept, fresh = np.flatnonzero(stays), last[~looked.empty[last]]
        codes = np.concatenate((state.code[kept], looked.code[fresh]))
        windows = np.concatenate((state.window[kept], looked.window[fresh]))
        rows = np.concatenate((kept, now[fresh]))
        by_code = np.argsort(codes)
        values = [column.take(pa.array(rows[by_code])) for column in pool]
        state = replace(state, code=codes[by_code], window=windows[by_code], values=values)
        return state, [batch]

    # -- timers ------------------------------------------------------------------------------------------------------

    def _with_timers(self, state: ChangeWindows, code: np.ndarray, window: np.ndarray) -> ChangeWindows:
        """State with these timers, too, each once. The pending ones are not sorted again."""
        code, window = _distinct(code.astype(np.int64), window)
        place, known = _places(state.timer_code, state.timer_window, code, window)
        if known.all():
            return state
        fresh = ~known
        timer_code = np.insert(state.timer_code, place[fresh], code[fresh])
        return replace(
            state, timer_code=timer_code, timer_window=np.insert(state.timer_window, place[fresh], window[fresh])
        )

    def _timers_reached(self, state: ChangeWindows, closed: int | None) -> tuple[ChangeWindows, list[pa.RecordBatch]]:
        reached = np.ones(len(state.timer_code), bool) if closed is None else state.timer_window <= closed
        if not reached.any():
            return state, []
        code, window = state.timer_code[reached], state.timer_window[reached]
        state = replace(state, timer_code=state.timer_code[~reached], timer_window=state.timer_window[~reached])
        found = [batch for batch in self._windows_at(state, code, window) if len(batch.code)]
        codes = np.concatenate([code, *(b.code for b in found)])
        windows = np.concatenate([window, *(b.window for b in found)])
        totals = WindowBatch(
            codes[len(code) :].astype(np.int32),
            windows[len(code) :],
            concat_cells([b.columns for b in found]) if found else empty_cells(self.plan.layout, 0),
        )
        _, some = _places(*_distinct(codes[len(code) :], windows[len(code) :]), code, window)
        bare = np.flatnonzero(~some)
        values = pooled(self._values(state, totals), self._empty(len(bare)))
        looked = self._sorted(
            np.concatenate((totals.code.astype(np.int64), code[bare])),
            np.concatenate((totals.window, window[bare])),
            np.arange(len(totals.code) + len(bare)) >= len(totals.code),
            values,
        )
        state, results = self._compared(state, looked)
        if closed is not None:
            newest = self._newest_panes(state)
            last = np.flatnonzero(np.append(code[1:] != code[:-1], True))  # timers are sorted: each key's last one
            oldest = self.grid.starts(window[last])
            alive = newest[code[last]] != INT64_MIN
            alive &= self.grid.starts_of_panes(newest[code[last]]) >= oldest
            again = code[last][alive]
            state = self._with_timers(state, again, np.full(len(again), closed + 1))
        return state, results

    def _newest_panes(self, state: ChangeWindows) -> np.ndarray:
        """Newest pane of each key that has rows, int64[keys]; the smallest int64 where there is none."""
        newest = np.full(len(state.panes.panes.keys), INT64_MIN)
        for run in state.panes.panes.on_host().runs:
            np.maximum.at(newest, run.code, run.pane)
        return newest

    def _windows_at(self, state: ChangeWindows, code: np.ndarray, window: np.ndarray) -> Iterator[WindowBatch]:
        """Totals of these (key, window)s, sorted and distinct, where there are any."""
        distinct = np.unique(window)
        ranges = [(int(k), int(k)) for k in distinct]
        if len(ranges) > _FEW:
            ranges = [(int(distinct[0]), int(distinct[-1]))]
        for first, last in ranges:
            for batch in state.panes.panes.closing_chunks(self.base.grid, first, last, _CHUNK):
                _, wanted = _places(code, window, batch.code, batch.window)
                yield taken(batch, np.flatnonzero(wanted))

    # -- values ------------------------------------------------------------------------------------------------------

    def _values(self, state: ChangeWindows, batch: WindowBatch) -> list[pa.Array]:
        start, end = self.base.bounds_of(state.panes, batch.code, batch.window)
        return self.base.values(state.panes, batch, start, end)

    def _empty(self, n: int) -> list[pa.Array]:
        """Values of n empty windows."""
        none = np.zeros(n, np.int64)
        slices = None
        rows = self.plan.no_rows()
        if rows is not None:
            nobody = tuple(pa.nulls(0, t) for t in rows.types)
            zero = np.empty(0, np.int64)
            slices = RowSlices(zero.astype(np.int32), zero, zero, nobody, none, none)
        heap = self.base.begin().panes.heap
        return finished(self.plan, empty_cells(self.plan.layout, n), heap, slices)

    def _sorted(self, code: np.ndarray, window: np.ndarray, empty: np.ndarray, values: list[pa.Array]) -> _Looked:
        order = order_by_code(code.astype(np.int32), window)
        at = pa.array(order)
        return _Looked(code[order], window[order], empty[order], [column.take(at) for column in values])

    def _followed(self, state: ChangeWindows, panes: PaneWindows) -> ChangeWindows:
        """State with new panes. If their dictionary was compacted, the codes follow it."""
        old, new = state.panes.panes.keys, panes.panes.keys
        if new is old or not (len(state.code) or len(state.timer_code)):
            return replace(state, panes=panes)
        codes = distinct_codes(state.code.astype(np.int32), state.timer_code.astype(np.int32))
        moved = np.full(max(len(old), 1), -1, np.int64)
        moved[codes] = new.encode(old.take(codes), len(codes))
        by_code = np.argsort(moved[state.code])
        timer_code = moved[state.timer_code]
        by_timer = order_by_code(timer_code.astype(np.int32), state.timer_window)
        return ChangeWindows(
            panes,
            moved[state.code][by_code],
            state.window[by_code],
            [column.take(pa.array(by_code)) for column in state.values],
            timer_code[by_timer],
            state.timer_window[by_timer],
        )

    # -- what it takes -----------------------------------------------------------------------------------------------

    def size(self, state: ChangeWindows) -> tuple[int, int]:
        cells, size = self.base.size(state.panes)
        if not is_on_disk(state.code):
            size += state.code.nbytes + state.window.nbytes + sum(c.nbytes for c in state.values)
        return cells, size + state.timer_code.nbytes + state.timer_window.nbytes

    def cells(self, state: ChangeWindows) -> int:
        return self.base.cells(state.panes)

    def tidied(self, state: ChangeWindows) -> ChangeWindows:
        panes = self.base.tidied(state.panes)
        return state if panes is state.panes else replace(state, panes=panes)

    def names(self, state: ChangeWindows) -> Names:
        return self.base.names(state.panes)

    def renamed(self, state: ChangeWindows, names: Names) -> ChangeWindows:
        return replace(state, panes=self.base.renamed(state.panes, names))

    def spilled(self, state: ChangeWindows, excess: int, folder: str) -> ChangeWindows:
        """State with its panes on disk, and then, until the next windows close, the values of each key."""
        panes = self.base.spilled(state.panes, excess, folder)
        excess -= self.base.size(state.panes)[1] - self.base.size(panes)[1]
        state = replace(state, panes=panes)
        columns = [state.code, state.window, *state.values]
        if excess <= 0 or is_on_disk(state.code) or not worth_a_file(sum(c.nbytes for c in columns)):
            return state
        places = OnDisk(columns, folder)
        code, window = places.numbers(), places.numbers()
        return replace(state, code=code, window=window, values=[places.array() for _ in state.values])

    def open_windows(self, state: ChangeWindows, progress: Progress) -> int:
        return self.base.open_windows(state.panes, progress)

    def save(self, state: ChangeWindows) -> Parts:
        known = pa.record_batch(
            [pa.array(state.code), pa.array(state.window), *state.values],
            names=["code", "window", *(o.name for o in self.plan.outputs)],
        )
        timers = pa.record_batch([pa.array(state.timer_code), pa.array(state.timer_window)], names=["code", "window"])
        return self.base.save(state.panes) | {"known": known, "timers": timers}

    def load(self, parts: Parts) -> ChangeWindows:
        known, timers = parts["known"], parts["timers"]
        values = [c.cast(o.type) for c, o in zip(known.columns[2:], self.plan.outputs, strict=True)]
        code, window = (np.asarray(c) for c in known.columns[:2])
        return ChangeWindows(self.base.load(parts), code, window, values, *(np.asarray(c) for c in timers.columns))


def _distinct(code: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (code, window), sorted, each once."""
    order = order_by_code(code.astype(np.int32), window)
    code, window = code[order], window[order]
    first = np.ones(len(code), bool)
    first[1:] = (code[1:] != code[:-1]) | (window[1:] != window[:-1])
    return code[first], window[first]


def _places(
    code: np.ndarray, window: np.ndarray, wanted_code: np.ndarray, wanted_window: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First place of sorted, distinct pairs (code, window) that is not below each wanted pair, and whether the wanted
    pair is there.
    """
    lo, hi = np.searchsorted(code, wanted_code, "left"), np.searchsorted(code, wanted_code, "right")
    end = hi
    while (open_ := lo < hi).any():  # bisects the windows of each code
        middle = (lo + hi) // 2
        below = np.zeros(len(lo), bool)
        below[open_] = window[middle[open_]] < wanted_window[open_]
        lo, hi = np.where(below, middle + 1, lo), np.where(open_ & ~below, middle, hi)
    known = lo < end
    known[known] = window[lo[known]] == wanted_window[known]
    return lo, known
