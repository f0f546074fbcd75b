"""Sessions row by row, in order of arrival: for semantics in which that order matters.

All places where a session can begin are known beforehand (the times of the rows and the starts of the open sessions),
so they are ranked by (code, time) once, and the sessions alive at any moment are an ordered set of ranks: a row finds
its neighbours in a handful of steps, however many sessions its key has.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import order_by_code
from gpuwin_kernels.cpu.ordered_set import after, before, empty_set, insert, remove
from gpuwin_kernels.cpu.sessions import end_of

from .growing import longer

OVERLAP_OR_MEET, OVERLAP, FORWARD_SPLIT = 0, 1, 2
_NEVER = np.iinfo(np.int64).min

# The parts of `_play` are compiled into it: a call would count references to each array of its tuples, for every row.


@njit(nogil=True, cache=True)
def _root(parent, s):  # type: ignore[no-untyped-def]
    while parent[s] != s:
        parent[s] = parent[parent[s]]
        s = parent[s]
    return s


@njit(nogil=True, cache=True, inline="always")
def _session_before(alive, sessions, r, c, limit):  # type: ignore[no-untyped-def]
    """The session of code c that begins at rank r or last before it, or -1. Those that ended by `limit` leave."""
    words, first, at_rank, begin_code = alive
    p = before(words, first, r)
    while p >= 0 and begin_code[p] == c:
        s = at_rank[p]
        if sessions[s, 3] > limit:
            return s
        remove(words, first, p)
        p = before(words, first, p)
    return -1


@njit(nogil=True, cache=True, inline="always")
def _sessions_after(alive, sessions, r, row, overlap):  # type: ignore[no-untyped-def]
    """Sessions that begin after rank r and that the row (code, end, limit) reaches. Those that ended by `limit` leave
    the set.

    Returns (how many, the latest of their ends, the latest of their rows); of none, the least time for both.
    """
    words, first, at_rank, begin_code = alive
    c, end, limit = row
    many, reach, last = 0, _NEVER, _NEVER
    q = after(words, first, r)
    while q >= 0 and begin_code[q] == c:
        s = at_rank[q]
        if sessions[s, 3] <= limit:
            remove(words, first, q)
        elif sessions[s, 1] < end or (sessions[s, 1] == end and not overlap):
            many += 1
            reach = max(reach, sessions[s, 3])
            last = max(last, sessions[s, 2])
        else:
            break
        q = after(words, first, q)
    return many, reach, last


@njit(nogil=True, cache=True, inline="always")
def _absorb(alive, parent, merges, merged, step):  # type: ignore[no-untyped-def]
    """Takes the `many` sessions behind rank r out of the set and joins them to one; `step`: (row, r, joined, many).

    Returns merges, with a line for each behind the first `merged`.
    """
    words, first, at_rank, _ = alive
    i, r, joined, many = step
    for m in range(merged, merged + many):
        q = after(words, first, r)
        s = at_rank[q]
        remove(words, first, q)
        parent[s] = joined
        if m == merges.shape[0]:
            merges = longer(merges)
        merges[m, 0] = i
        merges[m, 1] = joined
        merges[m, 2] = s
    return merges


@njit(nogil=True, cache=True)
def _play(rows, touch, after_merge, ranks, sessions, parent, slot, steps):  # type: ignore[no-untyped-def]
    """Number of sessions, and the merges of sessions into others, of rows that are played one by one.

    `rows`: code, time, gap, bound; `ranks`: rank, begin_code. `rank[:k]` ranks the old sessions, `rank[k:]` the rows;
    `begin_code[r]` is the code at rank r. sessions[:k] int64[k, 4] (code, start, last, end) are the old ones,
    sessions[k:] the new, in order of creation. `steps[i]`, if asked for, is what row i left: (session, start, last,
    end). Merges int64[*, 3] are (row, into, absorbed), in order of arrival.
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
    alive = (words, first, at_rank, begin_code)
    m = k
    merges = np.empty((16, 3), np.int64)
    merged = 0
    for i in range(n):
        c, t, r = code[i], time[i], rank[k + i]
        end = end_of(t, gap[0] if gap.shape[0] == 1 else gap[i])
        limit = bound[0] if bound.shape[0] == 1 else bound[i]
        joined = _session_before(alive, sessions, r, c, limit)
        if joined >= 0 and (t > sessions[joined, 3] or (t == sessions[joined, 3] and touch != OVERLAP_OR_MEET)):
            joined = -1
        # Malhar asks for the first session that begins at the row or later: if that is its own, none is met behind it.
        own = joined >= 0 and sessions[joined, 1] == t
        many, reach, last = _sessions_after(
            alive, sessions, r, (c, end, limit), touch == OVERLAP or (touch == FORWARD_SPLIT and own)
        )
        start, last, reach = t, max(t, last), max(end, reach)
        if joined >= 0:
            start = min(t, sessions[joined, 1])
            last = max(last, sessions[joined, 2])
            reach = max(reach, sessions[joined, 3])
        if after_merge and reach <= limit:
            slot[i] = -1
            if steps.shape[0]:
                steps[i, 0] = -1
            continue
        if joined < 0:
            if many:
                q = after(words, first, r)
                joined = at_rank[q]
                remove(words, first, q)
                many -= 1
            else:
                joined = m
                sessions[m, 0] = c
                m += 1
            at_rank[r] = joined
            insert(words, first, r)
        merges = _absorb(alive, parent, merges, merged, (i, r, joined, many))
        merged += many
        sessions[joined, 1] = start
        sessions[joined, 2] = last
        sessions[joined, 3] = reach
        slot[i] = joined
        if steps.shape[0]:
            steps[i, 0] = joined
            for field in range(1, 4):
                steps[i, field] = sessions[joined, field]
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
    """Sessions of rows that are played against the open sessions `old` int64[k, 4] (code, start, last, end), which are
    those of the rows' keys.

    Returns (slot int32[n], numbers of sessions, -1 for a late row; sessions int64[m, 4], the first k the old ones; root
    int64[m], the session that one was absorbed by or itself; steps int64[n, 4] and merges int64[*, 3], see `_play`,
    both empty unless `keep_steps`; touched uint8[m], sessions that got a row).
    """
    k, n = len(old), len(code)
    both_code = np.concatenate((old[:, 0].astype(np.int32), code))
    both_time = np.concatenate((old[:, 1], time))
    order = order_by_code(both_code, both_time)
    rank = empty(k + n, np.int64)
    rank[order] = np.arange(k + n)
    slot = empty(n, np.int32)
    sessions = empty((k + n, 4), np.int64)
    sessions[:k] = old
    parent = np.arange(k + n)
    steps = empty((n if keep_steps else 0, 4), np.int64)
    rows, ranks = (code, time, gap, bound), (rank, both_code[order])
    m, merges = _play(rows, touch, after_merge, ranks, sessions, parent, slot, steps)
    touched = np.zeros(m, np.uint8)
    touched[slot[slot >= 0]] = 1
    root = parent[:m]
    return slot, sessions[:m], root, steps, merges, touched
