"""Hash tables that give each distinct integer a dense int32 code: open addressing, linear probing, nothing is ever
deleted.

A table is int64[2 * capacity] of pairs (key, code), capacity a power of two; code -1 is an empty slot. Kernels that
insert stop where the caller must make room, and are called again from there. Byte strings: `byte_keys`.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.memory import fetch, prefetch

_BLOCK = 64  # values whose slots are asked for before the first of them is written
_AHEAD = 64  # values between asking for one and reading it
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio (Knuth, 6.4)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def is_set(bitmap, offset, i):  # type: ignore[no-untyped-def]
    """Whether bit offset + i of an Arrow bitmap is set; an empty bitmap has every bit set."""
    if bitmap.shape[0] == 0:
        return True
    b = offset + i
    return (bitmap[b >> 3] >> (b & 7)) & 1 != 0


@njit(nogil=True, cache=True)
def hash_int(x):  # type: ignore[no-untyped-def]
    h = np.uint64(x) * _GOLDEN
    h ^= h >> np.uint64(32)
    return h * _MIX


# -- integers by direct address: codes[value - base] -------------------------------------------------------------------


@njit(nogil=True, cache=True)
def mixed_in(h, word):  # type: ignore[no-untyped-def]
    """Hash (uint64) of several words: `h`, that of those so far, with one more (uint64)."""
    h = (h ^ word) * _GOLDEN
    return h ^ (h >> np.uint64(29))


@njit(nogil=True, cache=True)
def slots_for(entries):  # type: ignore[no-untyped-def]
    """Number of slots, a power of two, of a table that so many entries fill to the half at most."""
    slots = np.int64(2)
    while slots < 2 * entries:
        slots *= 2
    return slots


@njit(nogil=True, cache=True)
def direct_lookup(values, bitmap, offset, null_code, base, index, codes):  # type: ignore[no-untyped-def]
    """Codes of values by direct address, -1 for those unseen. Returns how many are."""
    size = np.uint64(index.shape[0])
    missing = np.int64(0)
    if bitmap.shape[0] == 0:
        for i in range(values.shape[0]):
            at = np.uint64(values[i]) - base
            code = index[at] if at < size else np.int32(-1)
            codes[i] = code
            missing += code < 0
        return missing
    for i in range(values.shape[0]):
        if is_set(bitmap, offset, i):
            at = np.uint64(values[i]) - base
            code = index[at] if at < size else np.int32(-1)
            missing += code < 0
        else:
            code = null_code
        codes[i] = code
    return missing


@njit(nogil=True, cache=True)
def direct_insert(values, start, base, index, keys, count, codes):  # type: ignore[no-untyped-def]
    """Gives codes to the values whose code is -1, from `start` on. Returns (position, count): it stops before a value
    that is out of range of `index`, or if `keys` is full.
    """
    size = np.uint64(index.shape[0])
    last = values.shape[0] - 1
    for i in range(start, values.shape[0]):
        prefetch(index, np.uint64(values[min(i + _AHEAD, last)]) - base)
        if codes[i] >= 0:
            continue
        at = np.uint64(values[i]) - base
        if at >= size:
            return i, count
        code = index[at]
        if code < 0:
            if count == keys.shape[0]:
                return i, count
            code = np.int32(count)
            index[at] = code
            keys[count] = values[i]
            count += 1
        codes[i] = code
    return values.shape[0], count


@njit(nogil=True, cache=True)
def value_range(values, bitmap, offset):  # type: ignore[no-untyped-def]
    """(least, most) of the valid values; (largest, smallest int64) for none."""
    least = np.int64((1 << 63) - 1)
    most = np.int64(-(1 << 63))
    for i in range(values.shape[0]):
        if is_set(bitmap, offset, i):
            v = np.int64(values[i])
            least = min(least, v)
            most = max(most, v)
    return least, most


@njit(nogil=True, cache=True)
def fill_direct(keys, count, skip, base, index):  # type: ignore[no-untyped-def]
    """Enters all keys in range, but that of code `skip` (the null), into an index of -1s."""
    size = np.uint64(index.shape[0])
    for c in range(count):
        prefetch(index, np.uint64(keys[min(c + _AHEAD, count - 1)]) - base)
        if c == skip:
            continue
        at = np.uint64(keys[c]) - base
        if at < size:
            index[at] = c


# -- integers by hash --------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def hash_lookup(values, bitmap, offset, null_code, table, codes):  # type: ignore[no-untyped-def]
    """Codes of values, -1 for those unseen. Returns how many are."""
    mask = np.uint64(table.shape[0] // 2 - 1)
    missing = 0
    for i in range(values.shape[0]):
        if not is_set(bitmap, offset, i):
            codes[i] = null_code
            continue
        x = np.int64(values[i])
        at = (hash_int(x) >> np.uint64(20)) & mask
        while True:
            code = table[2 * at + _ONE]
            if code < 0:
                missing += 1
                break
            if table[2 * at] == x:
                break
            at = (at + _ONE) & mask
        codes[i] = code
    return missing


@njit(nogil=True, cache=True)
def hash_insert(values, start, table, keys, count, codes):  # type: ignore[no-untyped-def]
    """Gives codes to the values whose code is -1, from `start` on. Returns (position, count): it stops if the table is
    half full or `keys` is full.
    """
    mask = np.uint64(table.shape[0] // 2 - 1)
    limit = min(table.shape[0] // 4, keys.shape[0])
    places, rows = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.int64)
    i = start
    while i < values.shape[0]:
        m = 0
        while i < values.shape[0] and m < _BLOCK:
            if codes[i] < 0:
                at = (hash_int(np.int64(values[i])) >> np.uint64(20)) & mask
                prefetch(table, np.uint64(2) * at)
                rows[m], places[m] = i, at
                m += 1
            i += 1
        for k in range(m):
            row, at = rows[k], places[k]
            x = np.int64(values[row])
            while True:
                code = table[2 * at + _ONE]
                if code < 0:
                    if count >= limit:
                        return row, count
                    code = count
                    table[2 * at] = x
                    table[2 * at + _ONE] = code
                    keys[count] = x
                    count += 1
                    break
                if table[2 * at] == x:
                    break
                at = (at + _ONE) & mask
            codes[row] = code
    return values.shape[0], count


@njit(nogil=True, cache=True)
def fill_hash(keys, count, skip, table):  # type: ignore[no-untyped-def]
    """Enters all keys but that of code `skip` (the null) into a table of -1s."""
    mask = np.uint64(table.shape[0] // 2 - 1)
    for c in range(count):
        prefetch(table, np.uint64(2) * ((hash_int(keys[min(c + _AHEAD, count - 1)]) >> np.uint64(20)) & mask))
        if c == skip:
            continue
        at = (hash_int(keys[c]) >> np.uint64(20)) & mask
        while table[2 * at + _ONE] >= 0:
            at = (at + _ONE) & mask
        table[2 * at] = keys[c]
        table[2 * at + _ONE] = c


@njit(nogil=True, cache=True)
def values_of(keys, codes, out):  # type: ignore[no-untyped-def]
    """out[i] = keys[codes[i]]. Codes that lie far apart are asked for ahead."""
    last = codes.shape[0] - 1
    for i in range(codes.shape[0]):
        fetch(keys, np.uint64(codes[min(i + _AHEAD, last)]))
        out[i] = keys[codes[i]]


# -- codes and bits ----------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def map_codes(indices, bitmap, offset, null_code, mapping, codes):  # type: ignore[no-untyped-def]
    """codes[i] = mapping[indices[i]], null_code where the index is null."""
    for i in range(indices.shape[0]):
        codes[i] = mapping[indices[i]] if is_set(bitmap, offset, i) else null_code


@njit(nogil=True, cache=True)
def pair_codes(high, low, out):  # type: ignore[no-untyped-def]
    """Two int32 codes as one int64; -1 if either is."""
    for i in range(out.shape[0]):
        if high[i] < 0 or low[i] < 0:
            out[i] = -1
        else:
            out[i] = (np.int64(high[i]) << np.int64(32)) | np.int64(low[i])


@njit(nogil=True, cache=True)
def canonical_float_bits(values, out):  # type: ignore[no-untyped-def]
    """out[i] (int64): equal exactly where the floats are: one NaN, one zero."""
    bits = values.view(np.int64)
    for i in range(values.shape[0]):
        x = values[i]
        if x != x:
            out[i] = 0x7FF8000000000000
        elif x == 0.0:
            out[i] = 0
        else:
            out[i] = bits[i]
