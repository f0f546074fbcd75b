"""Texts that cells hold by their code: their order, which merges of minima and maxima go by, and those of some codes as
strings of their own. The heap is that of a dictionary of byte strings (`byte_keys`).
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.byte_keys import HeapArrays, eight
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch, to_host

_BYTES, _PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_8, _16, _32 = np.uint64(8), np.uint64(16), np.uint64(32)


@cuda.jit(device=True)
def _first_byte_first(x):  # type: ignore[no-untyped-def]
    """Eight bytes as a number that compares as they do."""
    x = ((x & _BYTES) << _8) | ((x >> _8) & _BYTES)
    x = ((x & _PAIRS) << _16) | ((x >> _16) & _PAIRS)
    return (x << _32) | (x >> _32)


@cuda.jit(device=True)
def bytes_before(offsets, words, a, b):  # type: ignore[no-untyped-def]
    """Whether text a comes before text b: by unsigned bytes, and what another one begins with before that one."""
    if a == b:
        return False
    at_a = offsets[a]
    at_b = offsets[b]
    size_a = offsets[a + 1] - at_a
    size_b = offsets[b + 1] - at_b
    n = min(size_a, size_b)
    i = np.int64(0)
    while i < n:
        x = eight(words, at_a + i, n - i)
        y = eight(words, at_b + i, n - i)
        if x != y:
            return _first_byte_first(x) < _first_byte_first(y)
        i += 8
    return size_a < size_b


@kernel("void(int64[::1], int64[::1], int64[::1])", "void(int64[::1], int32[::1], int64[::1])")
def _sizes(offsets, codes, sizes):  # type: ignore[no-untyped-def]
    k = cuda.grid(1)
    if k < codes.shape[0]:
        sizes[k] = offsets[codes[k] + 1] - offsets[codes[k]] if codes[k] >= 0 else np.int64(0)


_COPY = "void(int64[::1], uint8[::1], {}[::1], int64[::1], uint8[::1])"


@kernel(_COPY.format("int64"), _COPY.format("int32"))
def _copied(offsets, data, codes, begin, out):  # type: ignore[no-untyped-def]
    k = cuda.grid(1)
    if k < codes.shape[0] and codes[k] >= 0 and begin[k + 1] <= out.shape[0]:
        source = offsets[codes[k]]
        for i in range(begin[k + 1] - begin[k]):
            out[begin[k] + i] = data[source + i]


def taken(heap: HeapArrays, codes: DeviceArray, room: int | None = None) -> tuple[DeviceArray, DeviceArray]:
    """(uint64 words, int64[n + 1] offsets): the texts of codes (int32[n] or int64[n]), one after the other; nothing for
    a negative code. Waits to learn how long they are; with `room`, bytes, it does not, and texts that begin or end
    behind so many are left out.
    """
    n = len(codes)
    sizes = empty(n, np.int64)
    launch(_sizes, n, heap.offsets, codes, sizes)
    begin = primitives.exclusive_sum(sizes)
    size = int(to_host(begin[n:])[0]) if room is None else room
    words = empty(max(-(-size // 8), 1), np.uint64)
    launch(_copied, n, heap.offsets, heap.words.view(np.uint8), codes, begin, words.view(np.uint8))
    return words, begin


@kernel("void(int64[::1], uint8[::1], int64[::1])")
def _mark(codes, valid, used):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < codes.shape[0] and (valid.shape[0] == 0 or valid[i] != 0):
        used[codes[i]] = 1


def mark(codes: DeviceArray, valid: DeviceArray | None, used: DeviceArray) -> None:
    """Sets used[c] (int64) to 1 for the codes (int64[n]) of cells with a value: `valid` uint8[n], None: all."""
    launch(_mark, len(codes), codes, empty(0, np.uint8) if valid is None else valid, used)


@kernel("void(int64[::1], int64[::1], int64[::1])")
def _renumbered(codes, before, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < codes.shape[0]:
        out[i] = before[codes[i]]


def renumbered(codes: DeviceArray, before: DeviceArray) -> DeviceArray:
    """int64[n]: before[c] (int64) for each code (int64[n])."""
    out = empty(len(codes), np.int64)
    launch(_renumbered, len(codes), codes, before, out)
    return out


__all__ = ["bytes_before", "mark", "renumbered", "taken"]
