"""Evictors: which rows of a window each of its firings sees, and which stay.

A window is visited with the rows that it holds and those that a batch brings, in order of arrival. They are written one
after the other into a buffer, so that a firing sees a stretch of it; rows that stay are copied behind only where others
between them go.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.growing import wider

LAST, WITHIN, NEAR, NEAR_FLOAT = range(4)
_WIDEST = (1 << 64) - 1  # no two int64 are further apart


class Keeps(NamedTuple):
    """Rule of an evictor. `kind` LAST: the last `least` rows stay; WITHIN: those less than `least` microseconds before
    the newest; NEAR: those whose int64 is less than a threshold below that of the row that came last, which is `size`,
    or less that where it is not `positive`; NEAR_FLOAT: the same of float64, with `threshold`. `after`: they go after
    a firing, and not before it.
    """

    kind: int
    after: bool
    least: int = 0
    positive: bool = True
    size: np.uint64 = np.uint64(0)
    threshold: float = 0.0


def keeps_near(threshold: float, after: bool, is_float: bool) -> Keeps:
    """Rule of rows whose value is less than `threshold` below that of the last one."""
    if is_float:
        return Keeps(NEAR_FLOAT, after, threshold=float(threshold))
    if isinstance(threshold, float) and not math.isfinite(threshold):
        whole = -_WIDEST if threshold < 0 else _WIDEST + 1
    else:
        whole = math.ceil(threshold)
    if whole > _WIDEST:  # nothing is so far apart: all rows stay
        return Keeps(LAST, after, int(np.iinfo(np.int64).max))
    return Keeps(NEAR, after, 0, whole >= 0, np.uint64(min(abs(whole), _WIDEST)))


@njit(nogil=True, cache=True)
def _goes(rule, times, ints, floats, valid, row, newest, last):  # type: ignore[no-untyped-def]
    """Whether a row goes, of a window whose largest time is that of row `newest`, and whose last row is `last`."""
    if rule.kind == WITHIN:
        return rule.least <= 0 or np.uint64(times[newest]) - np.uint64(times[row]) >= np.uint64(rule.least)
    if not (valid[row] and valid[last]):
        return False
    if rule.kind == NEAR_FLOAT:
        return floats[last] - floats[row] >= rule.threshold
    if ints[last] >= ints[row]:
        return not rule.positive or np.uint64(ints[last]) - np.uint64(ints[row]) >= rule.size
    return not rule.positive and np.uint64(ints[row]) - np.uint64(ints[last]) <= rule.size


@njit(nogil=True, cache=True)
def visit_windows(  # type: ignore[no-untyped-def]
    rule, times, ints, floats, valid, held, lo, hi, new, first, fires, rank
):
    """Visits windows with the rows they hold, held[lo[w]:hi[w]], and those that come, new[first[w]:first[w + 1]].

    All rows are places (int64), ascending, at which `times` (int64), `ints` (int64) or `floats` (float64), and `valid`
    (uint8) are read; an array that the rule does not read may be empty. Firing f of window w, for
    fires[w] <= f < fires[w + 1], comes after rank[f] of the rows that come.

    Returns (buffer int64[k], seen_lo int64[firings], seen_hi, left_lo int64[windows], left_hi, gone int64[m]): firing f
    sees buffer[seen_lo[f]:seen_hi[f]], window w is left with buffer[left_lo[w]:left_hi[w]], and `gone` went.
    """
    windows, firings = lo.shape[0], rank.shape[0]
    size = new.shape[0] + 64
    for w in range(windows):
        size += hi[w] - lo[w]
    buffer = np.empty(size, np.int64)
    gone = np.empty(64, np.int64)
    lost = 0
    seen_lo, seen_hi = np.empty(firings, np.int64), np.empty(firings, np.int64)
    left_lo, left_hi = np.empty(windows, np.int64), np.empty(windows, np.int64)
    end = 0
    for w in range(windows):
        begin, at = end, first[w]
        while end + hi[w] - lo[w] + first[w + 1] - at > buffer.shape[0]:
            buffer = wider(buffer)
        for i in range(lo[w], hi[w]):
            buffer[end] = held[i]
            end += 1
        for f in range(fires[w], fires[w + 1]):
            for i in range(at, first[w] + rank[f]):
                buffer[end] = new[i]
                end += 1
            at = first[w] + rank[f]
            if rule.after:
                seen_lo[f], seen_hi[f] = begin, end
            while lost + end - begin > gone.shape[0]:
                gone = wider(gone)
            if rule.kind == LAST:
                for i in range(begin, end - min(end - begin, rule.least)):
                    gone[lost] = buffer[i]
                    lost += 1
                begin = end - min(end - begin, rule.least)
            elif begin < end:
                newest, last = buffer[begin], buffer[end - 1]
                if rule.kind == WITHIN:
                    for i in range(begin, end):
                        if times[buffer[i]] > times[newest]:
                            newest = buffer[i]
                before, stays = lost, begin  # the first row that stays
                for i in range(begin, end):
                    if _goes(rule, times, ints, floats, valid, buffer[i], newest, last):
                        gone[lost] = buffer[i]
                        lost += 1
                        if stays == i:
                            stays = i + 1
                if lost - before == stays - begin:
                    begin = stays
                else:  # rows between others went
                    while 2 * end - begin + first[w + 1] - at > buffer.shape[0]:
                        buffer = wider(buffer)
                    went, copied = before, end
                    for i in range(begin, end):
                        if went < lost and gone[went] == buffer[i]:
                            went += 1
                        else:
                            buffer[copied] = buffer[i]
                            copied += 1
                    begin, end = end, copied
            if not rule.after:
                seen_lo[f], seen_hi[f] = begin, end
        for i in range(at, first[w + 1]):
            buffer[end] = new[i]
            end += 1
        left_lo[w], left_hi[w] = begin, end
    return buffer, seen_lo, seen_hi, left_lo, left_hi, gone[:lost]


@njit(nogil=True, cache=True)
def lessen(uses, rows):  # type: ignore[no-untyped-def]
    """Takes one from `uses` (int32[n]) for each time that a place comes in `rows` (int64[k])."""
    for i in range(rows.shape[0]):
        uses[rows[i]] -= 1


@njit(nogil=True, cache=True)
def union_of_windows(window_a, code_a, window_b, code_b):  # type: ignore[no-untyped-def]
    """Union of two lists, each sorted by (window int64, code int32) and without repeats, as the places in both lists:
    (in_a int64[k], in_b int64[k]), -1 where an entry is not in one.
    """
    a, b, n = 0, 0, 0
    in_a = np.empty(window_a.shape[0] + window_b.shape[0], np.int64)
    in_b = np.empty(window_a.shape[0] + window_b.shape[0], np.int64)
    while a < window_a.shape[0] or b < window_b.shape[0]:
        if a == window_a.shape[0]:
            order = 1
        elif b == window_b.shape[0]:
            order = -1
        elif window_a[a] != window_b[b]:
            order = -1 if window_a[a] < window_b[b] else 1
        else:
            order = -1 if code_a[a] < code_b[b] else (1 if code_a[a] > code_b[b] else 0)
        in_a[n] = a if order <= 0 else -1
        in_b[n] = b if order >= 0 else -1
        if order <= 0:
            a += 1
        if order >= 0:
            b += 1
        n += 1
    return in_a[:n], in_b[:n]


@njit(nogil=True, cache=True)
def joined_stretches(first, second, of_second, lo, hi):  # type: ignore[no-untyped-def]
    """Stretches [lo[i], hi[i]) of one of two arrays (int64), of the second where of_second[i]: one behind the other,
    int64[k], and where each begins, int64[n + 1].
    """
    begins = np.zeros(lo.shape[0] + 1, np.int64)
    for i in range(lo.shape[0]):
        begins[i + 1] = begins[i] + hi[i] - lo[i]
    out = np.empty(begins[-1], np.int64)
    for i in range(lo.shape[0]):
        source = second if of_second[i] else first
        for k in range(hi[i] - lo[i]):
            out[begins[i] + k] = source[lo[i] + k]
    return out, begins
