"""Arena of a batch: one block of memory, from which its arrays are cut, in place of an allocation for each.

An arena is as large as what the last batch of the same kind took, and a little more. It is not used again: the next
batch has one of its own, so whatever still looks at an array of a batch may do so, and it is free when nothing does.
What stays for long has memory by itself (`kept`), or one small array would hold a whole arena.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuwin_kernels.cuda.device_array import DeviceArray

LARGEST = 1 << 24
"""Most bytes of an arena. Larger batches spend their time elsewhere, and are to give back what they are done with."""
_STEP = 1 << 16
"""Bytes that room is a multiple of, and begins with."""
LINE = 128
"""Bytes: a line of the cache, on which every array begins."""


class Scratch:
    """Guess at the bytes of the next batch of a kind, which no result depends on."""

    def __init__(self) -> None:
        self.room = _STEP

    def took(self, used: int) -> None:
        """Learns what a batch took. Room stays the same while it is enough and not far too much, so that blocks of the
        pool fit again.
        """
        if used and not self.room // 4 <= used <= self.room:
            self.room = -(-(used + used // 8) // _STEP) * _STEP


class _Arena:
    """Block of memory, cut from the front. `used`: bytes that were asked for, whether there was room or not."""

    def __init__(self, whole: DeviceArray | None, room: int) -> None:
        self.whole = whole
        self.room = room
        self.used = 0

    def place(self, nbytes: int) -> int | None:
        """Where so many bytes begin; None if there is no room for them."""
        at = self.used
        self.used += -(-nbytes // LINE) * LINE
        return at if self.used <= self.room else None


class _Now(threading.local):
    arena: _Arena | None = None


_now = _Now()


def arena() -> _Arena | None:
    """Arena that this thread cuts arrays from."""
    return _now.arena


@contextmanager
def batch(scratch: Scratch, make: Callable[[int], DeviceArray | None]) -> Iterator[None]:
    """Arrays that this thread makes within are cut from one arena, uint8 memory that `make` makes, or None. Those that
    there is no room for are not, nor are those of a batch that took more than `LARGEST` the last time.
    """
    room = scratch.room if scratch.room <= LARGEST else 0
    with kept():
        whole = make(room) if room else None
    before = _now.arena
    made = _now.arena = _Arena(whole, 0 if whole is None else room)
    try:
        yield
    finally:
        _now.arena = before
        scratch.took(made.used)


@contextmanager
def kept() -> Iterator[None]:
    """Arrays that are made within have memory by themselves: they stay when the batch is over."""
    before = _now.arena
    _now.arena = None
    try:
        yield
    finally:
        _now.arena = before


__all__ = ["LARGEST", "LINE", "Scratch", "arena", "batch", "kept"]
