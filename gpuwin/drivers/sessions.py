"""Driver of sessions: the sessions that a batch emits, and those that it evicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gpuwin.drivers.grid_windows import Mode
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin.state.stores import SessionStore, Trace
from gpuwin.vocabulary.durations import INT64_MIN

S = TypeVar("S", bound=SessionStore)


@dataclass(frozen=True, slots=True)
class SessionFrontier:
    """Progress of sessions at a batch, by their ends, microseconds. The smallest int64 stands for none of them.

    emitted: sessions that ended up to there were emitted. closed: sessions that end up to there are closed after the
    batch. evicted: sessions that end up to there are evicted after it (int64[codes]: a bound for each key).
    """

    emitted: int
    closed: int
    evicted: int | np.ndarray


@dataclass(frozen=True, slots=True)
class SessionDriver:
    """Driver of sessions, emitted by a mode. reopens: closed sessions stay, and are emitted again when they change."""

    mode: Mode
    reopens: bool = False

    def step(
        self, store: S, trace: Trace | None, at: SessionFrontier | None
    ) -> tuple[S, list[SessionBatch], SessionBatch]:
        """(store, emitted, gone): the store without the evicted sessions, the sessions that are emitted, and the
        evicted ones. `trace`: the sessions that a batch touched. `at`: None where no watermark is known.
        """
        none = SessionBatch.empty(store.layout)
        if self.mode == "complete":
            return store, [store.ending(None, None)], none
        emitted = [trace.sessions] if self.mode == "update" and trace is not None else []
        if at is None:
            return store, emitted, none
        if self.mode == "append" and self.reopens:
            if trace is not None and at.emitted != INT64_MIN:
                emitted.append(trace.ending(at.emitted))
            if at.closed > at.emitted:
                emitted.append(store.ending(None if at.emitted == INT64_MIN else at.emitted, at.closed))
        gone, store = store.close(at.evicted)
        if self.mode == "append" and not self.reopens:
            emitted.append(gone)
        return store, emitted, gone
