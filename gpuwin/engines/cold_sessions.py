"""Sessions with a ledger of firings, put away on disk and brought back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuwin.engines.cold import Cold, Entries, due_times
from gpuwin.engines.firings import FiringRule, joined_ledgers
from gpuwin.engines.handout import pooled
from gpuwin.state.cells import cells_from_arrays
from gpuwin.state.session_tiers import SessionBatch
from gpuwin.state.spill import cell_arrays
from gpuwin_kernels.layout import CellLayout

if TYPE_CHECKING:
    from gpuwin.engines.firing_sessions import FiringSessions


def frozen(
    state: FiringSessions, empty: FiringSessions, rule: FiringRule, lateness: int, folder: str
) -> FiringSessions:
    """With all sessions on disk. `empty`: the state before the first batch.

    Raises LimitExceeded if the folder cannot be written.
    """
    opened = state.open
    sessions = opened.sessions.ending(None, None)
    places = np.searchsorted(state.id, sessions.id)
    ledger = state.ledger.take(places)
    told = (state.told_start[places], state.told_end[places])
    arrays = (*sessions.bounds()[1:], *told, *ledger.timing(), *cell_arrays(sessions.columns))
    due = due_times(rule, ledger, sessions.end, lateness)
    cold = opened.cold.put(Entries(sessions.code, *due, arrays, ledger.last, tuple(state.results)), folder)
    return replace(empty, open=replace(opened, sessions=replace(opened.host, tiers=()), cold=cold))


def thawed(layout: CellLayout, state: FiringSessions, cold: Cold, back: Entries | None) -> FiringSessions:
    """With these sessions among those in memory again, and `cold` on disk."""
    opened = replace(state.open, cold=cold)
    if back is None:
        return replace(state, open=opened)
    start, last, end, ids, filled, told_start, told_end, *rest = back.arrays
    batch = SessionBatch.of((back.code, start, last, end, ids, filled), cells_from_arrays(layout, rest[5:]))
    whole = np.concatenate((state.id, ids))
    order = np.argsort(whole)
    told = len(state.results[0]) if state.results else 0
    return replace(
        state,
        open=replace(opened, sessions=opened.host.with_sessions(batch)),
        id=whole[order],
        ledger=joined_ledgers(state.ledger, rest[:5], back.last, told).take(order),
        told_start=np.concatenate((state.told_start, told_start))[order],
        told_end=np.concatenate((state.told_end, told_end))[order],
        results=pooled(state.results, list(back.results)) if back.told else state.results,
    )
