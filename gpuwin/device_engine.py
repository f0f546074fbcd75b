"""Windows on a grid, with rows and cells in device memory: the engine of `pane_engine`, on a `DevicePaneState`.

Rows move to the device once, whole columns at a time, and are not looked at one by one by the host, unless some of them
may be late or in no window: those are found as on the CPU. What comes back is the windows that are emitted, and a few
numbers for each batch. Holistic aggregates (a median, a list) keep their rows on the host.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from gpuwin.arrivals import NOTHING_DROPPED, Arrivals, Drops
from gpuwin.device_rows import rows_to_device_run
from gpuwin.durations import INT64_MAX, INT64_MIN
from gpuwin.errors import LimitExceeded
from gpuwin.names import Names
from gpuwin.pane_cells import count_open
from gpuwin.pane_engine import PaneEngine, PaneWindows
from gpuwin.progress import Progress
from gpuwin.saved import Parts
from gpuwin.state.device_panes import DevicePaneState
from gpuwin.state.panes import PaneState
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory

log = logging.getLogger("gpuwin")

FEWEST_ROWS = 1 << 16
"""A batch that does not fit the device is halved down to this; then the state moves to the host."""


class DevicePaneEngine(PaneEngine):
    """One specification over one input schema, on CUDA."""

    may_log = False

    def begin(self) -> PaneWindows:
        return self._moved(super().begin())

    def _moved(self, state: PaneWindows) -> PaneWindows:
        return _with(state, DevicePaneState.of(state.panes))

    # -- a batch -----------------------------------------------------------------------------------------------------

    def admitted(
        self, arrivals: Arrivals, watermark: int | np.ndarray, tested: int
    ) -> tuple[Arrivals, np.ndarray, Drops]:
        """As on the CPU; where no row can be late or in a gap, panes are left for the device to find: none here."""
        if isinstance(watermark, np.ndarray) or self.shape.gaps or self.shape.inherited or not len(arrivals):
            return super().admitted(arrivals, watermark, tested)
        passed = self.shape.closed(self.bounds.forgetting(tested))
        if not (self.keeps_all or self.rule.system or passed == INT64_MIN):
            bound = INT64_MAX if passed is None else self.shape.end_of(passed)
            if int(arrivals.time.min()) < max(bound, tested if self.bounds.by_time else INT64_MIN):
                return super().admitted(arrivals, watermark, tested)
        return arrivals, np.empty(0, np.int64), NOTHING_DROPPED

    def added(self, state: PaneWindows, kept: Arrivals, pane: np.ndarray) -> tuple[PaneWindows, Any]:
        if not len(kept):
            return state, None
        if not _is_on_device(state):  # it outgrew the device before
            return super().added(state, kept, self._panes(kept, pane))
        try:
            return self._added(state, kept, pane)
        except OutOfDeviceMemory as error:
            if len(kept) > FEWEST_ROWS and not self.updates and not self.bounds.lateness:
                return self._in_halves(state, kept, pane), None
            return self._on_host(state, kept, pane, error)

    def _added(self, state: PaneWindows, kept: Arrivals, pane: np.ndarray) -> tuple[PaneWindows, Any]:
        panes, rows = _on_device(state), state.rows
        code = panes.keys.encode(kept.keys(self.plan), len(kept))
        run = rows_to_device_run(self.plan, self.shape, panes, pane, code, kept)
        if rows is not None:
            at = kept.time if kept.end is None else kept.end
            rows = rows.add(code, at, kept.seq, [kept.columns[name] for name in self.plan.row_names])
        return replace(_with(state, panes.add(run)), rows=rows), run

    def _in_halves(self, state: PaneWindows, kept: Arrivals, pane: np.ndarray) -> PaneWindows:
        """The batch in two parts, one after the other; windows that fire again with it need it whole."""
        middle = len(kept) // 2
        for part in (np.arange(middle), np.arange(middle, len(kept))):
            state, _ = self.added(state, kept.take(part), pane[part] if len(pane) else pane)
        return state

    def _on_host(
        self, state: PaneWindows, kept: Arrivals, pane: np.ndarray, error: OutOfDeviceMemory
    ) -> tuple[PaneWindows, Any]:
        try:
            moved = replace(state, panes=_on_device(state).on_host())
            result = super().added(moved, kept, self._panes(kept, pane))
        except MemoryError:
            raise LimitExceeded(
                f"the device had not {error.wanted} more bytes for the batch, and the host has no room for the state "
                f"of {state.panes.nbytes} bytes; nothing of the batch was applied. Set Limits.max_state_bytes, use "
                "smaller batches, or partition the stream by key"
            ) from error
        log.warning(
            "gpuwin moved a state of %d bytes from the device to the host: the device had not %d bytes left",
            state.panes.nbytes,
            error.wanted,
        )
        return result

    def _panes(self, rows: Arrivals, pane: np.ndarray) -> np.ndarray:
        return pane if len(pane) == len(rows) else self.shape.panes(rows.time if rows.end is None else rows.end)

    # -- what it takes -----------------------------------------------------------------------------------------------

    def _host(self, state: PaneWindows) -> PaneWindows:
        return replace(state, panes=_on_device(state).on_host()) if _is_on_device(state) else state

    def renamed(self, state: PaneWindows, names: Names) -> PaneWindows:
        return replace(state, panes=replace(state.panes, keys=names.keys, heap=names.heap))

    def spilled(self, state: PaneWindows, excess: int, folder: str) -> PaneWindows:
        return super().spilled(self._host(state), excess, folder)

    def open_windows(self, state: PaneWindows, progress: Progress) -> int:
        passed = self.shape.closed(self.bounds.forgetting(progress.watermark)) if not self.keeps_all else INT64_MIN
        return count_open(self.shape, self._host(state).panes, INT64_MAX if passed is None else passed)

    def size(self, state: PaneWindows) -> tuple[int, int]:
        if not _is_on_device(state):
            return super().size(state)
        kept = (0, 0) if state.rows is None else (state.rows.cells, state.rows.nbytes)
        return state.panes.cells + kept[0], state.panes.nbytes + kept[1]

    def save(self, state: PaneWindows) -> Parts:
        return super().save(self._host(state))

    def load(self, parts: dict[str, pa.RecordBatch]) -> PaneWindows:
        return self._moved(super().load(parts))


# `PaneWindows.panes` says `PaneState`, whose methods `DevicePaneState` has too; here is where the two are told apart.


def _is_on_device(state: PaneWindows) -> bool:
    return isinstance(state.panes, DevicePaneState)


def _on_device(state: PaneWindows) -> DevicePaneState:
    assert _is_on_device(state)
    return cast(DevicePaneState, state.panes)


def _with(state: PaneWindows, panes: DevicePaneState) -> PaneWindows:
    return replace(state, panes=cast(PaneState, panes))
