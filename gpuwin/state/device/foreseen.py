"""Expectations of a state on the device, and windows that it found before it was asked: no result depends on either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwin.state.device.runs import DeviceRun
from gpuwin.state.panes.walks import WindowBatch
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import to_host


@dataclass(slots=True)
class CountGuess:
    """Count of what the last time brought, as windows, cells or proto-sessions: a guess at the next time, which no
    result depends on. All states that come from one share it.
    """

    last: int | None = None

    @property
    def room(self) -> int | None:
        """Number to make room for, None if there is no guess. In steps, so that blocks of the pool fit again."""
        return None if self.last is None else max(16, -(-(self.last + self.last // 8) // 16) * 16)


@dataclass(slots=True)
class Cut:
    """Places at which runs are cut when the panes before `pane` are evicted: `places`, int64[2 k] on the device, and
    `on_host`, once the host has read them with other numbers. See `watermark.cuts`.
    """

    pane: int
    runs: tuple[DeviceRun, ...]
    places: DeviceArray | None
    on_host: np.ndarray | None = None

    def fits(self, runs: Sequence[DeviceRun], pane: int) -> bool:
        """Whether it has the places of all of these runs that are cut there."""
        return self.pane == pane and all(
            any(run is known for known in self.runs) for run in runs if run.first < pane <= run.last
        )

    def of(self, run: DeviceRun) -> tuple[int, int]:
        """(cells before the pane, the pane of the first that stays) of one of the runs. Waits if it must."""
        if self.on_host is None:
            assert self.places is not None
            self.on_host = to_host(self.places)
        number = next(number for number, known in enumerate(self.runs) if known is run)
        return int(self.on_host[2 * number]), int(self.on_host[2 * number + 1])


@dataclass(frozen=True, slots=True)
class Closed:
    """Windows in [low, high] that hold a cell, of the run `by` or of any, with their totals, found before they were
    asked for; None: there are none.
    """

    low: int
    high: int
    by: DeviceRun | None
    batch: WindowBatch | None


__all__ = ["Closed", "CountGuess", "Cut"]
