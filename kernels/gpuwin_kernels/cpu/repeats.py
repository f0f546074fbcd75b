"""Different values of windows that slide over the rows of a key, by the rows around each that have its value, too.

A row counts in a window if no earlier row of the window has its value. So a row that enters is one more if its value
was there last before the window begins, and a row that leaves is one less if its value comes next behind the window's
end. A row costs a look into a hash table and two comparisons, whatever the overlap.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NEVER = np.iinfo(np.int64).max
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def _place(key, row, table, bits):  # type: ignore[no-untyped-def]
    """The slot of a row's key in a table of 1 << bits rows (-1: none): its own, or the one that it would take."""
    mask = (1 << bits) - 1
    at = np.int64((np.uint64(key[row]) * _GOLDEN) >> np.uint64(64 - bits))
    while table[at] >= 0 and key[table[at]] != key[row]:
        at = (at + 1) & mask
    return at


@njit(nogil=True, cache=True)
def find_repeats(code, key, valid, lo, hi, earlier, later):  # type: ignore[no-untyped-def]
    """Writes, for each of the rows [lo, hi), the nearest row before it and behind it of the same code and key.

    `code` int32 is sorted, and [lo, hi) holds all rows of its codes; key int64, valid uint8. No row before is -1, and
    none behind the largest int64. Of a row that is not valid, `earlier` is the largest int64 and `later` -1: it never
    counts.
    """
    table = np.empty(64, np.int64)
    bits = 6
    begin = lo
    while begin < hi:
        end = begin + 1
        while end < hi and code[end] == code[begin]:
            end += 1
        while bits > 6 and (1 << (bits - 1)) >= 2 * (end - begin):
            bits -= 1
        table[: 1 << bits] = -1
        count = 0
        for row in range(begin, end):
            if not valid[row]:
                earlier[row], later[row] = NEVER, -1
                continue
            at = _place(key, row, table, bits)
            earlier[row], later[row] = table[at], NEVER
            if table[at] >= 0:
                later[table[at]] = row
            else:
                count += 1
            table[at] = row
            if 2 * count > 1 << bits:
                known = table[: 1 << bits].copy()
                bits += 1
                if table.shape[0] < 1 << bits:
                    table = np.empty(1 << bits, np.int64)
                table[: 1 << bits] = -1
                for other in known:
                    if other >= 0:
                        table[_place(key, other, table, bits)] = other
        begin = end


@njit(nogil=True, cache=True)
def distinct_of_sliding(lo, hi, order, earlier, later, w0, w1, out):  # type: ignore[no-untyped-def]
    """Writes the number of different values (int64) of the windows order[w0:w1]. Window w holds the rows
    [lo[w], hi[w]); `order`: the windows by (lo, hi).
    """
    a = b = np.int64(0)
    n = 0
    for k in range(w0, w1):
        w = order[k]
        first, beyond = lo[w], max(hi[w], lo[w])
        if first >= b or beyond < b:
            a = b = first
            n = 0
        while a < first:
            n -= later[a] >= b
            a += 1
        while b < beyond:
            n += earlier[b] < a
            b += 1
        out[w] = n
