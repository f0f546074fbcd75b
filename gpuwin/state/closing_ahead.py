"""Windows that close with a batch, found before the host knows what is due, so that they come with its first numbers.

It is expected that the cells of the batch lie in the panes, and are of the keys, that were expected of it, that there
is room for them and for the windows, and that no sum leaves 64 bits on its way. The host looks whether all of it was
so, and whether these are the windows that are due by its own rule (`DevicePaneState.closing_chunks`); else they are let
go, and it asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuwin.state.device_panes import Closed, Cut, DevicePaneState, all_arrays, grid_of, window_batch
from gpuwin.state.device_runs import DeviceRun
from gpuwin.state.windows import FIRST_WINDOW, WindowGrid
from gpuwin_kernels.cuda import cells as kernel
from gpuwin_kernels.cuda import due as rule
from gpuwin_kernels.cuda.rows import Aggregation, DeviceCells


@dataclass(frozen=True, slots=True)
class Due:
    """What closes after a batch: windows of `grid` from `first` on (None: from the first), up to where the watermark
    takes it; no more than `most` of them are handed out at a time.
    """

    grid: WindowGrid
    first: int | None
    watermark: rule.Watermark
    panes: rule.Panes
    most: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """What was launched. The host reads `numbers`, and gives them to `told`."""

    low: int
    room: int
    cells: DeviceCells
    windows: kernel.DeviceWindows
    numbers: tuple[Any, ...]

    def cells_of(self, count: int) -> DeviceCells | None:
        """The cells of the batch, if there was room for so many."""
        return kernel.sliced(self.cells, 0, count) if count <= self.room else None

    def told(
        self, before: DevicePaneState, run: DeviceRun, state: DevicePaneState, numbers: Sequence[np.ndarray]
    ) -> DevicePaneState:
        """`state`, which is `before` with the cells of the batch; it knows what is closed, if there was room for it."""
        (high, oldest), places, (count,), overflow, *arrays = numbers
        if len(run) > self.room or overflow.any():
            return state
        if count:
            state.expected.rows = int(count)
        if count > len(self.windows.code):
            return state
        batch = window_batch(self.windows, [array[:count] for array in arrays]) if count else None
        return state.with_closed(
            Closed(self.low, int(high), batch), Cut(int(oldest), (*before.runs, run), None, places)
        )


def launched(state: DevicePaneState, begun: Aggregation, room: int, told: Any, due: Due) -> Ahead | None:
    """Launches the closing of the windows that are due once the rows of `begun`, no more than `room` cells of the keys
    there are, are in the state. `told`: of these rows, as `late.survey`. None if it is not known about how many windows
    that will be. Does not wait. Raises TooFarApart, OutOfDeviceMemory.
    """
    windows = state.expected.room
    if windows is None or windows > due.most:
        return None
    low = FIRST_WINDOW if due.first is None else max(due.first, FIRST_WINDOW)
    bounds = rule.windows_due(told, due.watermark, due.panes)
    cells = begun.cells_within(room)
    oldest = due.grid.first_pane(low)
    runs = [run for run in state.runs if run.last >= oldest]
    ends = min([begun.panes[0], *(r.first for r in runs)]), max([begun.panes[1], *(r.last for r in runs)])
    found = kernel.closing(
        state.layout, [*(r.cells for r in runs), cells], grid_of(due.grid), begun.codes, ends, low, bounds[:1],
        room=windows,
    )  # fmt: skip
    last: list[DeviceCells | kernel.Combining] = [run.cells for run in state.runs]
    if state.merging is not None:
        last[-state.merging.runs :] = [state.merging.begun]
    places = rule.cuts([*last, cells], bounds[1:])
    overflow = bounds[:0] if found.overflow is None else found.overflow
    return Ahead(low, room, cells, found, (bounds, places, found.count, overflow, *all_arrays(found)))


__all__ = ["Ahead", "Due", "launched"]
