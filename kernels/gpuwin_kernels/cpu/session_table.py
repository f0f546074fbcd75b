"""Rows straight into a table of open sessions that has no order: no sort, no search, no list of what was touched.

A session is a row of int64[4]: key code, start, time of the newest event, end; one half of a cache line. Those of a key
do not touch each other, and are chained from the newest to the oldest (`newest[code]`, then `older[session]`), so a row
that comes in order of time meets its session first.

`strict` is true where sessions must overlap to be one, false where it is enough that they meet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.memory import copy_items
from gpuwin_kernels.cpu.sessions import end_of

_STEPS = 16  # along the chains, per row, that are no sign of a stream without order


class Chains(NamedTuple):
    """Table of sessions, and their chains."""

    session: np.ndarray  # int64[room, 4]
    newest: np.ndarray  # int32[codes]: a session, or -1
    older: np.ndarray  # int32[room]


@njit(nogil=True, cache=True)
def chain(chains, count):  # type: ignore[no-untyped-def]
    """Chains the first `count` sessions, which do not touch; `newest` is all -1 before."""
    session, newest, older = chains
    for s in range(count):
        c = session[s, 0]
        start = session[s, 1]
        at = newest[c]
        behind = -1
        while at >= 0 and session[at, 1] > start:
            behind = at
            at = older[at]
        older[s] = at
        if behind < 0:
            newest[c] = s
        else:
            older[behind] = s


@njit(nogil=True, cache=True)
def absorb(code, time, gap, strict, chains, count, into, slot):  # type: ignore[no-untyped-def]
    """Joins rows one after the other with the sessions that they touch, or begins new ones behind the first `count`.

    code int32[n], time int64[n], gap int64[1] or int64[n]; `chains` have room for count + n sessions at least, as has
    into int32; slot int32[n]: the session of each row. A session that a row made one with another stays where it is,
    and `into` says which it is part of, itself if it is still one.

    Returns (sessions by now, how many became part of others); (-1, 0) if the stream has so little order that following
    chains costs more than a sort.
    """
    session, newest, older = chains
    one_gap = gap.shape[0] == 1
    width = gap[0] if one_gap else 0
    n = code.shape[0]
    patience = _STEPS * n + count
    made, bridged = count, 0
    for s in range(count):
        into[s] = s
    for i in range(n):
        c = code[i]
        t = time[i]
        end = end_of(t, width if one_gap else gap[i])
        s = newest[c]
        behind = -1
        while s >= 0 and (session[s, 1] > end or (strict and session[s, 1] == end)):
            behind = s
            s = older[s]
            patience -= 1
        if patience < 0:
            return -1, 0
        if s >= 0 and (session[s, 3] > t or (not strict and session[s, 3] == t)):
            session[s, 2] = max(session[s, 2], t)
            session[s, 3] = max(session[s, 3], end)
            if t < session[s, 1]:
                session[s, 1] = t
                o = older[s]
                while o >= 0 and (session[o, 3] > t or (not strict and session[o, 3] == t)):
                    session[s, 1] = min(session[s, 1], session[o, 1])
                    session[s, 2] = max(session[s, 2], session[o, 2])
                    session[s, 3] = max(session[s, 3], session[o, 3])
                    into[o] = s
                    bridged += 1
                    o = older[o]
                    older[s] = o
            slot[i] = s
            continue
        session[made, 0] = c
        session[made, 1] = t
        session[made, 2] = t
        session[made, 3] = end
        into[made] = made
        older[made] = s
        if behind < 0:
            newest[c] = made
        else:
            older[behind] = made
        slot[i] = made
        made += 1
    return made, bridged


@njit(nogil=True, cache=True)
def without_parts(session, count, into, slot):  # type: ignore[no-untyped-def]
    """Closes the gaps that sessions left which are parts of others: moves the others up in `session`, and makes `into`
    and `slot` their new places. Returns how many there are.
    """
    place = np.empty(count, np.int32)
    kept = 0
    for s in range(count):
        if into[s] == s:
            place[s] = kept
            for field in range(session.shape[1]):
                session[kept, field] = session[s, field]
            kept += 1
    for s in range(count):
        root = into[s]
        while into[root] != root:
            root = into[root]
        place[s] = place[root]
    copy_items(place, 0, count, into, 0)
    for i in range(slot.shape[0]):
        slot[i] = into[slot[i]]
    return kept


@njit(nogil=True, cache=True)
def split_by_end(session, at, upto):  # type: ignore[no-untyped-def]
    """Positions (int64) of sessions, split: (those that end by `upto`, the others), in their order."""
    n = at.shape[0]
    gone = np.empty(n, np.int64)
    kept = np.empty(n, np.int64)
    g, k = 0, 0
    for i in range(n):
        s = at[i]
        gone[g] = s
        kept[k] = s
        ends = session[s, 3] <= upto
        g += ends
        k += not ends
    return gone[:g], kept[:k]


@njit(nogil=True, cache=True)
def take_sessions(session, at, out):  # type: ignore[no-untyped-def]
    """out[i] = session[at[i]]"""
    for i in range(at.shape[0]):
        s = at[i]
        out[i, 0] = session[s, 0]
        out[i, 1] = session[s, 1]
        out[i, 2] = session[s, 2]
        out[i, 3] = session[s, 3]


@njit(nogil=True, cache=True)
def take_split(session, at, code, start, last, end):  # type: ignore[no-untyped-def]
    """The sessions at some positions as an array per part: code int32, the others int64."""
    for i in range(at.shape[0]):
        s = at[i]
        code[i] = session[s, 0]
        start[i] = session[s, 1]
        last[i] = session[s, 2]
        end[i] = session[s, 3]
