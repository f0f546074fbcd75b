"""Pinned memory on the way from host to device: a ring of two halves, filled one copy after the other.

A copy to the device is asynchronous only from pinned memory; from other memory the driver decides how long it reads,
and the array may be gone by then. So everything goes through a ring: a half is filled with the parts of many copies,
and is filled again when an event says that all of them have left it. Rings are lent, not owned by threads: pinning
memory takes milliseconds, and a service has a new thread for every connection.

One thread fills pinned memory several times slower than the bus empties it, so a large part is filled by all. Only the
thread that has the ring calls the driver.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuwin_kernels.cpu import parallel
from gpuwin_kernels.cuda.device_array import Event, Stream

ALIGNED = 64


class Ring:
    """Pinned memory of 2 x `half` bytes, for one thread at a time.

    `pinned(bytes)` makes uint8 memory, `event()` an event with `record(stream)` and `synchronize()`; `stream` is the
    one that the copies are launched on.
    """

    def __init__(
        self, half: int, pinned: Callable[[int], np.ndarray], event: Callable[[], Event], stream: Stream | int
    ) -> None:
        if half < ALIGNED or half % ALIGNED:
            raise ValueError(f"half a ring has a multiple of {ALIGNED} bytes, not {half}")
        self._size = half
        self._halves = [pinned(half), pinned(half)]
        self._left = [event(), event()]
        self._stream = stream
        self._now = 0
        self._used = 0

    def move(self, host: np.ndarray, copy: Callable[[int, np.ndarray], None]) -> None:
        """Takes uint8[n] into pinned memory, part by part, and calls `copy(at, part)` for each, which launches what
        copies it. `host` may change as soon as this returns.
        """
        at = 0
        while at < len(host):
            if self._used == self._size:
                self._turn()
            part = self._halves[self._now][self._used :][: len(host) - at]
            parallel.copy(part, host[at : at + len(part)])
            copy(at, part)
            at += len(part)
            self._used = min(self._size, self._used + -(-len(part) // ALIGNED) * ALIGNED)

    def _turn(self) -> None:
        """To the other half, once everything has left it."""
        self._left[self._now].record(self._stream)
        self._now ^= 1
        self._used = 0
        self._left[self._now].synchronize()  # an event that was never recorded is over


class Rings:
    """Rings that are lent to one thread at a time, and made when all are lent."""

    def __init__(self, make: Callable[[], Ring]) -> None:
        self._make = make
        self._free: list[Ring] = []

    def move(self, host: np.ndarray, copy: Callable[[int, np.ndarray], None]) -> None:
        """As `Ring.move`."""
        try:
            ring = self._free.pop()  # one operation of a list: no lock is needed
        except IndexError:
            ring = self._make()
        try:
            ring.move(host, copy)
        finally:
            self._free.append(ring)


__all__ = ["ALIGNED", "Ring", "Rings"]
