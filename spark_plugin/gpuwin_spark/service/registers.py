"""Registers of `approx_count_distinct`, raised by the hashes of rows that a task sends in their place.

A row alone has one register, and its words would be 52 columns of which 51 are zero. So it comes with the hash of its
value, one column, and the words are made of the cells that leave, for as many of them at a time as leave in one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin_kernels.cpu.order import order_by_part
from gpuwin_kernels.cpu.registers import raise_by_hashes, raise_by_words, words_of

from .cell_tables import column_of
from .narrow import narrowed
from .operator_spec import REGISTERS, GridSpec, SessionSpec
from .plain import validity_of, values_of
from .protocol import ProtocolError

_PRECISIONS = range(4, 33)


@dataclass(frozen=True, slots=True)
class HashedFunction:
    """An `approx_count_distinct` of an operator: ``first`` of its ``words`` buffers, of 2**precision registers."""

    first: int
    words: int
    precision: int


def parse_hashed(operator: GridSpec | SessionSpec, pairs: Any) -> tuple[HashedFunction, ...]:
    """The functions of a request: a list of pairs of first buffer and words, which has all buffers of registers.

    Raises:
        ProtocolError: it has not, or is malformed.
    """
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair) for pair in pairs
    ):
        raise ProtocolError("field hashed must be a list of pairs of numbers")
    precisions = {words_of(p): p for p in _PRECISIONS}
    if any(words not in precisions for _, words in pairs):
        raise ProtocolError("there are no registers of so many words")
    named = [at for first, words in pairs for at in range(first, first + words)]
    if named != [m.columns[0] for m in operator.merges if m.merge == REGISTERS]:
        raise ProtocolError("the rows leave registers out, or have some that the operator has not")
    return tuple(HashedFunction(first, words, precisions[words]) for first, words in pairs)


@dataclass(frozen=True)
class Registers:
    """Sources of the registers of one function: the words of cells from before, and the hashes of rows behind them.

    Attributes:
        function: whose they are.
        before: int64[k, words].
        hashes: uint64[n].
        valid: uint8[n], or empty where each row has a value.
    """

    function: HashedFunction
    before: np.ndarray
    hashes: np.ndarray
    valid: np.ndarray

    @classmethod
    def of(cls, function: HashedFunction, before: Sequence[pa.Table], at: int, hashes: pa.Array) -> Registers:
        """Sources out of tables of cells from before, where the first word is column ``at``, and a column of rows."""
        tables = [
            np.stack([values_of(column_of(t, at + word)) for word in range(function.words)], axis=1) for t in before
        ]
        words = np.concatenate(tables) if tables else np.empty((0, function.words), np.int64)
        valid = validity_of(hashes) if hashes.null_count else np.empty(0, np.uint8)
        return cls(function, words, values_of(hashes).view(np.uint64), valid)

    def words(self, first: int, cells: int, cell: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Words of the cells from the number ``first`` on, int64[cells, words].

        Args:
            cell: int64[k + n], the number of the cell of each of the cells from before, and of the rows.
            rows: int64[m], those of them that are in these cells, ascending.
        """
        out = np.zeros((cells, self.function.words), np.int64)
        known = len(self.before)
        split = int(np.searchsorted(rows, known))
        raise_by_words(out, first, cell[:known], self.before, rows[:split])
        precision, later = self.function.precision, rows[split:] - known
        raise_by_hashes(out, first, cell[known:], self.hashes, self.valid, precision, later)
        return out


@dataclass(frozen=True)
class HashedRows:
    """Rows with hashes in the place of registers: the sources of these, and the number of each row's cell, int64[n]."""

    operator: GridSpec | SessionSpec
    registers: tuple[Registers, ...]
    cell: np.ndarray

    @property
    def bytes_of_cell(self) -> int:
        """Bytes of the registers of one cell."""
        return 8 * sum(r.function.words for r in self.registers)

    def reordered(self, order: np.ndarray) -> HashedRows:
        """Rows as these, of cells that are numbered anew: in this order, a permutation int64[m]."""
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        return replace(self, cell=number[self.cell])

    def complete(self, cells: pa.RecordBatch, ranges: Sequence[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Cells with their registers: for each of these ranges, which together are all cells, in ascending order.

        Args:
            cells: all other columns.
            ranges: first cell, and the one behind the last.
        """
        range_of = np.repeat(np.arange(len(ranges)), [end - begin for begin, end in ranges])
        order, edges = order_by_part(range_of[self.cell], len(ranges))
        for at, (begin, end) in enumerate(ranges):
            rows = order[edges[at] : edges[at + 1]]
            words = {r.function.first: r.words(begin, end - begin, self.cell, rows) for r in self.registers}
            yield self._with(cells.slice(begin, end - begin), words)

    def _with(self, cells: pa.RecordBatch, words: dict[int, np.ndarray]) -> pa.RecordBatch:
        """Cells with registers, by the first buffer of their function, in the order of the operator's columns."""
        first = self.operator.buffers_at.start
        made = {
            f"c{first + buffer + i}": pa.array(np.ascontiguousarray(column))
            for buffer, of_cells in words.items()
            for i, column in enumerate(of_cells.T)
        }
        narrow = narrowed(pa.RecordBatch.from_pydict(made), {})
        others = iter(zip(cells.schema, cells.columns, strict=True))
        fields, columns = [], []
        for name in self.operator.cell_schema.names:
            at = narrow.schema.get_field_index(name)
            field, column = (narrow.schema.field(at), narrow.column(at)) if at >= 0 else next(others)
            fields.append(field.with_name(name))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
