"""First rows of keys: of rows in order of arrival, those whose key nobody remembers."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit

FORGOTTEN = np.iinfo(np.int64).min
"""In the place of a time: the key is not remembered."""

FOR_EVER = np.iinfo(np.int64).max
"""In the place of a time: the key is not forgotten."""


@njit(nogil=True, cache=True)
def first_rows(code, until, rows, remembered, out):  # type: ignore[no-untyped-def]
    """Writes which of some rows (int64[n], ascending) are the first of their key, to `out` (int64[n]); their number.

    code int32, until int64: of all rows, the key, and the time until which it is remembered from now on. remembered
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


@njit(nogil=True, cache=True)
def first_rows_within(code, time, within, remembered, out, before):  # type: ignore[no-untyped-def]
    """Writes which rows (n of them) are the first of their key for some time, to `out` (int64[n]); their number.

    code int32[n], time int64[n]: the key and the time of each row. Its key is remembered until `within` after it, and
    a row later than that is a first row again. remembered int64[keys]: until when each key is remembered, `FORGOTTEN`
    for none; it changes where a row is a first one, and `before` (int64[n]) gets what was there, in the order of `out`.
    """
    n = 0
    for row in range(code.shape[0]):
        key, at = code[row], time[row]
        last = remembered[key]
        if last == FORGOTTEN or last < at:
            remembered[key] = FOR_EVER if at > FOR_EVER - within else max(at + within, FORGOTTEN + 1)
            out[n] = row
            before[n] = last
            n += 1
    return n


@njit(nogil=True, cache=True)
def first_rows_ever(code, known, seen, out):  # type: ignore[no-untyped-def]
    """Writes the first row of each key that has none among the first `known`, to `out` (int64[new]); their number.

    code int32[n]: the key of each row. seen bool[new]: False; whether a row with the key has come by then.
    """
    n = 0
    for row in range(code.shape[0]):
        key = code[row] - known
        if key >= 0 and not seen[key]:
            seen[key] = True
            out[n] = row
            n += 1
    return n
