"""The map side of an operator: rows of one task become cells, or proto-sessions, parted as the shuffle parts them.

A row comes as the cell that it would be by itself, in Spark's own buffers, so that what merges cells here and above the
shuffle is one thing. With it comes the number of its partition, which is Spark's to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gpuwin.device.choice import Device
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin_kernels.cpu.order import order_by_part
from gpuwin_kernels.layout import MAX, CellArrays, CellColumn, CellLayout

from .apart import are_mostly_apart
from .buffers import BufferCodec, layout_of
from .cell_tables import column_of, read_chunks, record_batch
from .map_side_on_device import cells_on_device
from .narrow import narrowed
from .operator_spec import OperatorSpec, SessionSpec
from .overflow import may_overflow
from .plain import values_of
from .protocol import ProtocolError
from .units import Units


@dataclass(frozen=True)
class RowsSpec:
    """Columns of the rows that a task sends.

    Attributes:
        cells: the cells that they become.
        places: of each column of a cell, its place in a row, or ``-1 - place`` among the constants, which are the same
            for all rows. Several columns may have one place.
        partitions: of the shuffle; the last column of a row is the number of its partition.
    """

    cells: OperatorSpec | SessionSpec
    places: tuple[int, ...]
    partitions: int

    @classmethod
    def parse(cls, cells: OperatorSpec | SessionSpec, fields: dict[str, Any]) -> RowsSpec:
        """Reads and checks a request. Raises ProtocolError where it is malformed, or out of bounds."""
        places, partitions = fields.get("places"), fields.get("partitions")
        if not isinstance(places, list) or not all(type(p) is int for p in places) or type(partitions) is not int:
            raise ProtocolError("the columns of the rows are malformed")
        if len(places) != len(cells.types) or not 1 <= partitions < 1 << 31:
            raise ProtocolError("the columns of the rows are out of bounds")
        for used in ({p for p in places if p >= 0}, {-1 - p for p in places if p < 0}):
            if used != set(range(len(used))):
                raise ProtocolError("the columns of the rows leave a place out")
        if len(set(zip(places, cells.types, strict=True))) != len(set(places)):
            raise ProtocolError("columns of one place have several types")
        return cls(cells, tuple(places), partitions)

    def _types(self, sign: int) -> list[pa.DataType]:
        """Types by place in a row, or with a ``sign`` of -1 among the constants."""
        of = dict(zip(self.places, self.cells.types, strict=True))
        return [of[p] for p in sorted(of, key=abs) if (p >= 0) == (sign > 0)]

    @cached_property
    def row_schema(self) -> pa.Schema:
        """Schema of a table of rows."""
        return pa.schema([pa.field(f"c{i}", t) for i, t in enumerate([*self._types(1), pa.int32()])])

    @cached_property
    def constant_schema(self) -> pa.Schema:
        """Schema of the table of one row that holds the constants."""
        return pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(self._types(-1))])


class Held(NamedTuple):
    """Cells that rows of this task became before, and which those that come now are added to."""

    partition: int
    chunks: list[bytes]


class Part(NamedTuple):
    """Cells for one partition of the shuffle; ``last``: the start of the newest pane, or the latest end of a session,
    microseconds; ``on_cuda``: whether a GPU made them.
    """

    partition: int
    cells: pa.RecordBatch
    last: int
    on_cuda: bool = False


@dataclass(frozen=True)
class _Rows:
    """Cells of rows, and whether each is one row; ``counts``: buffers that are 1 in each of them."""

    columns: list[pa.Array]
    partition: np.ndarray
    single: bool
    counts: frozenset[int]


def cells_of_rows(
    spec: RowsSpec,
    constants: Sequence[bytes],
    held: Sequence[Held],
    rows: Sequence[bytes],
    most: tuple[int, int],
    device: Device = "cpu",
) -> Iterator[Part]:
    """Cells that the rows become, by partition: each once, of sessions those that neither overlap nor meet.

    Args:
        spec: the columns.
        constants: the Arrow stream of the constants; none where there are none.
        held: cells from before.
        rows: Arrow streams of rows.
        most: cells, and about how many bytes, in one part.
        device: where cells of windows on a grid are made. Sessions are put together on the CPU.

    Raises:
        gpuwin.OverflowError: an integer sum left 64 bits at one of the rows.
    """
    of = _put_together(spec, constants, held, list(rows))
    if not len(of.partition):
        return
    if int(of.partition.min()) < 0 or int(of.partition.max()) >= spec.partitions:
        raise ProtocolError("a row is for a partition that the shuffle does not have")
    cells, n = spec.cells, len(of.partition)
    keys, codec = KeyDictionary(cells.key_types), BufferCodec(cells, BytesHeap())
    layout = CellLayout((*layout_of(cells).columns, CellColumn("partition", MAX, "int64")))
    buffers = codec.decode([of.columns[i] for i in cells.buffers_at], None)
    columns = (*buffers, CellArrays((of.partition,), None))
    units = Units(layout, columns, codec.heap, of.single, of.counts)
    times = [values_of(of.columns[i]) for i in range(cells.keys, cells.keys + cells.PLACE)]
    if isinstance(cells, OperatorSpec) and not may_overflow(layout, columns):
        pane = cells.grid.panes(times[0])
        if are_mostly_apart(of.columns[: cells.keys], pane):
            yield from _parted(spec, _as_they_are(cells, of.columns, pane), of.partition, most)
            return
        made_there = cells_on_device(cells, layout, of.columns, pane, of.partition) if device == "cuda" else None
        if made_there is not None:
            yield from (part._replace(on_cuda=True) for part in _parted(spec, *made_there, most))
            return
    if isinstance(cells, SessionSpec):
        made = units.by_session(keys.encode(of.columns[: cells.keys], n), *times)
    else:
        made = units.by_pane(cells.grid, keys, keys.coded(of.columns[: cells.keys], n), *times)
    *found, numbers = made.columns
    encoded = codec.encode(tuple(found), hidden=True)
    batch = record_batch(cells.cell_schema, keys.take(made.code), made.place, encoded)
    yield from _parted(spec, batch, numbers.values[0], most)


def _as_they_are(cells: OperatorSpec, columns: Sequence[pa.Array], pane: np.ndarray) -> pa.RecordBatch:
    """Each row as a cell."""
    start = pa.array(cells.grid.starts_of_panes(pane))
    arrays = [*columns[: cells.keys], start, *columns[cells.keys + 1 :]]
    return pa.RecordBatch.from_arrays(arrays, schema=cells.cell_schema)


def _put_together(spec: RowsSpec, constants: Sequence[bytes], held: Sequence[Held], rows: list[bytes]) -> _Rows:
    """Cells from before, then the rows, in the columns of a cell."""
    table = read_chunks(rows, spec.row_schema)
    known = read_chunks(list(constants), spec.constant_schema)
    if known.num_rows != int(bool(spec.constant_schema.names)):
        raise ProtocolError("the constants of the rows did not come")
    columns, counts = [], set()
    for i, place in enumerate(spec.places):
        if place >= 0:
            columns.append(column_of(table, place))
            continue
        value = known.column(-1 - place)[0]
        columns.append(pa.repeat(value, table.num_rows))
        if i in spec.cells.buffers_at and pa.types.is_int64(value.type) and value.as_py() == 1:
            counts.add(i - spec.cells.buffers_at.start)
    partition = values_of(column_of(table, len(spec.row_schema) - 1))
    before = [(h.partition, read_chunks(h.chunks, spec.cells.cell_schema)) for h in held]
    if not before:
        return _Rows(columns, partition, True, frozenset(counts))
    columns = [
        pa.concat_arrays([*(chunk for _, t in before for chunk in t.column(i).chunks), column])
        for i, column in enumerate(columns)
    ]
    numbers = [np.full(t.num_rows, p, np.int64) for p, t in before]
    return _Rows(columns, np.concatenate([*numbers, partition]), False, frozenset())


def _parted(spec: RowsSpec, cells: pa.RecordBatch, partition: np.ndarray, most: tuple[int, int]) -> Iterator[Part]:
    """The cells, by partition; within one in their order."""
    edges = np.array([0, cells.num_rows])
    newest = values_of(cells.column(spec.cells.keys + spec.cells.PLACE - 1))
    cells = narrowed(cells, spec.cells.units, spec.partitions)
    if spec.partitions > 1:
        order, edges = order_by_part(partition, spec.partitions)
        cells, newest = cells.take(pa.array(order)), newest[order]
    most_cells = max(1, min(most[0], most[1] * cells.num_rows // max(1, cells.nbytes)))
    for number, (begin, end) in enumerate(itertools.pairwise(edges.tolist())):
        for at in range(begin, end, most_cells):
            upto = min(at + most_cells, end)
            yield Part(number, cells.slice(at, upto - at), int(newest[at:upto].max()))
