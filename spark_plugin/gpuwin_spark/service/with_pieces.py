"""One partition of an operator with buffers that only Spark's code merges: their pieces, beside the other buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.drivers.grid_windows import GridDriver
from gpuwin.vocabulary.durations import INT64_MIN

from .cell_tables import column_of, read_chunks
from .log_segments import Segments
from .operator_spec import GridSpec
from .partition import BatchTimes, Outcome, Partition, StateSize, merged_cells
from .pieces import Pieces, at_starts, with_buffers, without_pieces
from .plain import values_of
from .seeded_partition import SeededPartition

_Others = Partition | SeededPartition


@dataclass(frozen=True)
class PartitionWithPieces:
    """Cells of a partition in two parts; immutable as both are.

    The others are a partition of the same cells without the buffers that only Spark's code merges. It decides what is
    late, which windows are emitted and what is evicted, and each of its windows gets its pieces when it is emitted.

    Attributes:
        spec: the specification of the operator, with all buffers.
        pieces: those of panes, at their starts.
        seeds: those of windows that Spark had begun, at their starts.
    """

    spec: GridSpec
    others: _Others
    pieces: Pieces
    seeds: Pieces

    @classmethod
    def rebuilt(cls, spec: GridSpec, segments: Segments, through: int | None) -> PartitionWithPieces:
        """Partition that a log holds, once the windows that end by ``through`` (microseconds) were evicted."""
        tables = [read_chunks(segment.chunks, spec.cell_schema) for segment in segments]
        pairs = list(zip(segments, tables, strict=True))
        others = [replace(segment, chunks=without_pieces(spec, table)) for segment, table in pairs]
        empty = Pieces.empty(spec.key_types, spec.kept)
        found = cls(spec, SeededPartition.rebuilt(spec.without_pieces, others, through), empty, empty)
        for segment, table in pairs:
            if segment.seeds:
                found = replace(found, seeds=found._added(found.seeds, table, None))
            else:
                found = replace(found, pieces=found._added(found.pieces, table, segment.late))
        return found._evicted(through)

    @property
    def state(self) -> StateSize:
        """The size of the state. A cell counts once, however many pieces it has."""
        others = self.others.state
        return StateSize(others.cells, others.nbytes + self.pieces.nbytes + self.seeds.nbytes)

    @property
    def is_on_device(self) -> bool:
        """Whether the cells, without their pieces, are in the memory of a GPU."""
        return self.others.is_on_device

    def on_device(self) -> PartitionWithPieces:
        """This partition with its cells on CUDA, as far as the device has room; the pieces stay in host memory."""
        return replace(self, others=self.others.on_device())

    def batch(self, chunks: list[bytes], times: BatchTimes, rows: int) -> Outcome[PartitionWithPieces]:
        """Applies one batch; see `Partition.batch`."""
        table = read_chunks(chunks, self.spec.cell_schema)
        outcome = self.others.batch(without_pieces(self.spec, table), times, rows)
        after = replace(self, others=outcome.after, pieces=self._added(self.pieces, table, times.late))
        return Outcome(
            after._evicted(times.evict),
            after._emitted(outcome.windows, self, times.late if self.spec.mode == "append" else None),
            outcome.updated,
            outcome.removed,
            outcome.dropped,
            outcome.first,
        )

    def open_windows(self, through: int | None, rows: int) -> Iterator[pa.RecordBatch]:
        """The windows that end after ``through`` (microseconds): keys, start, end, buffers."""
        return self._emitted(self.others.open_windows(through, rows), self, None)

    def cells(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The cells of the panes, each once: keys, start of the pane, buffers."""
        for cells in self.others.cells(rows):
            yield from at_starts(self.spec, self.pieces, cells, 1)

    def seed_windows(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The seeds: keys, start, end, buffers."""
        if isinstance(self.others, SeededPartition):
            for windows in self.others.seed_windows(rows):
                yield from at_starts(self.spec, self.seeds, windows, 2)

    def _added(self, pieces: Pieces, table: pa.Table, late: int | None) -> Pieces:
        """The pieces and those of a table of cells, without cells all of whose windows are late."""
        spec = self.spec
        start = values_of(column_of(table, spec.keys))
        if not len(start):
            return pieces
        driver = GridDriver(spec.grid, spec.mode, 1)
        gone, _ = driver.late(spec.grid.panes(start), spec.last_closed(late))
        if gone is not None:
            table, start = table.filter(pa.array(~gone)), start[~gone]
        keys = [column_of(table, i) for i in range(spec.keys)]
        return pieces.add(keys, start, [column_of(table, i) for i in spec.pieces_at])

    def _evicted(self, through: int | None) -> PartitionWithPieces:
        """The partition without the pieces that no window needs that ends after ``through``."""
        spec = self.spec
        pane = GridDriver(spec.grid, spec.mode, 1).first_kept(spec.last_closed(through))
        if pane is None or through is None:
            return self
        pieces = self.pieces.evict(spec.grid.starts_of_panes(np.array([pane])).item())
        return replace(self, pieces=pieces, seeds=self.seeds.evict(max(through - spec.size + 1, INT64_MIN)))

    def _emitted(
        self, windows: Iterable[pa.RecordBatch], before: PartitionWithPieces, late: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Windows with their pieces: of the state before the batch where the batch was late for them (see
        `GridDriver.one_watermark`).
        """
        spec = self.spec
        for batch in windows:
            end = values_of(batch.column(spec.keys + 1))
            own = end > (INT64_MIN if late is None else late)
            if own.all():
                yield from self._with_pieces(batch)
            else:
                yield from before._with_pieces(batch.filter(pa.array(~own)))
                yield from self._with_pieces(batch.filter(pa.array(own)))

    def _with_pieces(self, windows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = windows.columns[: self.spec.keys]
        start, end = (values_of(windows.column(self.spec.keys + i)) for i in (0, 1))
        if self.spec.length is not None:
            start = end - self.spec.slide  # of the one pane that the window is
        for part, buffers in self.pieces.joined(keys, start, end):
            some = windows.slice(part.start, part.stop - part.start)
            if self.seeds.rows.cells:
                begun = self.seeds.joined([key[part] for key in keys], start[part], start[part] + 1)
                whole = [pa.concat_arrays(parts) for parts in zip(*(found for _, found in begun), strict=True)]
                pairs = zip(whole, buffers, strict=True)
                buffers = [pc.binary_join_element_wise(seed, panes, b"") for seed, panes in pairs]
            yield with_buffers(self.spec, some, buffers, 2)


def merge_segments_with_pieces(
    spec: GridSpec, segments: Segments, first_pane: int, rows: int
) -> tuple[list[pa.RecordBatch], int, int]:
    """Merges segments of a log into the cells of one, as `merge_segments`: the pieces of a cell are joined."""
    found = PartitionWithPieces.rebuilt(spec, segments, None)
    assert isinstance(found.others, Partition), "segments of seeds are not merged"
    others, count, last = merged_cells(found.others, first_pane, rows)
    return [cells for some in others for cells in at_starts(spec, found.pieces, some, spec.PLACE)], count, last
