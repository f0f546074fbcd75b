"""Windows that a batch closes or touches, found before the host knows the watermark, so that they come with the numbers
of the batch.

The launch expects that the cells of the batch lie in the expected panes and are of known keys, that there is room for
them and for the windows, and that no sum leaves 64 bits on its way. The host checks all of it, and that these are the
windows that close by its own rule (`DevicePaneState.closing_chunks`). Else they are dropped, and it asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwin.grid import FIRST_WINDOW, WindowGrid
from gpuwin.state.device.foreseen import Closed, Cut
from gpuwin.state.device.panes import DevicePaneState, all_arrays, grid_of, window_batch
from gpuwin.state.device.runs import DeviceRun
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cuda import cells as kernel
from gpuwin_kernels.cuda import watermark as rule
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.many import Beside
from gpuwin_kernels.cuda.rows import Aggregation, DeviceCells
from gpuwin_kernels.cuda.runtime import to_device


@dataclass(frozen=True, slots=True)
class WindowsToEmit:
    """Windows to emit after a batch: those of `grid` from `first` on (None: from the first), up to where the
    `watermark` takes it (None: all of them); or those that are `touched` by the batch, where the watermark evicts
    (None: nothing is evicted). At most `most` windows at a time.
    """

    grid: WindowGrid
    first: int | None
    watermark: rule.Watermark | None
    panes: rule.Panes
    most: int
    touched: bool = False


@dataclass(frozen=True, slots=True)
class Ahead:
    """Kernels that were launched ahead. The host reads `numbers`, and gives them to `with_closed`."""

    low: int
    room: int
    cells_room: int | None  # of the keys that are touched
    cells: DeviceCells
    windows: kernel.DeviceWindows
    numbers: tuple[DeviceArray, ...]

    def cells_of(self, count: int) -> DeviceCells | None:
        """Cells of the batch, if there was room for so many."""
        return kernel.sliced(self.cells, 0, count) if count <= self.room else None

    def with_closed(
        self, before: DevicePaneState, run: DeviceRun, state: DevicePaneState, numbers: Sequence[np.ndarray]
    ) -> DevicePaneState:
        """`state`, which is `before` with the cells of the batch, with the windows that were found, if there was room
        for them.
        """
        (high, oldest), places, (count,), overflow, cells, *arrays = numbers
        if len(run) > self.room or overflow.any():
            return state
        if self.cells_room is not None:
            state.expected_cells.last = int(cells[0])
            if cells[0] > self.cells_room:
                return state
        if count:
            state.expected.last = int(count)
        if count > len(self.windows.code):
            return state
        batch = window_batch(self.windows, [array[:count] for array in arrays]) if count else None
        cut = Cut(int(oldest), (*before.runs, run), None, places) if len(places) else None
        by = None if self.cells_room is None else run
        return state.with_closed(Closed(self.low, int(high), by, batch), cut)


def launched(
    state: DevicePaneState, begun: Aggregation, room: int, surveyed: DeviceArray, to_emit: WindowsToEmit
) -> Ahead | None:
    """Launch of the kernels that find the windows to emit once the rows of `begun` are in the state, in at most `room`
    cells of known keys. `surveyed`: the survey of these rows, as of `late.survey`. None if it is not known about how
    many windows that will be. Does not wait. Raises TooFarApart, OutOfDeviceMemory.
    """
    windows, cells_room = state.expected.room, state.expected_cells.room if to_emit.touched else None
    if windows is None or windows > to_emit.most or (to_emit.touched and cells_room is None):
        return None
    low = FIRST_WINDOW if to_emit.first is None else max(to_emit.first, FIRST_WINDOW)
    cells = begun.cells_within(room)
    besides: list[Beside] = []
    if to_emit.watermark is None:
        bounds = to_device(np.array([INT64_MAX, INT64_MIN]))
        places = bounds[:0]
    else:
        then = [*_runs_then(state), cells]
        bounds, places, besides = rule.cuts_beside(then, surveyed, to_emit.watermark, to_emit.panes)
    oldest = to_emit.grid.first_pane(low)
    runs = [run for run in state.runs if to_emit.touched or run.last >= oldest]
    ends = min([begun.panes[0], *(r.first for r in runs)]), max([begun.panes[1], *(r.last for r in runs)])
    every, high = [*(r.cells for r in runs), cells], INT64_MAX if to_emit.touched else bounds[:1]
    wanted = kernel.WindowsWanted(grid_of(to_emit.grid), begun.codes, ends, low, high, windows, tuple(besides))
    if to_emit.touched:
        found = kernel.touched(state.layout, every, cells, wanted, cells_room=cells_room)
    else:
        found = kernel.closing(state.layout, every, wanted)
    overflow, some = (bounds[:0] if a is None else a for a in (found.overflow, found.cells))
    numbers = (bounds, places, found.count, overflow, some, *all_arrays(found))
    return Ahead(low, room, cells_room, cells, found, numbers)


def _runs_then(state: DevicePaneState) -> list[DeviceCells | kernel.Combining]:
    """Runs of a state once its merge is done."""
    runs: list[DeviceCells | kernel.Combining] = [run.cells for run in state.runs]
    if state.merging is not None:
        runs[-state.merging.runs :] = [state.merging.begun]
    return runs


__all__ = ["Ahead", "WindowsToEmit", "launched"]
