"""State of sessions with triggers, in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.engines.sessions.rows import OpenSessions
from gpuwin.engines.triggers.cold import Cold, Entries, wake_times
from gpuwin.engines.triggers.emitted import pooled
from gpuwin.engines.triggers.ledger import Ledger, joined_ledgers, without_unused
from gpuwin.engines.triggers.rule import TriggerRule
from gpuwin.state.cells import cell_arrays
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin_kernels.cpu.order import stable_order
from gpuwin_kernels.layout import CellLayout, columns_from_arrays


@dataclass(frozen=True, slots=True)
class TriggeredSessions:
    """State of sessions with triggers: the sessions, and per session (by id, ascending) its ledger entry and the bounds
    that it was last emitted with.
    """

    open: OpenSessions
    id: np.ndarray
    ledger: Ledger
    emitted_start: np.ndarray
    emitted_end: np.ndarray
    results: list[pa.Array]

    def kept(self, at: np.ndarray) -> TriggeredSessions:
        """State with the ledger entries at these places (int64), and the results that they name."""
        kept = self.entries(at)
        ledger, results = without_unused(kept.ledger, self.results)
        return replace(kept, ledger=ledger, results=results)

    def of_ids(self, ids: np.ndarray) -> tuple[TriggeredSessions, TriggeredSessions]:
        """Two states: with the ledger entries of the sessions of these ids (int64) only, and with the others. They
        share the pool of results, of which none may go before they are `joined`.
        """
        there = np.zeros(len(self.id), bool)
        there[np.searchsorted(self.id, ids)] = True
        return self.entries(np.flatnonzero(there)), self.entries(np.flatnonzero(~there))

    def entries(self, at: np.ndarray) -> TriggeredSessions:
        """State with the ledger entries at these places (int64), and the whole pool of results."""
        start, end = self.emitted_start[at], self.emitted_end[at]
        return replace(self, id=self.id[at], ledger=self.ledger.take(at), emitted_start=start, emitted_end=end)

    def joined(self, others: TriggeredSessions) -> TriggeredSessions:
        """State with the ledger entries of `others`, too; with the pool of results of this one, which begins with
        theirs.
        """
        ids = np.concatenate((self.id, others.id))
        order = stable_order(ids)
        arrays = zip(self.ledger.arrays(), others.ledger.arrays(), strict=True)
        return replace(
            self,
            id=ids[order],
            ledger=Ledger(*(np.concatenate(pair)[order] for pair in arrays)),
            emitted_start=np.concatenate((self.emitted_start, others.emitted_start))[order],
            emitted_end=np.concatenate((self.emitted_end, others.emitted_end))[order],
        )

    def with_last(
        self, places: np.ndarray, row: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], results: list[pa.Array]
    ) -> TriggeredSessions:
        """State in which the entries at these places were last emitted as rows of `results`, with these bounds."""
        last, emitted_start, emitted_end = self.ledger.last.copy(), self.emitted_start.copy(), self.emitted_end.copy()
        last[places], emitted_start[places], emitted_end[places] = row, *bounds
        ledger = replace(self.ledger, last=last)
        return replace(self, ledger=ledger, emitted_start=emitted_start, emitted_end=emitted_end, results=results)


def all_spilled(
    state: TriggeredSessions, empty: TriggeredSessions, rule: TriggerRule, lateness: int, folder: str
) -> TriggeredSessions:
    """State with all sessions on disk. `empty`: the state before the first batch.

    Raises LimitExceeded if the folder cannot be written.
    """
    opened = state.open
    sessions = opened.sessions.ending(None, None)
    places = np.searchsorted(state.id, sessions.id)
    ledger = state.ledger.take(places)
    bounds = (state.emitted_start[places], state.emitted_end[places])
    arrays = (*sessions.bounds()[1:], *bounds, *ledger.without_last(), *cell_arrays(sessions.columns))
    wake = wake_times(rule, ledger, sessions.end, lateness)
    cold = opened.cold.put(Entries(sessions.code, *wake, arrays, ledger.last, tuple(state.results)), folder)
    return replace(empty, open=replace(opened, sessions=replace(opened.host, tiers=()), cold=cold))


def read_back(layout: CellLayout, state: TriggeredSessions, cold: Cold, back: Entries | None) -> TriggeredSessions:
    """State with these sessions back in memory, and `cold` on disk."""
    opened = replace(state.open, cold=cold)
    if back is None:
        return replace(state, open=opened)
    start, last, end, ids, filled, emitted_start, emitted_end, *rest = back.arrays
    batch = SessionBatch.of((back.code, start, last, end, ids, filled), columns_from_arrays(layout, rest[5:]))
    whole = np.concatenate((state.id, ids))
    order = stable_order(whole)
    before = len(state.results[0]) if state.results else 0
    return replace(
        state,
        open=replace(opened, sessions=opened.host.with_sessions(batch)),
        id=whole[order],
        ledger=joined_ledgers(state.ledger, rest[:5], back.last, before).take(order),
        emitted_start=np.concatenate((state.emitted_start, emitted_start))[order],
        emitted_end=np.concatenate((state.emitted_end, emitted_end))[order],
        results=pooled(state.results, list(back.results)) if back.result_count else state.results,
    )
