"""Sessions row by row, in order of arrival: for semantics in which that order matters.

All places where a session can begin are known beforehand (the times of the rows and the starts of the open sessions),
so they are ranked by (code, time) once, and the sessions alive at any moment are an ordered set of ranks: a row finds
its neighbours in a handful of steps, however many sessions its key has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from gpuwin_kernels.cpu.order import order_by_code
from gpuwin_kernels.cpu.ordered_set import after, before, empty_set, insert, remove
from gpuwin_kernels.cpu.sessions import end_of

from .growing import longer

OVERLAP_OR_MEET, OVERLAP, FORWARD_SPLIT = 0, 1, 2
_LEAST = np.int64(-(1 << 63))


@njit(nogil=True, cache=True)
def _root(parent, s):  # type: ignore[no-untyped-def]
    while parent[s] != s:
        parent[s] = parent[parent[s]]
        s = parent[s]
    return s


class _Alive(NamedTuple):
    """Sessions that are alive: an ordered set of the ranks where they begin (`ordered_set`), the session at each rank
    int64[ranks], the code at each rank int32[ranks], and all sessions int64[ranks, 4] (code, start, last, end).
    """

    words: np.ndarray
    first: np.ndarray
    at_rank: np.ndarray
    code: np.ndarray
    sessions: np.ndarray


@njit(nogil=True, cache=True)
def _session_before(alive, r, time, limit, touch):  # type: ignore[no-untyped-def]
    """The session that begins at or before rank r, a row of this time, and takes it up; -1 if none does. Sessions that
    end by `limit` are taken out on the way.
    """
    words, first, at_rank, code, sessions = alive
    p = before(words, first, r)
    while p >= 0 and code[p] == code[r]:
        s = at_rank[p]
        if sessions[s, 3] > limit:
            return s if time < sessions[s, 3] or (touch == 0 and time == sessions[s, 3]) else -1
        remove(words, first, p)
        p = before(words, first, p)
    return -1


@njit(nogil=True, cache=True)
def _sessions_after(alive, r, end, limit, overlap):  # type: ignore[no-untyped-def]
    """Sessions that begin after rank r, a row that reaches up to `end`, and that it meets: (rank of the first, how
    many, their last event, their end). Sessions that end by `limit` are taken out on the way.
    """
    words, first, at_rank, code, sessions = alive
    begin, count, last, reach = -1, 0, _LEAST, _LEAST
    q = after(words, first, r)
    while q >= 0 and code[q] == code[r]:
        s = at_rank[q]
        if sessions[s, 3] <= limit:
            remove(words, first, q)
        elif sessions[s, 1] < end or (not overlap and sessions[s, 1] == end):
            if count == 0:
                begin = q
            count += 1
            last = max(last, sessions[s, 2])
            reach = max(reach, sessions[s, 3])
        else:
            break
        q = after(words, first, q)
    return begin, count, last, reach


@njit(nogil=True, cache=True)
def _play(rows, touch, after_merge, alive, rank, parent, slot, steps):  # type: ignore[no-untyped-def]
    """`rows`: code, time, gap, bound. The first k sessions are the old ones; the new ones come behind, as they begin.

    `rank[:k]` ranks the old sessions, `rank[k:]` the rows. `steps[i]`, if asked for, is what row i left: (session,
    start, last, end), and the sessions it absorbed are chained: absorbed_by order is that of `merges` int64[*, 3] (row,
    into, absorbed). Returns (number of sessions, merges).
    """
    code, time, gap, bound = rows
    words, first, at_rank, _codes, sessions = alive
    n = code.shape[0]
    k = rank.shape[0] - n
    for s in range(k):
        at_rank[rank[s]] = s
        insert(words, first, rank[s])
    m = k
    merges = np.empty((16, 3), np.int64)
    merged = 0
    for i in range(n):
        t = time[i]
        end = end_of(t, gap[0] if gap.shape[0] == 1 else gap[i])
        limit = bound[0] if bound.shape[0] == 1 else bound[i]
        r = rank[k + i]
        joined = _session_before(alive, r, t, limit, touch)
        # Malhar asks for the first session that begins at the row or later: if that is its own, none is met behind it.
        overlap = touch == 1 or (touch == 2 and joined >= 0 and sessions[joined, 1] == t)
        q, rights, last, reach = _sessions_after(alive, r, end, limit, overlap)
        start, last, reach = t, max(last, t), max(reach, end)
        if joined >= 0:
            start = min(start, sessions[joined, 1])
            last = max(last, sessions[joined, 2])
            reach = max(reach, sessions[joined, 3])
        if after_merge and reach <= limit:
            slot[i] = -1
            if steps.shape[0] > 0:
                steps[i, 0] = -1
            continue
        if joined < 0:
            joined = m
            if rights > 0:
                joined = at_rank[q]
                remove(words, first, q)
                rights -= 1
            else:
                sessions[m, 0] = code[i]
                m += 1
            at_rank[r] = joined
            insert(words, first, r)
        q = after(words, first, r)
        for _ in range(rights):
            s = at_rank[q]
            remove(words, first, q)
            parent[s] = joined
            if merged == merges.shape[0]:
                merges = longer(merges)
            merges[merged, 0], merges[merged, 1], merges[merged, 2] = i, joined, s
            merged += 1
            q = after(words, first, q)
        sessions[joined, 1], sessions[joined, 2], sessions[joined, 3] = start, last, reach
        slot[i] = joined
        if steps.shape[0] > 0:
            steps[i, 0], steps[i, 1], steps[i, 2], steps[i, 3] = joined, start, last, reach
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
    words, first = empty_set(k + n)
    alive = _Alive(words, first, np.empty(k + n, np.int64), both_code[order], sessions)
    parent = np.arange(k + n)
    steps = np.empty((n if keep_steps else 0, 4), np.int64)
    m, merges = _play((code, time, gap, bound), touch, after_merge, alive, rank, parent, slot, steps)
    touched = np.zeros(m, np.uint8)
    touched[slot[slot >= 0]] = 1
    root = parent[:m]
    return slot, sessions[:m], root, steps, merges, touched
