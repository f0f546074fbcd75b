"""Runs of cells in device memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuwin.state.cells import Columns, cell_arrays, is_exact_sum
from gpuwin.state.panes.runs import Run
from gpuwin_kernels.cuda.byte_keys import HeapArrays
from gpuwin_kernels.cuda.cells import combine
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.reductions import largest_magnitude
from gpuwin_kernels.cuda.rows import DeviceCells
from gpuwin_kernels.cuda.runtime import to_device, to_host
from gpuwin_kernels.layout import CellArrays, CellLayout


@dataclass(frozen=True, slots=True)
class DeviceRun:
    """Run of cells in device memory, sorted by (pane, code), each once, with `first` and `last` pane, and for each
    column a bound of |sum|.
    """

    cells: DeviceCells
    first: int
    last: int
    bounds: tuple[int, ...]

    @staticmethod
    def of(layout: CellLayout, cells: DeviceCells) -> DeviceRun:
        """Run of at least one cell. Reads its ends, and the magnitudes of exact sums, from the device."""
        n = len(cells.pane)
        first, last = int(to_host(cells.pane[:1])[0]), int(to_host(cells.pane[n - 1 :])[0])
        return DeviceRun(cells, first, last, magnitudes(layout, cells))

    @staticmethod
    def uploaded(layout: CellLayout, run: Run) -> DeviceRun:
        """Run of the host, at least one cell, in device memory."""
        return DeviceRun.of(layout, DeviceCells(to_device(run.pane), to_device(run.code), uploaded(run.columns)))

    @staticmethod
    def from_cells(
        layout: CellLayout,
        pane: np.ndarray,
        code: DeviceArray,
        columns: Columns,
        codes: int,
        heap: HeapArrays | None = None,
    ) -> DeviceRun:
        """Run of cells of the host in any order, at least one, as of `Run.from_cells`: pane int64[n]; `code` int32[n]
        on the device, below `codes`; `heap`: where cells hold texts. Raises RangeOverflow, TooFarApart,
        OutOfDeviceMemory.
        """
        first, last = int(pane.min()), int(pane.max())
        cells = combine(layout, [DeviceCells(to_device(pane), code, uploaded(columns))], codes, first, last, heap=heap)
        return DeviceRun(cells, first, last, magnitudes(layout, cells))

    def on_host(self) -> Run:
        """Run of these cells in host memory."""
        pane, code, *arrays = read(self.cells.pane, self.cells.code, *cell_arrays(self.cells.columns))
        return Run(pane, code, columns_like(self.cells.columns, arrays))

    def __len__(self) -> int:
        return len(self.cells.pane)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        arrays = [self.cells.pane, self.cells.code, *(v for c in self.cells.columns for v in c.values)]
        arrays += [c.valid for c in self.cells.columns if c.valid is not None]
        return sum(len(a) * a.dtype.itemsize for a in arrays)


def magnitudes(layout: CellLayout, cells: DeviceCells) -> tuple[int, ...]:
    """Bounds of |sum|, one for each column, 0 where it is no exact sum. Waits for each of these."""
    return tuple(
        0
        if not is_exact_sum(column)
        else largest_magnitude(c.values[0])
        if column.dtype == "int64"
        else (largest_magnitude(c.values[0]) + 1) << 64
        for column, c in zip(layout.columns, cells.columns, strict=True)
    )


def uploaded(columns: Sequence[CellArrays]) -> tuple[CellArrays, ...]:
    """Cells in device memory; arrays that are there are taken as they are."""
    there: Callable[[np.ndarray], Any] = _there  # `CellArrays` says np.ndarray, on the device, too
    return tuple(c.each(there) for c in columns)


def _there(array: np.ndarray | DeviceArray) -> DeviceArray:
    return to_device(array) if isinstance(array, np.ndarray) else array


def columns_like(like: Sequence[CellArrays], arrays: Sequence[np.ndarray]) -> tuple[CellArrays, ...]:
    """Inverse of `cell_arrays`, for columns that lie like these."""
    left = iter(arrays)
    return tuple(column.each(lambda _: next(left)) for column in like)


__all__ = ["DeviceRun", "columns_like", "magnitudes", "uploaded"]
