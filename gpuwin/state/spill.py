"""Spilling of a state that exceeds its limit to disk: whole runs, as Arrow files that are mapped back into memory.

A run never changes, so it can be written once and read in place; the system brings in the pages that a window needs,
and drops them again. A run that is merged with a newer one comes back into memory as part of the result. Files are
unlinked as soon as they are mapped: they live as long as the state that refers to them, and nothing is left behind if
the process dies.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from gpuwin.errors import LimitExceeded
from gpuwin.state.cells import Columns, cell_arrays
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import Run
from gpuwin.state.rows.row_runs import RowRun
from gpuwin.state.rows.row_state import RowState
from gpuwin.state.rows.waiting_rows import WaitingRows
from gpuwin.state.sessions.session_state import SessionState
from gpuwin.state.sessions.tiers import SessionBatch, Tier
from gpuwin.state.stores import PaneStore, SessionStore

_LEAST = 1 << 16  # bytes: smaller runs are not worth a file


def worth_a_file(size: int) -> bool:
    """Whether so many bytes are worth a file."""
    return size >= _LEAST


def is_on_disk(array: np.ndarray) -> bool:
    """Whether an array is (a slice of) a mapped file."""
    base: object = array
    while base is not None:
        if isinstance(base, mmap.mmap):
            return True
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return False


def in_memory(arrays: Iterable[np.ndarray]) -> int:
    """Bytes of those of the arrays that are not on disk."""
    return sum(array.nbytes for array in arrays if not is_on_disk(array))


def _mapped(batch: pa.RecordBatch, folder: str) -> tuple[pa.RecordBatch, mmap.mmap, int]:
    """The batch in a file in `folder`, the map of that file, and the address where it begins."""
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


class OnDisk:
    """Arrays of one length in one file, taken back in the order in which they were given: Arrow arrays as such, numpy
    arrays over the map (writable, as every other array of the state).

    Raises LimitExceeded if the folder cannot be written.
    """

    def __init__(self, columns: Sequence[np.ndarray | pa.Array], folder: str) -> None:
        arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns]
        batch = pa.record_batch(arrays, names=[str(k) for k in range(len(arrays))])
        self.batch, self.whole, self.address = _mapped(batch, folder)
        self.dtypes = [None if isinstance(column, pa.Array) else column.dtype for column in columns]
        self.next = 0

    def array(self) -> pa.Array:
        self.next += 1
        return self.batch.column(self.next - 1)

    def numbers(self) -> np.ndarray:
        dtype = self.dtypes[self.next]
        data = self.array().buffers()[1]
        return np.frombuffer(self.whole, dtype, self.batch.num_rows, data.address - self.address)

    def cells(self, like: Columns) -> Columns:
        return tuple(column.each(lambda _: self.numbers()) for column in like)


def spilled_run(run: Run, folder: str) -> Run:
    """This run, on disk."""
    places = OnDisk([run.pane, run.code, *cell_arrays(run.columns)], folder)
    return Run(places.numbers(), places.numbers(), places.cells(run.columns))


def spilled_rows(run: RowRun, folder: str) -> RowRun:
    """These rows, on disk; the bit set of those that are gone stays in memory."""
    places = OnDisk([run.code, run.time, run.seq, *run.values], folder)
    code, time, seq = (places.numbers() for _ in range(3))
    return replace(run, code=code, time=time, seq=seq, values=tuple(places.array() for _ in run.values))


def spilled_tier(tier: Tier, folder: str) -> Tier:
    """This tier, on disk, with its order by end; the bit set of sessions that are gone stays in memory."""
    sessions = tier.sessions
    order = np.argsort(sessions.end, kind="stable")
    places = OnDisk([*sessions.bounds(), order, sessions.end[order], *cell_arrays(sessions.columns)], folder)
    bounds = [places.numbers() for _ in sessions.bounds()]
    order, end = places.numbers(), places.numbers()
    return tier.moved(SessionBatch.of(bounds, places.cells(sessions.columns)), order, end)


class HasRuns(Protocol):
    """Raw rows, by key and time: `RowState`, or a side of a join."""

    @property
    def runs(self) -> tuple[RowRun, ...]: ...

    @property
    def waiting(self) -> tuple[WaitingRows, ...]: ...


Rows = TypeVar("Rows", bound=HasRuns | None)


def memory_of_rows(rows: HasRuns | None) -> int:
    """Bytes of raw rows that are in memory."""
    if rows is None:
        return 0
    each = ((run, in_memory((run.code,)) != 0) for run in rows.runs)
    waiting = sum(part.nbytes for part in rows.waiting)
    return waiting + sum(run.nbytes if here else run.gone.nbytes + run.marked.nbytes for run, here in each)


def memory_of_panes(panes: PaneStore) -> int:
    """Bytes of cells by pane that are in memory, with keys and texts."""
    on_disk = panes.runs if isinstance(panes, PaneState) else ()  # states on a device are not spilled
    return panes.nbytes - sum(run.nbytes for run in on_disk if is_on_disk(run.pane))


def memory_of_sessions(sessions: SessionStore) -> int:
    """Bytes of open sessions that are in memory."""
    if not isinstance(sessions, SessionState):  # states on a device are not spilled
        return sessions.nbytes
    return sum(in_memory(tier.arrays()) for tier in sessions.tiers)


Spill = tuple[int, Callable[[], None]]  # bytes that leave memory, and the write of them


def spill_largest(parts: Iterable[Spill], excess: int) -> int:
    """Bytes that left memory, as the largest parts were written, until `excess` bytes had, or nothing was left that is
    worth a file.
    """
    freed = 0
    for size, write in sorted(parts, key=lambda part: -part[0]):
        if freed >= excess or not worth_a_file(size):
            break
        write()
        freed += size
    return freed


def _runs_to_write(runs: list[RowRun], folder: str) -> list[Spill]:
    def write(k: int) -> Callable[[], None]:
        return lambda: runs.__setitem__(k, spilled_rows(runs[k], folder))

    here = [(k, run) for k, run in enumerate(runs) if len(run) and not is_on_disk(run.code)]
    return [(run.nbytes - run.gone.nbytes - run.marked.nbytes, write(k)) for k, run in here]  # these two stay


def _tiers_to_write(tiers: list[Tier], folder: str) -> list[Spill]:
    def write(k: int) -> Callable[[], None]:
        return lambda: tiers.__setitem__(k, spilled_tier(tiers[k], folder))

    sizes = [in_memory(tier.arrays()) - tier.gone.nbytes for tier in tiers]
    return [(size, write(k)) for k, size in enumerate(sizes) if not is_on_disk(tiers[k].sessions.start)]


def _panes_to_write(runs: list[Run], folder: str) -> list[Spill]:
    def write(k: int) -> Callable[[], None]:
        return lambda: runs.__setitem__(k, spilled_run(runs[k], folder))

    return [(run.nbytes, write(k)) for k, run in enumerate(runs) if not is_on_disk(run.pane)]


def spilled(panes: PaneState, rows: RowState | None, excess: int, folder: str) -> tuple[PaneState, RowState | None]:
    """Cells and rows with the largest runs on disk, until `excess` bytes have left memory, or nothing is left to write.

    Raises LimitExceeded if the folder cannot be written.
    """
    panes = panes.packed()  # many small runs would each be too small for a file
    cells, raw = list(panes.runs), _list_of(rows)
    derived = 0 if panes.carry is None else panes.carry.nbytes
    freed = spill_largest([*_panes_to_write(cells, folder), *_runs_to_write(raw, folder)], excess)
    panes = replace(panes, runs=tuple(cells))
    if derived and freed < excess:  # running totals can be made again
        panes = replace(panes, carry=None)
    return panes, _with_runs(rows, raw)


def spilled_sessions(
    sessions: SessionState, rows: Sequence[Rows], excess: int, folder: str
) -> tuple[SessionState, list[Rows]]:
    """Open sessions and the rows that go with them, with the largest parts on disk, as of `spilled`."""
    tiers, raw = list(sessions.tiers), [_list_of(r) for r in rows]
    parts = _tiers_to_write(tiers, folder)
    for runs in raw:
        parts += _runs_to_write(runs, folder)
    spill_largest(parts, excess)
    return replace(sessions, tiers=tuple(tiers)), [_with_runs(r, runs) for r, runs in zip(rows, raw, strict=True)]


def spilled_rows_of(rows: Sequence[Rows], excess: int, folder: str) -> list[Rows]:
    """Rows with the largest runs on disk, as of `spilled`."""
    raw = [_list_of(r) for r in rows]
    spill_largest([part for runs in raw for part in _runs_to_write(runs, folder)], excess)
    return [_with_runs(r, runs) for r, runs in zip(rows, raw, strict=True)]


def spill_hot(rows: RowState | None, hot: int, excess: int, folder: str) -> tuple[RowState | None, bool]:
    """Rows that go with windows of `hot` bytes, with the largest runs on disk, as of `spilled`, and whether the windows
    are to be spilled, too.
    """
    raw = _list_of(rows)
    chosen: list[bool] = []
    spill_largest([*_runs_to_write(raw, folder), (hot, lambda: chosen.append(True))], excess)
    return _with_runs(rows, raw), bool(chosen)


def _list_of(rows: HasRuns | None) -> list[RowRun]:
    return [] if rows is None else list(rows.runs)


def _with_runs(rows: Rows, runs: list[RowRun]) -> Rows:
    return rows if rows is None else replace(rows, runs=tuple(runs))  # type: ignore[type-var]
