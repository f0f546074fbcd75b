"""The map side of an operator: rows of one task become cells, or proto-sessions, parted as the shuffle parts them.

A row comes as the cell that it would be by itself, in Spark's own buffers, so that what merges cells here and above the
shuffle is one thing. With it comes the number of its partition, which is Spark's to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gpuwin.device.choice import Device
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.columns import plain_array
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin_kernels.cpu.order import order_by_part
from gpuwin_kernels.layout import MAX, CellArrays, CellColumn, CellLayout

from .arrivals import InTime
from .buffers import BufferCodec, layout_of
from .cell_tables import column_of, read_chunks, read_rows, record_batch
from .distinct_rows import are_mostly_apart, is_looked_at
from .map_side_on_device import cells_on_device
from .narrow import narrowed
from .operator_spec import GridSpec, SessionSpec
from .overflow import may_overflow
from .plain import values_of
from .protocol import ProtocolError
from .registers import HashedFunction, HashedRows, Registers, parse_hashed
from .units import Units


@dataclass(frozen=True)
class RowsSpec:
    """Columns of the rows that a task sends.

    Attributes:
        operator: whose cells they become.
        places: of each column of a cell, its place in a row, or ``-1 - place`` among the constants, which are the same
            for all rows. Several columns may have one place.
        partitions: of the shuffle; the last column of a row is the number of its partition.
        hashed: functions of which a row has a hash (null: no value) in the place of each of their buffers.
    """

    operator: GridSpec | SessionSpec
    places: tuple[int, ...]
    partitions: int
    hashed: tuple[HashedFunction, ...] = ()

    @classmethod
    def parse(cls, operator: GridSpec | SessionSpec, fields: dict[str, Any]) -> RowsSpec:
        """Reads and checks a request. Raises ProtocolError where it is malformed, or out of bounds."""
        places, partitions = fields.get("places"), fields.get("partitions")
        if not isinstance(places, list) or not all(type(p) is int for p in places) or type(partitions) is not int:
            raise ProtocolError("the columns of the rows are malformed")
        if len(places) != len(operator.types) or not 1 <= partitions < 1 << 31:
            raise ProtocolError("the columns of the rows are out of bounds")
        for used in ({p for p in places if p >= 0}, {-1 - p for p in places if p < 0}):
            if used != set(range(len(used))):
                raise ProtocolError("the columns of the rows leave a place out")
        if len(set(zip(places, operator.types, strict=True))) != len(set(places)):
            raise ProtocolError("columns of one place have several types")
        return cls(operator, tuple(places), partitions, parse_hashed(operator, fields.get("hashed")))

    @cached_property
    def counted(self) -> GridSpec | SessionSpec:
        """The operator without the buffers of hashed functions."""
        return self.operator.without_registers

    @cached_property
    def counted_at(self) -> list[int]:
        """Where its columns are among those of the operator."""
        first = self.operator.buffers_at.start
        hashed = {first + h.first + word for h in self.hashed for word in range(h.words)}
        return [i for i in range(len(self.operator.types)) if i not in hashed]

    def _types(self, sign: int) -> list[pa.DataType]:
        """Types by place in a row, or with a ``sign`` of -1 among the constants."""
        of = dict(zip(self.places, self.operator.types, strict=True))
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
    """Cells of a task: one for each row, behind those that rows of it became before.

    ``single``: whether none came from before, so that each is one row. ``counts``: buffers that are 1 in each cell.
    ``code``: keys of the cells, where these were encoded as the rows came. The columns of the keys are left out then.
    """

    keys: list[pa.Array]
    rest: list[pa.Array]
    code: np.ndarray | None
    partition: np.ndarray
    single: bool
    counts: frozenset[int]
    registers: tuple[Registers, ...]


def cells_of_rows(
    spec: RowsSpec,
    constants: Sequence[bytes],
    held: Sequence[Held],
    rows: Iterable[bytes],
    most: tuple[int, int],
    device: Device = "cpu",
) -> Iterator[Part]:
    """Cells that the rows become, by partition: each once, of sessions those that neither overlap nor meet.

    Args:
        spec: the columns.
        constants: the Arrow stream of the constants; none where there are none.
        held: cells from before.
        rows: Arrow streams of rows. All are taken before the first cell is made; texts are looked up as they come.
        most: cells, and about how many bytes, in one part.
        device: where cells of windows on a grid are made. Sessions are put together on the CPU.

    Raises:
        gpuwin.OverflowError: an integer sum left 64 bits at one of the rows.
    """
    operator = spec.counted
    if spec.hashed:
        device = "cpu"  # where registers are raised
    keys, codec = KeyDictionary(operator.key_types), BufferCodec(operator, BytesHeap())
    at_once = device == "cuda" or all(map(is_looked_at, operator.key_types))
    of = _put_together(spec, constants, held, rows, None if at_once else keys)
    n = len(of.partition)
    if not n:
        return
    if int(of.partition.min()) < 0 or int(of.partition.max()) >= spec.partitions:
        raise ProtocolError("a row is for a partition that the shuffle does not have")
    layout = CellLayout((*layout_of(operator).columns, CellColumn("partition", MAX, "int64")))
    rest, in_time = of.rest, list[InTime]()
    if isinstance(operator, SessionSpec):
        at = len(rest) - operator.hidden
        in_time = [InTime.of(times) for times in rest[at:]]
        rest = [*rest[:at], *(values.arrivals for values in in_time)]
    buffers = codec.decode(rest[operator.PLACE :], None)
    columns = (*buffers, CellArrays((of.partition,), None))
    units = Units(layout, columns, codec.heap, of.single, of.counts)
    times = [values_of(column) for column in of.rest[: operator.PLACE]]
    if of.code is None and isinstance(operator, GridSpec) and not may_overflow(layout, columns):
        pane, whole = operator.grid.panes(times[0]), [*of.keys, *of.rest]
        if not spec.hashed and are_mostly_apart(of.keys, pane):
            yield from _parted(spec, _as_they_are(operator, whole, pane), of.partition, most)
            return
        made_there = cells_on_device(operator, layout, whole, pane, of.partition) if device == "cuda" else None
        if made_there is not None:
            yield from (part._replace(on_cuda=True) for part in _parted(spec, *made_there, most))
            return
    if isinstance(operator, SessionSpec):
        made = units.by_session(keys.encode(of.keys, n) if of.code is None else of.code, *times)
    else:
        made = units.by_pane(operator.grid, keys, keys.coded(of.keys, n) if of.code is None else of.code, *times)
    *found, numbers = made.columns
    encoded = codec.encode(tuple(found), hidden=True)
    for at, values in enumerate(in_time, len(encoded) - len(in_time)):
        encoded[at] = values.times_of(encoded[at])
    batch = record_batch(operator.cell_schema, keys.take(made.code), made.place, encoded)
    hashed = HashedRows(spec.operator, of.registers, made.cells_of_rows()) if spec.hashed else None
    yield from _parted(spec, batch, numbers.values[0], most, hashed)


def _as_they_are(operator: GridSpec, columns: Sequence[pa.Array], pane: np.ndarray) -> pa.RecordBatch:
    """Each row as a cell."""
    start = pa.array(operator.grid.starts_of_panes(pane))
    arrays = [*columns[: operator.keys], start, *columns[operator.keys + 1 :]]
    return pa.RecordBatch.from_arrays(arrays, schema=operator.cell_schema)


def _put_together(
    spec: RowsSpec, constants: Sequence[bytes], held: Sequence[Held], rows: Iterable[bytes], keys: KeyDictionary | None
) -> _Rows:
    """Cells from before, then the rows, in the columns of a cell.

    Args:
        keys: where the keys are encoded, chunk by chunk: while the next one is on its way.
    """
    operator = spec.operator
    known = read_chunks(list(constants), spec.constant_schema)
    if known.num_rows != int(bool(spec.constant_schema.names)):
        raise ProtocolError("the constants of the rows did not come")
    before = [(h.partition, read_chunks(h.chunks, operator.cell_schema)) for h in held]

    def column_in(some: Sequence[pa.Table], place: int) -> pa.Array:
        """A column of rows; ``place``: see RowsSpec."""
        if place < 0:
            return pa.repeat(known.column(-1 - place)[0], sum(table.num_rows for table in some))
        columns = [column_of(table, place) for table in some]
        return columns[0] if len(columns) == 1 else pa.concat_arrays([plain_array(column) for column in columns])

    tables, codes = [spec.row_schema.empty_table()], []
    if keys is not None:
        codes += [keys.encode(t.columns[: operator.keys], t.num_rows) for _, t in before]
    for chunk in rows:
        tables.append(read_rows(chunk, spec.row_schema))
        if keys is not None:
            columns = [column_in(tables[-1:], place) for place in spec.places[: operator.keys]]
            codes.append(keys.encode(columns, tables[-1].num_rows))
    apart = 0 if keys is not None else operator.keys
    whole: dict[int, pa.Array] = {}  # by place, which several columns may have: its chunks are copied into one once
    columns, counts, first = [], set(), operator.buffers_at.start

    def of_rows(place: int) -> pa.Array:
        if place not in whole:
            whole[place] = column_in(tables, place)
        return whole[place]

    for at, i in enumerate(spec.counted_at):
        if at < operator.keys - apart:
            continue
        place = spec.places[i]
        pieces = [piece for _, t in before for piece in t.column(i).chunks]
        columns.append(pa.concat_arrays([*pieces, of_rows(place)]) if pieces else of_rows(place))
        if place < 0 and i in operator.buffers_at:
            value = known.column(-1 - place)[0]
            if pa.types.is_int64(value.type) and value.as_py() == 1:
                counts.add(i - first)
    registers = [
        Registers.of(h, [t for _, t in before], first + h.first, of_rows(spec.places[first + h.first]))
        for h in spec.hashed
    ]
    partition = values_of(column_in(tables, len(spec.row_schema) - 1))
    numbers = [np.full(t.num_rows, p, np.int64) for p, t in before]
    return _Rows(
        columns[:apart],
        columns[apart:],
        None if keys is None else np.concatenate([np.empty(0, np.int32), *codes]),
        np.concatenate([*numbers, partition]) if before else partition,
        not before,
        frozenset(() if before else counts),
        tuple(registers),
    )


def _parted(
    spec: RowsSpec,
    cells: pa.RecordBatch,
    partition: np.ndarray,
    most: tuple[int, int],
    hashed: HashedRows | None = None,
) -> Iterator[Part]:
    """The cells, by partition; within one in their order. ``hashed``: what completes them by their registers."""
    edges = np.array([0, cells.num_rows])
    newest = values_of(cells.column(spec.operator.keys + spec.operator.PLACE - 1))
    cells = narrowed(cells, spec.operator.steps, spec.partitions)
    if spec.partitions > 1:
        order, edges = order_by_part(partition, spec.partitions)
        cells, newest = cells.take(pa.array(order)), newest[order]
        hashed = None if hashed is None else hashed.reordered(order)
    width = max(1, -(-cells.nbytes // cells.num_rows)) + (0 if hashed is None else hashed.bytes_of_cell)
    most_cells = max(1, min(most[0], most[1] // width))
    numbers, ranges = [], []
    for number, (begin, end) in enumerate(itertools.pairwise(edges.tolist())):
        for at in range(begin, end, most_cells):
            numbers.append(number)
            ranges.append((at, min(at + most_cells, end)))
    parts = (cells.slice(at, upto - at) for at, upto in ranges) if hashed is None else hashed.complete(cells, ranges)
    for number, (at, upto), part in zip(numbers, ranges, parts, strict=True):
        yield Part(number, part, int(newest[at:upto].max()))
