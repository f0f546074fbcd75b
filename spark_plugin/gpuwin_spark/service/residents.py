"""The states that live on the device between batches."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from .states import State

IDLE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class PartitionId:
    """A partition of an operator of a query, whatever run of it."""

    checkpoint: str
    operator: int
    partition: int


@dataclass(slots=True)
class _Resident:
    query: str
    version: int
    state: State
    borrowed: bool
    used: float


class Residents:
    """Committed states, by partition.

    A state is found only under the query run and the version that it was committed with; anything else is asked for
    again from the state log. While a task works on a state it is borrowed: a second task on the same partition (a
    speculative copy) is told that there is none, and builds its own from the log.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[PartitionId, _Resident] = {}

    def borrow(self, id: PartitionId, query: str, version: int) -> State | None:
        """The state of this version, if it is here and nobody works on it."""
        with self._lock:
            self._forget_idle()
            found = self._states.get(id)
            if found is None or found.query != query or found.version != version or found.borrowed:
                return None
            found.borrowed, found.used = True, time.monotonic()
            return found.state

    def give_back(self, id: PartitionId, query: str, version: int) -> None:
        """The task is over and has committed nothing: the state is there for the next attempt."""
        with self._lock:
            found = self._states.get(id)
            if found is not None and found.query == query and found.version == version:
                found.borrowed = False

    def commit(self, id: PartitionId, query: str, version: int, state: State) -> None:
        """The state store holds this version: from now on it is the resident one, and the one before is forgotten."""
        with self._lock:
            self._states[id] = _Resident(query, version, state, False, time.monotonic())

    def forget(self, id: PartitionId, query: str) -> None:
        """That run of the query has ended, or another executor has the partition."""
        with self._lock:
            found = self._states.get(id)
            if found is not None and found.query == query and not found.borrowed:
                del self._states[id]

    def forget_all(self) -> None:
        """Makes room: every state on which nobody works now is read from its log again when it is asked for."""
        with self._lock:
            self._states = {id: r for id, r in self._states.items() if r.borrowed}

    def _forget_idle(self) -> None:
        limit = time.monotonic() - IDLE_SECONDS
        for id in [i for i, r in self._states.items() if r.used < limit and not r.borrowed]:
            del self._states[id]

    def __len__(self) -> int:
        with self._lock:
            return len(self._states)
