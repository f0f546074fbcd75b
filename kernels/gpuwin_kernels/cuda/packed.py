"""Pairs of a pane and a key as one uint64 that sorts as the pair does, and cells in the order of a sort."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from gpuwin_kernels.cuda import pool
from gpuwin_kernels.cuda.device_array import DeviceArray, Kernel
from gpuwin_kernels.cuda.many import (
    MOST,
    Beside,
    Source,
    alone,
    arrays,
    arrays_of,
    columns_of,
    flat,
    gathered,
    joined,
    kinds,
    made,
)
from gpuwin_kernels.cuda.rows import DeviceCells, TooFarApart
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch, together
from gpuwin_kernels.layout import CellArrays

MOST_BITS = 62
_MOST_ARRAYS = 68
"""Arrays of columns that one launch packs: of 56 bytes each, of at most 4 KiB of arguments."""
_MOST_BESIDE, _MOST_OF_RUNS = 58, 62
"""The same, of a launch that does something besides, and of one that merges runs, with the arrays of these."""
_MOST_MERGED = 8
"""Runs that are merged without a sort: each cell is looked for in all others."""


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


@cache
def pack_kernel(dtypes: tuple[str, ...], parts: int, besides: tuple[Source, ...] = ()) -> Kernel:
    """Of `packed_cells`, of so many parts; `dtypes`: of arrays that are copied; `besides`: what it does besides."""
    lines = ["i = np.int64(i)", "k = i"]
    for part in range(parts):
        lines += [
            f"if k >= 0 and k < pane{part}.shape[0]:",
            f"    p = np.uint64(pane{part}[k] - least)",
            f"    c = np.uint64(code{part}[k])",
            "    packed[at + i] = (c << np.uint64(bits)) | p if by_code else (p << np.uint64(bits)) | c",
            "    place[at + i] = np.int32(at + i)",
            *(f"    o{n}[at + i] = p{part}_{n}[k]" for n in range(len(dtypes))),
            f"k -= pane{part}.shape[0]",
        ]
    arguments = [("at", "int64"), ("least", "int64"), ("bits", "int64"), ("by_code", "boolean")]
    arguments += [("packed", "uint64[::1]"), ("place", "int32[::1]"), *arrays("o", dtypes)]
    for part in range(parts):
        arguments += _of_part(part, dtypes)
    for more, own, _ in besides:
        arguments += more
        lines += own
    return made("pack", arguments, lines, "\n".join(imports for *_, imports in besides), hot=not besides)


def _of_part(part: int, dtypes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Arguments for the cells of a part."""
    return [(f"pane{part}", "int64[::1]"), (f"code{part}", "int32[::1]"), *arrays(f"p{part}_", dtypes)]


def _count(parts: Sequence[DeviceCells]) -> int:
    """Number of cells of all parts. Raises TooManyCells where no int32 numbers them."""
    n = sum(len(cells.pane) for cells in parts)
    if n > pool.MOST_CELLS:
        raise pool.TooManyCells(n)
    return n


def packed_cells(
    parts: Sequence[DeviceCells], least: int, bits: int, by_code: bool, besides: Sequence[Beside] = ()
) -> tuple[DeviceArray, DeviceArray, tuple[CellArrays, ...]]:
    """(packed uint64[n]; 0, 1, ... int32[n]; columns) of the cells of all parts, one part after the other: code << bits
    | (pane - least), or with the two the other way round. The columns of one part are its own. `besides`: what is to be
    done by the way.
    """
    n, like = _count(parts), parts[0].columns
    columns = [flat(cells.columns) for cells in parts]
    at_once = len(parts) > 1 and len(columns[0]) <= MOST
    packed, place, *out = together((n, np.uint64), (n, np.int32), *((n, a.dtype) for a in columns[0] if at_once))
    each = max((_MOST_ARRAYS - len(out)) // (len(out) + 2), 1)
    if len(parts) * (len(out) + 2) + len(out) + arrays_of(besides) > _MOST_BESIDE:
        for beside in besides:
            alone(beside)
        besides = ()
    sources, more = tuple(beside.source for beside in besides), [value for b in besides for value in b.values]
    threads = max((beside.threads for beside in besides), default=0)
    at = 0
    for first in range(0, len(parts), each):
        some = range(first, min(first + each, len(parts)))
        given = [a for k in some for a in (parts[k].pane, parts[k].code, *(columns[k] if at_once else ()))]
        size = sum(len(parts[k].pane) for k in some)
        own = at, least, bits, by_code, packed, place, *out, *given
        launch(pack_kernel(kinds(out), len(some), sources), max(size, threads), *own, *more)
        at += size
    if len(parts) == 1:
        return packed, place, like
    return packed, place, columns_of(like, out if at_once else joined(columns))


# -- runs --------------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def cells_before(panes, codes, pane, code, equal):  # type: ignore[no-untyped-def]
    """Number of the sorted cells that come before one; `equal`: or are equal to it."""
    lo = np.int64(0)
    hi = np.int64(panes.shape[0])
    while lo < hi:
        middle = (lo + hi) >> 1
        p = panes[middle]
        if p < pane or (p == pane and (codes[middle] < code or (equal and codes[middle] == code))):
            lo = middle + 1
        else:
            hi = middle
    return lo


@cache
def merge_kernel(dtypes: tuple[str, ...], parts: int) -> Kernel:
    """Of `merged_runs`, of so many runs; `dtypes`: of arrays that are copied."""
    lines = ["i = np.int64(i)", "k = i", "if i == 0:", "    before[0] = 0"]
    for part in range(parts):
        lines += [
            f"if k >= 0 and k < pane{part}.shape[0]:",
            f"    pane = pane{part}[k]",
            f"    code = code{part}[k]",
            "    to = k",
            "    head = 1",
        ]
        for other in range(parts):
            if other == part:
                continue
            lines += [
                f"    there = cells_before(pane{other}, code{other}, pane, code, {other < part})",
                "    to += there",
            ]
            if other < part:
                equal = f"pane{other}[there - 1] == pane and code{other}[there - 1] == code"
                lines += [f"    if there > 0 and {equal}:", "        head = 0"]
        lines += [
            "    packed[to] = (np.uint64(pane - least) << np.uint64(bits)) | np.uint64(code)",
            "    place[to] = np.int32(i)",
            "    before[to + 1] = head",
            *(f"    o{n}[i] = p{part}_{n}[k]" for n in range(len(dtypes))),
            f"k -= pane{part}.shape[0]",
        ]
    arguments = [("least", "int64"), ("bits", "int64"), ("packed", "uint64[::1]"), ("place", "int32[::1]")]
    arguments += [("before", "int64[::1]"), *arrays("o", dtypes)]
    for part in range(parts):
        arguments += _of_part(part, dtypes)
    return made("merge", arguments, lines, "from gpuwin_kernels.cuda.packed import cells_before")


def merged_runs(
    runs: Sequence[DeviceCells], least: int, bits: int
) -> tuple[DeviceArray, DeviceArray, DeviceArray, tuple[CellArrays, ...]] | None:
    """(packed uint64[n] as of `packed_cells`, sorted; where each of these stands, int32[n]; int64[n + 1]: 0, and
    whether each is another one than the one before it; columns) of the cells of runs, each of which is sorted and holds
    a cell once. A thread finds by binary search how many cells of the others come before its own, so nothing is sorted.
    None if there are more runs or columns than that is good for.
    """
    columns = [flat(cells.columns) for cells in runs]
    arrays_each = len(columns[0])
    if len(runs) > _MOST_MERGED or len(runs) * (arrays_each + 2) + arrays_each + 3 > _MOST_OF_RUNS:
        return None
    n = _count(runs)
    own = (n, np.uint64), (n, np.int32), (n + 1, np.int64)
    packed, place, before, *out = together(*own, *((n, array.dtype) for array in columns[0]))
    given = [a for cells, of in zip(runs, columns, strict=True) for a in (cells.pane, cells.code, *of)]
    launch(merge_kernel(kinds(out), len(runs)), n, least, bits, packed, place, before, *out, *given)
    return packed, place, before, columns_of(runs[0].columns, out)


def gather(source: DeviceArray, place: DeviceArray) -> DeviceArray:
    """source[place], for place int32[m]."""
    out = empty(len(place), source.dtype)
    launch(_gather, len(place), source, place, out)
    return out


def gather_cells(columns: tuple[CellArrays, ...], place: DeviceArray) -> tuple[CellArrays, ...]:
    """The cells at these places."""
    return columns_of(columns, gathered(flat(columns), place))


def join_cells(parts: Sequence[DeviceCells]) -> DeviceCells:
    """The cells of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    pane, code, *arrays = joined([[p.pane, p.code, *flat(p.columns)] for p in parts])
    return DeviceCells(pane, code, columns_of(parts[0].columns, arrays))


def bits_of(codes: int, first: int, last: int) -> tuple[int, int]:
    """(bits of a code, bits of a pane). Raises TooFarApart."""
    code_bits, pane_bits = max(codes - 1, 1).bit_length(), max(last - first, 1).bit_length()
    if code_bits + pane_bits > MOST_BITS:
        raise TooFarApart(f"{last - first + 1} panes of {codes} keys do not fit {MOST_BITS} bits")
    return code_bits, pane_bits


__all__ = ["MOST_BITS", "TooFarApart", "bits_of", "gather", "gather_cells", "join_cells", "merged_runs", "packed_cells"]
