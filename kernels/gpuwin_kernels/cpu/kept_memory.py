"""Memory of large arrays, kept for the next array of about that size.

A page that a process gets anew is zeroed at its first touch, and a huge page may have to wait until others were moved
out of its way. For a batch of millions of rows that takes as long as the kernels do. So a large array is a view of a
block that comes back here when the last view of it is gone, whoever has it: a result that was handed out as Arrow
data, too. Blocks that lay unused for some seconds, and the oldest beyond a bound, are freed.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from functools import cache
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

import numpy as np

from gpuwin_kernels import tuning

_LINE = 64  # bytes: arrays begin at a line of the processor's cache, as Arrow wants it
_free: dict[int, list[tuple[float, np.ndarray]]] = {}  # by size, each from the oldest to the newest
_unused = 0  # bytes of the blocks in `_free`, which every array asks for
_used = 0  # bytes of blocks that arrays have
_most_used = 0  # the most that were used at a time, of late
_sweeper: Thread | None = None
_returned: deque[tuple[float, np.ndarray]] = deque()  # not yet in `_free`, with the time when it came back
_lock = Lock()


def empty(shape: int | np.integer | tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """`np.empty(shape, dtype)`, of memory that may have been used before."""
    shape = shape if isinstance(shape, tuple) else (int(shape),)
    type_ = np.dtype(dtype)
    size = math.prod(shape) * type_.itemsize
    if size < tuning.KEPT_FROM:
        return np.empty(shape, type_)
    flat: np.ndarray = np.asarray(_Block(_borrow(_rounded(size)), size)).view(type_)
    return flat.reshape(shape)


def full(size: int, value: int, dtype: Any) -> np.ndarray:
    """`np.full(size, value, dtype)`, of memory that may have been used before."""
    out = empty(size, dtype)
    out[:] = value
    return out


def release(unused_for: float = 0.0) -> None:
    """Frees the memory that nothing uses: all of it, or what has been unused for so many seconds."""
    global _unused
    until = monotonic() - unused_for
    with _lock:
        _put_away()
        for size in list(_free):
            _free[size] = [block for block in _free[size] if block[0] > until]
            if not _free[size]:
                del _free[size]
        _unused = sum(size * len(blocks) for size, blocks in _free.items())


def kept() -> int:
    """Bytes that are kept and unused."""
    with _lock:
        _put_away()
        return _unused


def _rounded(size: int) -> int:
    """The size of the block for an array: an eighth larger at most."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step + _LINE


def _borrow(size: int) -> np.ndarray:
    global _sweeper, _used, _most_used, _unused
    with _lock:
        _put_away()
        if _sweeper is None or not _sweeper.is_alive():
            _sweeper = Thread(target=_sweep, name="gpuwin-kept-memory", daemon=True)
            _sweeper.start()
        _used += size
        _most_used = max(_most_used, _used)
        blocks = _free.get(size)
        if blocks:
            _unused -= size
            return blocks.pop()[1]
        _trim(_most_used - _used)
    try:
        return np.empty(size, np.uint8)
    except MemoryError:
        with _lock:
            _used -= size
            _free.clear()
            _unused = 0
        raise


def _give_back(memory: np.ndarray) -> None:
    """Takes a block back. A collection of garbage may call this while this thread, or another, has the lock."""
    _returned.append((monotonic(), memory))
    if _lock.acquire(blocking=False):
        try:
            _put_away()
        finally:
            _lock.release()


def _put_away() -> None:
    """Makes what came back free for others. The caller has the lock, as of the functions below."""
    global _used, _unused
    while _returned:
        block = _returned.popleft()
        size = len(block[1])
        _used -= size
        _unused += size
        _free.setdefault(size, []).append(block)
    _trim(_most())


def _trim(most: int) -> None:
    """Frees the oldest blocks until no more bytes are kept."""
    global _unused
    while _unused > most:
        size = min((s for s, blocks in _free.items() if blocks), key=lambda s: _free[s][0][0])
        _free[size].pop(0)
        _unused -= size


@cache
def _most() -> int:
    """Bytes that may be kept and unused."""
    return min(tuning.KEPT_BYTES, tuning.physical_memory() // tuning.KEPT_SHARE)


def _sweep() -> None:
    global _most_used
    while True:
        sleep(tuning.KEPT_SECONDS)
        release(tuning.KEPT_SECONDS)
        _most_used = _used


def _after_fork() -> None:
    """The child has no threads but one, and another may have held the lock."""
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Block:
    """The base of all views of one array. It gives the memory back when the last of them is gone."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: np.ndarray, size: int) -> None:
        self.memory = memory
        start = memory.ctypes.data
        where = (start + -start % _LINE, False)
        self.__array_interface__ = {"data": where, "shape": (size,), "typestr": "|u1", "version": 3}

    # The function is bound here, since the names of a module may be gone when a process ends.
    def __del__(self, give_back: Callable[[np.ndarray], None] = _give_back) -> None:
        give_back(self.memory)
