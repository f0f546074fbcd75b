"""`PaneState` with its cells in device memory: equal runs, tiers and results, and immutable as well.

Keys are in the dictionary that it is given, on the host or the device (`gpuwin.state.device.keys`). Only the windows
that are emitted come back, and a few numbers for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from gpuwin.grid import FIRST_WINDOW, WindowGrid
from gpuwin.state.cells import Columns, cell_arrays, sum_limit
from gpuwin.state.device.foreseen import Closed, CountGuess, Cut
from gpuwin.state.device.heap import arrays_of_heap, heap_of, heap_of_host, smaller_there
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin.state.device.runs import DeviceRun, columns_like, magnitudes
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import CellRun, Run
from gpuwin.state.panes.walks import WindowBatch
from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.distinct_codes import distinct_codes
from gpuwin_kernels.cuda import cells as kernel
from gpuwin_kernels.cuda.byte_keys import HeapArrays
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.ranges import RangeOverflow, raise_if_any
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.rows import DeviceCells
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, kept, to_device, to_host
from gpuwin_kernels.cuda.watermark import cuts
from gpuwin_kernels.layout import CellLayout

_ON_HOST = (RangeOverflow, kernel.TooFarApart, OutOfDeviceMemory)
"""Errors after which the host takes over: it has more room, sums in 128 bits before it gives up, and sorts by two
words.
"""

_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Merging:
    """Merge of the last `runs` runs of a state that was begun. The state keeps these runs until the host has read how
    many cells the merged run has, which it does with the numbers of the next batch.
    """

    runs: int
    begun: kernel.Combining


@dataclass(frozen=True)
class DevicePaneState:
    """Cells by (pane, key) on the device. Immutable, as `PaneState`: every method returns a new state, which shares
    device arrays, dictionary and heap with this one.
    """

    layout: CellLayout
    keys: KeyDictionary
    heap: BytesHeap
    runs: tuple[DeviceRun, ...] = ()
    evicted: int = 0  # cells evicted since the dictionary was last checked for unused keys
    merging: Merging | None = None
    expected: CountGuess = field(default_factory=CountGuess, compare=False)
    expected_cells: CountGuess = field(default_factory=CountGuess, compare=False)  # cells of keys that a batch touches
    cut: Cut | None = field(default=None, compare=False)
    closed: Closed | None = field(default=None, compare=False)  # of these very cells

    @classmethod
    def of(cls, state: PaneState) -> DevicePaneState:
        """This state in device memory. Raises OutOfDeviceMemory."""
        runs = tuple(DeviceRun.uploaded(state.layout, run) for run in state.runs if len(run))
        return cls(state.layout, state.keys, heap_of(state.layout, state.heap), runs)

    def on_host(self) -> PaneState:
        """This state in host memory."""
        state = PaneState(self.layout, self.keys, heap_of_host(self.heap))
        for run in self.runs:
            state = state.add(run.on_host())
        return state

    def off_device(self) -> PaneState:
        """This state and its keys in host memory."""
        keys = self.keys.on_host() if isinstance(self.keys, DeviceKeyDictionary) else self.keys
        return replace(self, keys=keys).on_host()

    # -- what is in it -------------------------------------------------------------------------------------------------

    @property
    def cells(self) -> int:
        """Number of cells held; one that is in two runs counts twice."""
        return sum(len(run) for run in self.runs)

    @property
    def bounds(self) -> tuple[tuple[int, ...], ...]:
        """Bounds of the magnitude of integer sums, per run and column."""
        return tuple(run.bounds for run in self.runs)

    @property
    def _texts(self) -> HeapArrays | None:
        return arrays_of_heap(self.heap)

    @property
    def first_pane(self) -> int | None:
        """Oldest pane with a cell."""
        return min((run.first for run in self.runs), default=None)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, on the device and on the host."""
        return sum(run.nbytes for run in self.runs) + self.keys.nbytes + self.heap.nbytes

    def used_codes(self) -> np.ndarray:
        """Codes of the keys that have a cell, int32, ascending, unique."""
        marked = kernel.used_codes([run.cells for run in self.runs], len(self.keys))
        return np.flatnonzero(to_host(marked)).astype(np.int32)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def run_of(self, pane: np.ndarray, keys: Sequence[pa.Array], columns: Columns) -> Run | DeviceRun:
        """Run as of `PaneState.run_of`. Made on the device where that encodes the keys; then the host sees only the
        panes of cells.
        """
        dictionary = self.keys
        if not len(pane) or not isinstance(dictionary, DeviceKeyDictionary):
            return PaneState(self.layout, dictionary, self.heap).run_of(pane, keys, columns)
        code = dictionary.codes_of(keys, len(pane))
        try:
            return DeviceRun.from_cells(self.layout, pane, code, columns, len(dictionary), self._texts)
        except (RangeOverflow, kernel.TooFarApart):
            return Run.from_cells(self.layout, pane, to_host(code), columns, self.heap)

    def add(self, run: CellRun) -> DevicePaneState:
        """State with the cells of a run, of the host or the device. Raises gpuwin.OverflowError if the exact sum of a
        cell leaves its type, OutOfDeviceMemory.
        """
        if not len(run):
            return self
        state = self.with_merge_ended().appended(self._on_device(run))
        return state.with_merge_begun().with_merge_ended()

    def _on_device(self, run: CellRun) -> DeviceRun:
        return run if isinstance(run, DeviceRun) else DeviceRun.uploaded(self.layout, run.on_host())

    def appended(self, run: DeviceRun) -> DevicePaneState:
        """State as of `add`, made without a wait, and without merging runs unless a sum might leave its type otherwise.
        No merge may have begun.
        """
        runs = (*self.runs, run)
        return self._with_runs((self._merged(runs),) if self._doubtful(runs) else runs)

    def with_merge_begun(self) -> DevicePaneState:
        """State whose last runs are being merged, if they are large beside the one before them. Does not wait."""
        count, cells = 1, len(self.runs[-1]) if self.runs else 0
        while count < len(self.runs) and len(self.runs[-1 - count]) < tuning.TIER_FACTOR * cells:
            cells += len(self.runs[-1 - count])
            count += 1
        if count == 1 or self.merging is not None:
            return self
        runs = self.runs[-count:]
        first, last = min(run.first for run in runs), max(run.last for run in runs)
        parts = [run.cells for run in runs]
        try:
            begun = kernel.combining(self.layout, parts, len(self.keys), first, last, self._texts, runs=True)
            return replace(self, merging=Merging(count, begun))
        except kernel.TooFarApart:
            with kept():
                return self._with_runs((*self.runs[:-count], self._merged_on_host(runs)))

    def with_merge_ended(self, cells: int | None = None) -> DevicePaneState:
        """State with the merge done that was begun. `cells`: how many it makes; waits for that if it is not known."""
        if self.merging is None:
            return self
        count, begun = self.merging.runs, self.merging.begun
        runs = self.runs[-count:]
        # Were the sums of all runs in doubt, they would have been merged when they came.
        merged = begun.run(int(to_host(begun.count)[0]) if cells is None else cells, count, fits=True)
        first, last = min(run.first for run in runs), max(run.last for run in runs)
        bounds = tuple(sum(run.bounds[i] for run in runs) for i in range(len(self.layout.columns)))
        return self._with_runs((*self.runs[:-count], DeviceRun(merged, first, last, bounds)))

    def _with_runs(self, runs: tuple[DeviceRun, ...]) -> DevicePaneState:
        return replace(self, runs=runs, merging=None, closed=None)

    def with_closed(self, closed: Closed | None, cut: Cut | None = None) -> DevicePaneState:
        """This state with the windows that were found ahead, and the cut of its runs then; None: there are none."""
        if closed is None and self.closed is None:
            return self
        return replace(self, closed=closed, cut=cut)

    def _doubtful(self, runs: Sequence[DeviceRun]) -> bool:
        """Whether a cell's sum over all runs might leave its type, as far as magnitudes show."""
        return not self._fits(runs, 1)

    def _fits(self, runs: Sequence[DeviceRun], panes: int) -> bool:
        """Whether no exact sum over so many panes can leave its type, as far as magnitudes show."""
        columns = enumerate(self.layout.columns)
        return all(panes * sum(run.bounds[i] for run in runs) < sum_limit(column) for i, column in columns)

    def _merged(self, runs: Sequence[DeviceRun]) -> DeviceRun:
        first, last = min(run.first for run in runs), max(run.last for run in runs)
        parts = [run.cells for run in runs]
        try:
            cells = kernel.combine(self.layout, parts, len(self.keys), first, last, len(runs), self._texts)
        except (RangeOverflow, kernel.TooFarApart):
            return self._merged_on_host(runs)
        return DeviceRun(cells, first, last, magnitudes(self.layout, cells))

    def _merged_on_host(self, runs: Sequence[DeviceRun]) -> DeviceRun:
        """Run merged on the host, where sums leave 64 bits on their way and come back, or panes lie further apart than
        a packed cell holds: both are rare.
        """
        host = PaneState(self.layout, self.keys, self.heap)
        for run in runs:
            host = host.add(run.on_host())
        return DeviceRun.uploaded(self.layout, host.compacted().runs[0])

    def compacted(self) -> DevicePaneState:
        """State with one run."""
        return self if len(self.runs) < 2 else self._with_runs((self._merged(self.runs),))

    def evict(self, pane: int, waiting: Iterable[np.ndarray] = ()) -> DevicePaneState:
        """State without the panes before `pane`; see `PaneState.evict`. Where the device has no room to find them, or
        the keys that none of the others has, they are dropped another time.
        """
        state = self.evict_panes(pane)
        if state is self:
            return self
        try:
            return state._with_fewer_keys(waiting)
        except OutOfDeviceMemory:
            return state

    def with_smaller_heap(self) -> DevicePaneState:
        """State with a heap of the texts in use; see `PaneState.with_smaller_heap`."""
        found = smaller_there(self.layout, self.heap, [run.cells.columns for run in self.runs])
        if found is None:
            return self
        heap, columns = found
        cells = [replace(run.cells, columns=c) for run, c in zip(self.runs, columns, strict=True)]
        runs = tuple(replace(run, cells=c) for run, c in zip(self.runs, cells, strict=True))
        return replace(self, heap=heap, runs=runs, merging=None, closed=None)

    def evict_panes(self, pane: int) -> DevicePaneState:
        """State without the panes before `pane`, with all keys. A run that the device has no room to cut is kept."""
        if all(run.first >= pane for run in self.runs):
            return self
        if self.merging is not None:
            return self._with_merge_ended_if_it_fits().evict_panes(pane)
        cut = self.expecting_eviction(pane).cut
        runs, gone = [], 0
        for run in self.runs:
            if run.last < pane:
                gone += len(run)
                continue
            if run.first < pane and cut is not None and cut.fits((run,), pane):
                at, first = cut.of(run)
                gone += at
                run = DeviceRun(kernel.sliced(run.cells, at, len(run)), first, run.last, run.bounds)
            runs.append(run)
        return replace(self, runs=tuple(runs), evicted=self.evicted + gone, cut=None, closed=None)

    def _with_merge_ended_if_it_fits(self) -> DevicePaneState:
        """State as of `with_merge_ended`; with the runs as they were, where the device has no room to merge them."""
        try:
            return self.with_merge_ended()
        except OutOfDeviceMemory:
            return replace(self, merging=None)

    def expecting_eviction(self, pane: int) -> DevicePaneState:
        """State as of `with_cut`. Where the device has no room for the cut, it is read when it is needed."""
        try:
            return self.with_cut(pane)
        except OutOfDeviceMemory:
            return self

    def with_names(self, keys: KeyDictionary, heap: BytesHeap) -> DevicePaneState:
        """State with other tables of keys and texts, in which its codes mean the same."""
        return replace(self, keys=keys, heap=heap)

    def with_cut(self, pane: int) -> DevicePaneState:
        """State with a cut launched for `evict` of the panes before this one, to be read with the windows that are
        emitted before. Does not wait.
        """
        some = tuple(run for run in self.runs if run.first < pane <= run.last)
        if not some or (self.cut is not None and self.cut.fits(some, pane)):
            return self
        return replace(self, cut=Cut(pane, some, cuts([run.cells for run in some], pane)))

    def _with_fewer_keys(self, waiting: Iterable[np.ndarray]) -> DevicePaneState:
        cells, keys = self.cells, len(self.keys)
        if keys <= FEW_KEYS or (2 * cells >= keys and self.evicted < cells + keys):
            return self
        used = distinct_codes(self.used_codes(), *waiting)
        if 2 * len(used) >= keys:
            return replace(self, evicted=0)
        smaller, new_code = self.keys.kept(used)
        return replace(self.recoded(smaller, new_code), evicted=0)

    def recoded(self, keys: KeyDictionary, new_code: np.ndarray) -> DevicePaneState:
        """State with another dictionary; see `PaneState.recoded`."""
        mapping = to_device(new_code.astype(np.int32))
        runs = tuple(replace(run, cells=_recoded(run.cells, mapping)) for run in self.runs)
        return replace(self, keys=keys, runs=runs, merging=None, closed=None)

    # -- windows -------------------------------------------------------------------------------------------------------

    def closing_chunks(
        self, grid: WindowGrid, first: int | None, last: int | None, max_rows: int = _UNLIMITED
    ) -> Iterator[WindowBatch]:
        """Windows in [first, last] (None: open) that hold a cell, with their totals, sorted by (window, code), in
        batches of at most `max_rows` rows. Raises gpuwin.OverflowError if an exact total leaves its type.

        Does not wait if they were found ahead. Else once, if there are no more than about as many as the last time; and
        once more to learn how many.
        """
        low = FIRST_WINDOW if first is None else max(first, FIRST_WINDOW)
        high = INT64_MAX if last is None else min(last, INT64_MAX)
        ahead = self.closed
        if ahead is not None and (ahead.low, ahead.high, ahead.by) == (low, high, None):
            yield from () if ahead.batch is None else (ahead.batch,)
            return
        panes = grid.panes_of(low, high)
        runs = [run for run in self.runs if run.last >= panes[0] and run.first <= panes[1]]
        if low > high or not runs:
            return
        ends = min(run.first for run in runs), max(run.last for run in runs)
        cells = [run.cells for run in runs]
        fits = self._fits(runs, grid.panes_per_window)

        def made(room: int | None) -> kernel.DeviceWindows:
            wanted = kernel.WindowsWanted(grid_of(grid), len(self.keys), ends, low, high, room)
            return kernel.closing(self.layout, cells, wanted, fits, self._texts)

        try:
            chunks = self._read(made, max_rows)
        except _ON_HOST:
            yield from self.on_host().closing_chunks(grid, first, last, max_rows)
            return
        yield from chunks

    def _read(self, made: Callable[[int | None], kernel.DeviceWindows], max_rows: int) -> Iterator[WindowBatch]:
        """Windows that `made` makes with room for so many, in batches. Raises the errors in `_ON_HOST`."""
        room = self.expected.room
        found = made(room if room is not None and room <= max_rows else None)
        cut = self.cut
        numbers = [found.count]
        numbers += [] if found.overflow is None else [found.overflow]
        numbers += [] if found.cells is None else [found.cells]
        numbers += [] if cut is None or cut.places is None or cut.on_host is not None else [cut.places]
        whole = len(found.code) <= max_rows
        read_all = read(*numbers, *(all_arrays(found) if whole else ()))
        count = int(read_all[0][0])
        self.expected.last = count
        if cut is not None and cut.on_host is None:
            cut.on_host = read_all[len(numbers) - 1]
        if found.cells is not None:
            self.expected_cells.last = int(read_all[1 if found.overflow is None else 2][0])
        if found.overflow is not None:
            raise_if_any(read_all[1])
        if count > len(found.code):
            return self._read(made, max_rows)
        if not whole:
            return _in_chunks(found, count, max_rows)
        return iter([window_batch(found, [a[:count] for a in read_all[len(numbers) :]])] if count else [])

    def touched(self, grid: WindowGrid, run: CellRun, first: int | None) -> WindowBatch:
        """Windows (of number `first` or later) that contain a cell of `run`, with their totals in this state, to which
        `run` was added. Does not wait if they were found ahead. Raises gpuwin.OverflowError if an exact total leaves
        its type.
        """
        low = FIRST_WINDOW if first is None else max(first, FIRST_WINDOW)
        if self.closed is not None and self.closed.by is run and self.closed.low == low:
            return self._no_windows() if self.closed.batch is None else self.closed.batch
        if not len(run):
            return self._no_windows()
        marks = self._on_device(run)
        ends = min(r.first for r in (*self.runs, marks)), max(r.last for r in (*self.runs, marks))
        cells = [r.cells for r in self.runs]
        fits = self._fits(self.runs, grid.panes_per_window)

        def made(room: int | None) -> kernel.DeviceWindows:
            wanted = kernel.WindowsWanted(grid_of(grid), len(self.keys), ends, low, INT64_MAX, room)
            return kernel.touched(self.layout, cells, marks.cells, wanted, fits, self._texts)

        try:
            batches = list(self._read(made, _UNLIMITED))
        except _ON_HOST:
            return self.on_host().touched(grid, marks.on_host(), first)
        return batches[0] if batches else self._no_windows()

    def _no_windows(self) -> WindowBatch:
        empty = Run.empty(self.layout)
        return WindowBatch(empty.code, empty.pane, empty.columns)


def _recoded(cells: DeviceCells, mapping: DeviceArray) -> DeviceCells:
    return DeviceCells(cells.pane, kernel.gather(mapping, cells.code), cells.columns)


def grid_of(grid: WindowGrid) -> kernel.Grid:
    """Grid in the form of the kernels."""
    return kernel.Grid(grid.panes_per_window, grid.panes_per_slide, grid.cumulative)


def _in_chunks(found: kernel.DeviceWindows, n: int, max_rows: int) -> Iterator[WindowBatch]:
    for lo in range(0, n, max_rows):
        rows = slice(lo, min(lo + max_rows, n))
        yield window_batch(found, read(*(a[rows] for a in all_arrays(found))))


def all_arrays(found: kernel.DeviceWindows) -> list[DeviceArray]:
    """Arrays of windows: code, window, and those of the columns."""
    return [found.code, found.window, *cell_arrays(found.columns)]


def window_batch(found: kernel.DeviceWindows, arrays: Sequence[np.ndarray]) -> WindowBatch:
    """Windows whose `all_arrays` are on the host."""
    code, window, *rest = arrays
    return WindowBatch(code, window, columns_like(found.columns, rest))
