"""Sessions row by row, in order of arrival: for semantics in which that order matters.

All places where a session can begin are known beforehand (the times of the rows and the starts of the open sessions),
so they are ranked by (code, time) once, and the sessions alive at any moment are an ordered set of ranks: a row finds
its neighbours in a handful of steps, however many sessions its key has.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gpuwin_kernels.cpu.order import order_by_code
from gpuwin_kernels.cpu.ordered_set import after, before, empty_set, insert, remove
from gpuwin_kernels.cpu.sessions import end_of

from .growing import longer

OVERLAP_OR_MEET, OVERLAP, FORWARD_SPLIT = 0, 1, 2


@njit(nogil=True, cache=True)
def _root(parent, s):  # type: ignore[no-untyped-def]
    while parent[s] != s:
        parent[s] = parent[parent[s]]
        s = parent[s]
    return s


@njit(nogil=True, cache=True)
def _play(rows, touch, after_merge, ranks, sessions, parent, slot, steps):  # type: ignore[no-untyped-def]
    """`rows`: code, time, gap, bound; `ranks`: rank, begin_code. sessions[:k] int64[k, 4] (code, start, last, end) are
    the old ones, sessions[k:] the new, in order of creation.

    `rank[: k]` ranks the old sessions, `rank[k:]` the rows; `begin_code[r]` is the code at rank r. `steps[i]`, if asked
    for, is what row i left: (session, start, last, end), and the sessions it absorbed are chained: absorbed_by order is
    that of `merges` int64[*, 3] (row, into, absorbed). Returns (number of sessions, merges).
    """
    code, time, gap, bound = rows
    rank, begin_code = ranks
    n = code.shape[0]
    k = rank.shape[0] - n
    words, first = empty_set(k + n)
    at_rank = np.empty(k + n, np.int64)
    for s in range(k):
        at_rank[rank[s]] = s
        insert(words, first, rank[s])
    m = k
    merges = np.empty((16, 3), np.int64)
    merged = 0
    one_gap = gap.shape[0] == 1
    one_bound = bound.shape[0] == 1
    keep_steps = steps.shape[0] > 0
    for i in range(n):
        c = code[i]
        t = time[i]
        end = end_of(t, gap[0] if one_gap else gap[i])
        limit = bound[0] if one_bound else bound[i]
        r = rank[k + i]
        # The session that begins at or before the row; those that are gone are taken out on the way.
        left = -1
        p = before(words, first, r)
        while p >= 0 and begin_code[p] == c:
            s = at_rank[p]
            if sessions[s, 3] <= limit:
                remove(words, first, p)
                p = before(words, first, p)
                continue
            if t <= sessions[s, 3] if touch == 0 else t < sessions[s, 3]:
                left = s
            break
        # The sessions that begin after it, as far as its interval reaches.
        reach = end
        joined = left
        if left >= 0:
            reach = max(reach, sessions[left, 3])
        whole_start = t if left < 0 else min(t, sessions[left, 1])
        whole_last = t if left < 0 else max(t, sessions[left, 2])
        q = after(words, first, r)
        # Malhar asks for the first session that begins at the row or later: if that is its own, none is met behind it.
        overlap = touch == 1 or (touch == 2 and left >= 0 and sessions[left, 1] == t)
        right_first = -1
        rights = 0
        while q >= 0 and begin_code[q] == c:
            s = at_rank[q]
            if sessions[s, 3] <= limit:
                remove(words, first, q)
                q = after(words, first, q)
                continue
            if not (sessions[s, 1] < end if overlap else sessions[s, 1] <= end):
                break
            if right_first < 0:
                right_first = q
            rights += 1
            reach = max(reach, sessions[s, 3])
            whole_last = max(whole_last, sessions[s, 2])
            q = after(words, first, q)
        if after_merge and reach <= limit:
            slot[i] = -1
            if keep_steps:
                steps[i, 0] = -1
            continue
        if joined < 0:
            if rights > 0:
                joined = at_rank[right_first]
                remove(words, first, right_first)
                q = after(words, first, right_first)
                rights -= 1
            else:
                joined = m
                sessions[m, 0] = c
                m += 1
            at_rank[r] = joined
            insert(words, first, r)
        q = after(words, first, r)
        while rights > 0:
            s = at_rank[q]
            remove(words, first, q)
            parent[s] = joined
            if merged == merges.shape[0]:
                merges = longer(merges)
            merges[merged, 0] = i
            merges[merged, 1] = joined
            merges[merged, 2] = s
            merged += 1
            rights -= 1
            q = after(words, first, q)
        sessions[joined, 1] = whole_start
        sessions[joined, 2] = whole_last
        sessions[joined, 3] = reach
        slot[i] = joined
        if keep_steps:
            steps[i, 0] = joined
            steps[i, 1] = whole_start
            steps[i, 2] = whole_last
            steps[i, 3] = reach
    for i in range(n):
        if slot[i] >= 0:
            slot[i] = _root(parent, slot[i])
    for s in range(k):
        parent[s] = _root(parent, s)
    return m, merges[:merged]


def play(
    code: np.ndarray,
    time: np.ndarray,
    gap: np.ndarray,
    bound: np.ndarray,
    touch: int,
    after_merge: bool,
    old: np.ndarray,
    keep_steps: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Plays rows against the open sessions `old` int64[k, 4] (code, start, last, end), which are those of the rows'
    keys.

    Returns (slot int32[n], numbers of sessions, -1 for a late row; sessions int64[m, 4], the first k the old ones; root
    int64[m], the session that one was absorbed by or itself; steps int64[n, 4] and merges int64[*, 3], see `_play`,
    both empty unless `keep_steps`; touched uint8[m], sessions that got a row).
    """
    k, n = len(old), len(code)
    both_code = np.concatenate((old[:, 0].astype(np.int32), code))
    both_time = np.concatenate((old[:, 1], time))
    order = order_by_code(both_code, both_time)
    rank = np.empty(k + n, np.int64)
    rank[order] = np.arange(k + n)
    slot = np.empty(n, np.int32)
    sessions = np.empty((k + n, 4), np.int64)
    sessions[:k] = old
    parent = np.arange(k + n)
    steps = np.empty((n if keep_steps else 0, 4), np.int64)
    rows, ranks = (code, time, gap, bound), (rank, both_code[order])
    m, merges = _play(rows, touch, after_merge, ranks, sessions, parent, slot, steps)
    touched = np.zeros(m, np.uint8)
    touched[slot[slot >= 0]] = 1
    root = parent[:m]
    return slot, sessions[:m], root, steps, merges, touched
