"""Table of few open sessions, without an order, which each batch copies and changes.

A state of tiers (`SessionState`) costs what a batch touches, but it sorts, searches and joins for that. Where no more
sessions are open than a few batches have rows, copying them all is cheaper than finding some of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.state.cells import Columns, cells_nbytes, merge_onto, take_cells
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin_kernels.cpu import session_table as kernel
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import order_by_code
from gpuwin_kernels.layout import CellLayout

_ROOMY = 1 << 15  # rows of a batch from which unused room is freed


@dataclass(frozen=True)
class SessionTable:
    """Table of open sessions. Immutable: every method returns a new table, which may share arrays with this one.

    `session` int64[n, 4]: see `gpuwin_kernels.cpu.session_table`. `columns`: a cell of each. `kept` int64[open]: the
    places of those that are still open, None if all are.
    """

    session: np.ndarray
    columns: Columns
    kept: np.ndarray | None = None

    @classmethod
    def of(cls, sessions: SessionBatch) -> SessionTable:
        """Table of sessions in any order; those of a key do not touch."""
        table = empty((len(sessions), 4), np.int64)
        for part, values in enumerate((sessions.code, sessions.start, sessions.last, sessions.end)):
            table[:, part] = values
        return cls(table, sessions.columns)

    def __len__(self) -> int:
        return len(self.session if self.kept is None else self.kept)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        whole = self.session if self.session.base is None else self.session.base
        return int(whole.nbytes) + cells_nbytes(self.columns) + (0 if self.kept is None else self.kept.nbytes)

    def with_rows(
        self,
        layout: CellLayout,
        codes: int,
        code: np.ndarray,
        time: np.ndarray,
        gap: np.ndarray,
        strict: bool,
        units: Columns,
    ) -> SessionTable | None:
        """Table with the rows of a batch; None if they have so little order in time that tiers are better.

        codes: the size of the dictionary of keys. code int32[n], time int64[n], gap int64[1] or int64[n], microseconds.
        strict: sessions must overlap to be one, not only meet. units: the cell of each row by itself.

        Raises gpuwin.OverflowError if an exact sum leaves its type.
        """
        rows, before = len(code), len(self)
        session = empty((before + rows, 4), np.int64)
        if self.kept is None:
            session[:before] = self.session
        else:
            kernel.take_sessions(self.session, self.kept, session)
        newest = np.full(codes, -1, np.int32)
        older, into = empty((2, before + rows), np.int32)
        slot = empty(rows, np.int32)
        chains = kernel.Chains(session, newest, older)
        kernel.chain(chains, before)
        made, bridged = kernel.absorb(code, time, gap, strict, chains, before, into, slot)
        if made < 0:
            return None
        place = None
        if bridged:
            made = kernel.without_parts(session, made, into, slot)
            place = into[:before]
        columns = merge_onto(layout, self.columns, self.kept, place, units, slot, made)
        session = session[:made]
        return SessionTable(session.copy() if rows > _ROOMY else session, columns)

    def closed(self, upto: int) -> tuple[SessionBatch, SessionTable]:
        """Sessions that end by `upto`, sorted by (code, start) and without ids; and the table without them."""
        kept = np.arange(len(self.session)) if self.kept is None else self.kept
        gone, kept = kernel.split_by_end(self.session, kept, upto)
        if not len(gone):
            return _sorted(self.session, self.columns, gone), self
        return _sorted(self.session, self.columns, gone), SessionTable(self.session, self.columns, kept)

    def sessions(self) -> SessionBatch:
        """Open sessions, sorted by (code, start), without ids."""
        return _sorted(self.session, self.columns, np.arange(len(self.session)) if self.kept is None else self.kept)


def _sorted(session: np.ndarray, columns: Columns, at: np.ndarray) -> SessionBatch:
    code = empty(len(at), np.int32)
    start, last, end = empty((3, len(at)), np.int64)
    kernel.take_split(session, at, code, start, last, end)
    order = order_by_code(code, start)
    at = at[order]
    kernel.take_split(session, at, code, start, last, end)
    return SessionBatch(code, start, last, end, _unnamed(len(at)), np.ones(len(at), np.uint8), take_cells(columns, at))


def _unnamed(n: int) -> np.ndarray:
    return np.full(n, -1, np.int64)
