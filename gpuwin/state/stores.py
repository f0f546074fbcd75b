"""Stores: states of panes and of sessions as a driver sees them, in host or device memory.

Every store is immutable: a method returns another store, which shares arrays with this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, Self

import numpy as np
import pyarrow as pa

from gpuwin.grid import WindowGrid
from gpuwin.state.cells import Columns
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import CellRun
from gpuwin.state.panes.walks import WindowBatch
from gpuwin.state.sessions.assignment import Assignment, Touch
from gpuwin.state.sessions.bridges import Bridges
from gpuwin.state.sessions.session_state import SessionState
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin_kernels.layout import CellLayout


class Store(Protocol):
    """State of keys, by codes of a dictionary."""

    @property
    def layout(self) -> CellLayout: ...

    @property
    def cells(self) -> int:
        """Number of cells, or open sessions, held."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""

    def used_codes(self) -> np.ndarray:
        """Codes of the keys that have a cell, int32, ascending, unique."""

    def with_smaller_heap(self) -> Self: ...


class PaneStore(Store, Protocol):
    """Store of cells by (pane, key): `PaneState` or `DevicePaneState`; its methods are described there."""

    @property
    def keys(self) -> KeyDictionary: ...

    @property
    def heap(self) -> BytesHeap: ...

    @property
    def bounds(self) -> tuple[tuple[int, ...], ...]:
        """Bounds of the magnitude of integer sums, per run and column."""

    @property
    def first_pane(self) -> int | None:
        """Oldest pane with a cell."""

    def run_of(self, pane: np.ndarray, keys: Sequence[pa.Array], columns: Columns) -> CellRun: ...

    def add(self, run: CellRun) -> Self: ...

    def closing_chunks(
        self, grid: WindowGrid, first: int | None, last: int | None, max_rows: int = ...
    ) -> Iterator[WindowBatch]: ...

    def touched(self, grid: WindowGrid, run: CellRun, first: int | None) -> WindowBatch: ...

    def expecting_eviction(self, pane: int) -> Self: ...

    def evict_panes(self, pane: int) -> Self: ...

    def evict(self, pane: int, waiting: Iterable[np.ndarray] = ()) -> Self: ...

    def with_names(self, keys: KeyDictionary, heap: BytesHeap) -> Self: ...

    def on_host(self) -> PaneState:
        """This store with its cells in host memory."""

    def off_device(self) -> PaneState:
        """This store with its cells and keys in host memory."""


class Trace(Protocol):
    """Sessions that a batch touched: `SessionTrace`, or `DeviceTrace`."""

    @property
    def bridges(self) -> Bridges | None:
        """Sessions that became one, where rows were played with `keep_steps`."""

    @property
    def sessions(self) -> SessionBatch:
        """Touched sessions, as the batch left them."""

    def ending(self, upto: int) -> SessionBatch:
        """Touched sessions that end at or before `upto`."""


class SessionStore(Store, Protocol):
    """Store of open sessions: `SessionState` or `DeviceSessionState`; its methods are described there."""

    @property
    def heap(self) -> BytesHeap | None: ...

    def merge(self, assignment: Assignment, columns: Columns) -> tuple[Self, Trace]: ...

    def merge_rows(
        self, code: np.ndarray, start: np.ndarray, end: np.ndarray, columns: Columns, touch: Touch = "merge"
    ) -> tuple[Self, Trace]: ...

    def ending(self, after: int | None, upto: int | None) -> SessionBatch: ...

    def close(self, upto: int | np.ndarray) -> tuple[SessionBatch, Self]: ...

    def recoded(self, new_code: np.ndarray) -> Self: ...

    def with_heap(self, heap: BytesHeap) -> Self: ...

    def on_host(self) -> SessionState:
        """This store with its sessions in host memory."""
