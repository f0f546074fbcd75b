"""Counters of what a batch costs the host: what it puts on the stream, arrays that it allocates, waits for the device,
and allocations that no free block could serve.

The simulator has host memory only. `SimulatedPool` stands for the pool of the device there: blocks of multiples of 512
bytes, as CuPy's, each free again when no array looks at it any more, and handed out again to a request of its size.
CuPy's pool also cuts large free blocks into small ones, so it allocates no more often than this one.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from dataclasses import dataclass

import numpy as np

_BLOCK = 512
POISON = 0xA5
"""Each byte of it: far out as an index, negative as a number, and neither 0 nor 1."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """`allocations`: how often the pool had to ask the driver for memory; `nbytes`: what it holds, in use or not."""

    allocations: int
    nbytes: int


class _Waits(threading.local):
    count = 0


_waits = _Waits()


def waited() -> None:
    """Says that this thread has waited for the device."""
    _waits.count += 1


def waits() -> int:
    """Number of times that this thread has waited for the device: for numbers or rows, whatever library waited."""
    return _waits.count


class Sent(threading.local):
    """Counts of what this thread has put on the stream. `launches`: how often, by the name of the kernel, or of what a
    library does ("sort", "scan", "select"), or "fill" and "copy" of memory of the device. `arrays`: device arrays with
    a place of their own, those of a library's sort or scan included. `moved`: copies from the host.
    """

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.arrays = 0
        self.moved = 0


sent = Sent()


class SimulatedPool:
    """Memory of the simulator's device arrays; see above."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run while an array is made
        self._free: dict[int, list[np.ndarray]] = {}
        self._allocations = 0
        self._nbytes = 0

    def buffer(self, nbytes: int) -> np.ndarray:
        """uint8[>= nbytes] of unset contents; the block goes back when the last view of it is gone.

        Contents are made worse than unset, so that a kernel that reads what nothing has written is seen: new memory of
        the host would be zeros, which a device's is not.
        """
        size = -(-nbytes // _BLOCK) * _BLOCK
        with self._lock:
            free = self._free.setdefault(size, [])
            if free:
                block = free.pop()
            else:
                block = np.empty(size, np.uint8)
                self._allocations += 1
                self._nbytes += size
        block.fill(POISON)
        # Views keep alive what has its memory from a buffer, and not the block behind it.
        held = np.frombuffer(block.data, np.uint8)
        weakref.finalize(held, self._give_back, block).atexit = False
        return held

    def _give_back(self, block: np.ndarray) -> None:
        with self._lock:
            self._free[len(block)].append(block)

    def release_unused(self) -> None:
        with self._lock:
            for free in self._free.values():
                self._nbytes -= sum(map(len, free))
                free.clear()

    def stats(self) -> PoolStats:
        return PoolStats(self._allocations, self._nbytes)


__all__ = ["POISON", "PoolStats", "Sent", "SimulatedPool", "sent", "waited", "waits"]
