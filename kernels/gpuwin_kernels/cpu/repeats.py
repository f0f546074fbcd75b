"""Different values of windows that slide over the rows of a key, by the rows around each that have its value, too.

A row counts in a window if no earlier row of the window has its value. So a row that enters is one more if its value
was there last before the window begins, and a row that leaves is one less if its value comes next behind the window's
end. A row costs its share of a sort and two comparisons, whatever the overlap.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit

NEVER = np.iinfo(np.int64).max


@njit(nogil=True, cache=True)
def find_repeats(code, key, valid, order, k0, k1, earlier, later):  # type: ignore[no-untyped-def]
    """Writes, for each of the rows order[k0:k1], the nearest row before it and behind it of the same code and key.

    `order` int64: the stable order of the rows by (code, key), of which [k0, k1) has all rows of its codes; code int32,
    key int64, valid uint8. No row before is -1, and none behind the largest int64. Of a row that is not valid,
    `earlier` is the largest int64 and `later` -1: it never counts.
    """
    last = -1
    for k in range(k0, k1):
        row = order[k]
        if not valid[row]:
            earlier[row], later[row] = NEVER, -1
            continue
        earlier[row], later[row] = -1, NEVER
        if last >= 0 and key[last] == key[row] and code[last] == code[row]:
            earlier[row], later[last] = last, row
        last = row


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
