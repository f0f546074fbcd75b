"""Array whose versions share memory: each has what the one before it had, and more behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np


@dataclass(slots=True)
class _Memory:
    """Memory of several versions. The first `used` values are those of some version, and do not change."""

    room: np.ndarray
    used: int = 0
    lock: Lock = field(default_factory=Lock)


class SharedEnd:
    """int64 values, immutable. Values come behind those of the newest version without a copy of these; a version that
    others have gone on from is copied.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self._memory = _Memory(values, len(values))

    def __len__(self) -> int:
        return len(self.values)

    def with_more(self, more: np.ndarray) -> SharedEnd:
        """These values, and more behind them."""
        if not len(more):
            return self
        count, memory = len(self) + len(more), self._memory
        with memory.lock:
            is_newest = memory.used == len(self) and count <= len(memory.room)
            if is_newest:
                memory.used = count
        if not is_newest:
            room = np.empty(count + count // 4, np.int64)
            room[: len(self)] = self.values
            memory = _Memory(room, count)
        memory.room[len(self) : count] = more
        longer = SharedEnd(memory.room[:count])
        longer._memory = memory
        return longer

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._memory.room.nbytes
