"""What one row puts into its cell: for each partial column, an array per word with the cell of a single row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.ingest import valid_mask
from gpuwin.physical import Words, as_int64, rank_words, widened, words_of
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.layout import CellArrays, CellColumn


@dataclass(frozen=True)
class RowColumns:
    """The rows of a batch that are to be aggregated, as the inputs of cells see them."""

    columns: Mapping[str, pa.Array]
    time: np.ndarray  # int64[n]
    seq: np.ndarray  # int64[n]: the number of arrival in the life of the stream

    def __len__(self) -> int:
        return len(self.time)


CellInput = Callable[[RowColumns, BytesHeap | None], CellArrays]


def merged_valid(rows: RowColumns, reads: tuple[str, ...]) -> np.ndarray | None:
    """bool[n]: rows with a value in every one of these columns; None if that is all of them."""
    valid = None
    for name in reads:
        mask = valid_mask(rows.columns[name])
        if mask is not None:
            valid = mask if valid is None else valid & mask
    return valid


def cell_input(column: CellColumn, reads: tuple[str, ...], types: tuple[pa.DataType, ...], how: str) -> CellInput:
    """The input of a partial column. `how`: "one", "present", "sum", "wide sum", "moments", or the name of
    the merge."""

    def values(rows: RowColumns, heap: BytesHeap | None) -> Words:
        if how == "one":
            return (np.ones(len(rows), np.int64),)
        array = rows.columns[reads[0]]
        if how == "present":
            mask = valid_mask(array)
            return (np.ones(len(rows), np.int64) if mask is None else mask.astype(np.int64),)
        if how == "sum" and pa.types.is_integer(types[0]):
            return (as_int64(array, reads[0]),)
        if how == "wide sum":
            if types[0] == pa.uint64():
                unsigned = words_of(array, None)[0].view(np.uint64) ^ np.uint64(1 << 63)
                return np.zeros(len(rows), np.int64), unsigned
            return widened(words_of(array, None)[0])
        if how == "moments":
            return np.ones(len(rows)), _as_float(array), np.zeros(len(rows))
        if how in ("first", "last"):
            return (rows.time, rows.seq, *words_of(array, heap))
        if how in ("min_by", "max_by"):
            return (rank_words(rows.columns[reads[1]]), rows.seq, *words_of(array, heap))
        return words_of(array, heap)

    def cells(rows: RowColumns, heap: BytesHeap | None) -> CellArrays:
        words = values(rows, heap)
        if not column.nullable:
            return CellArrays(words, None)
        valid = merged_valid(rows, reads)
        ones = np.ones(len(rows), np.uint8) if valid is None else valid.astype(np.uint8)
        return CellArrays(words, ones)

    return cells


def _as_float(array: pa.Array) -> np.ndarray:
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    words = words_of(array, None)[0]
    if array.type == pa.uint64():
        return (words.view(np.uint64) ^ np.uint64(1 << 63)).astype(np.float64)
    return words if words.dtype == np.float64 else words.astype(np.float64)
