"""Kernels that find the pairs of a join, on the CPU or on another device."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gpuwin.state.rows.row_runs import RowRun
from gpuwin_kernels.cpu import joins as cpu

Arrays = tuple[np.ndarray, np.ndarray]


class JoinKernels(Protocol):
    """Kernels of joins, over arrays of the host. `Arrays` that come back are int64[k], in the order of
    `gpuwin_kernels.cpu.joins`.
    """

    def probe(self, run: RowRun, code: np.ndarray, least: np.ndarray, most: np.ndarray) -> Arrays:
        """(w, position) of live rows of a run with code[w] (int32) and least[w] <= time <= most[w] (int64)."""

    def newest(self, run: RowRun, code: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Position of the last row of a run with code[w] (int32) and time <= most[w] (int64), none of whose rows is
        gone; int64[k], -1 where there is none.
        """

    def assign_windows(self, time: np.ndarray, first: np.ndarray, beyond: np.ndarray) -> Arrays:
        """(row, window) for the windows first[i] <= window < beyond[i] (int64[n]) of each row."""

    def pair_groups(self, left: Arrays, right: Arrays, keep_left: bool, keep_right: bool) -> Arrays:
        """(left, right) positions of rows with equal (code int32, window int64), by which both sides are sorted; -1
        where a row of a kept side has no partner.
        """

    def union_groups(self, left: Arrays, right: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(window int64[g], left_first int64[g + 1], right_first int64[g + 1]) of the groups of both sides."""


class OnCpu:
    """Kernels of Numba."""

    def probe(self, run: RowRun, code: np.ndarray, least: np.ndarray, most: np.ndarray) -> Arrays:
        return cpu.probe(run.code, run.time, run.gone, code, least, most)

    def newest(self, run: RowRun, code: np.ndarray, most: np.ndarray) -> np.ndarray:
        return cpu.newest(run.code, run.time, code, most)

    def assign_windows(self, time: np.ndarray, first: np.ndarray, beyond: np.ndarray) -> Arrays:
        return cpu.assign_windows(time, first, beyond)  # type: ignore[no-any-return]

    def pair_groups(self, left: Arrays, right: Arrays, keep_left: bool, keep_right: bool) -> Arrays:
        return cpu.pair_groups(*left, *right, keep_left, keep_right)

    def union_groups(self, left: Arrays, right: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _, window, left_first, right_first = cpu.union_groups(*left, *right)
        return window, left_first, right_first


CPU = OnCpu()
