"""Kernels over the cells of a state on the device: combining runs, finding the windows that close, and their totals.

A packed cell is one uint64 that sorts as the pair does: (pane - least) << code_bits | code in a run, or
code << pane_bits | (pane - least) where the panes of a key have to stand together. In that second order, a cell opens
the windows that hold it and do not hold the cell of its key before it; so the rows of a result are counted, scanned and
listed, and the cells of each row are one range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwin_kernels.cuda import primitives, ranges
from gpuwin_kernels.cuda.byte_keys import HeapArrays
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.many import Beside
from gpuwin_kernels.cuda.packed import (
    MOST_BITS,
    TooFarApart,
    bits_of,
    gather,
    gather_cells,
    join_cells,
    merged_runs,
    packed_cells,
)
from gpuwin_kernels.cuda.rows import DeviceCells, list_used, mark_spare, unpack
from gpuwin_kernels.cuda.runtime import cuda, empty, kept, kernel, launch, scalar, to_host, together, zeros
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
    keeps the device from being waited for, and no more are listed; None if there is none. `besides`: what is done by
    the way, before `high` is looked at.
    """

    grid: Grid
    codes: int
    panes: tuple[int, int]
    low: int
    high: int | DeviceArray
    room: int | None = None
    besides: tuple[Beside, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceWindows:
    """Result rows, sorted by (window, code), in device memory. Behind the first `count` there may be others, which mean
    nothing; `overflow`: not 0 for columns of which an exact sum left its type, None if that cannot be.
    """

    code: DeviceArray  # int32[n]
    window: DeviceArray  # int64[n]
    columns: tuple[CellArrays, ...]
    count: DeviceArray  # int64[1], on the device; may be more than n: then there was no room for all
    overflow: DeviceArray | None  # int32[columns], on the device
    cells: DeviceArray | None = None  # int64[1], on the device: of the keys that were touched


# -- runs --------------------------------------------------------------------------------------------------------------


@kernel("void(uint64[::1], int64[::1])")
def _mark_heads(packed, before):  # type: ignore[no-untyped-def]
    """before[i + 1]: whether cell i is another one than the cell before it; before[0]: 0."""
    i = cuda.grid(1)
    if i < packed.shape[0]:
        before[i + 1] = 1 if i == 0 or packed[i] != packed[i - 1] else 0
        if i == 0:
            before[0] = 0


@kernel("void(uint64[::1], int64[::1], int64, int64, int64[::1], int32[::1], UniTuple(int64[::1], 2))")
def _different(packed, before, code_bits, first_pane, pane, code, cells):  # type: ignore[no-untyped-def]
    """Pane and code of each different cell, and which `cells` [lo, hi) are equal to it."""
    lo, hi = cells
    i = cuda.grid(1)
    if i < packed.shape[0] and before[i + 1] > before[i]:
        k = before[i]
        x = packed[i]
        pane[k] = first_pane + np.int64(x >> np.uint64(code_bits))
        code[k] = np.int32(x & ((np.uint64(1) << np.uint64(code_bits)) - np.uint64(1)))
        lo[k] = i
        if k > 0:
            hi[k - 1] = i
        if k == lo.shape[0] - 1:
            hi[k] = packed.shape[0]


@dataclass(frozen=True, slots=True)
class Combining:
    """Cells on their way into one run. The host reads `count`, and gives it to `run`."""

    layout: CellLayout
    columns: tuple[CellArrays, ...]  # of the cells as they came
    packed: DeviceArray  # uint64[n], sorted
    place: DeviceArray  # int32[n]: where each of them stands in the cells
    before: DeviceArray  # int64[n + 1]: how many different cells come before each
    code_bits: int
    first: int
    heap: HeapArrays | None

    @property
    def count(self) -> DeviceArray:
        """int64[1], on the device: how many different cells there are."""
        return self.before[len(self.packed) : len(self.packed) + 1]

    def run(self, m: int, most_equal: int | None = None, fits: bool = False) -> DeviceCells:
        """The run, of m cells. `most_equal`: that no cell comes more often; `fits`: that no sum can leave its type,
        so that nothing is waited for. Raises ranges.RangeOverflow.
        """
        n, packed = len(self.packed), self.packed
        with kept():
            pane, code = together((m, np.int64), (m, np.int32))
        if m == n:
            launch(unpack, m, packed, self.code_bits, self.first, pane, code)
            return DeviceCells(pane, code, gather_cells(self.columns, self.place))
        lo, hi = together((m, np.int64), (m, np.int64))
        launch(_different, n, packed, self.before, self.code_bits, self.first, pane, code, (lo, hi))
        columns = ranges.totals(self.layout, self.columns, lo, hi, most_equal, fits, self.heap, self.place)
        return DeviceCells(pane, code, columns)


def combining(
    layout: CellLayout,
    parts: Sequence[DeviceCells],
    codes: int,
    first: int,
    last: int,
    heap: HeapArrays | None = None,
    runs: bool = False,
) -> Combining:
    """Launches what combines the cells of all parts, at least one, in any order, whose panes lie in [first, last].
    `heap`: where cells hold texts. `runs`: each part is sorted, and holds a cell once. Raises TooFarApart.
    """
    code_bits, pane_bits = bits_of(codes, first, last)
    merged = merged_runs(parts, first, code_bits) if runs else None
    if merged is not None:
        packed, place, before, columns = merged
    else:
        packed, place, columns = packed_cells(parts, first, code_bits, by_code=False)
        packed, place = primitives.sort_pairs(packed, place, code_bits + pane_bits)
        before = empty(len(packed) + 1, np.int64)
        launch(_mark_heads, len(packed), packed, before)
    return Combining(layout, columns, packed, place, primitives.running_sum(before), code_bits, first, heap)


def combine(
    layout: CellLayout,
    parts: Sequence[DeviceCells],
    codes: int,
    first: int,
    last: int,
    most_equal: int | None = None,
    heap: HeapArrays | None = None,
) -> DeviceCells:
    """A run of the cells of all parts, in any order, whose panes lie in [first, last]; equal cells are merged.

    `most_equal`: that no cell comes more often, if it is known. Raises ranges.RangeOverflow, TooFarApart.
    """
    begun = combining(layout, parts, codes, first, last, heap)
    return begun.run(int(to_host(begun.count)[0]), most_equal)


def sliced(cells: DeviceCells, lo: int, hi: int) -> DeviceCells:
    """Cells [lo, hi); shares the memory."""
    if lo == 0 and hi == len(cells.pane):
        return cells
    columns = tuple(column.each(lambda v: v[lo:hi]) for column in cells.columns)
    return DeviceCells(cells.pane[lo:hi], cells.code[lo:hi], columns)


# -- windows -----------------------------------------------------------------------------------------------------------


_WINDOWS = "Tuple((int64, float64, int64, int64, boolean))"


@cuda.jit(device=True)
def _opened(packed, i, panes, grid, wanted, high):  # type: ignore[no-untyped-def]
    """(the first window that a cell opens, how many). `panes`: bits and the least one; `grid`: see `_opening`;
    `wanted`: the least window, and how many codes there are.
    """
    pane_bits, least = panes
    base, reciprocal, slide, size, cumulative = grid
    low, codes = wanted
    opened = np.int64(low)
    if packed[i] >> np.uint64(pane_bits) >= np.uint64(codes):
        return opened, np.int64(0)
    mask = (np.uint64(1) << np.uint64(pane_bits)) - np.uint64(1)
    pane = least + np.int64(packed[i] & mask)
    if i > 0 and packed[i - 1] >> np.uint64(pane_bits) == packed[i] >> np.uint64(pane_bits):
        other = least + np.int64(packed[i - 1] & mask)
        if cumulative:
            last = base + pane_after(other, base, size, reciprocal) * size + size - 1
        else:
            last = base + pane_after(other, base * slide, slide, reciprocal)
        opened = max(opened, last + 1)
    if cumulative:
        start = pane
        last = base + pane_after(pane, base, size, reciprocal) * size + size - 1
    else:
        start = base + pane_after(pane - size, base * slide, slide, reciprocal) + 1
        last = base + pane_after(pane, base * slide, slide, reciprocal)
    opened = max(opened, start)
    return opened, max(min(last, high[0]) - opened + 1, np.int64(0))


@kernel(
    f"void(uint64[::1], UniTuple(int64, 2), {_WINDOWS}, UniTuple(int64, 2), int64[::1], int64[::1], int64[::1])",
)
def _count_windows(packed, panes, grid, wanted, high, first, before):  # type: ignore[no-untyped-def]
    """The `first` window that each cell opens, and in before[i + 1] how many; see `_opened`."""
    i = cuda.grid(1)
    if i < packed.shape[0]:
        first[i], before[i + 1] = _opened(packed, i, panes, grid, wanted, high)
    if i == 0:
        before[0] = 0


@kernel(
    f"void(uint64[::1], UniTuple(int64, 2), {_WINDOWS}, UniTuple(int64, 2), int64[::1], UniTuple(int64, 3), "
    "Tuple((int32[::1], uint64[::1])), int64[::1])",
)
def _list_opened(packed, panes, grid, wanted, high, windows, rows, count):  # type: ignore[no-untyped-def]
    """Rows as of `_list_windows`, in any order, of the windows that each cell opens, and their `count`."""
    oldest, _, code_bits = windows
    codes, words = rows
    i = cuda.grid(1)
    if i < packed.shape[0]:
        window, many = _opened(packed, i, panes, grid, wanted, high)
        if many > 0:
            code = packed[i] >> np.uint64(panes[0])
            at = cuda.atomic.add(count, 0, many)
            end = min(at + many, np.int64(codes.shape[0]))
            while at < end:
                codes[at] = np.int32(code)
                words[at] = (np.uint64(window - oldest) << np.uint64(code_bits)) | code
                window += 1
                at += 1


@kernel("void(int64[::1], int64[::1], uint64[::1], int64, UniTuple(int64, 3), int32[::1], uint64[::1])")
def _list_windows(before, first, packed, pane_bits, windows, code, rows):  # type: ignore[no-untyped-def]
    """Rows of the result: the code, and a word that sorts by (window, code). `windows`: the oldest, one behind all, and
    bits of a code.
    """
    oldest, beyond, code_bits = windows
    r = cuda.grid(1)
    if r < code.shape[0]:
        c = np.int32(0)
        window = np.int64(beyond)
        if r < before[first.shape[0]]:
            lo = 0
            hi = first.shape[0]
            while hi - lo > 1:
                middle = (lo + hi) >> 1
                if before[middle] <= r:
                    lo = middle
                else:
                    hi = middle
            c = np.int32(packed[lo] >> np.uint64(pane_bits))
            window = first[lo] + (r - before[lo])
        code[r] = c
        rows[r] = (np.uint64(window - oldest) << np.uint64(code_bits)) | np.uint64(c)


@cuda.jit(device=True)
def _below(packed, x):  # type: ignore[no-untyped-def]
    """Number of the sorted words that are less than x."""
    lo = np.int64(0)
    hi = np.int64(packed.shape[0])
    while lo < hi:
        middle = (lo + hi) >> 1
        if packed[middle] < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@kernel(
    "void(uint64[::1], int32[::1], UniTuple(int64, 2), UniTuple(int64, 3), Tuple((int64, float64, int64, int64, "
    "boolean)), uint64[::1], int64[::1], UniTuple(int64[::1], 2), int32[::1])"
)
def _cells_wanted(rows, code, windows, panes, grid, packed, window, cells, overflow):  # type: ignore[no-untyped-def]
    """The window of each row, and its `cells` [lo, hi) among the `packed`. `windows`: the oldest, and bits of a code;
    `panes`: bits, the least and the most; `grid`: see `_totals_of`. Nothing has overflowed yet.
    """
    oldest, code_bits = windows
    pane_bits, least, most = panes
    base, reciprocal, slide, size, cumulative = grid
    lo, hi = cells
    r = cuda.grid(1)
    if r < code.shape[0]:
        w = oldest + np.int64(rows[r] >> np.uint64(code_bits))
        if cumulative:
            first = base + pane_after(w, base, size, reciprocal) * size
            last = w
        else:
            first = w * slide
            last = first + size - 1
        first = min(max(first, least), most + 1)
        last = min(max(last, least - 1), most)
        key = np.uint64(code[r]) << np.uint64(pane_bits)
        window[r] = w
        lo[r] = _below(packed, key + np.uint64(first - least))
        hi[r] = _below(packed, key + np.uint64(last - least + 1))
    if r == 0:
        for column in range(overflow.shape[0]):
            overflow[column] = 0


@dataclass(frozen=True, slots=True)
class _ByKey:
    """Cells in the order of (code, pane). Bits leave room for one pane more than there is."""

    packed: DeviceArray
    place: DeviceArray
    least: int
    most: int
    code_bits: int
    pane_bits: int


def _by_key(
    runs: Sequence[DeviceCells], codes: int, first: int, last: int, besides: Sequence[Beside] = ()
) -> tuple[_ByKey, tuple[CellArrays, ...]]:
    """Order of the cells of runs, and their columns, one run after the other. `besides`: what is done by the way."""
    code_bits, pane_bits = bits_of(codes, first, last + 2)
    packed, place, columns = packed_cells(runs, first, pane_bits, by_code=True, besides=besides)
    packed, place = primitives.sort_pairs(packed, place, code_bits + pane_bits)
    return _ByKey(packed, place, first, last, code_bits, pane_bits), columns


_Listed = tuple[DeviceArray, DeviceArray, DeviceArray]
"""(code int32[n], (window, code) as one word uint64[n], how many of them are windows int64[1])."""


_FEW_CELLS, _FEW_WINDOWS = 1 << 15, 64
"""Cells, and windows of a cell, that are listed without a scan: a thread lists the windows of its cell, at a place that
one counter gives it. More cells would wait for one another there, and more windows of one for its thread.
"""


def _rows_of(cells: Sequence[DeviceCells], wanted: WindowsWanted) -> tuple[_ByKey, tuple[CellArrays, ...], _Listed]:
    """The cells of runs by key, their columns, and the wanted windows that hold one of them, sorted by (window, code).
    Waits for how many there are, or lists no more than there is `room` for, and empty windows behind the last.
    """
    codes, (least, most), grid = wanted.codes + 1, wanted.panes, wanted.grid
    code_bits, _ = bits_of(codes, least, most + 2)
    oldest, beyond, window_bits = _window_range(grid, least, most, code_bits)
    within = oldest, beyond, code_bits
    each = grid.panes_per_window if grid.cumulative else -(-grid.panes_per_window // grid.panes_per_slide)
    few = sum(len(run.pane) for run in cells) <= _FEW_CELLS and each <= _FEW_WINDOWS
    if few and wanted.room is not None:
        code, rows, found = together((wanted.room, np.int32), (wanted.room, np.uint64), (1, np.int64))
        spare = _spare_rows(code, rows, found, np.uint64((beyond - oldest) << code_bits))
        marks, columns = _by_key(cells, codes, least, most, (*wanted.besides, spare))
        launch(_list_opened, len(marks.packed), *_opening(marks, wanted), within, (code, rows), found)
    else:
        marks, columns = _by_key(cells, codes, least, most, wanted.besides)
        code, rows, found = _counted_rows(marks, wanted, within)
    rows, code = primitives.sort_pairs(rows, code, code_bits + window_bits)
    return marks, columns, (code, rows, found)


def _spare_rows(code: DeviceArray, rows: DeviceArray, count: DeviceArray, spare: np.uint64) -> Beside:
    """Work that makes all rows spare ones, of which none counts."""
    arguments = ("row_code", "int32[::1]"), ("rows", "uint64[::1]"), ("row_count", "int64[::1]"), ("spare", "uint64")
    lines = "if i < rows.shape[0]:", "    row_code[i] = 0", "    rows[i] = spare", "if i == 0:", "    row_count[0] = 0"
    return Beside(arguments, lines, "", (code, rows, count, spare), len(rows))


def _opening(marks: _ByKey, wanted: WindowsWanted) -> tuple[object, ...]:
    """Arguments that say which windows cells open."""
    grid = wanted.grid
    size, slide = grid.panes_per_window, grid.panes_per_slide
    step = size if grid.cumulative else slide
    # Division is of numbers that are not negative: counted from before the first pane of the oldest window.
    base = marks.least // size * size if grid.cumulative else (marks.least - size) // slide - 1
    windows = base, 1.0 / step, slide, size, grid.cumulative
    panes = marks.pane_bits, marks.least
    return marks.packed, panes, windows, (wanted.low, wanted.codes), scalar(wanted.high)


def _counted_rows(marks: _ByKey, wanted: WindowsWanted, within: tuple[int, int, int]) -> _Listed:
    """Rows that are listed after all were counted, by (code, window); `within`: see `_list_windows`."""
    n = len(marks.packed)
    first, before = together((n, np.int64), (n + 1, np.int64))
    launch(_count_windows, n, *_opening(marks, wanted), first, before)
    found = primitives.running_sum(before)[n:]
    room = int(to_host(found)[0]) if wanted.room is None else wanted.room
    code, rows = together((room, np.int32), (room, np.uint64))
    launch(_list_windows, room, before, first, marks.packed, marks.pane_bits, within, code, rows)
    return code, rows, found


def _totals_of(
    layout: CellLayout,
    cells: tuple[CellArrays, ...],
    order: _ByKey,
    grid: Grid,
    listed: _Listed,
    runs: int,
    fits: bool,
    heap: HeapArrays | None,
) -> DeviceWindows:
    """The totals of these rows over the cells. Does not wait."""
    code, rows, count = listed
    n = len(code)
    window, lo, hi, overflow = together((n, np.int64), (n, np.int64), (n, np.int64), (len(layout.columns), np.int32))
    size, slide = grid.panes_per_window, grid.panes_per_slide
    panes = order.pane_bits, order.least, order.most
    windows = order.least // size * size, 1.0 / size, slide, size, grid.cumulative
    oldest, _, _ = _window_range(grid, order.least, order.most, order.code_bits)
    of = (oldest, order.code_bits), panes, windows
    launch(_cells_wanted, n, rows, code, *of, order.packed, window, (lo, hi), overflow)
    columns, _ = ranges.started(layout, cells, lo, hi, size * runs, heap, order.place, overflow)
    known = fits or not ranges.may_overflow(layout) or not n
    return DeviceWindows(code, window, columns, count, None if known else overflow)


def _window_range(grid: Grid, least: int, most: int, code_bits: int) -> tuple[int, int, int]:
    """(a window before all that hold a cell of these panes, or the first; one behind all; bits of a window). Raises
    TooFarApart.
    """
    size = grid.panes_per_window
    oldest = least if grid.cumulative else (least - size) // grid.panes_per_slide
    newest = most // size * size + size if grid.cumulative else most // grid.panes_per_slide + 1
    bits = max(newest - oldest, 1).bit_length()
    if code_bits + bits > MOST_BITS:
        raise TooFarApart(f"windows {oldest} to {newest} do not fit {MOST_BITS} bits")
    return oldest, newest, bits


@kernel("void(uint64[::1], int64, int64, int64, int64[::1], int64, int64[::1])")
def _mark_panes(packed, code_bits, first_pane, low, high, codes, before):  # type: ignore[no-untyped-def]
    """before[i + 1]: whether cell i is another one than the cell before it, in [low, high], and of one of the codes."""
    i = cuda.grid(1)
    if i < packed.shape[0]:
        x = packed[i]
        pane = first_pane + np.int64(x >> np.uint64(code_bits))
        known = x & ((np.uint64(1) << np.uint64(code_bits)) - np.uint64(1)) < np.uint64(codes)
        head = i == 0 or packed[i - 1] != x
        before[i + 1] = 1 if head and known and low <= pane and pane <= high[0] else 0
        if i == 0:
            before[0] = 0


@kernel(
    "void(uint64[::1], int64[::1], int64, UniTuple(int64, 2), int64[::1], int32[::1], UniTuple(int64[::1], 2), "
    "int32[::1])"
)
def _list_panes(packed, before, code_bits, panes, window, code, cells, overflow):  # type: ignore[no-untyped-def]
    """Windows of one pane, and the `cells` [lo, hi) of each. `panes`: the first, and one behind all. Nothing has
    overflowed yet.
    """
    lo, hi = cells
    i = cuda.grid(1)
    n = packed.shape[0]
    if i < n and before[i + 1] > before[i] and before[i] < code.shape[0]:
        k = before[i]
        x = packed[i]
        window[k] = panes[0] + np.int64(x >> np.uint64(code_bits))
        code[k] = np.int32(x & ((np.uint64(1) << np.uint64(code_bits)) - np.uint64(1)))
        end = np.int64(i) + 1
        while end < n and packed[end] == x:  # once in each run at most
            end += 1
        lo[k] = i
        hi[k] = end
    if i >= before[n] and i < code.shape[0]:
        window[i] = panes[1]
        code[i] = 0
        lo[i] = 0
        hi[i] = 0
    if i == 0:
        for column in range(overflow.shape[0]):
            overflow[column] = 0


def _closing_panes(
    layout: CellLayout, runs: Sequence[DeviceCells], wanted: WindowsWanted, fits: bool, heap: HeapArrays | None
) -> DeviceWindows:
    """As `closing`, of windows of one pane: cells in the order of (pane, code) are in that of the result."""
    first, last = wanted.panes
    code_bits, pane_bits = bits_of(wanted.codes + 1, first, last)
    packed, place, columns = packed_cells(runs, first, code_bits, by_code=False, besides=wanted.besides)
    packed, place = primitives.sort_pairs(packed, place, code_bits + pane_bits)
    n, high = len(packed), scalar(wanted.high)
    before = empty(n + 1, np.int64)
    launch(_mark_panes, n, packed, code_bits, first, wanted.low, high, wanted.codes, before)
    found = primitives.running_sum(before)[n:]
    room = int(to_host(found)[0]) if wanted.room is None else wanted.room
    long = room, np.int64
    code, window, lo, hi, overflow = together((room, np.int32), long, long, long, (len(layout.columns), np.int32))
    panes = first, last + 1
    launch(_list_panes, max(n, room), packed, before, code_bits, panes, window, code, (lo, hi), overflow)
    totals, _ = ranges.started(layout, columns, lo, hi, len(runs), heap, place, overflow)
    known = fits or not ranges.may_overflow(layout)
    return DeviceWindows(code, window, totals, found, None if known else overflow)


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
    if wanted.grid.panes_per_window == wanted.grid.panes_per_slide == 1:
        return _closing_panes(layout, runs, wanted, fits, heap)
    order, columns, listed = _rows_of(runs, wanted)
    return _totals_of(layout, columns, order, wanted.grid, listed, len(runs), fits, heap)


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


def used_codes(runs: Sequence[DeviceCells], codes: int) -> DeviceArray:
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
    _, _, listed = _rows_of([replace(markers, columns=())], wanted)
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
    order, columns = _by_key([some], codes + 1, *panes)
    return replace(_totals_of(layout, columns, order, wanted.grid, listed, len(runs), fits, heap), cells=found)


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
    "sliced",
    "touched",
    "used_codes",
]
