"""What rows put into their cells, for each partial column: as the cell of a single row, or as a feed of the kernels
that aggregate a whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from gpuwin.planning.ingest import valid_mask
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import Words, as_int64, rank_words, widened, words_of
from gpuwin_kernels.cpu.rows import RowInput
from gpuwin_kernels.layout import CellArrays, CellColumn

Known = dict[object, RowInput]


class RowColumns(Protocol):
    """The rows of a batch that are to be aggregated, as the inputs of cells see them."""

    @property
    def columns(self) -> Mapping[str, pa.Array]: ...

    @property
    def time(self) -> np.ndarray:
        """int64[n]"""

    @property
    def seq(self) -> np.ndarray:
        """int64[n]: the numbers of arrival in the life of the stream. Few inputs ask for them."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class SomeRows:
    """Rows of several batches."""

    columns: Mapping[str, pa.Array]
    time: np.ndarray
    seq: np.ndarray

    def __len__(self) -> int:
        return len(self.time)


class CellInput(Protocol):
    """How a partial column gets its rows."""

    def cells(self, rows: RowColumns, heap: BytesHeap) -> CellArrays:
        """The cell of each row by itself."""

    def feed(self, rows: RowColumns, known: Known) -> RowInput | None:
        """The same for the kernels that aggregate rows at once; None if they cannot. `known` holds what other columns
        feed on already."""


def merged_valid(rows: RowColumns, reads: tuple[str, ...]) -> np.ndarray | None:
    """bool[n]: rows with a value in every one of these columns; None if that is all of them."""
    valid = None
    for name in reads:
        mask = valid_mask(rows.columns[name])
        if mask is not None:
            valid = mask if valid is None else valid & mask
    return valid


@dataclass(frozen=True)
class ColumnInput:
    """The input of a column of the engine's own aggregates.

    `how`: "one", "present", "sum", "wide sum", "moments", or the name of the merge.
    """

    column: CellColumn
    reads: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    how: str

    def cells(self, rows: RowColumns, heap: BytesHeap) -> CellArrays:
        words = self._words(rows, heap)
        if not self.column.nullable:
            return CellArrays(words, None)
        valid = merged_valid(rows, self.reads)
        return CellArrays(words, np.ones(len(rows), np.uint8) if valid is None else valid.astype(np.uint8))

    def _words(self, rows: RowColumns, heap: BytesHeap) -> Words:
        how = self.how
        if how == "one":
            return (np.ones(len(rows), np.int64),)
        array = rows.columns[self.reads[0]]
        if how == "present":
            mask = valid_mask(array)
            return (np.ones(len(rows), np.int64) if mask is None else mask.astype(np.int64),)
        if how == "sum" and pa.types.is_integer(self.types[0]):
            return (as_int64(array, self.reads[0]),)
        if how == "wide sum":
            if self.types[0] == pa.uint64():
                return np.zeros(len(rows), np.int64), _unsigned(array)
            return widened(words_of(array, None)[0])
        if how == "moments":
            return np.ones(len(rows)), _as_float(array), np.zeros(len(rows))
        if how in ("first", "last"):
            return (rows.time, rows.seq, *words_of(array, heap))
        if how in ("min_by", "max_by"):
            return (rank_words(rows.columns[self.reads[1]]), rows.seq, *words_of(array, heap))
        return words_of(array, heap)

    def feed(self, rows: RowColumns, known: Known) -> RowInput | None:
        if self.column.dtype == "bytes":
            return None
        # Columns that take the same values of the same input are fed by one object, which is then read once.
        key = self._values_of
        if key not in known:
            known[key] = self._feed(rows, key[0])
        return known[key]

    @cached_property
    def _values_of(self) -> tuple[str, tuple[str, ...]]:
        """What is taken of which input columns."""
        how, type_ = self.how, self.types[0] if self.types else None
        if how == "sum":
            how = "sum" if type_ == pa.uint64() else "value"
        elif how == "moments":
            how = "value" if pa.types.is_float64(type_) else "moments"
        elif how not in ("one", "present", "wide sum", "first", "last", "min_by", "max_by"):
            how = "value"
        return how, self.reads

    def _feed(self, rows: RowColumns, values_of: str) -> RowInput:
        if values_of == "one":
            return RowInput(None)
        array = rows.columns[self.reads[0]]
        bitmap, offset = _bitmap(rows, self.reads)
        if values_of == "present":
            return RowInput(None, bitmap, offset)
        if values_of == "sum":
            return RowInput(as_int64(array, self.reads[0]), bitmap, offset)
        if values_of == "wide sum":
            whole = _unsigned(array) if self.types[0] == pa.uint64() else words_of(array, None)[0]
            return RowInput(whole, bitmap, offset)
        if values_of == "moments":
            return RowInput(_as_float(array), bitmap, offset)
        words = words_of(array, None)
        values = words[0]
        if len(words) == 2:
            values = np.stack((words[1].view(np.int64), words[0]), axis=1)
        if values_of in ("first", "last"):
            return RowInput(values, bitmap, offset, rows.time, rows.seq)
        if values_of in ("min_by", "max_by"):
            return RowInput(values, bitmap, offset, rank_words(rows.columns[self.reads[1]]), rows.seq)
        return RowInput(values, bitmap, offset)


def _bitmap(rows: RowColumns, reads: tuple[str, ...]) -> tuple[np.ndarray | None, int]:
    """Arrow validity of rows with a value in all these columns: (uint8 or None, offset in bits)."""
    arrays = [rows.columns[name] for name in reads if rows.columns[name].null_count]
    if not arrays:
        return None, 0
    if len(arrays) == 1:
        return np.frombuffer(arrays[0].buffers()[0], np.uint8), arrays[0].offset
    valid = merged_valid(rows, reads)
    assert valid is not None
    return np.packbits(valid, bitorder="little"), 0


def _unsigned(array: pa.Array) -> np.ndarray:
    return words_of(array, None)[0].view(np.uint64) ^ np.uint64(1 << 63)


def _as_float(array: pa.Array) -> np.ndarray:
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    if array.type == pa.uint64():
        return _unsigned(array).astype(np.float64)
    words = words_of(array, None)[0]
    return words if words.dtype == np.float64 else words.astype(np.float64)
