"""Two lists of sessions on the device joined into one, and sessions taken out of a list by their ends.

A list is sorted by (code, start), and its sessions do not touch one another. So a session is reached, if at all, by
the one of the *other* list that begins last before it: no sort, no scan over ends and no packed word, however far
apart times are. A thread finds by binary search how many of the other list come before its session, which is also its
place in the order of both; a session of the result is a range of that order, and the last one of each list in it has
the furthest end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuwin_kernels.cuda import primitives, ranges, ranks
from gpuwin_kernels.cuda.byte_keys import HeapArrays
from gpuwin_kernels.cuda.device_array import DeviceArray, Length
from gpuwin_kernels.cuda.many import columns_of, gathered, parted
from gpuwin_kernels.cuda.packed import gather
from gpuwin_kernels.cuda.ranks import count_mark
from gpuwin_kernels.cuda.rows import list_used
from gpuwin_kernels.cuda.runtime import cuda, empty, kept, kernel, launch, to_device, together, zeros
from gpuwin_kernels.cuda.scalar import place_of
from gpuwin_kernels.cuda.watermark import WATERMARK, Watermark, closing_instant
from gpuwin_kernels.layout import CellArrays, CellLayout

_MOST = (1 << 63) - 1
_NO_WATERMARK = Watermark(0, False, 0, 1, 0, 0)


@dataclass(frozen=True, slots=True)
class DeviceSessions:
    """Sessions in device memory, sorted by (code, start), that do not touch; see `SessionState`."""

    code: DeviceArray  # int32[n]
    start: DeviceArray  # int64[n]
    last: DeviceArray  # int64[n]
    end: DeviceArray  # int64[n]
    columns: tuple[CellArrays, ...]

    @staticmethod
    def of(bounds: Iterable[DeviceArray], columns: tuple[CellArrays, ...]) -> DeviceSessions:
        """`bounds`: code, start, last and end."""
        code, start, last, end = bounds
        return DeviceSessions(code, start, last, end, columns)

    def __len__(self) -> int:
        return len(self.code)

    def arrays(self) -> list[DeviceArray]:
        """All of them: bounds, then of each column its words and its validity."""
        cells = (array for column in self.columns for array in column.arrays)
        return [self.code, self.start, self.last, self.end, *cells]

    def first(self, n: int) -> DeviceSessions:
        """The first n; shares memory."""
        if n == len(self):
            return self
        columns = tuple(column.each(lambda v: v[:n]) for column in self.columns)
        return DeviceSessions(self.code[:n], self.start[:n], self.last[:n], self.end[:n], columns)

    def take(self, place: DeviceArray) -> DeviceSessions:
        """Those at the places int32[m]."""
        return self.like(gathered(self.arrays(), place))

    def like(self, arrays: Sequence[DeviceArray]) -> DeviceSessions:
        """Sessions of other `arrays`, which lie as these do."""
        code, start, last, end, *rest = arrays
        return DeviceSessions(code, start, last, end, columns_of(self.columns, rest))


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


@kernel(f"void({_SPANS}, {_SPANS}, int64[::1], boolean, int32[::1], int32[::1], int64[::1], int64[::1])", hot=True)
def _order(old, new, count, strict, place, other, before, ends):  # type: ignore[no-untyped-def]
    """At each place of the common order: which session stands there (those of the second list counted on from the
    first), how many of the other list come before it, and, in the next number of `before`, whether it begins a session
    of the result. No end is known yet.
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
        before[i + j + 1] = 1 if head else 0
    elif i < k + n:
        c = code[i - k]
        s = start[i - k]
        j = _rank(old_code, old_start, k, c, s, True)
        head = True
        if j > 0 and old_code[j - 1] == c:
            head = old_end[j - 1] < s or (strict and old_end[j - 1] == s)
        place[i - k + j] = np.int32(i)
        other[i - k + j] = np.int32(j)
        before[i - k + j + 1] = 1 if head else 0
    elif i < place.shape[0]:
        place[i] = np.int32(i)
        other[i] = 0
        before[i + 1] = 0
    if i == 0:
        ends[0] = _MOST
        ends[2] = _MOST


_BOUNDS = "Tuple((int32[::1], int64[::1], int64[::1], int64[::1]))"  # code, start, last, end


@kernel(
    "void(int64[::1], UniTuple(int32[::1], 2), int64[::1], "
    f"{_BOUNDS}, {_BOUNDS}, {_BOUNDS}, UniTuple(int64[::1], 2), int64[::1], int64[::1], {WATERMARK}, "
    "UniTuple(int64[::1], 2))",
)
def _describe(before, order, count, old, new, joined, cells, ends, surveyed, watermark, marks):  # type: ignore[no-untyped-def]
    """Bounds of each session of the result, its `cells` [lo, hi) in the common order (see `_order`). `ends`: the least
    of all; and if there is a survey, the instant by which sessions close, and the least end behind that; then
    closing[u + 1] says whether session u closes, which its `tiles` count.
    """
    upto = np.int64(-_MOST - 1)
    if surveyed.shape[0] > 0:
        upto = closing_instant(surveyed[1], watermark)
    closing, tiles = marks
    place, other = order
    old_code, old_start, old_last, old_end = old
    new_code, new_start, new_last, new_end = new
    code, start, last, end = joined
    lo, hi = cells
    u = cuda.grid(1)
    k = old_code.shape[0]
    made = before[before.shape[0] - 1]
    if u < code.shape[0] and u >= made:
        lo[u] = 0
        hi[u] = 0
        if surveyed.shape[0] > 0:
            closing[u + 1] = 0
    elif u < code.shape[0]:
        a = place_of(before, u)
        b = place_of(before, u + 1) if u + 1 < made else k + min(count[0], new_code.shape[0])
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
        if furthest < ends[0]:  # read first: after a few threads most find nothing to do
            cuda.atomic.min(ends, 0, furthest)
        if surveyed.shape[0] > 0:
            closing[u + 1] = 1 if furthest <= upto else 0
            if furthest <= upto:
                count_mark(tiles, u)
            if furthest > upto and furthest < ends[2]:
                cuda.atomic.min(ends, 2, furthest)
    if u == 0:
        ends[1] = upto
        if surveyed.shape[0] > 0:
            closing[0] = 0


@kernel(
    "void(int64[::1], UniTuple(int64[::1], 2), int64[::1], UniTuple(int32[::1], 2), int64, int64, int64[::1])", hot=True
)
def _mark_touched(made, cells, end, order, old, upto, before):  # type: ignore[no-untyped-def]
    """before[u + 1]: whether session u has something of the second list in it, and ends at or before `upto`."""
    lo, hi = cells
    place, other = order
    u = cuda.grid(1)
    if u == 0:
        before[0] = 0
    if u < before.shape[0] - 1:
        touched = u < made[0] and end[u] <= upto
        if touched:
            a = lo[u]
            b = hi[u] - 1
            of_old = (place[b] + 1 if place[b] < old else other[b]) - (place[a] if place[a] < old else other[a])
            touched = of_old < hi[u] - lo[u]
        before[u + 1] = 1 if touched else 0


@dataclass(frozen=True, slots=True)
class Joining:
    """Two lists on their way into one. The host reads `numbers`: how many sessions there are, int64[1]; the least end,
    int64[1]; and for each column whether an exact sum left its type, int32[columns], as `ranges.raise_if_any` has it.
    `sessions` are so many, and behind them what means nothing.
    """

    layout: CellLayout
    sessions: DeviceSessions
    numbers: tuple[DeviceArray, DeviceArray, DeviceArray]
    old: int
    place: DeviceArray
    other: DeviceArray
    lo: DeviceArray
    hi: DeviceArray
    marks: tuple[DeviceArray, DeviceArray]  # of sessions that close by the watermark, if one was given; see `_closing`
    ends: DeviceArray  # int64[3]: the least end, the instant by which they close, and the least end of the others

    def closing(self, room: int) -> tuple[DeviceArray, Closing]:
        """(the instant by which sessions close, int64[1]; those, if there is room for them, and the others), by the
        watermark that was given. Does not wait.
        """
        return self.ends[1:2], _closing(self.sessions, *self.marks, room, self.ends[2:3])

    def touched(self, room: int, upto: int = _MOST) -> Taken:
        """Those with something of the second list in them that end at or before `upto`. Does not wait."""
        n = len(self.sessions)
        before = empty(n + 1, np.int64)
        cells, order = (self.lo, self.hi), (self.place, self.other)
        launch(_mark_touched, n, self.numbers[0], cells, self.sessions.end, order, self.old, upto, before)
        return _taken(self.sessions, before, room)


def blank_for(layout: CellLayout, n: int) -> list[Length]:
    """(values, dtype) of the arrays that begin as zero where lists of n sessions, or room for them, are joined."""
    columns = max(len(layout.columns), 1)
    return [(n, np.int32), (n, np.int32), (n + 1, np.int64), (columns, np.int32), (3, np.int64), ranks.tiles_of(n)]


def joining(
    layout: CellLayout,
    old: DeviceSessions,
    new: DeviceSessions,
    count: DeviceArray,
    strict: bool,
    heap: HeapArrays | None = None,
    blank: Sequence[DeviceArray] | None = None,
    closes_by: tuple[DeviceArray, Watermark] | None = None,
) -> Joining:
    """Launches what joins the first `count` (int64[1], on the device) of a list with another one. `strict`: sessions
    must overlap to be one; else it is enough that they meet. `heap`: where cells hold texts. `blank`: zeros, as of
    `blank_for`, if there are some. `closes_by`: (survey of a batch, the second of which is its newest time; watermark)
    by which sessions close. At least one of the two has room for a session.
    """
    k, n = len(old), len(old) + len(new)
    # A place is written once if both lists are sorted. One of rows that came in another order than the host expected is
    # not, and what comes of it is thrown away; but every index has to be one.
    if blank is None:
        blank = together(*blank_for(layout, n), zero=True)
    place, other, before, overflow, ends, tiles = blank
    spans = (old.code, old.start, old.end), (new.code, new.start, new.end)
    launch(_order, n, *spans, count, strict, place, other, before, ends)
    before = primitives.running_sum(before)
    lo, hi = together((n, np.int64), (n, np.int64))
    with kept():
        code, start, last, end = together((n, np.int32), *[(n, np.int64)] * 3)
    bounds = (old.code, old.start, old.last, old.end), (new.code, new.start, new.last, new.end)
    joined = code, start, last, end
    surveyed, watermark = (empty(0, np.int64), _NO_WATERMARK) if closes_by is None else closes_by
    marks = empty(n + 1 if closes_by is not None else 0, np.int64), tiles
    rule = surveyed, tuple(watermark), marks
    launch(_describe, n, before, (place, other), count, *bounds, joined, (lo, hi), ends, *rule)
    # Few sessions become one, and each is in one: nodes over them would cost more than they save.
    cells, overflow = ranges.started(layout, old.columns, lo, hi, 2 * ranges.FAN, heap, place, overflow, new.columns)
    numbers = before[n:], ends[:1], overflow
    return Joining(layout, DeviceSessions(*joined, cells), numbers, k, place, other, lo, hi, marks, ends)


# -- taking ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """Some sessions of a list, in its order: `count` of them, in parts, int64[k] on the device, and behind these what
    means nothing; if there are more than there is room for, the rest is left out.
    """

    sessions: DeviceSessions
    count: DeviceArray


def _taken(sessions: DeviceSessions, marked: DeviceArray, room: int) -> Taken:
    """Sessions that are marked by a 1 behind the place of each in `marked`, int64[n + 1], which begins with 0."""
    n = len(sessions)
    before = primitives.running_sum(marked)
    place = zeros(min(room, n), np.int32)
    launch(list_used, n, before, place)
    return Taken(sessions.take(place), before[n:])


@kernel("void(int64[::1], int64, int64[::1], int64[::1])", hot=True)
def _mark_ending(end, least, bound, before):  # type: ignore[no-untyped-def]
    """before[i + 1]: whether session i ends in [least, bound[0]]; bound[1]: at most the least end behind it."""
    i = cuda.grid(1)
    if i == 0:
        before[0] = 0
    if i < end.shape[0]:
        e = end[i]
        before[i + 1] = 1 if least <= e and e <= bound[0] else 0
        if e > bound[0] and e < bound[1]:  # read first: after a few threads most find nothing to do
            cuda.atomic.min(bound, 1, e)


def _marked(sessions: DeviceSessions, least: int, bound: DeviceArray) -> DeviceArray:
    before = empty(len(sessions) + 1, np.int64)
    launch(_mark_ending, len(sessions), sessions.end, least, bound, before)
    return before


def _bound_of(upto: int) -> DeviceArray:
    """int64[2] on the device: an instant, and what becomes the least end behind it."""
    return to_device(np.array([upto, _MOST]))


def ending(sessions: DeviceSessions, least: int, most: int, room: int) -> Taken:
    """The sessions with least <= end <= most. Does not wait."""
    return _taken(sessions, _marked(sessions, least, _bound_of(most)), room)


@dataclass(frozen=True, slots=True)
class Closing:
    """Sessions that close, and sessions that stay: as many as there were, less those that close; further room means
    nothing. `first_end` int64[1], on the device: the least end of what stays, the largest int64 if nothing does.
    """

    closed: Taken
    left: DeviceSessions
    first_end: DeviceArray

    @property
    def numbers(self) -> tuple[DeviceArray, ...]:
        """Arrays that the host reads: how many close, the least end of the others, and what closes."""
        return (self.closed.count, self.first_end, *self.closed.sessions.arrays())


def closing(sessions: DeviceSessions, upto: int, room: int) -> Closing:
    """The sessions, at least one, that end at or before `upto`, if there is room for them, and the others. Does not
    wait.
    """
    bound = _bound_of(upto)
    return _closing(sessions, _marked(sessions, -_MOST - 1, bound), empty(0, np.int64), room, bound[1:])


def _closing(
    sessions: DeviceSessions, marked: DeviceArray, tiles: DeviceArray, room: int, first_end: DeviceArray
) -> Closing:
    """Sessions in two, as they are `marked` (see `_taken`), which `tiles` have counted, if there are any."""
    before = ranks.counted(marked, tiles)
    parts = parted(sessions.arrays(), before, tiles, min(room, len(sessions)))
    closed, left = (sessions.like(arrays) for arrays in parts)
    return Closing(Taken(closed, ranks.total_of(before, tiles)), left, first_end)


# -- keys --------------------------------------------------------------------------------------------------------------


@kernel("void(int32[::1], uint8[::1])")
def _mark_keys(code, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0]:
        flags[i] = 1 if i == 0 or code[i] != code[i - 1] else 0


def used_codes(sessions: DeviceSessions) -> DeviceArray:
    """int32[k], ascending, on the device: the codes that have a session. Waits for how many there are."""
    flags = empty(len(sessions), np.uint8)
    launch(_mark_keys, len(sessions), sessions.code, flags)
    return gather(sessions.code, primitives.select(flags))


def recoded(sessions: DeviceSessions, new_code: DeviceArray) -> DeviceSessions:
    """With `new_code[code]` for each code: int32, on the device, ascending where it is used."""
    code = gather(new_code, sessions.code)
    return DeviceSessions(code, sessions.start, sessions.last, sessions.end, sessions.columns)


__all__ = [
    "Closing",
    "DeviceSessions",
    "Joining",
    "Taken",
    "blank_for",
    "closing",
    "ending",
    "joining",
    "recoded",
    "used_codes",
]
