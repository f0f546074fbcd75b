"""Pairs of a pane and a key as one uint64 that sorts as the pair does, and cells in the order of a sort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuwin_kernels.cuda.rows import DeviceCells, TooFarApart
from gpuwin_kernels.cuda.runtime import concat, cuda, empty, kernel, launch
from gpuwin_kernels.layout import CellArrays, joined_columns

MOST_BITS = 62


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
    return tuple(column.each(lambda v: gather(v, place)) for column in columns)


def join_cells(parts: Sequence[DeviceCells]) -> DeviceCells:
    """The cells of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    columns = joined_columns([part.columns for part in parts], concat)
    return DeviceCells(concat([p.pane for p in parts]), concat([p.code for p in parts]), columns)


def bits_of(codes: int, first: int, last: int) -> tuple[int, int]:
    """(bits of a code, bits of a pane). Raises TooFarApart."""
    code_bits, pane_bits = max(codes - 1, 1).bit_length(), max(last - first, 1).bit_length()
    if code_bits + pane_bits > MOST_BITS:
        raise TooFarApart(f"{last - first + 1} panes of {codes} keys do not fit {MOST_BITS} bits")
    return code_bits, pane_bits


__all__ = ["MOST_BITS", "TooFarApart", "bits_of", "gather", "gather_cells", "join_cells", "pack"]
