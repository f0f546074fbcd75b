"""Two sorted lists of sessions, those of a batch and those that they touch, joined in one pass; and sessions taken by
their positions.

A session is a row of six arrays: code int32, start, last, end, id int64, filled uint8. Both lists are sorted by (code,
start).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty


@njit(nogil=True, cache=True)
def _take(bounds, positions, outs, out_code, out_filled):  # type: ignore[no-untyped-def]
    code, start, last, end, number, filled = bounds
    for i in range(positions.shape[0]):
        p = positions[i]
        out_code[i] = code[p]
        outs[0, i] = start[p]
        outs[1, i] = last[p]
        outs[2, i] = end[p]
        outs[3, i] = number[p]
        out_filled[i] = filled[p]


def take_bounds(bounds: Sequence[np.ndarray], positions: np.ndarray) -> tuple[np.ndarray, ...]:
    """The six arrays at int64 positions: one pass, where NumPy would make six."""
    n = len(positions)
    code, outs, filled = empty(n, np.int32), empty((4, n), np.int64), empty(n, np.uint8)
    _take(tuple(bounds), positions, outs, code, filled)
    return code, *outs, filled


@njit(nogil=True, cache=True)
def _join(new, old, strict, part, old_part, out_code, outs):  # type: ignore[no-untyped-def]
    code, start, last, end = new
    old_code, old_start, old_last, old_end = old
    n, k = code.shape[0], old_code.shape[0]
    out_start, out_last, out_end = outs[0], outs[1], outs[2]
    i, j, m = 0, 0, 0
    for _ in range(n + k):
        first = j >= k
        if not first and i < n:
            first = code[i] < old_code[j] or (code[i] == old_code[j] and start[i] <= old_start[j])
        if first:
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
        if first:
            part[i] = m - 1
            i += 1
        else:
            old_part[j] = m - 1
            j += 1
    return m


def join_sessions(
    new: Sequence[np.ndarray], old: Sequence[np.ndarray], strict: bool
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
    """Joins what touches of two lists (code, start, last, end); `strict`: sessions must overlap, not only meet.

    Returns (part int64[n], old_part int64[k], bounds): the session in [0, m) that each new and each old one is part of,
    and the code int32[m] and start, last, end int64[m] of these.
    """
    n, k = len(new[0]), len(old[0])
    part, old_part = empty(n, np.int64), empty(k, np.int64)
    code, outs = empty(n + k, np.int32), empty((3, n + k), np.int64)
    m = _join(tuple(new), tuple(old), strict, part, old_part, code, outs)
    return part, old_part, (code[:m].copy(), *(out[:m].copy() for out in outs))


@njit(nogil=True, cache=True)
def name_sessions(old_part, old_number, first, offsets, number):  # type: ignore[no-untyped-def]
    """Where the old parts of each of m sessions begin (`offsets` int64[m + 1]; `old_part` int64 ascends), and their
    numbers (int64[m]): that of the first old part, or the next one from `first` on. Returns how many are new.
    """
    made = number.shape[0]
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
    return created
