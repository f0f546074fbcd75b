"""State of windows that are made of panes: runs of cells, the windows that they emit, and eviction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from gpuwin.errors import OverflowError
from gpuwin.grid import FIRST_WINDOW, WindowGrid
from gpuwin.state.cells import Columns, merge_parts, sum_limit, take_cells
from gpuwin.state.dead_texts import smaller
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary
from gpuwin.state.panes.carry import Carry, can_carry, carried_windows, start_carry
from gpuwin.state.panes.runs import CellRun, Run, sum_bounds
from gpuwin.state.panes.tiers import in_order, joined, joined_few, trailing
from gpuwin.state.panes.walks import Part, Span, WindowBatch, joined_batches, walk_windows, with_codes
from gpuwin.state.room import check_room
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import cells as kernel
from gpuwin_kernels.cpu.distinct_codes import numbered_codes
from gpuwin_kernels.cpu.kept_memory import empty, full
from gpuwin_kernels.layout import CellLayout

_UNLIMITED = 1 << 62
_CHUNK = 1 << 20  # windows that are made at a time
_DEAD = 3  # keys per key in use, from which a dictionary is compacted: a key that comes back was then rarely removed
_LOOK = 8  # an evicted cell pays for a search of so many keys and cells


@dataclass(frozen=True)
class PaneState:
    """Cells by (pane, key). Immutable: every method returns a new state, which shares arrays, dictionary and heap with
    this one.

    `runs` are tiers, each at least twice as large as the next, so that there are few of them and a cell is copied a
    logarithmic number of times. `keys` and `heap` only grow. A state that replaced them (`evict`) has others: codes
    belong to the state that they came from.
    """

    layout: CellLayout
    keys: KeyDictionary
    heap: BytesHeap
    runs: tuple[Run, ...] = ()
    bounds: tuple[tuple[int, ...], ...] = ()  # per run and column, of the magnitude of integer sums
    gone: tuple[np.ndarray, ...] = ()  # int32: keys of cells that went since dead keys were last looked for
    carry: Carry | None = field(default=None, compare=False, repr=False)  # derived; see gpuwin.state.panes.carry

    @classmethod
    def empty(cls, layout: CellLayout, key_types: Sequence[pa.DataType]) -> PaneState:
        """State before the first batch."""
        return cls(layout, KeyDictionary(key_types), BytesHeap())

    # -- what is in it -------------------------------------------------------------------------------------------------

    @property
    def cells(self) -> int:
        """Number of cells held; one that is in two runs counts twice."""
        return sum(len(run) for run in self.runs)

    @property
    def distinct_cells(self) -> int:
        """Number of cells held, each once. Costs a search for those of all runs but the first."""
        found = self.cells
        for i, run in enumerate(self.runs[1:], 1):
            again = np.zeros(len(run), bool)
            for earlier in self.runs[:i]:
                if earlier.last < run.first or run.last < earlier.first:
                    continue
                at = empty(len(run), np.int64)
                kernel.find_cells(earlier.pane, earlier.code, run.pane, run.code, at)
                again |= at >= 0
            found -= int(again.sum())
        return found

    @cached_property
    def first_pane(self) -> int | None:
        """The oldest pane with a cell."""
        return min([run.first for run in self.runs], default=None)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        carry = 0 if self.carry is None else self.carry.nbytes
        runs, gone = sum(run.nbytes for run in self.runs), sum(codes.nbytes for codes in self.gone)
        return runs + gone + self.keys.nbytes + self.heap.nbytes + carry

    def used_codes(self) -> np.ndarray:
        """Codes of the keys that have a cell, int32, ascending, unique."""
        used = np.zeros(len(self.keys), np.uint8)
        for run in self.runs:
            kernel.mark_codes(run.code, used)
        return np.flatnonzero(used).astype(np.int32)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def run_of(self, pane: np.ndarray, keys: Sequence[pa.Array], columns: Columns) -> Run:
        """Run of cells in any order: pane int64[n], their key columns, whose keys enter the dictionary, and the columns
        of the layout. Raises gpuwin.OverflowError if an exact sum leaves its type.
        """
        return Run.from_cells(self.layout, pane, self.keys.encode(keys, len(pane)), columns, self.heap)

    def add(self, run: CellRun) -> PaneState:
        """State with the cells of a run, whose codes are of `keys` and `heap`.

        Raises gpuwin.OverflowError if the exact sum of a cell leaves its type.
        """
        return self._with_run(run.on_host()) if len(run) else self

    def _with_run(self, run: Run) -> PaneState:
        if int(run.code.view(np.uint32).max()) >= len(self.keys):  # kernels trust codes
            raise ValueError("a run has codes that are not of this state's dictionary")
        bounds = sum_bounds(self.layout, run)
        self._check_sums(run, bounds)
        runs, limits = [*self.runs, run], [*self.bounds, bounds]
        # While running totals are kept, only cells that enter windows or leave them are read, so runs may be many.
        count = trailing(runs, 2 if self.carry is None else tuning.TIER_RUNS)
        if count > 1:
            runs, limits = self._with_joined_tail(runs, limits, count)
        carry = None if self.carry is None else self.carry.with_run(run)
        return self._with_runs(runs, limits, self.gone, carry)

    def _with_joined_tail(
        self, runs: list[Run], bounds: list[tuple[int, ...]], count: int
    ) -> tuple[list[Run], list[tuple[int, ...]]]:
        """Runs, and their bounds, with the last `count` runs as one, or as few that are large and share no pane."""
        rest, tail = len(runs) - count, runs[-count:]
        try:
            one, *others = joined_few(self.layout, tail, self.heap)
        except OverflowError:  # the sum fits with a part of the cell in another run
            one = joined(self.layout, runs, self.heap)
            return [one], [sum_bounds(self.layout, one)]
        if others:
            few = [one, *others]
            return [*runs[:rest], *few], [*bounds[:rest], *(sum_bounds(self.layout, run) for run in few)]
        parts = list(zip(*bounds[rest:], strict=True))
        bound = tuple([max(b) for b in parts]) if in_order(tail) else tuple([sum(b) for b in parts])
        return [*runs[:rest], one], [*bounds[:rest], bound]

    def _with_runs(
        self,
        runs: Sequence[Run],
        bounds: Sequence[tuple[int, ...]],
        gone: Sequence[np.ndarray],
        carry: Carry | None,
    ) -> PaneState:
        """State with other runs. Every batch and every closing makes one, so it does without `replace`, which looks at
        each field.
        """
        shared = self.layout, self.keys, self.heap
        return PaneState(*shared, tuple(runs), tuple(bounds), tuple(gone), carry)

    def _check_sums(self, run: Run, bounds: tuple[int, ...]) -> None:
        """Check that no cell overflows, whether or not its parts are merged today. Where the bounds do not decide, the
        run's cells are looked up.
        """
        doubtful = self._doubtful(bounds)
        if not doubtful:
            return
        layout = CellLayout(tuple(self.layout.columns[i] for i in doubtful))
        _totals_at(layout, [_only(r, doubtful) for r in (*self.runs, run)], run, self.heap)

    def _doubtful(self, bounds: tuple[int, ...]) -> list[int]:
        """Columns whose sums may leave their type once cells of these bounds are added."""
        return [
            i
            for i, column in enumerate(self.layout.columns)
            if bounds[i] and sum([b[i] for b in self.bounds]) + bounds[i] >= sum_limit(column)
        ]

    def holds(self, bounds: tuple[int, ...]) -> bool:
        """Whether cells can be added without a look at them. `bounds`: bounds of |sum| over them, for each column."""
        return not self._doubtful(bounds)

    def with_names(self, keys: KeyDictionary, heap: BytesHeap) -> PaneState:
        """State with other tables of keys and texts, in which its codes mean the same."""
        return replace(self, keys=keys, heap=heap)

    def on_host(self) -> PaneState:
        """This state."""
        return self

    def off_device(self) -> PaneState:
        """This state."""
        return self

    def compacted(self) -> PaneState:
        """State with one run."""
        if len(self.runs) < 2:
            return self
        run = joined(self.layout, self.runs, self.heap)
        return replace(self, runs=(run,), bounds=(sum_bounds(self.layout, run),))

    def packed(self) -> PaneState:
        """State with as few runs as one has that keeps no running totals."""
        runs: list[Run] = []
        bounds: list[tuple[int, ...]] = []
        try:
            for run, bound in zip(self.runs, self.bounds, strict=True):
                runs, bounds = [*runs, run], [*bounds, bound]
                count = trailing(runs, 2)
                if count > 1:
                    runs, bounds = self._with_joined_tail(runs, bounds, count)
        except OverflowError:  # the sum fits with a part of the cell in a later run
            return self.compacted()
        return self._with_runs(runs, bounds, self.gone, self.carry)

    def evict(self, pane: int, waiting: Iterable[np.ndarray] = ()) -> PaneState:
        """State without the panes before `pane`. Keys without a cell leave the dictionary once they are two thirds of
        it. waiting: int32 codes of keys that stay though they have no cell yet.
        """
        state = self.evict_panes(pane)
        return state if state is self else state._with_fewer_keys(waiting)

    def expecting_eviction(self, pane: int) -> PaneState:
        """This state: only one on the device has to prepare where its runs are cut."""
        return self

    def evict_panes(self, pane: int) -> PaneState:
        """State without the panes before `pane`, with all keys; the next `evict` finds the unused ones."""
        if self.first_pane is None or self.first_pane >= pane:
            return self
        runs, bounds, gone = [], [], list(self.gone)
        few = len(self.keys) <= FEW_KEYS  # none of which is looked for
        for run, bound in zip(self.runs, self.bounds, strict=True):
            if run.first >= pane:
                runs.append(run)
                bounds.append(bound)
                continue
            lo, _ = run.bounds(min(pane, INT64_MAX), None)
            if not few:
                gone.append(run.code[:lo].copy())
            rest = run.slice(lo, len(run))
            if not len(rest):
                continue
            runs.append(rest.copied() if 2 * len(rest) < rest.shares else rest)
            bounds.append(bound)
        carry = self.carry if self.carry is not None and self.carry.survives(pane) else None
        return self._with_runs(runs, bounds, gone, carry)

    def _with_fewer_keys(self, waiting: Iterable[np.ndarray]) -> PaneState:
        """State with a smaller dictionary, once so many cells were evicted that they pay for a search of unused keys. A
        key that had a cell since the last search stays: where windows close all at once, most keys are about to come
        again.
        """
        keys, state = len(self.keys), self
        if keys > FEW_KEYS and _LOOK * sum(map(len, self.gone)) >= self.cells + keys:
            state = replace(self, gone=())
            alive = self._few_alive(waiting)
            if alive is not None:
                state = state.recoded(*self.keys.kept(alive))
        return state

    def _few_alive(self, waiting: Iterable[np.ndarray]) -> np.ndarray | None:
        """Codes of the keys that stay, int32, ascending; None as soon as these are too many for a smaller
        dictionary.
        """
        keys = len(self.keys)
        used = np.zeros(keys, np.uint8)
        for code in (*waiting, *(run.code for run in reversed(self.runs)), *self.gone):
            kernel.mark_codes(code, used)
            if _DEAD * np.count_nonzero(used.view(np.bool_)) >= keys:
                return None
        return np.flatnonzero(used.view(np.bool_)).astype(np.int32)

    def recoded(self, keys: KeyDictionary, new_code: np.ndarray) -> PaneState:
        """State with another dictionary; `new_code` int32, old -> new, must keep the order of the codes in use (see
        `KeyDictionary.kept`).
        """
        runs = tuple(Run(run.pane, new_code[run.code], run.columns) for run in self.runs)
        return replace(self, keys=keys, runs=runs, carry=None, gone=())

    def with_smaller_heap(self) -> PaneState:
        """State with a heap of the texts in use, once the dead ones are the majority; else this state."""
        found = smaller(self.layout, self.heap, [run.columns for run in self.runs]) if self.layout.uses_heap else None
        if found is None:
            return self
        heap, cells = found
        runs = tuple(Run(run.pane, run.code, columns) for run, columns in zip(self.runs, cells, strict=True))
        return replace(self, heap=heap, runs=runs, carry=None)

    # -- windows -------------------------------------------------------------------------------------------------------

    def closing(self, grid: WindowGrid, first: int | None, last: int | None) -> WindowBatch:
        """Non-empty windows from `first` to `last`, both included; None leaves an end open. Sorted by (window, code).

        Costs the cells in the span and the rows returned, whatever the overlap. Raises gpuwin.OverflowError if an exact
        total leaves its type.
        """
        return joined_batches(self.layout, list(self.closing_chunks(grid, first, last)))

    def closing_chunks(
        self, grid: WindowGrid, first: int | None, last: int | None, max_rows: int = _UNLIMITED
    ) -> Iterator[WindowBatch]:
        """Windows as of `closing`, in batches of at most `max_rows` rows."""
        low = FIRST_WINDOW if first is None else max(first, FIRST_WINDOW)
        high = INT64_MAX if last is None else min(last, INT64_MAX)
        if low > high:
            return
        carried = self._carried(grid, first, high)
        if carried is not None:
            for at in range(0, len(carried.code), max_rows):
                rows = slice(at, at + max_rows)
                yield WindowBatch(carried.code[rows], carried.window[rows], take_cells(carried.columns, rows))
            return
        runs = [run.between(*grid.panes_of(low, high)) for run in self.runs]
        runs = [run for run in runs if len(run)]
        if not runs:
            return
        if grid.is_panes:
            for run in joined_few(self.layout, runs, self.heap):
                for at in range(0, len(run), max_rows):
                    some = run.slice(at, min(at + max_rows, len(run)))
                    yield WindowBatch(some.code, some.pane, some.columns)
            return
        parts = [Part.of(run.pane, run.code, run.columns) for run in runs]
        span, stand_for = Span.of(parts, grid, len(self.keys)).renumbered()
        for batch in walk_windows(self.layout, span, span, self._bounds(), low, high, max_rows, self.heap):
            yield with_codes(batch, stand_for)
        if can_carry(self.layout, grid, first, last, self.bounds):
            self._keep(start_carry(self.layout, self.runs, len(self.keys), grid, high))

    def _carried(self, grid: WindowGrid, first: int | None, last: int) -> WindowBatch | None:
        """Windows that follow those of the last call, from running totals, if there are any."""
        carry = self.carry
        if carry is None or grid != carry.grid or first != carry.upto + 1:
            return None
        if not can_carry(self.layout, grid, first, last, self.bounds):
            return None
        found = carried_windows(carry, self.layout, self.runs, len(self.keys), last)
        self._keep(None if found is None else found[1])
        return None if found is None else found[0]

    def _keep(self, carry: Carry | None) -> None:
        """Keeps running totals for the states that follow; it changes no result."""
        object.__setattr__(self, "carry", carry)

    def _bounds(self) -> list[int]:
        """Bounds of the magnitude of a cell's part in any run, one per column."""
        return [max(b) for b in zip(*self.bounds, strict=True)]

    def touched(self, grid: WindowGrid, run: CellRun, first: int | None) -> WindowBatch:
        """Windows (of number `first` or later) that contain a cell of `run`, with their totals in this state, to which
        `run` was added.

        Costs what these windows hold of the keys they are about. Raises gpuwin.OverflowError if an exact total leaves
        its type.
        """
        low = FIRST_WINDOW if first is None else max(first, FIRST_WINDOW)
        run = run.on_host().between(max(grid.first_pane(low), INT64_MIN), None)
        if not len(run):
            return joined_batches(self.layout, [])
        if grid.is_panes:
            return WindowBatch(run.code, run.pane, _totals_at(self.layout, self.runs, run, self.heap))
        wanted, number = numbered_codes(run.code)
        mark = Part.of(run.pane, number, ())
        markers = Span.of([mark], grid, len(wanted))
        oldest = max(low, int(markers.enter_at[0]))
        newest = int(markers.leave_after[-1])
        if oldest > newest:
            return joined_batches(self.layout, [])
        parts = [_part_of_keys(r.between(*grid.panes_of(oldest, newest)), wanted, len(self.keys)) for r in self.runs]
        parts = [part for part in parts if len(part.code)]
        if not parts:  # the run's cells lie in gaps between windows
            return joined_batches(self.layout, [])
        span = Span.of(parts, grid, len(wanted))
        batches: list[WindowBatch] = []
        for batch in walk_windows(self.layout, span, markers, self._bounds(), oldest, newest, _CHUNK, self.heap):
            batches.append(batch)
            check_room(sum(len(b.code) for b in batches), 2 * 8 * (1 + len(batch.columns)))
        return with_codes(joined_batches(self.layout, batches), wanted)


def _only(run: Run, at: Sequence[int]) -> Run:
    return Run(run.pane, run.code, tuple(run.columns[i] for i in at))


def _totals_at(layout: CellLayout, runs: Sequence[Run], wanted: Run, heap: BytesHeap) -> Columns:
    """Cells of `wanted`, merged over all runs."""
    parts = []
    for run in runs:
        if run.last < wanted.first or run.first > wanted.last:
            continue
        at = empty(len(wanted), np.int64)
        kernel.find_cells(run.pane, run.code, wanted.pane, wanted.code, at)
        found = np.flatnonzero(at >= 0)
        if len(found):
            parts.append((take_cells(run.columns, at[found]), found))
    return merge_parts(layout, parts, len(wanted), heap)


def _part_of_keys(run: Run, wanted: np.ndarray, codes: int) -> Part:
    """Cells of the wanted keys (codes, ascending), which are numbered by their place among these."""
    part = Part.of(run.pane, run.code, run.columns)
    lookups = len(part.pane) * len(wanted) * tuning.LOOKUP_COST
    scan = lookups > len(run) * tuning.SCAN_COST
    number = np.empty(0, np.int32)
    if scan:
        number = full(codes, -1, np.int32)
        number[wanted] = np.arange(len(wanted), dtype=np.int32)
    at, which, start = kernel.cells_of_codes(part.code, part.start, wanted, number, scan)
    filled = np.diff(start) > 0
    start = np.concatenate((start[:-1][filled], start[-1:]))
    return Part(part.pane[filled], start, which, take_cells(part.columns, at))
