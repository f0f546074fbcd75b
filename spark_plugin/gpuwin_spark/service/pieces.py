"""Pieces of the buffers that only Spark's code merges, kept as they came, by key, place in time, and arrival.

A piece is such a buffer of the rows of one task and one cell, as Spark's code serialised it, with its length before it.
So pieces that stand one after the other are pieces again, and to merge cells is to join bytes. Spark's code merges the
pieces of a window when it is emitted. Quantile summaries, and counts and sets of values, are pieces, too, but do not
stay: those of a cell become one, as Spark's code would make it, and so do those of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary
from gpuwin.state.rows.row_state import RowState
from gpuwin_kernels.cpu.parallel import each, ranges
from gpuwin_kernels.cpu.slices import expand
from gpuwin_kernels.cpu.summaries import are_single, fold_pieces, pack_pieces
from gpuwin_kernels.cpu.value_counts import fold_counts
from gpuwin_kernels.cpu.value_sets import fold_sets

from .cell_tables import streamed
from .operator_spec import COUNTS, PIECES, SETS, SUMMARIES, CellColumns
from .plain import values_of
from .protocol import ProtocolError

#: Bytes of the pieces that are put together at once. One span may have more.
_AT_ONCE: Final = 1 << 24
#: Cells whose summaries, counts or sets are merged from which a second thread pays.
_FOLDED: Final = 1 << 8


@dataclass(frozen=True)
class Pieces:
    """Pieces of a partition; immutable, but for its key dictionary, which only grows.

    ``rows``: keys by their codes, places in time in microseconds, and one column for each buffer. ``arrived``: how many
    came so far.
    """

    keys: KeyDictionary
    rows: RowState
    arrived: int = 0

    @classmethod
    def empty(cls, key_types: Sequence[pa.DataType], kept: Sequence[str]) -> Pieces:
        """No pieces. ``kept``: the merge of each buffer of a cell."""
        sketches = [] if set(kept) <= {PIECES} else [sketch_of(merge) for merge in kept]
        return cls(KeyDictionary(key_types), RowState.empty([pa.large_binary()] * len(kept), sketches))

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.rows.nbytes + self.keys.nbytes

    def add(self, keys: Sequence[pa.Array], time: np.ndarray, buffers: Sequence[pa.Array]) -> Pieces:
        """These pieces and those of n cells more, in order of arrival. ``time``: int64[n], their places."""
        n = len(time)
        seq = np.arange(self.arrived, self.arrived + n)
        rows = self.rows.add(self.keys.encode(keys, n), time, seq, buffers, cells=_by_place)
        return replace(self, rows=rows, arrived=self.arrived + n)

    def evict(self, before: int) -> Pieces:
        """The pieces whose place is not before this one."""
        return self._with(self.rows.evict(before))

    def without(self, keys: Sequence[pa.Array], start: np.ndarray, end: np.ndarray) -> Pieces:
        """The pieces without those of spans of time, as of `joined`."""
        return self._with(self.rows.evict_windows(self.keys.encode(keys, len(start)), start, end))

    def _with(self, rows: RowState) -> Pieces:
        """Fewer pieces. Keys without one leave the dictionary once they are half of it."""
        keys = self.keys
        if rows.cells < self.rows.cells and len(keys) > FEW_KEYS and len(keys) > rows.cells:
            used = rows.used_codes()
            if 2 * len(used) < len(keys):
                keys, new_code = keys.kept(used)
                rows = rows.recoded(new_code)
        return replace(self, keys=keys, rows=rows)

    def joined(
        self, keys: Sequence[pa.Array], start: np.ndarray, end: np.ndarray
    ) -> Iterator[tuple[slice, list[pa.Array]]]:
        """The pieces of spans of time, ``start[i] <= time < end[i]`` (int64[n]) of key i, joined.

        Those of a span are in order of place and arrival. Yields spans that follow each other, and for each buffer a
        binary array of them. A span without pieces has no bytes.
        """
        found = self.rows.select(self.keys.encode(keys, len(start)), start, end)
        row, _, first = expand(found.lo, found.hi, np.ones(len(found), np.uint8))
        sizes = np.zeros(len(row) + 1, np.int64)
        for column in found.values:
            sizes[1:] += np.diff(_offsets(column))[row]
        through = np.cumsum(sizes)[first]  # bytes before each span
        low = 0
        while low < len(start):
            high = max(low + 1, int(np.searchsorted(through, through[low] + _AT_ONCE, "right")) - 1)
            some = pa.array(row[first[low] : first[high]])
            edges = first[low : high + 1] - first[low]
            kinds = self.rows.sketches or [Joined()] * len(found.values)
            taken = (column.take(some) for column in found.values)
            whole = [kind.merged(pieces, edges).cast(pa.binary()) for kind, pieces in zip(kinds, taken, strict=True)]
            yield slice(low, high), whole
            low = high


def _offsets(column: pa.LargeBinaryArray) -> np.ndarray:
    """Offsets of the values, int64[n + 1]."""
    if not len(column):
        return np.zeros(1, np.int64)
    return np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, 8 * column.offset)


def _by_place(code: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Cells of pieces: those of a key and place share all windows."""
    return time


_Fold = Callable[[np.ndarray, np.ndarray, tuple[int, int], np.ndarray, np.ndarray], int]
"""Of (data, begins, groups, out, sizes): see `fold_pieces`."""


class Joined:
    """Pieces that stay as they came, those of a cell one after the other."""

    def singles(self, values: pa.Array) -> pa.Array:
        return values.cast(pa.large_binary())

    def merged(self, pieces: pa.Array, first: np.ndarray) -> pa.Array:
        return _of_bytes(_offsets(pieces)[first], pieces.buffers()[2] if len(pieces) else None)


class Merged:
    """Pieces of which those of a cell become one."""

    def __init__(self, name: str, fold: _Fold) -> None:
        self._name = name
        self._fold = fold

    def singles(self, values: pa.Array) -> pa.Array:
        pieces = values.cast(pa.large_binary())
        whole = pieces.buffers()[2] if len(pieces) else None
        if are_single(np.frombuffer(b"" if whole is None else whole, np.uint8), _offsets(pieces)):
            return pieces
        return self.merged(pieces, np.arange(len(pieces) + 1))

    def merged(self, pieces: pa.Array, first: np.ndarray) -> pa.Array:
        """Raises ProtocolError for bytes that are no such pieces."""
        offsets = _offsets(pieces)[first]
        whole = pieces.buffers()[2] if len(pieces) else None
        data = np.frombuffer(b"" if whole is None else whole, np.uint8)[offsets[0] :]
        begins = offsets - offsets[0]
        out, sizes = np.empty(int(begins[-1]), np.uint8), np.empty(len(begins) - 1, np.int64)

        def fold(part: tuple[int, int]) -> None:
            if (damaged := self._fold(data, begins, part, out, sizes)) >= 0:
                raise ProtocolError(f"the {self._name} of cell {damaged} are damaged")

        each(fold, ranges(len(sizes), _FOLDED))
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        kept = np.empty(int(offsets[-1]), np.uint8)
        pack_pieces(out, begins, offsets, kept)
        return _of_bytes(offsets, pa.py_buffer(kept))


def sketch_of(merge: str) -> Joined | Merged:
    """Sketch that is kept of the pieces of this merge. Raises ProtocolError for no such merge."""
    if merge == PIECES:
        return Joined()
    if merge == SUMMARIES:
        return Merged("quantile summaries", lambda data, begins, part, *out: fold_pieces(data, begins, *part, *out))
    if merge in COUNTS:
        kind = COUNTS.index(merge)
        return Merged("counts", lambda data, begins, part, *out: fold_counts(data, begins, kind, *part, *out))
    if merge in SETS:
        width = SETS[merge]
        return Merged("sets", lambda data, begins, part, *out: fold_sets(data, begins, width, *part, *out))
    raise ProtocolError(f"there is no merge {merge!r} of pieces")


def _of_bytes(offsets: np.ndarray, data: pa.Buffer | None) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(b"") if data is None else data]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def at_starts(spec: CellColumns, pieces: Pieces, rows: pa.RecordBatch, place: int) -> Iterator[pa.RecordBatch]:
    """Rows of the other buffers, behind ``place`` columns that say where in time, with the pieces at their starts."""
    start = values_of(rows.column(spec.keys))
    for part, buffers in pieces.joined(rows.columns[: spec.keys], start, start + 1):
        yield with_buffers(spec, rows.slice(part.start, part.stop - part.start), buffers, place)


def with_buffers(spec: CellColumns, rows: pa.RecordBatch, pieces: list[pa.Array], place: int) -> pa.RecordBatch:
    """Rows of the other buffers, behind ``place`` columns that say where in time, with the pieces among them."""
    columns = rows.columns
    for at, column in zip(spec.pieces, pieces, strict=True):
        columns.insert(spec.keys + place + at, column)
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])


def without_pieces(spec: CellColumns, table: pa.Table) -> list[bytes]:
    """Chunks of a table of cells without the pieces."""
    left = [i for i in range(table.num_columns) if i not in set(spec.pieces_at)]
    others = table.select(left).rename_columns(spec.without_pieces.cell_schema.names)
    return streamed(others.schema, others.to_batches())
