"""Session kernels: rows to proto-sessions, what they touch in a tier of open sessions, and what touches becomes one.

Intervals are [start, end). `strict` is true where sessions must overlap to be one, false where it is enough that they
meet.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import lower_bound_from, order_in_threads
from gpuwin_kernels.cpu.parallel import each, ranges

from .growing import longer, wider

_FAR = np.iinfo(np.int64).max
_PROBE_ROWS = 1 << 16  # rows after which a pass that finds little but new intervals is given up for a sort


@njit(nogil=True, cache=True)
def end_of(time, gap):  # type: ignore[no-untyped-def]
    # Compared before adding: the compiler may assume that a signed addition does not wrap.
    return time + gap if time <= _FAR - gap else _FAR


@njit(nogil=True, cache=True)
def _cut(code, time, gap, strict, codes, slot):  # type: ignore[no-untyped-def]
    """One pass in order of arrival: a row joins one of the last two intervals of its key, or begins a new one.

    Returns the intervals as int64[m, 4] (code, start, last, end), one cache line for each. They may overlap: `coalesce`
    follows. Rows without any order in time would give as many intervals as rows: then it stops early, with slot[-1] =
    -1.
    """
    n = code.shape[0]
    one_gap = gap.shape[0] == 1
    width = gap[0] if one_gap else 0
    recent = np.full((codes, 2), -1, np.int32)
    interval = np.empty((1024, 4), np.int64)
    m = 0
    for i in range(n):
        if i == _PROBE_ROWS and m > codes + i // 2:
            slot[n - 1] = -1
            break
        c = code[i]
        t = time[i]
        end = end_of(t, width if one_gap else gap[i])
        found = -1
        for which in range(2):
            s = recent[c, which]
            if s < 0:
                break
            meets = not strict and (t == interval[s, 3] or interval[s, 1] == end)
            if meets or (t < interval[s, 3] and interval[s, 1] < end):
                interval[s, 1] = min(interval[s, 1], t)
                interval[s, 2] = max(interval[s, 2], t)
                interval[s, 3] = max(interval[s, 3], end)
                found = s
                break
        if found < 0:
            if m == interval.shape[0]:
                interval = longer(interval)
            interval[m, 0] = c
            interval[m, 1] = t
            interval[m, 2] = t
            interval[m, 3] = end
            recent[c, 1] = recent[c, 0]
            recent[c, 0] = m
            found = m
            m += 1
        slot[i] = found
    return interval[:m]


@njit(nogil=True, cache=True)
def coalesce(code, start, last, end, strict):  # type: ignore[no-untyped-def]
    """Joins what touches among intervals sorted by (code, start).

    Returns (component int64[n], code int32[m], start, last, end int64[m]): component[i] in [0, m) is the session that
    interval i is part of.
    """
    n = code.shape[0]
    component = np.empty(n, np.int64)
    out_code = np.empty(n, np.int32)
    out_start = np.empty(n, np.int64)
    out_last = np.empty(n, np.int64)
    out_end = np.empty(n, np.int64)
    m = 0
    for i in range(n):
        joins = False
        if m > 0 and out_code[m - 1] == code[i]:
            joins = start[i] < out_end[m - 1] if strict else start[i] <= out_end[m - 1]
        if joins:
            out_last[m - 1] = max(out_last[m - 1], last[i])
            out_end[m - 1] = max(out_end[m - 1], end[i])
        else:
            out_code[m] = code[i]
            out_start[m] = start[i]
            out_last[m] = last[i]
            out_end[m] = end[i]
            m += 1
        component[i] = m - 1
    return component, out_code[:m].copy(), out_start[:m].copy(), out_last[:m].copy(), out_end[:m].copy()


@njit(nogil=True, cache=True)
def _cut_ordered(order, code, time, gap, strict, slot):  # type: ignore[no-untyped-def]
    """As `_cut` and `coalesce` in one, for rows in the order of (code, time)."""
    n = order.shape[0]
    one_gap = gap.shape[0] == 1
    width = gap[0] if one_gap else 0
    interval = np.empty((1024, 4), np.int64)
    m = 0
    for k in range(n):
        i = order[k]
        c = code[i]
        t = time[i]
        end = end_of(t, width if one_gap else gap[i])
        s = m - 1
        if m > 0 and interval[s, 0] == c and (t < interval[s, 3] if strict else t <= interval[s, 3]):
            interval[s, 2] = t
            interval[s, 3] = max(interval[s, 3], end)
        else:
            if m == interval.shape[0]:
                interval = longer(interval)
            interval[m, 0] = c
            interval[m, 1] = t
            interval[m, 2] = t
            interval[m, 3] = end
            m += 1
        slot[i] = m - 1
    return interval[:m]


@njit(nogil=True, cache=True)
def _translate(slot, number):  # type: ignore[no-untyped-def]
    for i in range(slot.shape[0]):
        slot[i] = number[slot[i]]


def cut(
    code: np.ndarray, time: np.ndarray, gap: np.ndarray, strict: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows to proto-sessions that do not touch: (slot int32[n], code int32[m], start, last, end int64[m]), sorted by
    (code, start).

    `code` int32[n] >= 0, `time` int64[n], `gap` int64[1] or int64[n]. Rows in no order of time, and few rows of a large
    dictionary, are sorted first.
    """
    n = len(code)
    codes = int(code.max()) + 1 if n else 0
    slot = empty(n, np.int32)
    found = None if codes > 4 * n + 1024 else _cut_as_they_come(code, time, gap, strict, codes, slot)
    if found is not None:
        return slot, *found
    interval = _cut_ordered(order_in_threads(code, time), code, time, gap, strict, slot)
    start, last, end = (np.ascontiguousarray(interval[:, j]) for j in (1, 2, 3))
    return slot, interval[:, 0].astype(np.int32), start, last, end


def _cut_as_they_come(
    code: np.ndarray, time: np.ndarray, gap: np.ndarray, strict: bool, codes: int, slot: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Large batches are cut by several threads, and their intervals joined. None: the rows have no order in time."""
    n = len(code)
    parts = [slice(lo, hi) for lo, hi in (ranges(n) if codes <= n // 4 else [(0, n)])]

    def cut_part(part: slice) -> np.ndarray:
        interval: np.ndarray = _cut(
            code[part], time[part], gap if len(gap) == 1 else gap[part], strict, codes, slot[part]
        )
        return interval

    intervals = each(cut_part, parts)
    if any(n and slot[part.stop - 1] < 0 for part in parts):
        return None
    interval = intervals[0] if len(intervals) == 1 else np.concatenate(intervals)
    interval_code = interval[:, 0].astype(np.int32)
    order = order_in_threads(interval_code, np.ascontiguousarray(interval[:, 1]))
    interval = interval[order]
    start, last, end = (np.ascontiguousarray(interval[:, j]) for j in (1, 2, 3))
    component, *found = coalesce(interval_code[order], start, last, end, strict)
    number = empty(len(interval), np.int32)
    number[order] = component
    before = np.cumsum([0] + [len(p) for p in intervals])
    each(lambda k: _translate(slot[parts[k]], number[before[k] : before[k + 1]]), range(len(parts)))
    return found[0], found[1], found[2], found[3]


@njit(nogil=True, cache=True)
def find_touching(code, start, end, dead, want_code, want_start, want_end, strict):  # type: ignore[no-untyped-def]
    """The live sessions of a tier that touch one of the wanted intervals: positions int64[k], ascending, each once.

    The tier and the wanted intervals are sorted by (code, start). The sessions of one key in a tier were disjoint when
    it was made, so to the left of an interval only the nearest, live or dead, can reach it. `dead` is a bit set (uint8,
    little-endian bits).
    """
    found = np.empty(64, np.int64)
    k = 0
    n = code.shape[0]
    at = 0
    taken = -1
    for w in range(want_code.shape[0]):
        c = want_code[w]
        at = lower_bound_from(code, start, at, c, want_start[w])
        i = at
        if i > 0 and code[i - 1] == c:
            i -= 1
            if end[i] < want_start[w] or (strict and end[i] == want_start[w]):
                i += 1
        while i < n and code[i] == c and (start[i] < want_end[w] or (not strict and start[i] == want_end[w])):
            if i > taken and not (dead[i >> 3] >> (i & 7)) & 1:
                if k == found.shape[0]:
                    found = wider(found)
                found[k] = i
                k += 1
                taken = i
            i += 1
    return found[:k]


@njit(nogil=True, cache=True)
def with_bits(bits, positions):  # type: ignore[no-untyped-def]
    """A copy of the bit set with these positions set."""
    out = bits.copy()
    for p in positions:
        out[p >> 3] |= np.uint8(1 << (p & 7))
    return out


@njit(nogil=True, cache=True, inline="always")
def _is_clear(bits, p):  # type: ignore[no-untyped-def]
    """1 where the bit is not set, else 0: added to a place instead of a branch, it is a tenth of the time."""
    return np.int64(1 - ((bits[p >> 3] >> (p & 7)) & 1))


@njit(nogil=True, cache=True)
def clear_positions(bits, n):  # type: ignore[no-untyped-def]
    """The positions below n whose bit is not set, ascending."""
    out = np.empty(n, np.int64)
    k = 0
    for p in range(n):
        out[k] = p
        k += _is_clear(bits, p)
    return out[:k]


@njit(nogil=True, cache=True)
def live_of(bits, positions):  # type: ignore[no-untyped-def]
    """Those of the positions whose bit is not set, in their order."""
    out = np.empty(positions.shape[0], np.int64)
    k = 0
    for p in positions:
        out[k] = p
        k += _is_clear(bits, p)
    return out[:k]


@njit(nogil=True, cache=True)
def live_between(end, bits, after, upto):  # type: ignore[no-untyped-def]
    """The live positions with after <= end <= upto, ascending: a scan of the tier."""
    n = end.shape[0]
    out = np.empty(n, np.int64)  # what is not written takes no memory
    k = 0
    for p in range(n):
        out[k] = p
        k += np.int64(after <= end[p]) & np.int64(end[p] <= upto) & _is_clear(bits, p)
    return out[:k] if 2 * k >= n else out[:k].copy()


@njit(nogil=True, cache=True)
def live_by_code_bound(code, end, bits, upto):  # type: ignore[no-untyped-def]
    """The live positions with end <= upto[code], ascending."""
    n = end.shape[0]
    out = np.empty(n, np.int64)
    k = 0
    for p in range(n):
        out[k] = p
        k += np.int64(end[p] <= upto[code[p]]) & _is_clear(bits, p)
    return out[:k] if 2 * k >= n else out[:k].copy()


@njit(nogil=True, cache=True)
def live_of_codes(code, bits, wanted):  # type: ignore[no-untyped-def]
    """The live positions whose code is one of `wanted` (sorted, unique), ascending; `code` is sorted."""
    out = np.empty(64, np.int64)
    k = 0
    at = 0
    n = code.shape[0]
    for c in wanted:
        step = 1
        while at + step <= n and code[at + step - 1] < c:
            at += step
            step <<= 1
        hi = min(n, at + step - 1)
        while at < hi:
            mid = (at + hi) >> 1
            if code[mid] < c:
                at = mid + 1
            else:
                hi = mid
        while at < n and code[at] == c:
            if not (bits[at >> 3] >> (at & 7)) & 1:
                if k == out.shape[0]:
                    out = wider(out)
                out[k] = at
                k += 1
            at += 1
    return out[:k]
