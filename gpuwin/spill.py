"""State larger than its limit goes to disk: whole runs, as Arrow files that are mapped back into memory.

A run never changes, so it can be written once and read in place; the system brings in the pages that a window needs,
and drops them again. A run that is
merged with a newer one comes back into memory as part of the result. Files are unlinked as soon as they are mapped:
they live as long as the
state that refers to them, and nothing is left behind if the process dies.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.errors import LimitExceeded
from gpuwin.state.panes import PaneState
from gpuwin.state.row_runs import RowRun
from gpuwin.state.rows import RowState
from gpuwin.state.runs import Run
from gpuwin_kernels.layout import CellArrays, CellLayout

_LEAST = 1 << 16  # bytes: smaller runs are not worth a file


def is_on_disk(array: np.ndarray) -> bool:
    """Whether an array is (a slice of) a mapped file."""
    base: object = array
    while base is not None:
        if isinstance(base, mmap.mmap):
            return True
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return False


def _mapped(batch: pa.RecordBatch, folder: str) -> tuple[pa.RecordBatch, mmap.mmap, int]:
    """The batch as it lies in a file in `folder`, the map of that file, and the address where it begins."""
    try:
        handle, path = tempfile.mkstemp(".arrow", "gpuwin-", folder)
    except OSError as error:
        raise LimitExceeded(f"the state has to be spilled, and {folder!r} cannot be written: {error}") from error
    try:
        with os.fdopen(handle, "w+b") as file:
            with pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
            file.flush()
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise LimitExceeded(f"the state has to be spilled, and {folder!r} cannot hold it: {error}") from error
    finally:
        os.unlink(path)
    buffer = pa.py_buffer(whole)
    return pa.ipc.open_file(pa.BufferReader(buffer)).get_batch(0), whole, buffer.address


class _Places:
    """Columns of a mapped batch as numpy arrays over the map (writable, as every other array of the state)."""

    def __init__(self, columns: list[np.ndarray | pa.Array], folder: str) -> None:
        arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns]
        batch = pa.record_batch(arrays, names=[str(k) for k in range(len(arrays))])
        self.batch, self.whole, self.address = _mapped(batch, folder)
        self.next = 0

    def array(self) -> pa.Array:
        self.next += 1
        return self.batch.column(self.next - 1)

    def numbers(self, like: np.ndarray) -> np.ndarray:
        data = self.array().buffers()[1]
        return np.frombuffer(self.whole, like.dtype, len(like), data.address - self.address)


def spilled_run(run: Run, layout: CellLayout, folder: str) -> Run:
    """The same cells, on disk."""
    columns: list[np.ndarray | pa.Array] = [run.pane, run.code]
    for part in run.columns:
        columns += [*part.values] if part.valid is None else [*part.values, part.valid]
    places = _Places(columns, folder)
    pane, code = places.numbers(run.pane), places.numbers(run.code)
    cells = []
    for part in run.columns:
        values = tuple(places.numbers(v) for v in part.values)
        cells.append(CellArrays(values, None if part.valid is None else places.numbers(part.valid)))
    return Run(pane, code, tuple(cells))


def spilled_rows(run: RowRun, folder: str) -> RowRun:
    """The same rows, on disk."""
    places = _Places([run.code, run.time, run.seq, *run.values], folder)
    code, time, seq = places.numbers(run.code), places.numbers(run.time), places.numbers(run.seq)
    return replace(run, code=code, time=time, seq=seq, values=tuple(places.array() for _ in run.values))


def bytes_on_disk(panes: PaneState, rows: RowState | None) -> int:
    """How much of a state's size is not in memory."""
    cells = sum(run.nbytes for run in panes.runs if is_on_disk(run.pane))
    raw = 0 if rows is None else sum(run.nbytes for run in rows.runs if is_on_disk(run.code))
    return cells + raw


def spilled(panes: PaneState, rows: RowState | None, excess: int, folder: str) -> tuple[PaneState, RowState | None]:
    """With the largest runs on disk, until `excess` bytes have left memory, or nothing is left to write.

    Raises LimitExceeded if the folder cannot be written.
    """
    cells, raw = list(panes.runs), [] if rows is None else list(rows.runs)
    places = [(run.nbytes, 0, k) for k, run in enumerate(cells) if not is_on_disk(run.pane)]
    places += [(run.nbytes, 1, k) for k, run in enumerate(raw) if not is_on_disk(run.code)]
    for size, which, k in sorted(places, reverse=True):
        if excess <= 0 or size < _LEAST:
            break
        if which:
            raw[k] = spilled_rows(raw[k], folder)
        else:
            cells[k] = spilled_run(cells[k], panes.layout, folder)
        excess -= size
    return replace(panes, runs=tuple(cells)), None if rows is None else replace(rows, runs=tuple(raw))
