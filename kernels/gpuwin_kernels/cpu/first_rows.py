"""First rows of keys: of rows in order of arrival, those whose key nobody remembers."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit

FORGOTTEN = np.iinfo(np.int64).min
"""In the place of a time: the key is not remembered."""


@njit(nogil=True, cache=True)
def first_rows(code, until, rows, remembered, out):  # type: ignore[no-untyped-def]
    """Writes which of some rows (int64[n], ascending) are the first of their key, to `out` (int64[n]); their number.

    code int32, until int64: of all rows, the key and the time until which it is remembered from now on. remembered
    int64[keys]: the same of all keys, `FORGOTTEN` for none; keys of first rows are put in.
    """
    n = 0
    for row in rows:
        key = code[row]
        if remembered[key] == FORGOTTEN:
            remembered[key] = until[row]
            out[n] = row
            n += 1
    return n
