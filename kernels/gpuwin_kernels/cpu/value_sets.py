"""Merges of sets of values in the bytes in which Spark's `collect_set` keeps them.

A set is an UnsafeRow of one array: a word of null bits, a word that says where the array lies, and the array. That is
a word that says how many values there are, their null bits, the values, each of `width` bytes, and nothing up to the
next whole word. Of values that fit no word (width 0) there is a word each that says where in the array they lie, and
their bytes behind. Words are of the machine's order. A piece is a set behind its length (int32, big-endian).
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.hashing import mixed_in, slots_for
from gpuwin_kernels.cpu.lengths import is_single, read_int32, write_int32
from gpuwin_kernels.cpu.memory import copy_items, load_u64, store_u64

_LENGTH = 4
_WHERE = 8  # in a piece's row: the word that says where the array lies
_ARRAY = 16  # in a piece's row: the array
_WORD = 8
_SIZE = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_DAMAGED = np.int64(-1)


@njit(nogil=True, cache=True)
def _whole(size):  # type: ignore[no-untyped-def]
    """Bytes of the words in which so many bytes lie."""
    return (size + _WORD - 1) // _WORD * _WORD


@njit(nogil=True, cache=True)
def _head(values):  # type: ignore[no-untyped-def]
    """Bytes of an array before its values."""
    return _WORD + _whole((values + 7) // 8)


@njit(nogil=True, cache=True)
def _values(data, begin, end, width):  # type: ignore[no-untyped-def]
    """Number of values of the piece data[begin:], or -1 where it is damaged: is not before `end`, or has nulls."""
    length = read_int32(data, begin) if end - begin >= _LENGTH else _DAMAGED
    begin += _LENGTH
    if length < _ARRAY + _WORD or length > end - begin or length % _WORD:
        return _DAMAGED
    where, array = load_u64(data, begin + _WHERE), begin + _ARRAY
    size = np.int64(where & _SIZE)
    if where >> _HALF != np.uint64(_ARRAY) or size != length - _ARRAY:
        return _DAMAGED
    values = np.int64(load_u64(data, array))
    if values < 0 or values > size:
        return _DAMAGED
    each = width if width else np.int64(_WORD)
    behind = _head(values) + _whole(values * each)
    if behind > size:
        return _DAMAGED
    for at in range(array + _WORD, array + _head(values), _WORD):
        if load_u64(data, at):
            return _DAMAGED
    if not width:
        for at in range(array + _head(values), array + behind, _WORD):
            where = load_u64(data, at)
            offset = np.int64(where >> _HALF)
            if offset < behind or offset % _WORD or offset + _whole(np.int64(where & _SIZE)) > size:
                return _DAMAGED
    return values


@njit(nogil=True, cache=True)
def _word(data, at, width):  # type: ignore[no-untyped-def]
    """The value of `width` bytes, up to 8."""
    if width == _WORD:
        return load_u64(data, at)
    word = np.uint64(0)
    for i in range(at, at + width):
        word = word << np.uint64(8) | np.uint64(data[i])
    return word


@njit(nogil=True, cache=True)
def _hash(data, at, size, width):  # type: ignore[no-untyped-def]
    if width:
        return mixed_in(np.uint64(0), _word(data, at, width))
    h = np.uint64(size)
    for place in range(at, at + size, _WORD):
        h = mixed_in(h, load_u64(data, place))
    return h


@njit(nogil=True, cache=True)
def _same(data, a, b, size, width):  # type: ignore[no-untyped-def]
    if width:
        return _word(data, a, width) == _word(data, b, width)
    for at in range(0, size, _WORD):  # noqa: SIM110 - Numba compiles no generator
        if load_u64(data, a + at) != load_u64(data, b + at):
            return False
    return True


@njit(nogil=True, cache=True)
def _find(data, begin, end, width, table, places, lengths):  # type: ignore[no-untyped-def]
    """Finds the different values of the pieces data[begin:end], in the order of their first appearance: writes where
    they lie, and of how many bytes they are. Returns their number. `table`: zeros, a power of two of them.
    """
    found = 0
    mask = np.uint64(table.shape[0] - 1)
    while begin < end:
        array = begin + _LENGTH + _ARRAY
        values = np.int64(load_u64(data, array))
        at = array + _head(values)
        for _ in range(values):
            place, size = at, width
            if not width:
                where = load_u64(data, at)
                place, size = array + np.int64(where >> _HALF), np.int64(where & _SIZE)
            slot = _hash(data, place, size, width) & mask
            while True:
                known = table[slot] - 1
                if known < 0:
                    places[found], lengths[found] = place, size
                    found += 1
                    table[slot] = found
                    break
                if lengths[known] == size and _same(data, place, places[known], size, width):
                    break
                slot = (slot + np.uint64(1)) & mask
            at += width if width else np.int64(_WORD)
        begin += _LENGTH + read_int32(data, begin)
    return found


@njit(nogil=True, cache=True)
def _write(data, width, places, lengths, found, out, begin):  # type: ignore[no-untyped-def]
    """Writes a piece of the values found at out[begin:]; returns its bytes."""
    array = begin + _LENGTH + _ARRAY
    at = array + _head(found)
    to = at + _whole(found * (width if width else np.int64(_WORD)))
    out[begin:to] = 0
    for i in range(found):
        place, size = places[i], lengths[i]
        if width:
            copy_items(data, place, width, out, at)
            at += width
        else:
            store_u64(out, at, np.uint64(to - array) << _HALF | np.uint64(size))
            copy_items(data, place, _whole(size), out, to)
            to += _whole(size)
            at += _WORD
    store_u64(out, array, np.uint64(found))
    store_u64(out, begin + _LENGTH + _WHERE, np.uint64(_ARRAY) << _HALF | np.uint64(to - array))
    write_int32(out, begin, to - begin - _LENGTH)
    return to - begin


@njit(nogil=True, cache=True)
def fold_sets(data, begins, width, lo, hi, out, sizes):  # type: ignore[no-untyped-def]
    """Merges the pieces of each group lo <= k < hi, which are data[begins[k]:begins[k + 1]] (uint8, int64), into one
    piece, at out[begins[k]:], of sizes[k] (int64) bytes; of a group without pieces there is none. Values stay in the
    order of their first appearance. `width`: bytes of a value, 1, 2, 4 or 8; 0 where they fit no word. Returns the
    first group whose pieces are damaged, or -1.
    """
    most = np.int64(1)
    for k in range(lo, hi):
        of_group, at = np.int64(0), begins[k]
        while at < begins[k + 1]:
            values = _values(data, at, begins[k + 1], width)
            if values < 0:
                return k
            of_group += values
            at += _LENGTH + read_int32(data, at)
        most = max(most, of_group)
    table, places, lengths = np.zeros(slots_for(most), np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    for k in range(lo, hi):
        begin, end = begins[k], begins[k + 1]
        if is_single(data, begin, end):
            copy_items(data, begin, end - begin, out, begin)
            sizes[k] = end - begin
            continue
        of_group, at = np.int64(0), begin
        while at < end:
            of_group += np.int64(load_u64(data, at + _LENGTH + _ARRAY))
            at += _LENGTH + read_int32(data, at)
        slots = slots_for(of_group)
        table[:slots] = 0
        found = _find(data, begin, end, width, table[:slots], places, lengths)
        sizes[k] = _write(data, width, places, lengths, found, out, begin)
    return -1
