"""A set of integers below n as a tree of 64-bit words: insert, remove, and the nearest member on either side, each in
one step per level.

Four levels hold 16 million members. Level 0 has a bit per integer, level k + 1 a bit per word of level k.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit

_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_LOWEST = np.empty(64, np.int64)
for _bit in range(64):
    _LOWEST[((int(_DE_BRUIJN) << _bit) & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit


@njit(nogil=True, cache=True)
def _lowest(word):  # type: ignore[no-untyped-def]
    """The number of the lowest set bit of a word that is not 0."""
    return _LOWEST[np.int64(((word & (~word + np.uint64(1))) * _DE_BRUIJN) >> np.uint64(58))]


@njit(nogil=True, cache=True)
def _highest(word):  # type: ignore[no-untyped-def]
    """The number of the highest set bit of a word that is not 0."""
    for shift in (1, 2, 4, 8, 16, 32):
        word |= word >> np.uint64(shift)
    return _LOWEST[np.int64(((word - (word >> np.uint64(1))) * _DE_BRUIJN) >> np.uint64(58))]


@njit(nogil=True, cache=True)
def empty_set(n):  # type: ignore[no-untyped-def]
    """(words uint64, first int64[levels + 1]): the empty set of integers in [0, n); level k is words[first[k] : first[k
    + 1]].
    """
    first = [np.int64(0)]
    width = n
    while True:
        width = (width + 63) >> 6
        first.append(first[-1] + max(width, 1))
        if width <= 1:
            break
    return np.zeros(first[-1], np.uint64), np.array(first)


@njit(nogil=True, cache=True)
def insert(words, first, i):  # type: ignore[no-untyped-def]
    for level in range(first.shape[0] - 1):
        words[first[level] + (i >> 6)] |= np.uint64(1) << np.uint64(i & 63)
        i >>= 6


@njit(nogil=True, cache=True)
def remove(words, first, i):  # type: ignore[no-untyped-def]
    for level in range(first.shape[0] - 1):
        at = first[level] + (i >> 6)
        words[at] &= ~(np.uint64(1) << np.uint64(i & 63))
        if words[at] != np.uint64(0):
            return
        i >>= 6


@njit(nogil=True, cache=True)
def _descend(words, first, level, i, highest):  # type: ignore[no-untyped-def]
    while level > 0:
        level -= 1
        word = words[first[level] + i]
        i = (i << 6) + (_highest(word) if highest else _lowest(word))
    return i


@njit(nogil=True, cache=True)
def before(words, first, i):  # type: ignore[no-untyped-def]
    """The largest member below i, or -1."""
    for level in range(first.shape[0] - 1):
        low = i & 63
        if low > 0:
            word = words[first[level] + (i >> 6)] & ((np.uint64(1) << np.uint64(low)) - np.uint64(1))
            if word != np.uint64(0):
                return _descend(words, first, level, (i >> 6 << 6) + _highest(word), True)
        i >>= 6
    return -1


@njit(nogil=True, cache=True)
def after(words, first, i):  # type: ignore[no-untyped-def]
    """The smallest member above i, or -1."""
    for level in range(first.shape[0] - 1):
        low = i & 63
        if low < 63:
            word = words[first[level] + (i >> 6)] & ~((np.uint64(2) << np.uint64(low)) - np.uint64(1))
            if word != np.uint64(0):
                return _descend(words, first, level, (i >> 6 << 6) + _lowest(word), False)
        i >>= 6
    return -1
