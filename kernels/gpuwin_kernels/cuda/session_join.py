"""Two lists of sessions on the device joined into one, and sessions taken out of a list by their ends.

A list is sorted by (code, start), and its sessions do not touch one another. So a session is reached, if at all, by
the one of the *other* list that begins last before it: no sort, no scan over ends and no packed word, however far
apart times are. A thread finds by binary search how many of the other list come before its session, which is also its
place in the order of both; a session of the result is a range of that order, and the last one of each list in it has
the furthest end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuwin_kernels.cuda import primitives, ranges
from gpuwin_kernels.cuda.byte_keys import HeapArrays
from gpuwin_kernels.cuda.packed import gather, gather_cells
from gpuwin_kernels.cuda.rows import list_used
from gpuwin_kernels.cuda.runtime import cuda, empty, full, kernel, launch, scalar, zeros
from gpuwin_kernels.layout import CellArrays, CellLayout, joined_columns

_MOST = (1 << 63) - 1
_EACH = 16  # values that a thread looks at


@dataclass(frozen=True, slots=True)
class DeviceSessions:
    """Sessions in device memory, sorted by (code, start), that do not touch; see `SessionState`."""

    code: Any  # int32[n]
    start: Any  # int64[n]
    last: Any  # int64[n]
    end: Any  # int64[n]
    columns: tuple[CellArrays, ...]

    @staticmethod
    def of(bounds: Iterable[Any], columns: tuple[CellArrays, ...]) -> DeviceSessions:
        """`bounds`: code, start, last and end."""
        code, start, last, end = bounds
        return DeviceSessions(code, start, last, end, columns)

    def __len__(self) -> int:
        return len(self.code)

    def arrays(self) -> list[Any]:
        """All of them: bounds, then of each column its words and its validity."""
        cells = (array for column in self.columns for array in column.arrays)
        return [self.code, self.start, self.last, self.end, *cells]

    def first(self, n: int) -> DeviceSessions:
        """The first n; shares memory."""
        if n == len(self):
            return self
        columns = tuple(column.each(lambda v: v[:n]) for column in self.columns)
        return DeviceSessions(self.code[:n], self.start[:n], self.last[:n], self.end[:n], columns)

    def take(self, place: Any) -> DeviceSessions:
        """Those at the places int32[m]."""
        bounds = (gather(a, place) for a in (self.code, self.start, self.last, self.end))
        return DeviceSessions.of(bounds, gather_cells(self.columns, place))


# -- joining -----------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def _rank(code, start, n, c, s, equal):  # type: ignore[no-untyped-def]
    """Number of the first n sessions that come before (c, s); `equal`: or are there."""
    lo = np.int64(0)
    hi = np.int64(n)
    while lo < hi:
        middle = (lo + hi) >> 1
        x = code[middle]
        if x < c or (x == c and (start[middle] < s or (equal and start[middle] == s))):
            lo = middle + 1
        else:
            hi = middle
    return lo


_SPANS = "Tuple((int32[::1], int64[::1], int64[::1]))"  # code, start, end


@kernel(f"void({_SPANS}, {_SPANS}, int64[::1], boolean, int32[::1], int32[::1], int64[::1])", hot=True)
def _order(old, new, count, strict, place, other, heads):  # type: ignore[no-untyped-def]
    """At each place of the common order: which session stands there (those of the second list counted on from the
    first), how many of the other list come before it, and whether it begins a session of the result.
    """
    old_code, old_start, old_end = old
    code, start, end = new
    i = cuda.grid(1)
    k = old_code.shape[0]
    n = min(count[0], code.shape[0])
    if i < k:
        c = old_code[i]
        s = old_start[i]
        j = _rank(code, start, n, c, s, False)
        head = True
        if j > 0 and code[j - 1] == c:
            head = end[j - 1] < s or (strict and end[j - 1] == s)
        place[i + j] = np.int32(i)
        other[i + j] = np.int32(j)
        heads[i + j] = 1 if head else 0
    elif i < k + n:
        c = code[i - k]
        s = start[i - k]
        j = _rank(old_code, old_start, k, c, s, True)
        head = True
        if j > 0 and old_code[j - 1] == c:
            head = old_end[j - 1] < s or (strict and old_end[j - 1] == s)
        place[i - k + j] = np.int32(i)
        other[i - k + j] = np.int32(j)
        heads[i - k + j] = 1 if head else 0
    elif i < place.shape[0]:
        place[i] = np.int32(i)
        other[i] = 0
        heads[i] = 0


_BOUNDS = "Tuple((int32[::1], int64[::1], int64[::1], int64[::1]))"  # code, start, last, end


@kernel(
    "void(int64[::1], int32[::1], UniTuple(int32[::1], 2), int64[::1], "
    f"{_BOUNDS}, {_BOUNDS}, {_BOUNDS}, UniTuple(int64[::1], 2))",
    hot=True,
)
def _describe(made, head, order, count, old, new, joined, cells):  # type: ignore[no-untyped-def]
    """Bounds of each session that was `made`, and its `cells` [lo, hi) in the common order (see `_order`)."""
    place, other = order
    old_code, old_start, old_last, old_end = old
    new_code, new_start, new_last, new_end = new
    code, start, last, end = joined
    lo, hi = cells
    u = cuda.grid(1)
    k = old_code.shape[0]
    if u < code.shape[0] and u >= made[0]:
        lo[u] = 0
        hi[u] = 0
    elif u < code.shape[0]:
        a = np.int64(head[u])
        b = np.int64(head[u + 1]) if u + 1 < made[0] else k + min(count[0], new_code.shape[0])
        first = place[a]
        code[u] = old_code[first] if first < k else new_code[first - k]
        start[u] = old_start[first] if first < k else new_start[first - k]
        final = place[b - 1]
        i = np.int64(final) if final < k else np.int64(other[b - 1]) - 1
        j = np.int64(final) - k if final >= k else np.int64(other[b - 1]) - 1
        # One of the two may be of an earlier session of the key: then it ends before this one does.
        newest = np.int64(-_MOST - 1)
        furthest = np.int64(-_MOST - 1)
        if i >= 0 and old_code[i] == code[u]:
            newest = old_last[i]
            furthest = old_end[i]
        if j >= 0 and new_code[j] == code[u]:
            newest = max(newest, new_last[j])
            furthest = max(furthest, new_end[j])
        last[u] = newest
        end[u] = furthest
        lo[u] = a
        hi[u] = b


@kernel(
    "void(int64[::1], int64[::1], int32[::1], int64[::1])",
    "void(uint64[::1], uint64[::1], int32[::1], uint64[::1])",
    "void(float64[::1], float64[::1], int32[::1], float64[::1])",
    "void(uint8[::1], uint8[::1], int32[::1], uint8[::1])",
    hot=True,
)
def _gather_of_both(old, new, place, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < place.shape[0]:
        at = place[i]
        out[i] = old[at] if at < old.shape[0] else new[at - old.shape[0]]


def _of_both(old: Any, new: Any, place: Any) -> Any:
    out = empty(len(place), old.dtype)
    launch(_gather_of_both, len(place), old, new, place, out)
    return out


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])", hot=True)
def _least_after(values, count, passed, out):  # type: ignore[no-untyped-def]
    least = np.int64(_MOST)
    for k in range(_EACH):  # of no constant length, the loop would be unrolled, for which it divides
        i = cuda.grid(1) + k * cuda.gridsize(1)
        if i < min(count[0], values.shape[0]) and values[i] > passed[0]:
            least = min(least, values[i])
    if least < out[0]:  # read first: after a few threads most find nothing to do
        cuda.atomic.min(out, 0, least)


def _first_end(end: Any, count: Any, passed: Any) -> Any:
    """int64[1]: the least end after `passed` of the first `count`; the largest int64 if there is none."""
    out = full(1, _MOST, np.int64)
    launch(_least_after, -(-len(end) // _EACH), end, scalar(count), scalar(passed), out)
    return out


@kernel(
    "void(int64[::1], UniTuple(int64[::1], 2), int64[::1], UniTuple(int32[::1], 2), int64, int64, int64[::1])", hot=True
)
def _mark_touched(made, cells, end, order, old, upto, flags):  # type: ignore[no-untyped-def]
    """flags[u]: whether session u has something of the second list in it, and ends at or before `upto`."""
    lo, hi = cells
    place, other = order
    u = cuda.grid(1)
    if u < flags.shape[0]:
        touched = u < made[0] and end[u] <= upto
        if touched:
            a = lo[u]
            b = hi[u] - 1
            of_old = (place[b] + 1 if place[b] < old else other[b]) - (place[a] if place[a] < old else other[a])
            touched = of_old < hi[u] - lo[u]
        flags[u] = 1 if touched else 0


@dataclass(frozen=True, slots=True)
class Joining:
    """Two lists on their way into one. The host reads `numbers`: how many sessions there are, int64[1]; the least end,
    int64[1]; and for each column whether an exact sum left its type, int32[columns], as `ranges.raise_if_any` has it.
    `sessions` are so many, and behind them what means nothing.
    """

    layout: CellLayout
    sessions: DeviceSessions
    numbers: tuple[Any, Any, Any]
    old: int
    place: Any
    other: Any
    lo: Any
    hi: Any

    def touched(self, room: int, upto: int = _MOST) -> Taken:
        """Those with something of the second list in them that end at or before `upto`. Does not wait."""
        n = len(self.sessions)
        flags = empty(n, np.int64)
        cells, order = (self.lo, self.hi), (self.place, self.other)
        launch(_mark_touched, n, self.numbers[0], cells, self.sessions.end, order, self.old, upto, flags)
        return _taken(self.sessions, flags, room)


def joining(
    layout: CellLayout,
    old: DeviceSessions,
    new: DeviceSessions,
    count: Any,
    strict: bool,
    heap: HeapArrays | None = None,
) -> Joining:
    """Launches what joins the first `count` (int64[1], on the device) of a list with another one. `strict`: sessions
    must overlap to be one; else it is enough that they meet. `heap`: where cells hold texts. At least one of the two
    has room for a session.
    """
    k, n = len(old), len(old) + len(new)
    # A place is written once if both lists are sorted. One of rows that came in another order than the host expected is
    # not, and what comes of it is thrown away; but every index has to be one.
    place, other, heads = zeros(n, np.int32), zeros(n, np.int32), zeros(n, np.int64)
    spans = (old.code, old.start, old.end), (new.code, new.start, new.end)
    launch(_order, n, *spans, count, strict, place, other, heads)
    before = primitives.exclusive_sum(heads)
    made, head = before[n:], empty(n, np.int32)
    launch(list_used, n, before, head)
    code = empty(n, np.int32)
    start, last, end, lo, hi = (empty(n, np.int64) for _ in range(5))
    bounds = (old.code, old.start, old.last, old.end), (new.code, new.start, new.last, new.end)
    launch(_describe, n, made, head, (place, other), count, *bounds, (code, start, last, end), (lo, hi))
    both = joined_columns((old.columns, new.columns), lambda pair: _of_both(pair[0], pair[1], place))
    columns, overflow = ranges.started(layout, both, lo, hi, heap=heap)
    numbers = made, _first_end(end, made, -_MOST - 1), overflow
    return Joining(layout, DeviceSessions(code, start, last, end, columns), numbers, k, place, other, lo, hi)


# -- taking ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """Some sessions of a list, in its order: `count` of them, int64[1] on the device, and behind these what means
    nothing; if there are more than there is room for, the rest is left out. `before` int64[n + 1]: how many of them
    come before each session of the list.
    """

    sessions: DeviceSessions
    count: Any
    before: Any


@kernel("void(int64[::1], int32[::1])", hot=True)
def _list_taken(before, taken):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < before.shape[0] - 1 and before[i + 1] > before[i] and before[i] < taken.shape[0]:
        taken[before[i]] = np.int32(i)


@kernel("void(int64[::1], int32[::1])", hot=True)
def _list_left(before, left):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < before.shape[0] - 1 and before[i + 1] == before[i]:
        left[i - before[i]] = np.int32(i)


def _taken(sessions: DeviceSessions, flags: Any, room: int) -> Taken:
    n = len(sessions)
    before = primitives.exclusive_sum(flags)
    place = zeros(min(room, n), np.int32)
    launch(_list_taken, n, before, place)
    return Taken(sessions.take(place), before[n:], before)


@kernel("void(int64[::1], int64[::1], int64, int64[::1], int64[::1])", hot=True)
def _mark_ending(end, count, least, most, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < end.shape[0]:
        flags[i] = 1 if i < count[0] and least <= end[i] and end[i] <= most[0] else 0


def ending(sessions: DeviceSessions, least: int, most: Any, room: int, count: Any = None) -> Taken:
    """The sessions with least <= end <= most; `count`: of the first so many. Both are ints, or int64[1] on the device.
    Does not wait.
    """
    flags = empty(len(sessions), np.int64)
    of = scalar(len(sessions) if count is None else count)
    launch(_mark_ending, len(sessions), sessions.end, of, least, scalar(most), flags)
    return _taken(sessions, flags, room)


@dataclass(frozen=True, slots=True)
class Closing:
    """Sessions that close, and sessions that stay: as many as there were, less those that close; further room means
    nothing. `first_end` int64[1], on the device: the least end of what stays, the largest int64 if nothing does.
    """

    closed: Taken
    left: DeviceSessions
    first_end: Any

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Arrays that the host reads: how many close, the least end of the others, and what closes."""
        return (self.closed.count, self.first_end, *self.closed.sessions.arrays())


def closing(sessions: DeviceSessions, upto: Any, room: int, count: Any = None) -> Closing:
    """The sessions that end at or before `upto`, if there is room for them, and the others; `count`: of the first so
    many. Both are ints, or int64[1] on the device. At least one session. Does not wait.
    """
    n = len(sessions)
    upto, count = scalar(upto), scalar(n if count is None else count)
    closed = ending(sessions, -_MOST - 1, upto, room, count)
    left = zeros(n, np.int32)
    launch(_list_left, n, closed.before, left)
    return Closing(closed, sessions.take(left), _first_end(sessions.end, count, upto))


# -- keys --------------------------------------------------------------------------------------------------------------


@kernel("void(int32[::1], uint8[::1])")
def _mark_keys(code, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0]:
        flags[i] = 1 if i == 0 or code[i] != code[i - 1] else 0


def used_codes(sessions: DeviceSessions) -> Any:
    """int32[k], ascending, on the device: the codes that have a session. Waits for how many there are."""
    flags = empty(len(sessions), np.uint8)
    launch(_mark_keys, len(sessions), sessions.code, flags)
    return gather(sessions.code, primitives.select(flags))


def recoded(sessions: DeviceSessions, new_code: Any) -> DeviceSessions:
    """With `new_code[code]` for each code: int32, on the device, ascending where it is used."""
    code = gather(new_code, sessions.code)
    return DeviceSessions(code, sessions.start, sessions.last, sessions.end, sessions.columns)


__all__ = [
    "Closing",
    "DeviceSessions",
    "Joining",
    "Taken",
    "closing",
    "ending",
    "joining",
    "recoded",
    "used_codes",
]
