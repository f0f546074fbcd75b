"""The cells of a state log, merged as the service merges them, in the Python workers of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from .service.cell_tables import record_batch
from .service.log_segments import LogSegment
from .service.operator_spec import GridSpec, SessionSpec
from .service.plain import values_of
from .service.seeded_partition import SeededPartition
from .service.session_partition import SessionPartition
from .service.sessions_with_pieces import SessionsWithPieces
from .service.states import parse_state_spec
from .service.with_pieces import PartitionWithPieces

#: Columns before those of a cell: the segment, its late watermark, the watermark up to which windows were emitted.
_HEAD: Final = 3
_ROWS: Final = 1 << 14
#: The number of a segment of seeds: windows that Spark had begun. See StateLog.scala.
_SEEDS: Final = -2

Batches = Iterator[pa.RecordBatch]


def merging(request: str, by_segment: bool, windows: bool) -> Callable[[Batches], Batches]:
    """Function that merges the rows of each partition of a log, in their order, for Spark.

    Args:
        request: the specification of the operator, with the segment as its last buffer.
        by_segment: merge the cells of a segment alone, not all.
        windows: merge panes on, into the windows that are open.

    Returns:
        From batches of (segment, late, through, cell) to batches of (keys, start, end, buffers, segment).
    """

    def merge(batches: Batches) -> Batches:
        spec = parse_state_spec(json.loads(request))
        assert isinstance(spec, GridSpec | SessionSpec)
        rows = [batch for batch in batches if batch.num_rows]
        if not rows:
            return
        table = pa.Table.from_batches(rows).combine_chunks()
        rows.clear()
        through = table.column(2)[0].as_py()
        segments = list(_segments(spec, table))
        for together in [[s] for s in segments] if by_segment else [segments]:
            yield from _merged(spec, together, through, windows)

    return merge


def _segments(spec: GridSpec | SessionSpec, table: pa.Table) -> Iterator[LogSegment]:
    numbers = values_of(_array(table, 0))
    late = values_of(_array(table, 1))
    begins = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    for begin, end in zip(begins, [*begins[1:], len(numbers)], strict=True):
        part = table.slice(begin, end - begin)
        columns = [part.column(i).combine_chunks() for i in range(_HEAD, part.num_columns)]
        at = len(columns) - spec.hidden
        columns.insert(at, part.column(0).combine_chunks())
        cells = pa.table([c.cast(t) for c, t in zip(columns, spec.types, strict=True)], schema=spec.cell_schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, spec.cell_schema) as writer:
            writer.write_table(cells)
        first = int(late[begin])
        late_by = None if first == -(1 << 63) else first
        yield LogSegment([sink.getvalue().to_pybytes()], late_by, int(numbers[begin]) == _SEEDS)


def _array(table: pa.Table, at: int) -> pa.Array:
    return table.column(at).combine_chunks()


def _merged(
    spec: GridSpec | SessionSpec, segments: list[LogSegment], through: int | None, windows: bool
) -> Iterator[pa.RecordBatch]:
    if isinstance(spec, SessionSpec):
        of_sessions = SessionsWithPieces if spec.pieces else SessionPartition
        yield from of_sessions.rebuilt(spec, [s.chunks for s in segments], through).open_sessions(_ROWS)
        return
    of_panes = PartitionWithPieces if spec.pieces else SeededPartition
    partition = of_panes.rebuilt(spec, segments, through)
    if windows:
        yield from partition.open_windows(through, _ROWS)
        return
    if isinstance(partition, SeededPartition | PartitionWithPieces):
        yield from partition.seed_windows(_ROWS)
    for cells in partition.cells(_ROWS):
        columns = cells.columns
        start = values_of(columns[spec.keys])
        ends = start + spec.grid.width
        place = (start if spec.length is None else ends - spec.length, ends)
        yield record_batch(spec.window_schema, columns[: spec.keys], place, columns[spec.keys + 1 :])
