"""Kernels over the cells of a state on the device: combining runs, finding the windows that close, and their totals.

A packed cell is one uint64 that sorts as the pair does: (pane - least) << code_bits | code in a run, or
code << pane_bits | (pane - least) where the panes of a key have to stand together. In that second order, a cell opens
the windows that hold it and do not hold the cell of its key before it; so the rows of a result are counted, scanned and
listed, and the cells of each row are one range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuwin_kernels.cuda import primitives, ranges
from gpuwin_kernels.cuda.byte_keys import HeapArrays
from gpuwin_kernels.cuda.packed import MOST_BITS, TooFarApart, bits_of, gather, gather_cells, join_cells, pack
from gpuwin_kernels.cuda.rows import DeviceCells, list_used, mark_spare, unpack
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch, scalar, to_host, zeros
from gpuwin_kernels.cuda.scalar import pane_after
from gpuwin_kernels.layout import CellArrays, CellLayout


@dataclass(frozen=True, slots=True)
class Grid:
    """Windows in units of panes, as `gpuwin.state.WindowGrid`."""

    panes_per_window: int
    panes_per_slide: int
    cumulative: bool


@dataclass(frozen=True, slots=True)
class WindowsWanted:
    """Windows that are looked for: those in [low, high] of the `grid`.

    `codes`: how many there are; cells of the code `codes`, one more than there is, are in no window. `panes`: (first,
    last) of all cells. `high`: an int, or int64[1] on the device. `room`: a guess at how many windows there are, which
    keeps the device from being waited for, and no more are listed; None if there is none.
    """

    grid: Grid
    codes: int
    panes: tuple[int, int]
    low: int
    high: Any
    room: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceWindows:
    """Result rows, sorted by (window, code), in device memory. Behind the first `count` there may be others, which mean
    nothing; `overflow`: not 0 for columns of which an exact sum left its type, None if that cannot be.
    """

    code: Any  # int32[n]
    window: Any  # int64[n]
    columns: tuple[CellArrays, ...]
    count: Any  # int64[1], on the device; may be more than n: then there was no room for all
    overflow: Any  # int32[columns], on the device, or None
    cells: Any = None  # int64[1], on the device: of the keys that were touched


# -- runs --------------------------------------------------------------------------------------------------------------


@kernel("void(uint64[::1], int64[::1])")
def _mark_heads(packed, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < packed.shape[0]:
        flags[i] = 1 if i == 0 or packed[i] != packed[i - 1] else 0


@kernel("void(int32[::1], int64, int64[::1], int64[::1])")
def _bounds(head, n, lo, hi):  # type: ignore[no-untyped-def]
    k = cuda.grid(1)
    if k < head.shape[0]:
        lo[k] = head[k]
        hi[k] = head[k + 1] if k + 1 < head.shape[0] else n


@dataclass(frozen=True, slots=True)
class Combining:
    """Cells on their way into one run. The host reads `count`, and gives it to `run`."""

    layout: CellLayout
    cells: DeviceCells
    packed: Any  # uint64[n], sorted
    place: Any  # int32[n]: where each of them stands in the cells
    before: Any  # int64[n + 1]: how many different cells come before each
    code_bits: int
    first: int
    heap: HeapArrays | None

    @property
    def count(self) -> Any:
        """int64[1], on the device: how many different cells there are."""
        return self.before[len(self.packed) : len(self.packed) + 1]

    def run(self, m: int, most_equal: int | None = None, fits: bool = False) -> DeviceCells:
        """The run, of m cells. `most_equal`: that no cell comes more often; `fits`: that no sum can leave its type,
        so that nothing is waited for. Raises ranges.RangeOverflow.
        """
        n, packed = len(self.packed), self.packed
        columns = gather_cells(self.cells.columns, self.place)
        if m < n:
            head, lo, hi = empty(m, np.int32), empty(m, np.int64), empty(m, np.int64)
            launch(list_used, n, self.before, head)
            launch(_bounds, m, head, n, lo, hi)
            columns = ranges.totals(self.layout, columns, lo, hi, most_equal, fits, self.heap)
            packed = gather(packed, head)
        pane, code = empty(m, np.int64), empty(m, np.int32)
        launch(unpack, m, packed, self.code_bits, self.first, pane, code)
        return DeviceCells(pane, code, columns)


def combining(
    layout: CellLayout, cells: DeviceCells, codes: int, first: int, last: int, heap: HeapArrays | None = None
) -> Combining:
    """Launches what combines cells in any order, whose panes lie in [first, last]. `heap`: where cells hold texts.
    Raises TooFarApart.
    """
    n = len(cells.pane)
    code_bits, pane_bits = bits_of(codes, first, last)
    packed, place = pack(cells.pane, cells.code, first, code_bits, by_code=False)
    packed, place = primitives.sort_pairs(packed, place, code_bits + pane_bits)
    heads = empty(n, np.int64)
    launch(_mark_heads, n, packed, heads)
    return Combining(layout, cells, packed, place, primitives.exclusive_sum(heads), code_bits, first, heap)


def combine(
    layout: CellLayout,
    cells: DeviceCells,
    codes: int,
    first: int,
    last: int,
    most_equal: int | None = None,
    heap: HeapArrays | None = None,
) -> DeviceCells:
    """A run of cells in any order, whose panes lie in [first, last]; equal cells are merged.

    `most_equal`: that no cell comes more often, if it is known. Raises ranges.RangeOverflow, TooFarApart.
    """
    begun = combining(layout, cells, codes, first, last, heap)
    return begun.run(int(to_host(begun.count)[0]), most_equal)


def sliced(cells: DeviceCells, lo: int, hi: int) -> DeviceCells:
    """Cells [lo, hi); shares the memory."""
    if lo == 0 and hi == len(cells.pane):
        return cells
    columns = tuple(column.each(lambda v: v[lo:hi]) for column in cells.columns)
    return DeviceCells(cells.pane[lo:hi], cells.code[lo:hi], columns)


# -- windows -----------------------------------------------------------------------------------------------------------


@kernel(
    "void(uint64[::1], UniTuple(int64, 2), Tuple((int64, float64, int64, int64, boolean)), int64, int64[::1], "
    "int64, int64[::1], int64[::1])"
)
def _count_windows(packed, panes, grid, low, high, codes, first, count):  # type: ignore[no-untyped-def]
    """`panes`: bits and the least one; `grid`: see `_rows_of`."""
    pane_bits, least = panes
    base, reciprocal, slide, size, cumulative = grid
    i = cuda.grid(1)
    if i < packed.shape[0] and packed[i] >> np.uint64(pane_bits) >= np.uint64(codes):
        first[i] = low
        count[i] = 0
    elif i < packed.shape[0]:
        mask = (np.uint64(1) << np.uint64(pane_bits)) - np.uint64(1)
        pane = least + np.int64(packed[i] & mask)
        opened = low
        if i > 0 and packed[i - 1] >> np.uint64(pane_bits) == packed[i] >> np.uint64(pane_bits):
            before = least + np.int64(packed[i - 1] & mask)
            if cumulative:
                last = base + pane_after(before, base, size, reciprocal) * size + size - 1
            else:
                last = base + pane_after(before, base * slide, slide, reciprocal)
            opened = max(opened, last + 1)
        if cumulative:
            start = pane
            last = base + pane_after(pane, base, size, reciprocal) * size + size - 1
        else:
            start = base + pane_after(pane - size, base * slide, slide, reciprocal) + 1
            last = base + pane_after(pane, base * slide, slide, reciprocal)
        opened = max(opened, start)
        first[i] = opened
        count[i] = max(min(last, high[0]) - opened + 1, 0)


@kernel("void(int64[::1], int64[::1], uint64[::1], int64, int64, int32[::1], int64[::1])")
def _list_windows(offset, first, packed, pane_bits, beyond, code, window):  # type: ignore[no-untyped-def]
    r = cuda.grid(1)
    if r < code.shape[0] and r >= offset[first.shape[0]]:
        code[r] = 0
        window[r] = beyond
    elif r < code.shape[0]:
        lo = 0
        hi = first.shape[0]
        while hi - lo > 1:
            middle = (lo + hi) >> 1
            if offset[middle] <= r:
                lo = middle
            else:
                hi = middle
        code[r] = np.int32(packed[lo] >> np.uint64(pane_bits))
        window[r] = first[lo] + (r - offset[lo])


@kernel(
    "void(int32[::1], int64[::1], UniTuple(int64, 3), Tuple((int64, float64, int64, int64, boolean)), "
    "uint64[::1], uint64[::1])"
)
def _cells_wanted(code, window, panes, grid, begin, end):  # type: ignore[no-untyped-def]
    """`panes`: bits, the least and the most; `grid`: see `_totals_of`."""
    pane_bits, least, most = panes
    base, reciprocal, slide, size, cumulative = grid
    r = cuda.grid(1)
    if r < code.shape[0]:
        if cumulative:
            first = base + pane_after(window[r], base, size, reciprocal) * size
            last = window[r]
        else:
            first = window[r] * slide
            last = first + size - 1
        first = min(max(first, least), most + 1)
        last = min(max(last, least - 1), most)
        key = np.uint64(code[r]) << np.uint64(pane_bits)
        begin[r] = key + np.uint64(first - least)
        end[r] = key + np.uint64(last - least + 1)


@dataclass(frozen=True, slots=True)
class _ByKey:
    """Cells in the order of (code, pane). Bits leave room for one pane more than there is."""

    packed: Any
    place: Any
    least: int
    most: int
    code_bits: int
    pane_bits: int


def _by_key(cells: DeviceCells, codes: int, first: int, last: int) -> _ByKey:
    code_bits, pane_bits = bits_of(codes, first, last + 2)
    packed, place = pack(cells.pane, cells.code, first, pane_bits, by_code=True)
    packed, place = primitives.sort_pairs(packed, place, code_bits + pane_bits)
    return _ByKey(packed, place, first, last, code_bits, pane_bits)


_Listed = tuple[Any, Any, Any]
"""(code int32[n], window int64[n], how many of them are windows int64[1])."""


def _rows_of(marks: _ByKey, wanted: WindowsWanted) -> _Listed:
    """(code, window, count) of the wanted windows that hold one of these cells, sorted by (code, window). Waits for how
    many there are, or lists no more than there is `room` for, and empty windows behind the last.
    """
    n, grid = len(marks.packed), wanted.grid
    size, slide = grid.panes_per_window, grid.panes_per_slide
    unit = size if grid.cumulative else slide
    # Division is of numbers that are not negative: counted from before the first pane of the oldest window.
    base = marks.least // size * size if grid.cumulative else (marks.least - size) // slide - 1
    first, count = empty(n, np.int64), empty(n, np.int64)
    panes, windows = (marks.pane_bits, marks.least), (base, 1.0 / unit, slide, size, grid.cumulative)
    high = scalar(wanted.high)
    launch(_count_windows, n, marks.packed, panes, windows, wanted.low, high, wanted.codes, first, count)
    offset = primitives.exclusive_sum(count)
    found = offset[n : n + 1]
    rows = int(to_host(found)[0]) if wanted.room is None else wanted.room
    code, window = empty(rows, np.int32), empty(rows, np.int64)
    beyond = _window_range(grid, marks.least, marks.most)[1]
    launch(_list_windows, rows, offset, first, marks.packed, marks.pane_bits, beyond, code, window)
    return code, window, found


def _totals_of(
    layout: CellLayout,
    cells: DeviceCells,
    order: _ByKey,
    grid: Grid,
    listed: _Listed,
    runs: int,
    fits: bool,
    heap: HeapArrays | None,
) -> DeviceWindows:
    """The totals of these rows over the cells, sorted by (window, code). Does not wait."""
    code, window, count = listed
    rows = len(code)
    begin, end = empty(rows, np.uint64), empty(rows, np.uint64)
    size, slide = grid.panes_per_window, grid.panes_per_slide
    panes = order.pane_bits, order.least, order.most
    windows = order.least // size * size, 1.0 / size, slide, size, grid.cumulative
    launch(_cells_wanted, rows, code, window, panes, windows, begin, end)
    lo, hi = primitives.search(order.packed, begin), primitives.search(order.packed, end)
    columns, overflow = ranges.started(layout, gather_cells(cells.columns, order.place), lo, hi, size * runs, heap)
    if fits or not ranges.may_overflow(layout):
        overflow = None
    if not rows:
        return DeviceWindows(code, window, columns, count, overflow)
    oldest, newest = _window_range(grid, order.least, order.most)
    bits, window_bits = order.code_bits, max(newest - oldest, 1).bit_length()
    if bits + window_bits > MOST_BITS:
        raise TooFarApart(f"windows {oldest} to {newest} do not fit {MOST_BITS} bits")
    packed, place = pack(window, code, oldest, bits, by_code=False)
    _, place = primitives.sort_pairs(packed, place, bits + window_bits)
    return DeviceWindows(gather(code, place), gather(window, place), gather_cells(columns, place), count, overflow)


def _window_range(grid: Grid, least: int, most: int) -> tuple[int, int]:
    """(a window before all that hold one of these panes, or the first; one behind all)."""
    if grid.cumulative:
        size = grid.panes_per_window
        return least, most // size * size + size
    return (least - grid.panes_per_window) // grid.panes_per_slide, most // grid.panes_per_slide + 1


def closing(
    layout: CellLayout,
    runs: Sequence[DeviceCells],
    wanted: WindowsWanted,
    fits: bool = False,
    heap: HeapArrays | None = None,
) -> DeviceWindows:
    """The wanted windows that hold a cell of the runs, with totals. Waits for how many there are, unless there is a
    guess at that. `fits`: that no sum can leave its type. `heap`: where cells hold texts. Raises TooFarApart.
    """
    cells = join_cells(runs)
    order = _by_key(cells, wanted.codes + 1, *wanted.panes)
    return _totals_of(layout, cells, order, wanted.grid, _rows_of(order, wanted), len(runs), fits, heap)


@kernel("void(int32[::1], uint8[::1])")
def _mark_codes(code, marked):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0] and code[i] < marked.shape[0]:
        marked[code[i]] = 1


@kernel("void(int32[::1], uint8[::1], int64[::1])")
def _mark_cells(code, marked, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0]:
        flags[i] = marked[code[i]] if code[i] < marked.shape[0] else 0


def used_codes(runs: Sequence[DeviceCells], codes: int) -> Any:
    """uint8[codes]: 1 for the codes that have a cell; codes from there on are passed over."""
    marked = zeros(codes, np.uint8)
    for run in runs:
        launch(_mark_codes, len(run.code), run.code, marked)
    return marked


def touched(
    layout: CellLayout,
    runs: Sequence[DeviceCells],
    markers: DeviceCells,
    wanted: WindowsWanted,
    fits: bool = False,
    heap: HeapArrays | None = None,
    cells_room: int | None = None,
) -> DeviceWindows:
    """As `closing`, of the windows that hold a cell of `markers`, whose panes are among those wanted. Reads all cells
    once, and sorts those of the marked keys; waits for how many these are, or, with a guess at that, takes no more than
    there is `cells_room` for.
    """
    codes, panes = wanted.codes, wanted.panes
    listed = _rows_of(_by_key(markers, codes + 1, *panes), wanted)
    cells = join_cells(runs)
    n = len(cells.code)
    flags = empty(n, np.int64)
    launch(_mark_cells, n, cells.code, used_codes([markers], codes), flags)
    before = primitives.exclusive_sum(flags)
    found = before[n:]
    place = zeros(int(to_host(found)[0]) if cells_room is None else cells_room, np.int32)
    launch(list_used, n, before, place)
    pane, code = gather(cells.pane, place), gather(cells.code, place)
    launch(mark_spare, len(place), found, panes[1], codes, pane, code)
    some = DeviceCells(pane, code, gather_cells(cells.columns, place))
    order = _by_key(some, codes + 1, *panes)
    return replace(_totals_of(layout, some, order, wanted.grid, listed, len(runs), fits, heap), cells=found)


__all__ = [
    "MOST_BITS",
    "Combining",
    "DeviceWindows",
    "Grid",
    "TooFarApart",
    "WindowsWanted",
    "closing",
    "combine",
    "combining",
    "gather",
    "gather_cells",
    "join_cells",
    "pack",
    "sliced",
    "touched",
    "used_codes",
]
