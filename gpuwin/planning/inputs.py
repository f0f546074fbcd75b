"""Inputs of partial columns, which rows put into their cells: as the cell of a single row, or as a feed of the kernels
that aggregate a whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.planning.ingest import valid_mask
from gpuwin.state.buffers import bitmap_of
from gpuwin.state.cells import is_exact_sum
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import Words, as_int64, rank_words, widened, words_of
from gpuwin_kernels.cpu.kept_memory import full
from gpuwin_kernels.cpu.rows import RowInput
from gpuwin_kernels.layout import COMOMENTS, CORRELATION, STATISTICS, CellArrays, CellColumn

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
    """Input of a partial column."""

    def cells(self, rows: RowColumns, heap: BytesHeap) -> CellArrays:
        """The cell of each row by itself."""

    def feed(self, rows: RowColumns, known: Known) -> RowInput | None:
        """Feed of the kernels that aggregate rows at once; None if they cannot. `known` holds what other columns
        feed on already."""

    def sum_limit(self, rows: RowColumns, known: Known) -> int | None:
        """Bound of |sum| over rows, of a column whose sum raises where it leaves its type; 0 for any other. None where
        the cells of rows may raise anything else.
        """


def merged_valid(rows: RowColumns, reads: tuple[str, ...]) -> np.ndarray | None:
    """bool[n]: rows with a value in every one of these columns; None if that is all of them."""
    valid = None
    for name in reads:
        mask = valid_mask(rows.columns[name])
        if mask is not None:
            valid = mask if valid is None else valid & mask
    return valid


@dataclass(frozen=True)
class Take:
    """Part of a row that a partial column takes.

    `words`: the words of the cell of each row by itself. `feed`: the input of the kernels that aggregate a whole batch,
    of the columns named; None where they cannot hold such cells.
    """

    words: Callable[[CellColumn, RowColumns, tuple[str, ...], BytesHeap], Words]
    feed: Callable[[RowColumns, tuple[str, ...]], RowInput] | None = None


@dataclass(frozen=True)
class ColumnInput:
    """The input of a column of the engine's own aggregates: `reads` names the columns that a row must have values in,
    those whose values are taken first."""

    column: CellColumn
    reads: tuple[str, ...]
    take: Take

    def cells(self, rows: RowColumns, heap: BytesHeap) -> CellArrays:
        words = self.take.words(self.column, rows, self.reads, heap)
        if not self.column.nullable:
            return CellArrays(words, None)
        valid = merged_valid(rows, self.reads)
        return CellArrays(words, full(len(rows), 1, np.uint8) if valid is None else valid.astype(np.uint8))

    def feed(self, rows: RowColumns, known: Known) -> RowInput | None:
        if self.take.feed is None or self.column.dtype == "bytes":
            return None
        # Columns that take the same values of the same input are fed by one object, which is then read once.
        key = self.take.feed, self.reads
        if key not in known:
            known[key] = self.take.feed(rows, self.reads)
        return known[key]

    def sum_limit(self, rows: RowColumns, known: Known) -> int | None:
        if not is_exact_sum(self.column):
            return 0
        if self.take is ONES or self.take is TRUES:
            return len(rows)
        feed = self.feed(rows, known)
        if feed is None or feed.values is None:
            return None
        values = feed.values if feed.values.ndim == 1 else feed.values[:, 1]
        most = max(abs(int(values.min())), abs(int(values.max())))
        return (most if feed.values.ndim == 1 else most + 1 << 64) * len(rows)


def _ones(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    valid = merged_valid(rows, reads)
    return (full(len(rows), 1, np.int64) if valid is None else valid.astype(np.int64),)


def _feed_ones(rows: RowColumns, reads: tuple[str, ...]) -> RowInput:
    return RowInput(None, *_bitmap(rows, reads))


def _trues(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    return words_of(pc.fill_null(rows.columns[reads[0]], False), None)


def _feed_trues(rows: RowColumns, reads: tuple[str, ...]) -> RowInput:
    bits = pc.fill_null(rows.columns[reads[0]], False)
    return RowInput(None, np.frombuffer(bits.buffers()[1], np.uint8), bits.offset)


def _value(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    return words_of(rows.columns[reads[0]], heap)


def _feed_value(rows: RowColumns, reads: tuple[str, ...]) -> RowInput:
    return RowInput(_values(rows, reads), *_bitmap(rows, reads))


def _signed(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    return (as_int64(rows.columns[reads[0]], reads[0]),)


def _feed_signed(rows: RowColumns, reads: tuple[str, ...]) -> RowInput:
    return RowInput(as_int64(rows.columns[reads[0]], reads[0]), *_bitmap(rows, reads))


def _wide(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    array = rows.columns[reads[0]]
    if array.type == pa.uint64():
        return np.zeros(len(rows), np.int64), _unsigned(array)
    return widened(words_of(array, None)[0])


def _feed_wide(rows: RowColumns, reads: tuple[str, ...]) -> RowInput:
    array = rows.columns[reads[0]]
    whole = _unsigned(array) if array.type == pa.uint64() else words_of(array, None)[0]
    return RowInput(whole, *_bitmap(rows, reads))


def _bits(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    array = rows.columns[reads[0]]
    return (_unsigned(array).view(np.int64) if array.type == pa.uint64() else words_of(array, None)[0],)


def _sample(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    """A sample of one row: its size, its means, and distances that are all zero."""
    values = [_as_float(rows.columns[name]) for name in reads[: 2 if column.merge in (COMOMENTS, CORRELATION) else 1]]
    distances = [np.zeros(len(rows)) for _ in range(STATISTICS[column.merge] - 1 - len(values))]
    return (np.ones(len(rows)), *values, *distances)


def _feed_float(rows: RowColumns, reads: tuple[str, ...]) -> RowInput:
    return RowInput(_as_float(rows.columns[reads[0]]), *_bitmap(rows, reads))


def _arrived(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    return (rows.time, rows.seq, *words_of(rows.columns[reads[0]], heap))


def _feed_arrived(rows: RowColumns, reads: tuple[str, ...]) -> RowInput:
    return RowInput(_values(rows, reads), *_bitmap(rows, reads), rows.time, rows.seq)


def _ranked(column: CellColumn, rows: RowColumns, reads: tuple[str, ...], heap: BytesHeap) -> Words:
    return (rank_words(rows.columns[reads[1]]), rows.seq, *words_of(rows.columns[reads[0]], heap))


def _feed_ranked(rows: RowColumns, reads: tuple[str, ...]) -> RowInput:
    return RowInput(_values(rows, reads), *_bitmap(rows, reads), rank_words(rows.columns[reads[1]]), rows.seq)


ONES: Final = Take(_ones, _feed_ones)
"""1 for a row with values, 0 for another: what a count adds."""
TRUES: Final = Take(_trues, _feed_trues)
"""1 where a boolean is true, 0 where it is false or null."""
VALUE: Final = Take(_value, _feed_value)
"""The value, in the words of its type."""
SIGNED: Final = Take(_signed, _feed_signed)
"""A uint64 as the int64 that it has to fit."""
WIDE: Final = Take(_wide, _feed_wide)
"""An integer as 128 bits."""
BITS: Final = Take(_bits)
"""The bits of an integer."""
SAMPLE: Final = Take(_sample)
"""A sample of one row, for the merges of statistics."""
FLOAT_MOMENTS: Final = Take(_sample, _feed_value)
"""The same, for moments of float64."""
MOMENTS_OF: Final = Take(_sample, _feed_float)
"""The same, for moments of other numbers."""
ARRIVED: Final = Take(_arrived, _feed_arrived)
"""The value, with its time and number of arrival."""
RANKED: Final = Take(_ranked, _feed_ranked)
"""The value, with the rank of the second column and its number of arrival."""


def _values(rows: RowColumns, reads: tuple[str, ...]) -> np.ndarray:
    """The values of the first column; [n, 2] of (low, high) where they have 128 bits."""
    words = words_of(rows.columns[reads[0]], None)
    return words[0] if len(words) == 1 else np.stack((words[1].view(np.int64), words[0]), axis=1)


def _bitmap(rows: RowColumns, reads: tuple[str, ...]) -> tuple[np.ndarray | None, int]:
    """Arrow validity of rows with a value in all these columns: (uint8 or None, offset in bits)."""
    arrays = [rows.columns[name] for name in reads if rows.columns[name].null_count]
    if not arrays:
        return None, 0
    if len(arrays) == 1:
        return bitmap_of(arrays[0])
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
