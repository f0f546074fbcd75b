"""What a state does with its cells on the device: combining runs, finding the windows that are due, and their totals.

A packed cell is one uint64 that sorts as the pair does: (pane - least) << code_bits | code in a run, or
code << pane_bits | (pane - least) where the panes of a key have to stand together. In that second order, a cell opens
the windows that hold it and do not hold the cell of its key before it; so the rows of a result are counted, scanned and
listed, and the cells of each row are one range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuwin_kernels.cuda import primitives, ranges
from gpuwin_kernels.cuda.rows import DeviceCells, unpack
from gpuwin_kernels.cuda.runtime import concat, cuda, empty, kernel, launch, to_host, zeros
from gpuwin_kernels.cuda.scalar import pane_after
from gpuwin_kernels.layout import CellArrays, CellLayout

MOST_BITS = 62


class TooFarApart(ValueError):
    """Panes and keys do not fit one packed word."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Windows in units of panes, as `gpuwin.state.WindowGrid`."""

    panes_per_window: int
    panes_per_slide: int
    cumulative: bool


@dataclass(frozen=True, slots=True)
class DeviceWindows:
    """Result rows, sorted by (window, code), in device memory."""

    code: Any  # int32[n]
    window: Any  # int64[n]
    columns: tuple[CellArrays, ...]


# -- packing and gathering ---------------------------------------------------------------------------------------------


@kernel("void(int64[::1], int32[::1], int64, int64, boolean, uint64[::1], int32[::1])")
def _pack(pane, code, least, bits, by_code, packed, place):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < pane.shape[0]:
        p = np.uint64(pane[i] - least)
        c = np.uint64(code[i])
        packed[i] = (c << np.uint64(bits)) | p if by_code else (p << np.uint64(bits)) | c
        place[i] = i


@kernel(
    "void(int64[::1], int32[::1], int64[::1])",
    "void(uint64[::1], int32[::1], uint64[::1])",
    "void(float64[::1], int32[::1], float64[::1])",
    "void(int32[::1], int32[::1], int32[::1])",
    "void(uint8[::1], int32[::1], uint8[::1])",
)
def _gather(source, place, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < place.shape[0]:
        out[i] = source[place[i]]


def pack(pane: Any, code: Any, least: int, bits: int, by_code: bool) -> tuple[Any, Any]:
    """(packed uint64[n], 0, 1, ... int32[n]) of pairs: code << bits | (pane - least), or with the two the other way
    round.
    """
    n = len(pane)
    packed, place = empty(n, np.uint64), empty(n, np.int32)
    launch(_pack, n, pane, code, least, bits, by_code, packed, place)
    return packed, place


def gather(source: Any, place: Any) -> Any:
    """source[place], for place int32[m]."""
    out = empty(len(place), source.dtype)
    launch(_gather, len(place), source, place, out)
    return out


def gather_cells(columns: tuple[CellArrays, ...], place: Any) -> tuple[CellArrays, ...]:
    """The cells at these places."""
    return tuple(
        CellArrays(tuple(gather(v, place) for v in c.values), None if c.valid is None else gather(c.valid, place))
        for c in columns
    )


def join_cells(parts: Sequence[DeviceCells]) -> DeviceCells:
    """The cells of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    columns = tuple(
        CellArrays(
            tuple(concat(words) for words in zip(*(c.values for c in same), strict=True)),
            None if same[0].valid is None else concat([c.valid for c in same]),
        )
        for same in zip(*(part.columns for part in parts), strict=True)
    )
    return DeviceCells(concat([p.pane for p in parts]), concat([p.code for p in parts]), columns)


def _bits_of(codes: int, first: int, last: int) -> tuple[int, int]:
    """(bits of a code, bits of a pane). Raises TooFarApart."""
    code_bits, pane_bits = max(codes - 1, 1).bit_length(), max(last - first, 1).bit_length()
    if code_bits + pane_bits > MOST_BITS:
        raise TooFarApart(f"{last - first + 1} panes of {codes} keys do not fit {MOST_BITS} bits")
    return code_bits, pane_bits


# -- runs --------------------------------------------------------------------------------------------------------------


@kernel("void(uint64[::1], uint8[::1])")
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


def head_bounds(flags: Any) -> tuple[Any, Any]:
    """(lo, hi) int64[m] of the groups that begin where uint8[n] is 1; the first one does."""
    head = primitives.select(flags)
    lo, hi = empty(len(head), np.int64), empty(len(head), np.int64)
    launch(_bounds, len(head), head, len(flags), lo, hi)
    return lo, hi


def combine(
    layout: CellLayout, cells: DeviceCells, codes: int, first: int, last: int, most_equal: int | None = None
) -> DeviceCells:
    """A run of cells in any order, whose panes lie in [first, last]; equal cells are merged.

    `most_equal`: that no cell comes more often, if it is known. Raises ranges.RangeOverflow, TooFarApart.
    """
    n = len(cells.pane)
    code_bits, pane_bits = _bits_of(codes, first, last)
    packed, place = pack(cells.pane, cells.code, first, code_bits, by_code=False)
    packed, place = primitives.sort_pairs(packed, place, code_bits + pane_bits)
    flags = empty(n, np.uint8)
    launch(_mark_heads, n, packed, flags)
    columns = gather_cells(cells.columns, place)
    lo, hi = head_bounds(flags)
    m = len(lo)
    if m < n:
        columns = ranges.totals(layout, columns, lo, hi, most_equal)
        packed = gather(packed, primitives.select(flags))
    pane, code = empty(m, np.int64), empty(m, np.int32)
    launch(unpack, m, packed, code_bits, first, pane, code)
    return DeviceCells(pane, code, columns)


@kernel("void(int64[::1], int64[::1], int64[::1])")
def _positions(pane, wanted, out):  # type: ignore[no-untyped-def]
    w = cuda.grid(1)
    if w < wanted.shape[0]:
        lo = 0
        hi = pane.shape[0]
        while lo < hi:
            middle = (lo + hi) >> 1
            if pane[middle] < wanted[w]:
                lo = middle + 1
            else:
                hi = middle
        out[w] = lo


def positions(pane: Any, wanted: Any) -> list[int]:
    """For each wanted pane (int64[k], on the device), how many of the sorted panes come before it."""
    out = empty(len(wanted), np.int64)
    launch(_positions, len(wanted), pane, wanted, out)
    return [int(at) for at in to_host(out)]


def sliced(cells: DeviceCells, lo: int, hi: int) -> DeviceCells:
    """Cells [lo, hi); shares the memory."""
    if lo == 0 and hi == len(cells.pane):
        return cells
    columns = tuple(
        CellArrays(tuple(v[lo:hi] for v in c.values), None if c.valid is None else c.valid[lo:hi])
        for c in cells.columns
    )
    return DeviceCells(cells.pane[lo:hi], cells.code[lo:hi], columns)


# -- windows -----------------------------------------------------------------------------------------------------------


@kernel("void(uint64[::1], int64, int64, int64, float64, int64, int64, boolean, int64, int64, int64[::1], int64[::1])")
def _count_windows(packed, pane_bits, least, base, reciprocal, slide, size, cumulative, low, high, first, count):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < packed.shape[0]:
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
        count[i] = max(min(last, high) - opened + 1, 0)


@kernel("void(int64[::1], int64[::1], uint64[::1], int64, int32[::1], int64[::1], int64[::1])")
def _list_windows(offset, first, packed, pane_bits, code, window, opener):  # type: ignore[no-untyped-def]
    r = cuda.grid(1)
    if r < code.shape[0]:
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
        opener[r] = lo


@kernel(
    "void(int32[::1], int64[::1], int64, int64, int64, int64, int64, boolean, int64, float64, uint64[::1], uint64[::1])"
)
def _cells_wanted(code, window, pane_bits, least, most, slide, size, cumulative, base, reciprocal, begin, end):  # type: ignore[no-untyped-def]
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
    code_bits, pane_bits = _bits_of(codes, first, last + 2)
    packed, place = pack(cells.pane, cells.code, first, pane_bits, by_code=True)
    packed, place = primitives.sort_pairs(packed, place, code_bits + pane_bits)
    return _ByKey(packed, place, first, last, code_bits, pane_bits)


def _rows_of(marks: _ByKey, grid: Grid, low: int, high: int) -> tuple[Any, Any]:
    """(code, window) of the windows in [low, high] that hold one of these cells, sorted by (code, window)."""
    n = len(marks.packed)
    size, slide = grid.panes_per_window, grid.panes_per_slide
    unit = size if grid.cumulative else slide
    # Division is of numbers that are not negative: counted from before the first pane of the oldest window.
    base = marks.least // size * size if grid.cumulative else (marks.least - size) // slide - 1
    first, count = empty(n, np.int64), empty(n, np.int64)
    launch(
        _count_windows, n, marks.packed, marks.pane_bits, marks.least, base, 1.0 / unit, slide, size,
        grid.cumulative, low, high, first, count,
    )  # fmt: skip
    offset = primitives.exclusive_sum(count)
    rows = int(to_host(offset[n : n + 1])[0])
    code, window, opener = empty(rows, np.int32), empty(rows, np.int64), empty(rows, np.int64)
    launch(_list_windows, rows, offset, first, marks.packed, marks.pane_bits, code, window, opener)
    return code, window


def _totals_of(
    layout: CellLayout, cells: DeviceCells, order: _ByKey, grid: Grid, code: Any, window: Any, runs: int
) -> DeviceWindows:
    """The totals of these rows over the cells, sorted by (window, code)."""
    rows = len(code)
    begin, end = empty(rows, np.uint64), empty(rows, np.uint64)
    size, slide = grid.panes_per_window, grid.panes_per_slide
    launch(
        _cells_wanted, rows, code, window, order.pane_bits, order.least, order.most, slide, size, grid.cumulative,
        order.least // size * size, 1.0 / size, begin, end,
    )  # fmt: skip
    lo, hi = primitives.search(order.packed, begin), primitives.search(order.packed, end)
    columns = ranges.totals(layout, gather_cells(cells.columns, order.place), lo, hi, size * runs)
    if not rows:
        return DeviceWindows(code, window, columns)
    oldest, newest = _window_range(grid, order.least, order.most)
    bits = order.code_bits
    if bits + max(newest - oldest, 1).bit_length() > MOST_BITS:
        raise TooFarApart(f"windows {oldest} to {newest} do not fit {MOST_BITS} bits")
    packed, place = pack(window, code, oldest, bits, by_code=False)
    _, place = primitives.sort_pairs(packed, place)
    return DeviceWindows(gather(code, place), gather(window, place), gather_cells(columns, place))


def _window_range(grid: Grid, least: int, most: int) -> tuple[int, int]:
    if grid.cumulative:
        size = grid.panes_per_window
        return least, most // size * size + size - 1
    return (least - grid.panes_per_window) // grid.panes_per_slide, most // grid.panes_per_slide + 1


def closing(
    layout: CellLayout, runs: Sequence[DeviceCells], grid: Grid, codes: int, panes: tuple[int, int], low: int, high: int
) -> DeviceWindows:
    """The windows in [low, high] that hold a cell of the runs, whose panes lie in `panes` (first, last), with totals.

    Raises ranges.RangeOverflow, TooFarApart.
    """
    cells = join_cells(runs)
    order = _by_key(cells, codes, *panes)
    code, window = _rows_of(order, grid, low, high)
    return _totals_of(layout, cells, order, grid, code, window, len(runs))


@kernel("void(int32[::1], uint8[::1])")
def _mark_codes(code, marked):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0]:
        marked[code[i]] = 1


@kernel("void(int32[::1], uint8[::1], uint8[::1])")
def _mark_cells(code, marked, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0]:
        flags[i] = marked[code[i]]


def used_codes(runs: Sequence[DeviceCells], codes: int) -> Any:
    """uint8[codes]: 1 for the codes that have a cell."""
    marked = zeros(codes, np.uint8)
    for run in runs:
        launch(_mark_codes, len(run.code), run.code, marked)
    return marked


def touched(
    layout: CellLayout,
    runs: Sequence[DeviceCells],
    markers: DeviceCells,
    grid: Grid,
    codes: int,
    panes: tuple[int, int],
    low: int,
    high: int,
) -> DeviceWindows:
    """As `closing`, of the windows that hold a cell of `markers`, whose panes lie in `panes` as well. Reads all cells
    once, and sorts those of the marked keys.
    """
    order = _by_key(markers, codes, *panes)
    code, window = _rows_of(order, grid, low, high)
    marked = used_codes([markers], codes)
    cells = join_cells(runs)
    flags = empty(len(cells.code), np.uint8)
    launch(_mark_cells, len(cells.code), cells.code, marked, flags)
    place = primitives.select(flags)
    some = DeviceCells(gather(cells.pane, place), gather(cells.code, place), gather_cells(cells.columns, place))
    return _totals_of(layout, some, _by_key(some, codes, *panes), grid, code, window, len(runs))


__all__ = [
    "DeviceWindows",
    "Grid",
    "TooFarApart",
    "closing",
    "combine",
    "gather",
    "gather_cells",
    "head_bounds",
    "join_cells",
    "pack",
    "positions",
    "sliced",
    "touched",
    "used_codes",
]
