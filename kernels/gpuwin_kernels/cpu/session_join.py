"""Two sorted lists of sessions, those of a batch and those that they touch, joined in one pass; and sessions taken by
their positions.

A session is a row of six arrays: code int32, start, last, end, id int64, filled uint8. Both lists are sorted by (code,
start).
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def take_bounds(code, start, last, end, number, filled, positions):  # type: ignore[no-untyped-def]
    """The six arrays at int64 positions: one pass, where NumPy would make six."""
    n = positions.shape[0]
    out_code, out_filled = np.empty(n, np.int32), np.empty(n, np.uint8)
    out_start, out_last = np.empty(n, np.int64), np.empty(n, np.int64)
    out_end, out_number = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        p = positions[i]
        out_code[i] = code[p]
        out_start[i] = start[p]
        out_last[i] = last[p]
        out_end[i] = end[p]
        out_number[i] = number[p]
        out_filled[i] = filled[p]
    return out_code, out_start, out_last, out_end, out_number, out_filled


@njit(nogil=True, cache=True)
def join_sessions(code, start, last, end, old_code, old_start, old_last, old_end, strict):  # type: ignore[no-untyped-def]
    """Joins what touches; `strict`: sessions must overlap, not only meet.

    Returns (part int64[n], old_part int64[k], code int32[m], start, last, end int64[m]): the session in [0, m) that
    each new and each old one is part of, and the bounds of these.
    """
    n, k = code.shape[0], old_code.shape[0]
    part, old_part = np.empty(n, np.int64), np.empty(k, np.int64)
    out_code = np.empty(n + k, np.int32)
    out_start, out_last, out_end = np.empty(n + k, np.int64), np.empty(n + k, np.int64), np.empty(n + k, np.int64)
    i, j, m = 0, 0, 0
    for _ in range(n + k):
        new = j >= k
        if not new and i < n:
            new = code[i] < old_code[j] or (code[i] == old_code[j] and start[i] <= old_start[j])
        if new:
            c, s, t, e = code[i], start[i], last[i], end[i]
        else:
            c, s, t, e = old_code[j], old_start[j], old_last[j], old_end[j]
        joins = m > 0 and out_code[m - 1] == c
        if joins:
            joins = s < out_end[m - 1] if strict else s <= out_end[m - 1]
        if joins:
            out_last[m - 1] = max(out_last[m - 1], t)
            out_end[m - 1] = max(out_end[m - 1], e)
        else:
            out_code[m], out_start[m], out_last[m], out_end[m] = c, s, t, e
            m += 1
        if new:
            part[i] = m - 1
            i += 1
        else:
            old_part[j] = m - 1
            j += 1
    return part, old_part, out_code[:m].copy(), out_start[:m].copy(), out_last[:m].copy(), out_end[:m].copy()


@njit(nogil=True, cache=True)
def name_sessions(old_part, old_number, made, first):  # type: ignore[no-untyped-def]
    """Where the old parts of each of `made` sessions begin (int64[made + 1]; `old_part` ascends), the numbers of these
    (int64[made]: that of the first old part, or the next one from `first` on), and how many are new.
    """
    offsets, number = np.empty(made + 1, np.int64), np.empty(made, np.int64)
    at, created = 0, 0
    for m in range(made):
        offsets[m] = at
        if at < old_part.shape[0] and old_part[at] == m:
            number[m] = old_number[at]
            while at < old_part.shape[0] and old_part[at] == m:
                at += 1
        else:
            number[m] = first + created
            created += 1
    offsets[made] = at
    return offsets, number, created
