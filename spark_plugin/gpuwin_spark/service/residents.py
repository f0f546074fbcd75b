"""States that the service keeps in memory between batches, each for the next batch of its partition."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from .states import State

IDLE_SECONDS: Final = 3600.0
#: Seconds between looks for states that nobody asks for, since each look is at all of them.
LOOK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class PartitionId:
    """A partition of an operator of a query, whatever run of it."""

    checkpoint: str
    operator: int
    partition: int


@dataclass(slots=True)
class _Resident:
    """Committed state of a partition.

    repeats: whether a batch of this query was once asked for after it was committed. before: the version before and its
    state, where that is so. borrowed: whether a task works on it.
    """

    query: str
    version: int
    state: State
    used: float
    repeats: bool = False
    before: tuple[int, State] | None = None
    borrowed: bool = False

    def at(self, version: int) -> State | None:
        if version == self.version:
            return self.state
        return self.before[1] if self.before is not None and self.before[0] == version else None


class Residents:
    """Committed states, by partition.

    A state is found only under the query run and the version that it was committed with; anything else is asked for
    again from the state log. While a task works on a state it is borrowed: a second task on the same partition (a
    speculative copy) is told that there is none, and builds its own from the log.

    A function of `foreachBatch` that does two things with its DataFrame runs each batch twice. Of a query that does so
    the state before the last batch is kept as well, which shares most of its memory with the one after.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[PartitionId, _Resident] = {}
        self._looked = time.monotonic()

    def borrow(self, id: PartitionId, query: str, version: int) -> State | None:
        """The state of this version, if it is here and nobody works on it."""
        with self._lock:
            self._release_idle()
            found = self._states.get(id)
            if found is None or found.query != query or found.borrowed:
                return None
            found.repeats = found.repeats or version == found.version - 1
            state = found.at(version)
            if state is not None:
                found.borrowed, found.used = True, time.monotonic()
            return state

    def give_back(self, id: PartitionId, query: str, version: int) -> None:
        """The task is over and has committed nothing: the state is there for the next attempt."""
        with self._lock:
            found = self._states.get(id)
            if found is not None and found.query == query and found.at(version) is not None:
                found.borrowed = False

    def commit(self, id: PartitionId, query: str, version: int, state: State, *, borrowed: bool = True) -> None:
        """The state store holds this version: from now on it is the resident one. The one before is released, unless
        batches of the query are repeated.

        borrowed: whether the task had borrowed what was here, and not built a state of its own.
        """
        with self._lock:
            last = self._states.get(id)
            now = _Resident(query, version, state, time.monotonic())
            if last is not None and last.query == query and last.repeats:
                now.repeats = True
                if borrowed or not last.borrowed:  # else another task may still be at work on it
                    now.before = last.before if last.version == version else (last.version, last.state)
            self._states[id] = now

    def release(self, id: PartitionId, query: str) -> None:
        """End of a state: its run of the query has ended, or another executor has the partition."""
        with self._lock:
            found = self._states.get(id)
            if found is not None and found.query == query and not found.borrowed:
                del self._states[id]

    def release_all(self) -> None:
        """Makes room: every state on which nobody works now is read from its log again when it is asked for."""
        with self._lock:
            self._states = {id: r for id, r in self._states.items() if r.borrowed}

    def _release_idle(self) -> None:
        now = time.monotonic()
        if now < self._looked + LOOK_SECONDS:
            return
        self._looked, limit = now, now - IDLE_SECONDS
        for id in [i for i, r in self._states.items() if r.used < limit and not r.borrowed]:
            del self._states[id]

    def __len__(self) -> int:
        with self._lock:
            return len(self._states)
