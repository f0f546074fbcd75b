"""The open sessions of a `SessionFiringEngine`, and what was said of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.engines.firings import Ledger, without_unused
from gpuwin.engines.session_rows import OpenSessions


@dataclass(frozen=True, slots=True)
class FiringSessions:
    """The sessions, and per session (by id, ascending) a ledger, with the bounds under which it was reported last."""

    open: OpenSessions
    id: np.ndarray
    ledger: Ledger
    told_start: np.ndarray
    told_end: np.ndarray
    results: list[pa.Array]

    def kept(self, at: np.ndarray) -> FiringSessions:
        """With what was said of the sessions at these places (int64) only."""
        ledger, results = without_unused(self.ledger.take(at), self.results)
        told_start, told_end = self.told_start[at], self.told_end[at]
        return replace(self, id=self.id[at], ledger=ledger, told_start=told_start, told_end=told_end, results=results)
