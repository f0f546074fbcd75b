"""Merges of counts of values in the bytes in which Spark's `percentile` keeps them.

Counts are entries, one for each value: the size of a row (int32, big-endian) and the row, an UnsafeRow of the value and
its count. Behind the last entry stands -1. A row is words of the machine's order: one of null bits, the value or where
it lies, the count, and the bytes of a value that does not fit a word. A piece is such counts behind their length
(int32, big-endian).
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.hashing import mixed_in, slots_for
from gpuwin_kernels.cpu.lengths import is_single, read_int32, write_int32
from gpuwin_kernels.cpu.memory import copy_items, load_u64, store_u64

#: What values are: NaNs of any bits are one value, as Spark has it.
OTHERS, DOUBLES, FLOATS = 0, 1, 2
_LENGTH = 4
_ROW = 24  # bytes of the least row
_VALUE, _COUNT = 8, 16  # where they lie in a row
_END = np.int64(-1)


@njit(nogil=True, cache=True)
def _value(data, row, kind):  # type: ignore[no-untyped-def]
    """The word of a row's value, that of all NaNs the same."""
    word = load_u64(data, row + _VALUE)
    if kind == DOUBLES and word & np.uint64(0x7FFFFFFFFFFFFFFF) > np.uint64(0x7FF0000000000000):
        return np.uint64(0x7FF8000000000000)
    if kind == FLOATS and word & np.uint64(0x7FFFFFFF) > np.uint64(0x7F800000):
        return np.uint64(0x7FC00000)
    return word


@njit(nogil=True, cache=True)
def _hash(data, row, size, kind):  # type: ignore[no-untyped-def]
    h = mixed_in(np.uint64(size), _value(data, row, kind))
    for at in range(row + _ROW, row + size, 8):
        h = mixed_in(h, load_u64(data, at))
    return h


@njit(nogil=True, cache=True)
def _same(a, row, b, other, size, kind):  # type: ignore[no-untyped-def]
    """Whether two rows of one size are of one value."""
    if load_u64(a, row) != load_u64(b, other) or _value(a, row, kind) != _value(b, other, kind):
        return False
    for at in range(_ROW, size, 8):  # noqa: SIM110 - Numba compiles no generator
        if load_u64(a, row + at) != load_u64(b, other + at):
            return False
    return True


@njit(nogil=True, cache=True)
def count_entries(data, begin, end):  # type: ignore[no-untyped-def]
    """(pieces, entries) of data[begin:end], or (-1, -1) where they are damaged."""
    pieces = entries = np.int64(0)
    while begin < end:
        length = read_int32(data, begin) if end - begin >= 2 * _LENGTH else _END
        begin += _LENGTH
        if length < _LENGTH or length > end - begin:
            return _END, _END
        last = begin + length - _LENGTH
        while begin < last:
            size = read_int32(data, begin)
            if size < _ROW or size % 8 != 0 or size > last - begin - _LENGTH:
                return _END, _END
            begin += _LENGTH + size
            entries += 1
        if read_int32(data, last) != _END:
            return _END, _END
        begin += _LENGTH
        pieces += 1
    return pieces, entries


@njit(nogil=True, cache=True)
def fold_counts(data, begins, kind, lo, hi, out, sizes):  # type: ignore[no-untyped-def]
    """Merges the pieces of each group lo <= k < hi, which are data[begins[k]:begins[k + 1]] (uint8, int64), into one
    piece, at out[begins[k]:], of sizes[k] (int64) bytes; of a group without pieces there is none. Values stay in the
    order of their first appearance. `kind`: of the values. Returns the first group whose pieces are damaged, or -1.
    """
    most = np.int64(0)
    for k in range(lo, hi):
        pieces, entries = count_entries(data, begins[k], begins[k + 1])
        if pieces < 0:
            return k
        most = max(most, entries)
    table = np.zeros(slots_for(most), np.int64)  # places of entries in `out`, and one more; 0: none
    for k in range(lo, hi):
        begin, end = begins[k], begins[k + 1]
        if is_single(data, begin, end):
            copy_items(data, begin, end - begin, out, begin)
            sizes[k] = end - begin
            continue
        entries = count_entries(data, begin, end)[1]
        slots = slots_for(entries)
        table[:slots] = 0
        to = begin + _LENGTH
        while begin < end:
            last = begin + read_int32(data, begin)
            begin += _LENGTH
            while begin < last:
                size, row = read_int32(data, begin), begin + _LENGTH
                at = _hash(data, row, size, kind) & np.uint64(slots - 1)
                while True:
                    place = table[at] - 1
                    if place < 0:
                        copy_items(data, begin, _LENGTH + size, out, to)
                        table[at] = to + 1
                        to += _LENGTH + size
                        break
                    known = place + _LENGTH
                    if read_int32(out, place) == size and _same(data, row, out, known, size, kind):
                        total = load_u64(out, known + _COUNT) + load_u64(data, row + _COUNT)
                        store_u64(out, known + _COUNT, total)
                        break
                    at = (at + np.uint64(1)) & np.uint64(slots - 1)
                begin += _LENGTH + size
            begin += _LENGTH
        write_int32(out, to, _END)
        to += _LENGTH
        write_int32(out, begins[k], to - begins[k] - _LENGTH)
        sizes[k] = to - begins[k]
    return -1
