"""One partition of an operator of sliding windows that took its state over from Spark: panes, and seeds.

Spark keeps the buffers of each open window. From them the panes of what had come cannot be told, so they stay as they
are, as seeds: a window is its seed, merged with the panes of what came since. A seed dies with its window, and after
the last one the partition is one of panes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from gpuwin.state.cells import is_exact_sum
from gpuwin.vocabulary.durations import INT64_MIN

from .cell_tables import streamed
from .log_segments import Segments
from .operator_spec import GridSpec
from .partition import BatchTimes, Outcome, Partition, StateSize
from .plain import values_of


@dataclass(frozen=True)
class SeededPartition:
    """Panes of a partition, and as its seeds the windows that Spark had begun; immutable as `Partition` is.

    The seeds are a partition of tumbling windows as long as a slide, one for each window of the operator, with the same
    start. The windows that a batch emits of the panes are added to it like a batch of cells. What comes out is emitted;
    the partition that they were added to is dropped, and the seeds stay as they are.
    """

    panes: Partition
    seeds: Partition

    @classmethod
    def rebuilt(cls, spec: GridSpec, segments: Segments, through: int | None) -> Partition | SeededPartition:
        """Partition that a log holds, once the windows that end by ``through`` (microseconds) were evicted: of panes
        alone where no seed is left.
        """
        panes, seeds = Partition.empty(spec), Partition.empty(replace(spec, size=spec.slide))
        for segment in segments:
            if segment.seeds:
                seeds = seeds.with_segment(segment.chunks, None)
            else:
                panes = panes.with_segment(segment.chunks, segment.late)
        found = cls(panes.without_evicted(through), seeds)
        return found._with_seeds(seeds.without_evicted(found._moved(through)))

    @property
    def spec(self) -> GridSpec:
        """The specification of the operator."""
        return self.panes.spec

    @property
    def state(self) -> StateSize:
        """The size of the state."""
        parts = (self.panes.state, self.seeds.state)
        return StateSize(sum(p.cells for p in parts), sum(p.nbytes for p in parts))

    @property
    def is_on_device(self) -> bool:
        """Whether its panes are in the memory of a GPU."""
        return self.panes.is_on_device

    def on_device(self) -> SeededPartition:
        """This partition with its cells and keys on CUDA, as far as the device has room."""
        return SeededPartition(self.panes.on_device(), self.seeds.on_device())

    def batch(self, chunks: list[bytes], times: BatchTimes, rows: int) -> Outcome[Partition | SeededPartition]:
        """Applies one batch; see `Partition.batch`."""
        outcome = self.panes.batch(chunks, times, rows, as_cells=True)
        self._refuse_overflow(chunks, times, rows, outcome.after)
        kept = self.seeds.without_evicted(self._moved(times.evict))
        of_panes: Outcome[Partition | SeededPartition] = outcome
        return replace(
            of_panes,
            after=replace(self, panes=outcome.after)._with_seeds(kept),
            windows=self._merged(self.seeds, outcome.windows, times, rows),
            removed=outcome.removed + self.seeds.state.cells - kept.state.cells,
        )

    def open_windows(self, through: int | None, rows: int) -> Iterator[pa.RecordBatch]:
        """The windows that end after ``through`` (microseconds): keys, start, end, buffers."""
        panes = self.panes.open_windows(through, rows, as_cells=True)
        together = self.seeds.with_segment(streamed(self.spec.cell_schema, panes), None)
        return map(self._with_ends, together.open_windows(self._moved(through), rows))

    def cells(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The cells of the panes, each once: keys, start of the pane, buffers."""
        return self.panes.cells(rows)

    def seed_windows(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The seeds: keys, start, end, buffers."""
        return map(self._with_ends, self.seeds.open_windows(None, rows))

    def _with_seeds(self, seeds: Partition) -> Partition | SeededPartition:
        return replace(self, seeds=seeds) if seeds.state.cells else self.panes

    def _merged(
        self, seeds: Partition, windows: Iterable[pa.RecordBatch], times: BatchTimes, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Windows that the batch emits, made of those that it emits of the panes."""
        came = streamed(self.spec.cell_schema, windows)
        # Late cells were filtered on their way into the panes.
        own = replace(times, late=None, evict=self._moved(times.evict), through=self._moved(times.through))
        yield from map(self._with_ends, seeds.batch(came, own, rows).windows)

    def _moved(self, watermark: int | None) -> int | None:
        """The watermark that closes the tumbling window of a seed when this one closes its window."""
        return None if watermark is None else max(watermark - (self.spec.size - self.spec.slide), INT64_MIN)

    def _with_ends(self, windows: pa.RecordBatch) -> pa.RecordBatch:
        """Tumbling windows as those of the operator."""
        at = self.spec.keys + 1
        ends = values_of(windows.column(at - 1)) + self.spec.size
        return windows.set_column(at, windows.schema.field(at), pa.array(ends))

    def _refuse_overflow(self, chunks: list[bytes], times: BatchTimes, rows: int, after: Partition) -> None:
        """Raises if the batch takes the sum of a window out of its type, as `Partition` does for panes alone: in other
        modes than update the windows of the batch are not all emitted now.
        """
        if self.spec.mode == "update" or not self._overflow_is_possible(after):
            return
        touching = replace(self.spec, mode="update")
        windows = replace(self.panes, spec=touching).batch(chunks, times, rows, as_cells=True).windows
        seeds = replace(self.seeds, spec=replace(touching, size=touching.slide))
        for _ in self._merged(seeds, windows, times, rows):
            pass

    def _overflow_is_possible(self, after: Partition) -> bool:
        grid = self.spec.grid
        for i, column in enumerate(after.state.layout.columns):
            if column.dtype == "int64" and is_exact_sum(column):
                of_panes = grid.panes_per_window * sum(b[i] for b in after.state.bounds)
                if of_panes + sum(b[i] for b in self.seeds.state.bounds) >= 1 << 63:
                    return True
        return False
