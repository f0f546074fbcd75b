"""Insertion of many byte strings into a table (`byte_keys`) by several threads, with the codes that one thread would
give: in the order in which the strings come.

Three steps. Each thread *claims* the slots of a region of its own: a string that is new takes its slot with the number
of its row, and later rows with it are told that row. One thread then numbers the rows that claimed. Last, all threads
enter what was numbered: entry, bytes and slot. A string whose search leaves the region is left over, for one thread
after the others. A search finds what it would find in a table that one thread filled.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.byte_keys import (
    BLOCK,
    CODE,
    TAG,
    copy_bytes,
    ends_of_bytes,
    hash_of_bytes,
    inside_equal,
    is_entry,
)
from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.memory import fetch, prefetch

_CLAIMED = np.int64(1 << 31)  # of a slot whose lower half is a row, not a code
_AHEAD = 16  # rows between asking for their bytes or slots and reading them


@njit(nogil=True, cache=True)
def claim(data, offsets, start, first, end, alone, store, codes, slots):  # type: ignore[no-untyped-def]
    """Looks for the strings data[offsets[i]:offsets[i + 1]] whose code is -1 and whose search begins at a slot from
    `first` to `end`, and claims slots there for those that are new. The table must have room for all of them.

    Rows are taken from `start` to the last, and then those before it: threads that begin elsewhere do not write to one
    line of `codes`. codes[i] becomes the code, -2 - j where row j <= i claimed the slot, or stays -1 where the search
    goes beyond `end`; `alone`: it goes on at slot 0 then. slots[i] (int64): what row i claimed. Returns how many rows
    are left over.
    """
    left = _claim(data, offsets, start, codes.shape[0], first, end, alone, store, codes, slots)
    return left + _claim(data, offsets, 0, start, first, end, alone, store, codes, slots)


@njit(nogil=True, cache=True)
def _claim(data, offsets, lo, hi, first, end, alone, store, codes, slots):  # type: ignore[no-untyped-def]
    """Rows [lo, hi) of `claim`."""
    table = store.table
    mask = np.uint64(table.shape[0] - 1)
    hashes, firsts, lasts = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    rows = np.empty(BLOCK, np.int64)
    left = 0
    i = lo
    while i < hi:
        m = 0
        while i < hi and m < BLOCK:
            if codes[i] == -1:
                begin = np.int64(offsets[i])
                n = np.int64(offsets[i + 1]) - begin
                ends = ends_of_bytes(data, begin, n)
                h = hash_of_bytes(data, begin, n, ends)
                at = np.int64(h & mask)
                if first <= at < end:
                    rows[m], hashes[m], firsts[m], lasts[m] = i, h, ends[0], ends[1]
                    prefetch(table, np.uint64(at))
                    m += 1
            i += 1
        for k in range(m):
            slot = table[hashes[k] & mask]
            if slot != -1 and slot & _CLAIMED == 0:
                fetch(store.entries, np.uint64(4 * (slot & CODE)))
        for k in range(m):
            row, h, ends = rows[k], hashes[k], (firsts[k], lasts[k])
            begin = np.int64(offsets[row])
            n = np.int64(offsets[row + 1]) - begin
            at = np.int64(h & mask)
            while True:
                slot = table[at]
                if slot == -1:
                    table[at] = np.int64(h & TAG) | _CLAIMED | row
                    codes[row] = -2 - row
                    slots[row] = at
                    break
                if np.uint64(slot) & TAG == h & TAG:
                    other = slot & CODE
                    if slot & _CLAIMED == 0:
                        if is_entry(other, data, begin, n, ends, store):
                            codes[row] = other
                            break
                    elif _are_equal(data, begin, n, ends, np.int64(offsets[other]), np.int64(offsets[other + 1])):
                        if other < row:
                            codes[row] = -2 - other
                            break
                        # A row before it has the string, too: the claim is that one's.
                        table[at] = np.int64(h & TAG) | _CLAIMED | row
                        codes[row], codes[other] = -2 - row, -2 - row
                        slots[row] = at
                        break
                at += 1
                if at == end:
                    if not alone:
                        left += 1
                        break
                    at = np.int64(0)
    return left


@njit(nogil=True, cache=True)
def _are_equal(data, begin, n, ends, other, other_end):  # type: ignore[no-untyped-def]
    """Whether n bytes, whose ends are known, are data[other:other_end]."""
    if other_end - other != n:
        return False
    theirs = ends_of_bytes(data, other, n)
    if theirs[0] != ends[0] or theirs[1] != ends[1]:
        return False
    return n <= 16 or inside_equal(data, begin, data, other, n)


@njit(nogil=True, cache=True)
def number(offsets, count, codes, claimed, lengths):  # type: ignore[no-untyped-def]
    """Gives the next codes, from `count` on, to the rows that claimed a slot, and those of their strings to the others.

    claimed[k] (int64) is the row of code count + k. lengths[k + 1] (int64) is the number of bytes of the strings up to
    it, all together. Returns how many rows claimed.
    """
    k = 0
    lengths[0] = 0
    for i in range(codes.shape[0]):
        if codes[i] < -1:
            row = -2 - codes[i]
            if row == i:
                claimed[k] = i
                lengths[k + 1] = lengths[k] + np.int64(offsets[i + 1]) - np.int64(offsets[i])
                codes[i] = np.int32(count + k)
                k += 1
            else:
                codes[i] = codes[row]
    return k


@njit(nogil=True, cache=True)
def enter(data, offsets, count, lo, hi, claimed, slots, store):  # type: ignore[no-untyped-def]
    """Enters the strings of the codes count + lo to count + hi, whose places in the heap are known."""
    table, entries, heap, heap_offsets = store
    for k in range(lo, hi):
        ahead = claimed[min(k + _AHEAD, hi - 1)]
        prefetch(table, np.uint64(slots[ahead]))
        row, code = claimed[k], count + k
        begin, top = np.int64(offsets[row]), heap_offsets[code]
        n = np.int64(offsets[row + 1]) - begin
        ends = ends_of_bytes(data, begin, n)
        copy_bytes(data, begin, n, heap, top)
        entry = 4 * code
        entries[entry], entries[entry + 1] = ends[0], ends[1]
        entries[entry + 2], entries[entry + 3] = np.uint64(n), np.uint64(top)
        at = slots[row]
        table[at] = np.int64(np.uint64(table[at]) & TAG) | code
