"""One partition of one operator: how a batch of cells changes its state, and which windows it emits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from gpuwin.drivers.grid_windows import Frontier, GridDriver
from gpuwin.state import PaneState, WindowBatch
from gpuwin.state.cells import is_exact_sum, take_cells
from gpuwin.state.panes.runs import CellRun
from gpuwin.state.stores import PaneStore
from gpuwin.vocabulary.durations import INT64_MIN

from .buffers import BufferCodec, layout_of
from .cell_tables import column_of, read_chunks, record_batch
from .log_segments import Segments
from .operator_spec import GridSpec
from .placement import again_on_host, moved_to_device
from .plain import values_of


@dataclass(frozen=True)
class BatchTimes:
    """Watermarks and time of a batch, in microseconds.

    ``late``: windows that end at or before it take no more cells. ``evict``: such windows are emitted (append) and
    evicted. ``through``: the ``evict`` of the last committed batch. ``now``: the time of the batch. ``data``: whether
    it has rows in any partition.
    """

    late: int | None
    evict: int | None
    through: int | None
    now: int = 0
    data: bool = True


@dataclass(frozen=True, slots=True)
class StateSize:
    """Size of the state of a partition: its cells, and the bytes that they take."""

    cells: int
    nbytes: int


_State = TypeVar("_State", covariant=True)


@dataclass(frozen=True)
class Outcome(Generic[_State]):
    """Outcome of a batch: the state after it, the windows to emit, and the counts that Spark reports.

    ``first``: the first pane (or end of a session) in microseconds that the state still needs; what lies before it has
    no place in the log. ``logged``: what the log is to keep of the batch, where that is not what came. ``replaces``:
    that stands for all that the log held.
    """

    after: _State
    windows: Iterator[pa.RecordBatch]
    updated: int
    removed: int
    dropped: int
    first: int | None
    logged: Iterable[pa.RecordBatch | bytes] = ()
    logged_cells: int = 0
    logged_last: int = -(1 << 63)
    replaces: bool = False


@dataclass(frozen=True)
class Partition:
    """Cells of one partition, as Spark's buffers and back; immutable, but for its key dictionary and its heap of bytes,
    which only grow.

    ``arrived``: how many cells came so far, which numbers them where the order of arrival matters.
    """

    spec: GridSpec
    state: PaneStore
    arrived: int = 0

    @classmethod
    def empty(cls, spec: GridSpec) -> Partition:
        """The state before the first batch."""
        return cls(spec, PaneState.empty(layout_of(spec), spec.key_types))

    def on_device(self) -> Partition:
        """This partition with its cells, keys and texts on CUDA; or as it is, where the device has no room."""
        from gpuwin.state.device.keys import DeviceKeyDictionary
        from gpuwin.state.device.panes import DevicePaneState

        def move() -> Partition:
            host = self.state.on_host()
            return replace(self, state=DevicePaneState.of(replace(host, keys=DeviceKeyDictionary.of(host.keys))))

        return moved_to_device(self, move, lambda: f"a state of {self.state.nbytes} bytes stays")

    def on_host(self) -> Partition:
        """This partition with its cells and keys in host memory."""
        return self if isinstance(self.state, PaneState) else replace(self, state=self.state.off_device())

    @property
    def is_on_device(self) -> bool:
        """Whether its cells are in the memory of a GPU."""
        return not isinstance(self.state, PaneState)

    def with_segment(self, chunks: list[bytes], late: int | None) -> Partition:
        """The state with one more segment of the log."""
        driver = GridDriver(self.spec.grid, self.spec.mode, 1)
        run, came, _ = self._run_of(driver, chunks, late)
        return replace(self, state=self.state.add(run), arrived=self.arrived + came)

    def without_evicted(self, through: int | None) -> Partition:
        """The state without the panes that no window needs that ends after ``through``."""
        driver = GridDriver(self.spec.grid, self.spec.mode, 1)
        return replace(self, state=driver.evicted(self.state, self.spec.last_closed(through)))

    def batch(self, chunks: list[bytes], times: BatchTimes, rows: int, *, as_cells: bool = False) -> Outcome[Partition]:
        """Applies one batch.

        Args:
            chunks: Arrow streams of cells.
            times: the watermarks of the batch.
            rows: the most windows in one emitted record batch.
            as_cells: emit windows in the columns of a cell: with the hidden ones, and without the end.

        Raises:
            gpuwin.OverflowError: an integer sum left 64 bits; the state is as it was.
        """
        return again_on_host(
            self,
            lambda p: p._batch(chunks, times, rows, as_cells),
            lambda: f"a state of {self.state.nbytes} bytes moves",
        )

    def _batch(self, chunks: list[bytes], times: BatchTimes, rows: int, as_cells: bool) -> Outcome[Partition]:
        driver = GridDriver(self.spec.grid, self.spec.mode, rows, one_watermark=True)
        run, came, dropped = self._run_of(driver, chunks, times.late)
        after = self.state.add(run)
        closed = self.spec.last_closed(times.evict)
        at = Frontier(self.spec.last_closed(times.late), self.spec.last_closed(times.through), closed, closed)
        self._refuse_overflow(after, run, at)
        after, windows = driver.emitted(self.state, after, run, at)
        kept = driver.evicted(after, closed).with_smaller_heap()
        first = driver.first_kept(closed)
        return Outcome(
            replace(self, state=kept, arrived=self.arrived + came),
            (self._table(w, as_cells) for w in windows),
            updated=len(run),
            removed=after.cells - kept.cells,
            dropped=dropped,
            first=None if first is None else self.spec.grid.starts_of_panes(np.array([first])).item(),
        )

    def cells(self, rows: int, hidden: bool = False) -> Iterator[pa.RecordBatch]:
        """The cells of the state, each once, as its log keeps them: keys, start of the pane, buffers and, with
        ``hidden``, the hidden columns. At most ``rows`` in a batch.
        """
        spec, state = self.spec, self.state.on_host().compacted()
        codec = BufferCodec(spec, state.heap)
        count = len(spec.types) - (0 if hidden else spec.hidden)
        schema = pa.schema([spec.cell_schema.field(i) for i in range(count)])
        for run in state.runs:
            start = spec.grid.starts_of_panes(run.pane)
            for at in range(0, len(start), rows):
                part = slice(at, at + rows)
                buffers = codec.encode(take_cells(run.columns, part), hidden)
                yield record_batch(schema, state.keys.take(run.code[part]), (start[part],), buffers)

    def open_windows(self, through: int | None, rows: int, *, as_cells: bool = False) -> Iterator[pa.RecordBatch]:
        """The windows that end after ``through`` (microseconds) and have cells: keys, start, end, buffers.
        ``as_cells``: see `batch`.
        """
        closed = self.spec.last_closed(through)
        first = None if closed == INT64_MIN else closed + 1
        return (self._table(w, as_cells) for w in self.state.closing_chunks(self.spec.grid, first, None, rows))

    def _refuse_overflow(self, after: PaneStore, run: CellRun, at: Frontier) -> None:
        """Raises if the batch takes the sum of a window out of its type, though no pane's sum leaves it.

        Spark raises when the row arrives; emission, which would notice too, may be many batches later. The windows of
        the batch are added up only where the magnitudes that were seen allow an overflow at all.
        """
        grid = self.spec.grid
        if self.spec.mode == "update" or grid.is_panes:
            return  # the windows of this batch are emitted now, or are one pane each
        for i, column in enumerate(after.layout.columns):
            possible = grid.panes_per_window * sum(b[i] for b in after.bounds)
            if column.dtype == "int64" and is_exact_sum(column) and possible >= 1 << 63:
                after.touched(grid, run, None if at.late is None or at.late == INT64_MIN else at.late + 1)
                return

    def _table(self, windows: WindowBatch, as_cells: bool) -> pa.RecordBatch:
        spec, keys = self.spec, self.state.keys.take(windows.code)
        texts = self.state.heap.with_texts_of(self.state.layout, windows.columns)
        buffers = BufferCodec(spec, texts).encode(tuple(windows.columns), as_cells)
        if as_cells:
            return record_batch(spec.cell_schema, keys, (spec.grid.starts(windows.window),), buffers)
        return record_batch(spec.window_schema, keys, spec.bounds(windows.window), buffers)

    def _run_of(self, driver: GridDriver, chunks: list[bytes], late: int | None) -> tuple[CellRun, int, int]:
        """The cells of some chunks as one run, how many they were, and how many (cell, window) pairs came too late for
        their window.
        """
        spec = self.spec
        table = read_chunks(chunks, spec.cell_schema)
        pane = spec.grid.panes(values_of(column_of(table, spec.keys)))
        gone, dropped = driver.late(pane, self.spec.last_closed(late))
        if gone is not None:
            table, pane = table.filter(pa.array(~gone)), pane[~gone]
        codec = BufferCodec(spec, self.state.heap)
        columns = codec.decode([column_of(table, i) for i in spec.buffers_at], self.arrived)
        keys = [column_of(table, i) for i in range(spec.keys)]
        return self.state.run_of(pane, keys, tuple(columns)), len(pane), dropped


def merge_segments(
    spec: GridSpec, segments: Segments, first_pane: int, rows: int
) -> tuple[list[pa.RecordBatch], int, int]:
    """Merges segments of a log into the cells of one: (cells, how many, start of the newest pane in microseconds).

    Cells of panes that start before ``first_pane`` (microseconds) are left out.
    """
    partition = Partition.empty(spec)
    for segment in segments:
        partition = partition.with_segment(segment.chunks, segment.late)
    return merged_cells(partition, first_pane, rows)


def merged_cells(partition: Partition, first_pane: int, rows: int) -> tuple[list[pa.RecordBatch], int, int]:
    """The cells of a partition, as of `merge_segments`."""
    spec, grid = partition.spec, partition.spec.grid
    kept = partition.state.on_host().evict(-((grid.origin - first_pane) // grid.width))
    out = list(replace(partition, state=kept).cells(rows, hidden=True))
    last = max((int(values_of(b.column(spec.keys)).max()) for b in out), default=-(1 << 63))
    return out, sum(b.num_rows for b in out), last
