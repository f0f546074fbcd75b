"""A hash table that gives each distinct byte string a dense int32 code: open addressing, linear probing, nothing is
ever deleted.

A slot is one int64: the upper half of the hash over the code; -1 is an empty one. What a code stands for is in its
entry, four words (uint64): the first and the last eight bytes, the length, and where it begins in the heap of bytes. Up
to 16 bytes are compared without a look at the heap. Strings are looked up a block at a time, in three loops: hashes,
slots, entries. So the cache misses of a block overlap, and a branch that is guessed wrong throws little away.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.hashing import is_set
from gpuwin_kernels.cpu.memory import fetch, fold_multiply, load_u32, load_u64, prefetch, store_u64

BLOCK = 64
_AHEAD = 16  # strings between asking for one and copying it
CODE = np.int64(0x7FFFFFFF)
TAG = np.uint64(0xFFFFFFFF00000000)
_ONE, _TWO, _THREE, _EIGHT = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(8)
_FIRST = np.uint64(0x9E3779B97F4A7C15)  # odd, with bits set in no pattern, as the others
_LAST = np.uint64(0xD1B54A32D192ED03)
_LENGTH = np.uint64(0x8CB92BA72F3D8DD7)


class ByteStore(NamedTuple):
    """Table of strings, their entries, and the heap of their bytes: string c is heap[offsets[c]:offsets[c + 1]]."""

    table: np.ndarray  # int64[a power of two]
    entries: np.ndarray  # uint64[4 * room]
    heap: np.ndarray  # uint8
    offsets: np.ndarray  # int64[room + 1]


@njit(nogil=True, cache=True)
def ends_of_bytes(data, begin, n):  # type: ignore[no-untyped-def]
    """Two words that, with the length, say what n bytes are where n <= 16; of more, the first and the last eight."""
    if n >= 8:
        return load_u64(data, begin), load_u64(data, begin + n - 8)
    if n >= 4:
        return load_u32(data, begin) | (load_u32(data, begin + n - 4) << np.uint64(32)), np.uint64(0)
    word = np.uint64(0)
    for i in range(begin, begin + n):
        word = (word << _EIGHT) | np.uint64(data[i])
    return word, np.uint64(0)


@njit(nogil=True, cache=True)
def hash_of_bytes(data, begin, n, ends):  # type: ignore[no-untyped-def]
    """64 bits of n bytes, whose ends are known."""
    first, last = ends
    h = fold_multiply(first ^ _FIRST, last ^ _LAST)
    i = begin + 8
    while i < begin + n - 8:  # the last step may reach into the last eight bytes
        h = fold_multiply(h ^ load_u64(data, i), _FIRST)
        i += 8
    return fold_multiply(h ^ _LENGTH, np.uint64(n) ^ _LAST)


@njit(nogil=True, cache=True)
def hash_bytes(data, begin, end):  # type: ignore[no-untyped-def]
    """64-bit hash of data[begin:end]."""
    return hash_of_bytes(data, begin, end - begin, ends_of_bytes(data, begin, end - begin))


@njit(nogil=True, cache=True)
def inside_equal(a, a_begin, b, b_begin, n):  # type: ignore[no-untyped-def]
    """Whether n > 16 bytes are equal, whose first and last eight are."""
    i = 8
    while i < n - 8:
        if load_u64(a, a_begin + i) != load_u64(b, b_begin + i):
            return False
        i += 8
    return True


@njit(nogil=True, cache=True)
def copy_bytes(data, begin, n, out, at):  # type: ignore[no-untyped-def]
    """out[at : at + n] = data[begin : begin + n], eight bytes at a time; the last eight may be written twice."""
    if n >= 8:
        for j in range(0, n - 8, 8):
            store_u64(out, at + j, load_u64(data, begin + j))
        store_u64(out, at + n - 8, load_u64(data, begin + n - 8))
    else:
        for j in range(n):
            out[at + j] = data[begin + j]


@njit(nogil=True, cache=True)
def is_entry(code, data, begin, n, ends, store):  # type: ignore[no-untyped-def]
    entries, at = store.entries, 4 * code
    if entries[at] != ends[0] or entries[at + 1] != ends[1] or entries[at + 2] != np.uint64(n):
        return False
    return n <= 16 or inside_equal(data, begin, store.heap, np.int64(entries[at + 3]), n)


@njit(nogil=True, cache=True)
def _probe(h, data, begin, n, ends, store):  # type: ignore[no-untyped-def]
    """The slot that holds these bytes, or the empty one that they would take."""
    table = store.table
    mask = np.uint64(table.shape[0] - 1)
    at = h & mask
    while True:
        slot = table[at]
        if slot < 0 and slot == -1:
            return at
        if np.uint64(slot) & TAG == h & TAG and is_entry(slot & CODE, data, begin, n, ends, store):
            return at
        at = (at + _ONE) & mask


@njit(nogil=True, cache=True)
def bytes_lookup(data, offsets, bitmap, offset, null_code, store, codes):  # type: ignore[no-untyped-def]
    """Codes of data[offsets[i]:offsets[i + 1]], -1 for those unseen. Returns how many are."""
    table, entries, heap, _offsets = store
    mask = np.uint64(table.shape[0] - 1)
    hashes, firsts, lasts = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    slots = np.empty(BLOCK, np.int64)
    missing = np.int64(0)
    for base in range(0, codes.shape[0], BLOCK):
        rows = min(BLOCK, codes.shape[0] - base)
        begin = np.int64(offsets[base])
        for k in range(rows):
            end = np.int64(offsets[base + k + 1])
            first, last = ends_of_bytes(data, begin, end - begin)
            h = hash_of_bytes(data, begin, end - begin, (first, last))
            hashes[k], firsts[k], lasts[k] = h, first, last
            fetch(table, h & mask)
            begin = end
        for k in range(rows):
            h = hashes[k]
            slot, next_slot = table[h & mask], table[(h + _ONE) & mask]
            if slot != -1 and np.uint64(slot) & TAG != h & TAG:
                slot = next_slot
            slots[k] = slot
            fetch(entries, np.uint64(4 * (slot & CODE)))
        begin = np.int64(offsets[base])
        doubtful = np.int64(0)
        for k in range(rows):  # no call and no branch that is hard to guess: most are what is in their first slot
            end = np.int64(offsets[base + k + 1])
            n, slot = end - begin, slots[k]
            at = np.uint64(4 * (slot & CODE)) if slot != -1 else np.uint64(0)
            same = (slot != -1) & (np.uint64(slot) & TAG == hashes[k] & TAG) & (entries[at + _TWO] == np.uint64(n))
            same &= (entries[at] == firsts[k]) & (entries[at + _ONE] == lasts[k])
            if n > 16:
                there, i = np.int64(entries[at + _THREE]), np.int64(8)
                while same and i < n - 8:
                    same = load_u64(data, begin + i) == load_u64(heap, there + i)
                    i += 8
            codes[base + k] = np.int32(slot & CODE) if same else np.int32(-1)
            doubtful += not same
            begin = end
        if doubtful:
            for k in range(rows):
                if codes[base + k] < 0 and slots[k] != -1:
                    begin = np.int64(offsets[base + k])
                    n = np.int64(offsets[base + k + 1]) - begin
                    slot = table[_probe(hashes[k], data, begin, n, (firsts[k], lasts[k]), store)]
                    codes[base + k] = np.int32(-1) if slot == -1 else np.int32(slot & CODE)
                missing += codes[base + k] < 0
    if bitmap.shape[0]:
        missing = np.int64(0)
        for row in range(codes.shape[0]):
            if not is_set(bitmap, offset, row):
                codes[row] = np.int32(null_code)
            missing += codes[row] < 0
    return missing


@njit(nogil=True, cache=True)
def bytes_insert(data, offsets, start, store, count, codes):  # type: ignore[no-untyped-def]
    """Gives codes to the strings whose code is -1, from `start` on. Returns (position, count): it stops if the table is
    half full, or the heap, its offsets (one longer than there may be codes) or the entries are full.
    """
    table, entries, heap, heap_offsets = store
    mask = np.uint64(table.shape[0] - 1)
    limit = min(table.shape[0] // 2, heap_offsets.shape[0] - 1, entries.shape[0] // 4)
    hashes, firsts, lasts = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    rows = np.empty(BLOCK, np.int64)
    i = start
    while i < codes.shape[0]:
        m = 0
        while i < codes.shape[0] and m < BLOCK:
            if codes[i] < 0:
                begin = np.int64(offsets[i])
                n = np.int64(offsets[i + 1]) - begin
                first, last = ends_of_bytes(data, begin, n)
                h = hash_of_bytes(data, begin, n, (first, last))
                rows[m], hashes[m], firsts[m], lasts[m] = i, h, first, last
                prefetch(table, h & mask)
                m += 1
            i += 1
        for k in range(m):
            slot = table[hashes[k] & mask]
            if slot != -1:
                fetch(entries, np.uint64(4 * (slot & CODE)))
        for k in range(m):
            row, h, ends = rows[k], hashes[k], (firsts[k], lasts[k])
            begin = np.int64(offsets[row])
            n = np.int64(offsets[row + 1]) - begin
            at = _probe(h, data, begin, n, ends, store)
            if table[at] == -1:
                top = heap_offsets[count]
                if count >= limit or top + n > heap.shape[0]:
                    return row, count
                copy_bytes(data, begin, n, heap, top)
                heap_offsets[count + 1] = top + n
                entry = entries[4 * count : 4 * count + 4]
                entry[0], entry[1], entry[2], entry[3] = ends[0], ends[1], np.uint64(n), np.uint64(top)
                table[at] = np.int64(h & TAG) | count
                count += 1
            codes[row] = np.int32(table[at] & CODE)
    return codes.shape[0], count


@njit(nogil=True, cache=True)
def fill_bytes(heap, entries, count, skip, table):  # type: ignore[no-untyped-def]
    """Enters all strings but that of code `skip` (the null) into a table of -1s."""
    mask = np.uint64(table.shape[0] - 1)
    hashes = np.empty(BLOCK, np.uint64)
    for base in range(0, count, BLOCK):
        codes = min(BLOCK, count - base)
        for k in range(codes):
            entry = 4 * (base + k)
            n, begin = np.int64(entries[entry + 2]), np.int64(entries[entry + 3])
            hashes[k] = np.uint64(0)  # of the null, which has no entry
            if base + k != skip:
                hashes[k] = hash_of_bytes(heap, begin, n, (entries[entry], entries[entry + 1]))
            prefetch(table, hashes[k] & mask)
        for k in range(codes):
            if base + k == skip:
                continue
            at = hashes[k] & mask
            while table[at] != -1:
                at = (at + _ONE) & mask
            table[at] = np.int64(hashes[k] & TAG) | (base + k)


@njit(nogil=True, cache=True)
def taken_length(heap_offsets, codes):  # type: ignore[no-untyped-def]
    """Bytes of the strings of these codes, all together."""
    n = np.int64(0)
    last = codes.shape[0] - 1
    for i in range(codes.shape[0]):
        fetch(heap_offsets, np.uint64(codes[min(i + _AHEAD, last)]))
        n += heap_offsets[codes[i] + 1] - heap_offsets[codes[i]]
    return n


@njit(nogil=True, cache=True)
def take_bytes(heap, heap_offsets, codes, at, out_offsets, out):  # type: ignore[no-untyped-def]
    """Copies the strings of these codes one after the other, from `at` on; out_offsets[i] is where each begins."""
    last = codes.shape[0] - 1
    for i in range(codes.shape[0]):
        fetch(heap_offsets, np.uint64(codes[min(i + 2 * _AHEAD, last)]))
        fetch(heap, np.uint64(heap_offsets[codes[min(i + _AHEAD, last)]]))
        begin = heap_offsets[codes[i]]
        n = heap_offsets[codes[i] + 1] - begin
        out_offsets[i] = at
        copy_bytes(heap, begin, n, out, at)
        at += n


@njit(nogil=True, cache=True)
def take_entries(store, codes, at, out_offsets, out):  # type: ignore[no-untyped-def]
    """As `take_bytes`, from the entries, which are all of a string of eight to 16 bytes: one cache miss, not two."""
    entries, heap = store.entries, store.heap
    last = codes.shape[0] - 1
    for i in range(codes.shape[0]):
        fetch(entries, np.uint64(4 * codes[min(i + _AHEAD, last)]))
        entry = 4 * np.int64(codes[i])
        n = np.int64(entries[entry + 2])
        out_offsets[i] = at
        if 8 <= n <= 16:
            store_u64(out, at, entries[entry])
            store_u64(out, at + n - 8, entries[entry + 1])
        else:
            copy_bytes(heap, np.int64(entries[entry + 3]), n, out, at)
        at += n
