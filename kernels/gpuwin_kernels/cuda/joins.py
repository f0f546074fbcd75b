"""Join kernels on the device, with the contracts of `gpuwin_kernels.cpu.joins`: rows of one side against sorted rows of
the other by interval, rows to the windows that hold them, and groups of both sides against each other by window.

Everything is sorted by a pair (key code int32, time or window int64) and compared as such, so that nothing has to be
packed and the whole range of int64 is allowed. Each result takes the same three steps: how many entries a row gives,
an exclusive sum of that, and one thread for each entry, which finds its row in the sums.

    probe(code, time, live, want_code, least, most) -> (who int64[k], position int64[k])
    newest(code, time, want_code, most) -> position int64[k]
    assign_windows(first, beyond) -> (row int64[k], window int64[k])
    pair_groups(left_code, left_window, right_code, right_window, keep_left, keep_right) -> (left, right int64[k])
    union_groups(left_code, left_window, right_code, right_window) -> (code, window, left_first, right_first)

All arguments and results are device arrays. A run has fewer than 2**31 rows.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import cuda, empty, full, kernel, launch, to_host, zeros
from gpuwin_kernels.cuda.scalar import is_set


@cuda.jit(device=True)
def _pairs_before(code, at, want_code, want_at, right):  # type: ignore[no-untyped-def]
    """Number of the sorted pairs below the wanted one; `right`: or equal to it."""
    lo = 0
    hi = code.shape[0]
    while lo < hi:
        middle = (lo + hi) >> 1
        c = code[middle]
        a = at[middle]
        if c < want_code or (c == want_code and (a < want_at or (right and a == want_at))):
            lo = middle + 1
        else:
            hi = middle
    return lo


@cuda.jit(device=True)
def _owner_of(entry, offset):  # type: ignore[no-untyped-def]
    """The row whose entries hold this one: offset[row] <= entry < offset[row + 1]."""
    lo = 0
    hi = offset.shape[0] - 1
    while hi - lo > 1:
        middle = (lo + hi) >> 1
        if offset[middle] <= entry:
            lo = middle
        else:
            hi = middle
    return lo


def _last(offset: DeviceArray) -> int:
    n = len(offset)
    return int(to_host(offset[n - 1 : n])[0])


# -- by interval -------------------------------------------------------------------------------------------------------


@kernel("void(uint8[::1], int64[::1])")
def _widen(flags, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < flags.shape[0]:
        out[i] = 1 if flags[i] != 0 else 0


@kernel(
    "void(int32[::1], int64[::1], int64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1])",
)
def _count_hits(code, time, rank, want_code, least, most, first, count):  # type: ignore[no-untyped-def]
    w = cuda.grid(1)
    if w < want_code.shape[0]:
        lo = _pairs_before(code, time, want_code[w], least[w], False)
        hi = _pairs_before(code, time, want_code[w], most[w], True)
        before = rank[lo]
        first[w] = before
        count[w] = max(rank[hi] - before, 0)


@kernel("void(int64[::1], int64[::1], int32[::1], int64[::1], int64[::1])")
def _list_hits(offset, first, alive, who, position):  # type: ignore[no-untyped-def]
    r = cuda.grid(1)
    if r < who.shape[0]:
        w = _owner_of(r, offset)
        who[r] = w
        position[r] = alive[first[w] + (r - offset[w])]


def probe(
    code: DeviceArray,
    time: DeviceArray,
    live: DeviceArray,
    want_code: DeviceArray,
    least: DeviceArray,
    most: DeviceArray,
) -> tuple[DeviceArray, DeviceArray]:
    """Live rows of a run with code == want_code[w] and least[w] <= time <= most[w].

    The run (`code` int32[n], `time` int64[n]) is sorted by (code, time); `live` uint8[n] is 0 for rows that have left
    it. The wanted (`want_code` int32[k], `least`, `most` int64[k]) come in any order; one with least > most finds
    nothing. Returns (w int64[h], position int64[h]), by w and then position.
    """
    return probe_ranked(code, time, ranked(live), want_code, least, most)


@kernel("void(uint8[::1], uint8[::1])")
def _live_of(gone, live):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < live.shape[0]:
        live[i] = 0 if is_set(gone, i) else 1


def live_of(gone: DeviceArray, rows: int) -> DeviceArray:
    """uint8[rows] of a bit set, uint8[(rows + 7) // 8]: 1 for rows that are not in it."""
    live = empty(rows, np.uint8)
    launch(_live_of, rows, gone, live)
    return live


def ranked(live: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Ranks of the live rows of a run (uint8[n]), for `probe_ranked`: how many come before each, int64[n + 1],
    and which they are, int32[m]. Waits once.
    """
    flags = empty(len(live), np.int64)
    launch(_widen, len(live), live, flags)
    return primitives.exclusive_sum(flags), primitives.select(live)


def probe_ranked(
    code: DeviceArray,
    time: DeviceArray,
    live: tuple[DeviceArray, DeviceArray],
    want_code: DeviceArray,
    least: DeviceArray,
    most: DeviceArray,
) -> tuple[DeviceArray, DeviceArray]:
    """As `probe`, with `live` as `ranked` made it. Waits once, for how many there are."""
    k = len(want_code)
    rank, alive = live
    first, count = empty(k, np.int64), empty(k, np.int64)
    launch(_count_hits, k, code, time, rank, want_code, least, most, first, count)
    offset = primitives.exclusive_sum(count)
    hits = _last(offset)
    who, position = empty(hits, np.int64), empty(hits, np.int64)
    launch(_list_hits, hits, offset, first, alive, who, position)
    return who, position


# -- by the newest row before ------------------------------------------------------------------------------------------


@kernel("void(int32[::1], int64[::1], int32[::1], int64[::1], int64[::1])")
def _find_newest(code, time, want_code, most, position):  # type: ignore[no-untyped-def]
    w = cuda.grid(1)
    if w < want_code.shape[0]:
        at = _pairs_before(code, time, want_code[w], most[w], True) - 1
        position[w] = at if at >= 0 and code[at] == want_code[w] else -1


def newest(code: DeviceArray, time: DeviceArray, want_code: DeviceArray, most: DeviceArray) -> DeviceArray:
    """The last row of a run, sorted by (code int32, time int64), with code == want_code[w] and time <= most[w], in any
    order: positions, int64[k], -1 where there is none.
    """
    position = empty(len(want_code), np.int64)
    launch(_find_newest, len(want_code), code, time, want_code, most, position)
    return position


# -- rows to windows ---------------------------------------------------------------------------------------------------


@kernel("void(int64[::1], int64[::1], int64[::1])")
def _count_span(first, beyond, count):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < first.shape[0]:
        count[i] = max(beyond[i] - first[i], 0)


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def _list_span(offset, first, row, window):  # type: ignore[no-untyped-def]
    r = cuda.grid(1)
    if r < row.shape[0]:
        i = _owner_of(r, offset)
        row[r] = i
        window[r] = first[i] + (r - offset[i])


def assign_windows(first: DeviceArray, beyond: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Lists (row int64[k], window int64[k]) for the windows first[i] <= window < beyond[i] of each row, by row and then
    window; int64[n] each.
    """
    n = len(first)
    count = empty(n, np.int64)
    launch(_count_span, n, first, beyond, count)
    offset = primitives.exclusive_sum(count)
    total = _last(offset)
    row, window = empty(total, np.int64), empty(total, np.int64)
    launch(_list_span, total, offset, first, row, window)
    return row, window


# -- by window ---------------------------------------------------------------------------------------------------------


@kernel("void(int32[::1], int64[::1], int32[::1], int64[::1], boolean, int64[::1], int64[::1], int64[::1])")
def _match(code, window, other_code, other_window, keep, lo, hi, count):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0]:
        a = _pairs_before(other_code, other_window, code[i], window[i], False)
        b = _pairs_before(other_code, other_window, code[i], window[i], True)
        lo[i] = a
        hi[i] = b
        count[i] = b - a if b > a else (1 if keep else 0)


@kernel("void(int32[::1], int64[::1], int32[::1], int64[::1], boolean, int64[::1], int64[::1])")
def _alone(code, window, other_code, other_window, heads_only, lo, count):  # type: ignore[no-untyped-def]
    """Rows that the other side has no equal of: all of them, or the first of each group."""
    j = cuda.grid(1)
    if j < code.shape[0]:
        a = _pairs_before(other_code, other_window, code[j], window[j], False)
        lo[j] = a
        alone = a == other_code.shape[0] or other_code[a] != code[j] or other_window[a] != window[j]
        if heads_only and j > 0 and code[j - 1] == code[j] and window[j - 1] == window[j]:
            alone = False
        count[j] = 1 if alone else 0


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1])")
def _list_matches(offset, lo, hi, alone_before, matches, left, right):  # type: ignore[no-untyped-def]
    r = cuda.grid(1)
    if r < matches:
        i = _owner_of(r, offset)
        to = r + alone_before[lo[i]]
        left[to] = i
        right[to] = lo[i] + (r - offset[i]) if hi[i] > lo[i] else -1


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def _list_alone(alone_before, lo, offset, left, right):  # type: ignore[no-untyped-def]
    j = cuda.grid(1)
    if j < lo.shape[0] and alone_before[j + 1] > alone_before[j]:
        to = alone_before[j] + offset[lo[j]]
        left[to] = -1
        right[to] = j


def pair_groups(
    left_code: DeviceArray,
    left_window: DeviceArray,
    right_code: DeviceArray,
    right_window: DeviceArray,
    keep_left: bool,
    keep_right: bool,
) -> tuple[DeviceArray, DeviceArray]:
    """All pairs of rows with equal (code, window); both sides (`code` int32, `window` int64) are sorted by it.

    Returns (left int64[k], right int64[k]), positions, by (code, window), then left, then right; -1 where a row has no
    partner and its side is kept (outer joins).
    """
    n, m = len(left_code), len(right_code)
    lo, hi, count = empty(n, np.int64), empty(n, np.int64), empty(n, np.int64)
    launch(_match, n, left_code, left_window, right_code, right_window, keep_left, lo, hi, count)
    offset = primitives.exclusive_sum(count)
    if keep_right:
        before, single = empty(m, np.int64), empty(m, np.int64)
        launch(_alone, m, right_code, right_window, left_code, left_window, False, before, single)
        alone_before = primitives.exclusive_sum(single)
    else:
        alone_before = zeros(m + 1, np.int64)
    matches = _last(offset)
    total = matches + (_last(alone_before) if keep_right else 0)
    left, right = empty(total, np.int64), empty(total, np.int64)
    launch(_list_matches, matches, offset, lo, hi, alone_before, matches, left, right)
    if keep_right:
        launch(_list_alone, m, alone_before, before, offset, left, right)
    return left, right


@kernel("void(int32[::1], int64[::1], int64[::1])")
def _heads(code, window, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0]:
        out[i] = 0 if i > 0 and code[i - 1] == code[i] and window[i - 1] == window[i] else 1


_WINDOWS = "Tuple((int32[::1], int64[::1]))"  # code, window


@kernel(f"void({_WINDOWS}, {_WINDOWS}, UniTuple(int64[::1], 2), {_WINDOWS}, UniTuple(int64[::1], 2))")
def _place_groups(rows, others, heads, out, firsts):  # type: ignore[no-untyped-def]
    """Enters the groups that begin at these rows: `heads` are exclusive sums of flags, of these and of the others."""
    code, window = rows
    other_code, other_window = others
    own, other = heads
    out_code, out_window = out
    own_first, other_first = firsts
    i = cuda.grid(1)
    if i < code.shape[0] and own[i + 1] > own[i]:
        a = _pairs_before(other_code, other_window, code[i], window[i], False)
        g = own[i] + other[a]
        out_code[g] = code[i]
        out_window[g] = window[i]
        own_first[g] = i
        other_first[g] = a


def union_groups(
    left_code: DeviceArray, left_window: DeviceArray, right_code: DeviceArray, right_window: DeviceArray
) -> tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray]:
    """The distinct (code, window) of both sides, each sorted by it.

    Returns (code int32[g], window int64[g], left_first int64[g + 1], right_first int64[g + 1]): group j holds the rows
    [first[j], first[j + 1]) of each side.
    """
    n, m = len(left_code), len(right_code)
    own, single, unused = empty(n, np.int64), empty(m, np.int64), empty(m, np.int64)
    launch(_heads, n, left_code, left_window, own)
    launch(_alone, m, right_code, right_window, left_code, left_window, True, unused, single)
    left_heads, right_heads = primitives.exclusive_sum(own), primitives.exclusive_sum(single)
    g = _last(left_heads) + _last(right_heads)
    code, window = empty(g, np.int32), empty(g, np.int64)
    left_first, right_first = full(g + 1, n, np.int64), full(g + 1, m, np.int64)
    left, right = (left_code, left_window), (right_code, right_window)
    out = code, window
    launch(_place_groups, n, left, right, (left_heads, right_heads), out, (left_first, right_first))
    launch(_place_groups, m, right, left, (right_heads, left_heads), out, (right_first, left_first))
    return code, window, left_first, right_first


__all__ = ["assign_windows", "pair_groups", "probe", "union_groups"]
