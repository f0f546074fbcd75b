"""First rows of keys: of rows in order of arrival, those whose key nobody remembers."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit

FORGOTTEN = np.iinfo(np.int64).min
"""In the place of a time: the key is not remembered."""


@njit(nogil=True, cache=True)
def first_rows(code, time, until, rows, remembered, out):  # type: ignore[no-untyped-def]
    """Writes which of some rows (int64[n], ascending) are the first of their key, to `out` (int64[n]); their number.

    A row is the first one, too, where its key is remembered until before its time. code int32, time int64, until int64:
    of all rows, the key, the time (`FORGOTTEN`: a key that is remembered at all is), and the time until which the key
    is remembered from now on. remembered int64[keys]: the same of all keys, `FORGOTTEN` for none; keys of first rows
    are put in.
    """
    n = 0
    for row in rows:
        key = code[row]
        last = remembered[key]
        if last == FORGOTTEN or last < time[row]:
            remembered[key] = until[row]
            out[n] = row
            n += 1
    return n
