"""Quotients rounded down are those of Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwin.grid import WindowGrid
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.floors import floors

LEAST, MOST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [2, 3, 60_000_000, 1 << 40, 1 << 62, MOST])
def test_as_of_integers(width: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "threads", lambda: threads)
    rng = np.random.default_rng(width % 1000)
    for origin in {0, 1, width - 1}:
        ends = [LEAST + origin, LEAST + origin + 1, LEAST + origin + width - 1, -width, -1, 0, 1, width, MOST - 1, MOST]
        some = [x for x in ends if LEAST + origin <= x <= MOST]
        times = {
            "none": np.empty(0, np.int64),
            "one": np.array([origin]),
            "ends": np.array(some + some[::-1]),
            "in order": np.sort(rng.integers(0, min(9 * width, MOST), tuning.SPLIT_ROWS + 9)),
            "in no order": rng.integers(LEAST + origin, MOST, 1_000),
        }
        for time in times.values():
            time.flags.writeable = False
            assert floors(time, origin, width).tolist() == [(x - origin) // width for x in time.tolist()]


@pytest.mark.parametrize("begin", [LEAST, LEAST + 50, -3, MOST - tuning.SPLIT_ROWS])
def test_panes_of_many_times(begin: int) -> None:
    """As many as threads share have the panes that each has by itself."""
    time = begin + np.arange(tuning.SPLIT_ROWS + 1)
    for grid in (WindowGrid.sliding(7, 7, 3), WindowGrid.sliding(40, 6, 1), WindowGrid.sliding(1, 1, 0)):
        pane = grid.panes(time)
        halves = [grid.panes(half) for half in np.split(time, 2 * [len(time) // 2])]
        assert pane.tolist() == np.concatenate(halves).tolist()
        assert pane.dtype == np.int64
