"""Panes of rows: an array of them, or what a kernel finds them with as it reads the times.

An array is written and read again, which costs as much memory traffic as the times themselves, and a division for each
row. A kernel that aggregates rows in order of time divides once for two thousand of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.grid import WindowGrid


@dataclass(frozen=True, eq=False, slots=True)
class TimedPanes:
    """Panes of rows at `time` (int64[n], microseconds) that divide evenly (`grid.divides`); `ends`: the oldest and the
    newest time, or None where nobody has looked.
    """

    grid: WindowGrid
    time: np.ndarray
    ends: tuple[int, int] | None = None


RowPanes = np.ndarray | TimedPanes
"""int64[n], or what they are found with."""


def panes_array(pane: RowPanes) -> np.ndarray:
    """int64[n]."""
    return pane.grid.panes(pane.time) if isinstance(pane, TimedPanes) else pane
