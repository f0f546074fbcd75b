"""One partition of one operator: how a batch of cells changes its state, and which windows it emits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from gpuwin.state import PaneState, Run, WindowBatch
from gpuwin.state.cells import is_exact_sum
from gpuwin_kernels.layout import CellArrays

from .buffers import BufferCodec, layout_of
from .cell_tables import column_of, read_chunks, record_batch
from .operator_spec import OperatorSpec
from .placement import again_on_host, moved_to_device
from .plain import values_of


@dataclass(frozen=True)
class Watermarks:
    """In microseconds. ``late``: windows that end at or before it take no more cells. ``evict``: such windows are
    emitted (append) and forgotten. ``through``: the ``evict`` of the last committed batch. ``now``: the time of the
    batch. ``data``: whether it has rows in any partition."""

    late: int | None
    evict: int | None
    through: int | None
    now: int = 0
    data: bool = True


_State = TypeVar("_State", covariant=True)


@dataclass(frozen=True)
class Outcome(Generic[_State]):
    """What a batch does: the state after it, the windows to emit, and the counts that Spark reports.

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
    """The state of one partition; immutable, but for its key dictionary and its heap of bytes, which only grow.

    ``arrived``: how many cells came so far, which numbers them where the order of arrival matters.
    """

    spec: OperatorSpec
    state: PaneState
    arrived: int = 0

    @classmethod
    def empty(cls, spec: OperatorSpec) -> Partition:
        """The state before the first batch."""
        return cls(spec, PaneState.empty(layout_of(spec), spec.key_types))

    def on_device(self) -> Partition:
        """The same partition with its cells, keys and texts on CUDA; or this one, where the device has no room."""
        from gpuwin.state.device.keys import DeviceKeyDictionary
        from gpuwin.state.device.panes import DevicePaneState

        def move() -> Partition:
            keys = DeviceKeyDictionary.of(self.state.keys)
            return replace(self, state=cast(PaneState, DevicePaneState.of(replace(self.state, keys=keys))))

        return moved_to_device(self, move, lambda: f"a state of {self.state.nbytes} bytes stays")

    def on_host(self) -> Partition:
        """The same partition with its cells and keys in host memory."""
        from gpuwin.state.device.panes import DevicePaneState

        state: PaneState | DevicePaneState = self.state
        return replace(self, state=state.off_device()) if isinstance(state, DevicePaneState) else self

    @property
    def is_on_device(self) -> bool:
        """Whether its cells are in the memory of a GPU."""
        state: object = self.state  # a DevicePaneState, which is not imported where there is no GPU
        return not isinstance(state, PaneState)

    def with_segment(self, chunks: list[bytes], late: int | None) -> Partition:
        """The state with one more segment of the log."""
        run, came, _ = self._run_of(chunks, late)
        return replace(self, state=self.state.add(run), arrived=self.arrived + came)

    def without_evicted(self, through: int | None) -> Partition:
        """The state without the panes that no window needs that ends after ``through``."""
        if through is None:
            return self
        return replace(self, state=self.state.evict(self.spec.first_pane(self.spec.first_open(through))))

    def batch(self, chunks: list[bytes], marks: Watermarks, rows: int) -> Outcome[Partition]:
        """Applies one batch.

        Args:
            chunks: Arrow streams of cells.
            marks: the watermarks of the batch.
            rows: the most windows in one emitted record batch.

        Raises:
            gpuwin.OverflowError: an integer sum left 64 bits; the state is as it was.
        """
        return again_on_host(
            self, lambda p: p._batch(chunks, marks, rows), lambda: f"a state of {self.state.nbytes} bytes moves"
        )

    def _batch(self, chunks: list[bytes], marks: Watermarks, rows: int) -> Outcome[Partition]:
        spec = self.spec
        run, came, dropped = self._run_of(chunks, marks.late)
        after = self.state.add(run)
        self._refuse_overflow(after, run, marks.late)
        kept, first_pane = after, None
        if marks.evict is not None:
            pane = spec.first_pane(spec.first_open(marks.evict))
            kept, first_pane = after.evict(pane), spec.origin + pane * spec.pane
        windows = self._windows(self.state, after, run, marks, rows)
        removed = after.cells - kept.cells
        following = replace(self, state=kept, arrived=self.arrived + came)
        return Outcome(following, windows, len(run), removed, dropped, first_pane)

    def _refuse_overflow(self, after: PaneState, run: Run, late: int | None) -> None:
        """Raises if the batch takes the sum of a window out of its type, though no pane's sum leaves it.

        Spark raises when the row arrives; emission, which would notice too, may be many batches later. The windows of
        the batch are added up only where the magnitudes that were seen allow an overflow at all.
        """
        spec = self.spec
        if spec.mode == "update" or spec.size == spec.slide:
            return  # the windows of this batch are emitted now, or are one pane each
        for i, column in enumerate(after.layout.columns):
            possible = spec.grid.panes_per_window * sum(b[i] for b in after.bounds)
            if column.dtype == "int64" and is_exact_sum(column) and possible >= 1 << 63:
                after.touched(spec.grid, run, None if late is None else spec.first_open(late))
                return

    def _windows(
        self, before: PaneState, after: PaneState, run: Run, marks: Watermarks, rows: int
    ) -> Iterator[pa.RecordBatch]:
        spec, grid = self.spec, self.spec.grid
        late = None if marks.late is None else spec.first_open(marks.late)
        if spec.mode == "complete":
            yield from self._tables(after.closing_chunks(grid, None, None, rows))
        elif spec.mode == "update":
            yield from self._tables(iter([after.touched(grid, run, late)]), rows)
        elif marks.evict is not None:
            first = None if marks.through is None else spec.first_open(marks.through)
            last = spec.first_open(marks.evict) - 1
            # Windows that were open until now, but to which this batch's cells come too late: as they were before it.
            # There are such windows only where Spark filters and evicts by one watermark (allowMultiple=false).
            if late is not None and (first is None or late > first):
                yield from self._tables(before.closing_chunks(grid, first, min(late - 1, last), rows))
                first = late
            if first is None or first <= last:
                yield from self._tables(after.closing_chunks(grid, first, last, rows))

    def _tables(self, batches: Iterator[WindowBatch], rows: int | None = None) -> Iterator[pa.RecordBatch]:
        for b in batches:
            for at in range(0, len(b.code), rows or max(len(b.code), 1)):
                part = slice(at, at + (rows or len(b.code)))
                yield self._table(b.code[part], b.window[part], [_sliced(c, part) for c in b.columns])

    def _table(self, code: np.ndarray, window: np.ndarray, columns: list[CellArrays]) -> pa.RecordBatch:
        spec = self.spec
        start = spec.origin + window * spec.slide
        keys = self.state.keys.take(code)
        texts = self.state.heap.with_texts_of(self.state.layout, columns)
        buffers = BufferCodec(spec, texts).encode(tuple(columns))
        return record_batch(spec.window_schema, keys, (start, start + spec.size), buffers)

    def _run_of(self, chunks: list[bytes], late: int | None) -> tuple[Run, int, int]:
        """The cells of some chunks as one run, how many they were, and how many (cell, window) pairs came too late for
        their window.
        """
        spec = self.spec
        table = read_chunks(chunks, spec.cell_schema)
        pane = (values_of(column_of(table, spec.keys)) - spec.origin) // spec.pane
        dropped = 0
        if late is not None and len(pane):
            grid, first_open = spec.grid, spec.first_open(late)
            newest = pane // grid.panes_per_slide
            oldest = -((grid.panes_per_window - 1 - pane) // grid.panes_per_slide)
            closed = np.clip(np.minimum(newest, first_open - 1) - oldest + 1, 0, None)
            dropped = int(closed.sum())
            live = newest >= first_open
            if not live.all():
                table, pane = table.filter(pa.array(live)), pane[live]
        codec = BufferCodec(spec, self.state.heap)
        columns = codec.decode([column_of(table, i) for i in spec.buffers_at], self.arrived)
        keys = [column_of(table, i) for i in range(spec.keys)]
        return self.state.run_of(pane, keys, tuple(columns)), len(pane), dropped


def merge_segments(
    spec: OperatorSpec, segments: list[tuple[list[bytes], int | None]], first_pane: int, rows: int
) -> tuple[list[pa.RecordBatch], int, int]:
    """Merges segments of a log into the cells of one: (cells, how many, start of the newest pane in microseconds).

    Cells of panes that start before ``first_pane`` (microseconds) are left out.
    """
    partition = Partition.empty(spec)
    for chunks, late in segments:
        partition = partition.with_segment(chunks, late)
    state = partition.state.evict(-((spec.origin - first_pane) // spec.pane)).compacted()
    codec = BufferCodec(spec, state.heap)
    out: list[pa.RecordBatch] = []
    last = -(1 << 63)
    for run in state.runs:
        start = spec.origin + run.pane * spec.pane
        last = max(last, int(start.max(initial=last)))
        for at in range(0, len(start), rows):
            part = slice(at, at + rows)
            keys = state.keys.take(run.code[part])
            buffers = codec.encode(tuple(_sliced(c, part) for c in run.columns), hidden=True)
            out.append(record_batch(spec.cell_schema, keys, (start[part],), buffers))
    return out, state.cells, last


def _sliced(column: CellArrays, part: slice) -> CellArrays:
    return CellArrays(tuple(v[part] for v in column.values), None if column.valid is None else column.valid[part])
