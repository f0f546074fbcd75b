"""Pairs of a join, found on CUDA. The rows themselves stay on the host, sorted. Codes and times of kept rows lie on the
device too, moved there when they are first read: a run never changes, and many batches read it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gpuwin.joins.kernels import CPU, Arrays
from gpuwin.state.rows.row_runs import RowRun
from gpuwin_kernels.cuda import joins as kernel
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, to_device

log = logging.getLogger("gpuwin")

Made = TypeVar("Made")


class Mirrors:
    """Arrays on the device made of host arrays that never change; they are freed together."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}

    def of(self, array: np.ndarray, made: Callable[[], Made]) -> Made:
        """Result of `made()`, which is called once for each array."""
        key = id(array)
        known = self._known.get(key)
        if known is not None and known[0]() is array:
            before: Made = known[1]
            return before
        found = made()
        self._known[key] = weakref.ref(array, lambda _: self._known.pop(key, None)), found
        return found

    def __len__(self) -> int:
        return len(self._known)


class OnCuda:
    """Kernels of joins on CUDA, as `gpuwin.joins.kernels.OnCpu`. Where the device has no room, the CPU finds the pairs,
    and the log says so.
    """

    def __init__(self) -> None:
        self.mirrors = Mirrors()

    def probe(self, run: RowRun, code: np.ndarray, least: np.ndarray, most: np.ndarray) -> Arrays:
        def found() -> tuple[DeviceArray, DeviceArray]:
            rows = self._moved(run.code), self._moved(run.time)
            live = self.mirrors.of(run.gone, lambda: kernel.ranked(kernel.live_of(to_device(run.gone), len(run))))
            return kernel.probe_ranked(*rows, live, to_device(code), to_device(least), to_device(most))

        if not len(run) or not len(code):
            return CPU.probe(run, code, least, most)
        return self._pair(found, lambda: CPU.probe(run, code, least, most))

    def newest(self, run: RowRun, code: np.ndarray, most: np.ndarray) -> np.ndarray:
        if not len(run) or not len(code):
            return CPU.newest(run, code, most)
        try:
            rows = self._moved(run.code), self._moved(run.time)
            (position,) = read(kernel.newest(*rows, to_device(code), to_device(most)))
        except OutOfDeviceMemory as error:
            log.warning("gpuwin joined a batch on the CPU: %s", error)
            return CPU.newest(run, code, most)
        return position

    def assign_windows(self, time: np.ndarray, first: np.ndarray, beyond: np.ndarray) -> Arrays:
        return self._pair(
            lambda: kernel.assign_windows(to_device(first), to_device(beyond)),
            lambda: CPU.assign_windows(time, first, beyond),
        )

    def pair_groups(self, left: Arrays, right: Arrays, keep_left: bool, keep_right: bool) -> Arrays:
        def found() -> tuple[DeviceArray, DeviceArray]:
            a, b, c, d = (to_device(array) for array in (*left, *right))
            return kernel.pair_groups(a, b, c, d, keep_left, keep_right)

        return self._pair(found, lambda: CPU.pair_groups(left, right, keep_left, keep_right))

    def union_groups(self, left: Arrays, right: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        try:
            _, window, left_first, right_first = read(
                *kernel.union_groups(*(to_device(array) for array in (*left, *right)))
            )
        except OutOfDeviceMemory as error:
            log.warning("gpuwin joined a batch on the CPU: %s", error)
            return CPU.union_groups(left, right)
        return window, left_first, right_first

    def _moved(self, array: np.ndarray) -> DeviceArray:
        return self.mirrors.of(array, lambda: to_device(array))

    @staticmethod
    def _pair(on_device: Callable[[], tuple[DeviceArray, DeviceArray]], on_host: Callable[[], Arrays]) -> Arrays:
        try:
            a, b = read(*on_device())
        except OutOfDeviceMemory as error:
            log.warning("gpuwin joined a batch on the CPU: %s", error)
            return on_host()
        return a, b
