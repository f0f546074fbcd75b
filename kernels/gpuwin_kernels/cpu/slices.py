"""Kernels over slices of rows: window w holds rows [lo[w], hi[w]) of arrays that are sorted by key and time.

Where windows overlap little, each window's rows are listed and sorted (`expand`, then an order by (window, value)).
Where they overlap much, a multiset of ranks slides from window to window (`slide_*`), so that the cost is rows entering
and leaving, each O(log values), and not the overlap.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gpuwin_kernels.cpu.order import lower_bound_from, sort_part

from .growing import wider

_SIGN = np.uint64(1 << 63)
_NAN_KEY = np.iinfo(np.int64).max


@njit(nogil=True, cache=True)
def float_keys(values):  # type: ignore[no-untyped-def]
    """int64 keys that order float64 values as SQL does: -0.0 equals 0.0, NaN equals NaN and is larger than every
    number.
    """
    out = values.view(np.int64).copy()
    for i in range(values.shape[0]):
        v = values[i]
        if v != v:
            out[i] = _NAN_KEY
        elif v == 0.0:
            out[i] = 0
        elif out[i] < 0:
            out[i] = np.int64(~np.uint64(out[i]) | _SIGN)
    return out


@njit(nogil=True, cache=True)
def edges_of_windows(codes, times, code, start, end, w0, w1, lo, hi):  # type: ignore[no-untyped-def]
    """Writes the slice [lo[w], hi[w]) of each window w in [w0, w1), whose rows are those of `code[w]` with start[w] <=
    time < end[w], in rows sorted by (codes, times); the largest int64 as end: no end.

    Windows come in any order; sorted by (code, start), or so over and over, they cost least.
    """
    at = 0
    for w in range(w0, w1):
        c = code[w]
        if w > w0 and (c < code[w - 1] or (c == code[w - 1] and start[w] < start[w - 1])):
            at = 0
        at = lower_bound_from(codes, times, at, c, start[w])
        lo[w] = at
        if end[w] == np.iinfo(np.int64).max:
            hi[w] = lower_bound_from(codes, times, at, np.int32(c + 1), np.iinfo(np.int64).min)
        else:
            hi[w] = lower_bound_from(codes, times, at, c, end[w])


@njit(nogil=True, cache=True)
def begins_of_codes(codes, first):  # type: ignore[no-untyped-def]
    """Writes where the rows of each code begin, first int64[largest code + 2]; `codes` int32 is sorted."""
    at = 0
    for i in range(codes.shape[0]):
        while at <= codes[i]:
            first[at] = i
            at += 1
    first[at:] = codes.shape[0]


@njit(nogil=True, cache=True)
def _first_from(times, at, beyond, time):  # type: ignore[no-untyped-def]
    """The first of the rows [at, beyond), which ascend, that is not before `time`: by doubling steps."""
    step = 1
    while at + step <= beyond and times[at + step - 1] < time:
        at += step
        step <<= 1
    beyond = min(beyond, at + step - 1)
    while at < beyond:
        middle = (at + beyond) >> 1
        if times[middle] < time:
            at = middle + 1
        else:
            beyond = middle
    return at


@njit(nogil=True, cache=True)
def edges_by_code(first, times, code, start, end, w0, w1, lo, hi):  # type: ignore[no-untyped-def]
    """As `edges_of_windows`, where each code is asked for about once or more often. first: see `begins_of_codes`.

    The search for a window begins where that for the last window of its code ended; those whose starts ascend code by
    code cost least.
    """
    starts, ends = first[:-1].copy(), first[:-1].copy()
    for w in range(w0, w1):
        c = code[w]
        if c >= starts.shape[0]:
            lo[w] = hi[w] = times.shape[0]
            continue
        at, beyond = starts[c], first[c + 1]
        if at > first[c] and times[at - 1] >= start[w]:
            at = first[c]
        at = _first_from(times, at, beyond, start[w])
        starts[c] = lo[w] = at
        if end[w] == np.iinfo(np.int64).max:
            hi[w] = beyond
            continue
        upto = max(ends[c], at)
        if upto > at and times[upto - 1] >= end[w]:
            upto = at
        ends[c] = hi[w] = _first_from(times, upto, beyond, end[w])


@njit(nogil=True, cache=True)
def rows_between(code, time, gone, want_code, start, end):  # type: ignore[no-untyped-def]
    """The positions of live rows in the ranges code == want_code[r], start[r] <= time < end[r]; the largest int64 as
    end: no end.

    The ranges are sorted and disjoint; `gone` is a bit set.
    """
    n = code.shape[0]
    out = np.empty(256, np.int64)
    k = 0
    lo = 0
    for r in range(want_code.shape[0]):
        c = want_code[r]
        lo = lower_bound_from(code, time, lo, c, start[r])
        endless = end[r] == np.iinfo(np.int64).max
        i = lo
        while i < n and code[i] == c and (endless or time[i] < end[r]):
            if not (gone[i >> 3] >> (i & 7)) & 1:
                if k == out.shape[0]:
                    out = wider(out)
                out[k] = i
                k += 1
            i += 1
    return out[:k]


@njit(nogil=True, cache=True)
def expand(lo, hi, valid):  # type: ignore[no-untyped-def]
    """Lists the valid rows of every window: (row int64[k], window int32[k], first int64[windows + 1])."""
    total = 0
    for w in range(lo.shape[0]):
        total += max(hi[w] - lo[w], 0)
    row = np.empty(total, np.int64)
    window = np.empty(total, np.int32)
    first = np.zeros(lo.shape[0] + 1, np.int64)
    k = 0
    for w in range(lo.shape[0]):
        for i in range(lo[w], hi[w]):
            if valid[i]:
                row[k] = i
                window[k] = w
                k += 1
        first[w + 1] = k
    return row[:k], window[:k], first


@njit(nogil=True, cache=True)
def count_valid(lo, hi, valid, w0, w1, size):  # type: ignore[no-untyped-def]
    """Writes the number of valid rows of the windows [w0, w1)."""
    for w in range(w0, w1):
        n = 0
        for i in range(lo[w], hi[w]):
            n += valid[i]
        size[w] = n


@njit(nogil=True, cache=True)
def list_by_key(lo, hi, valid, key, first, w0, w1, row):  # type: ignore[no-untyped-def]
    """Writes the valid rows of the windows [w0, w1), each window's from first[w] on, in the stable order of their keys
    (int64).
    """
    for w in range(w0, w1):
        k = first[w]
        for i in range(lo[w], hi[w]):
            if valid[i]:
                row[k] = i
                k += 1
        if k - first[w] > 1:
            sort_part(key, row, first[w], k)


@njit(nogil=True, cache=True)
def first_of_groups(window, key, order):  # type: ignore[no-untyped-def]
    """Marks, in sorted order, where a new (window, key) begins: uint8[k]."""
    out = np.empty(order.shape[0], np.uint8)
    for k in range(order.shape[0]):
        i = order[k]
        j = order[k - 1] if k else i
        out[k] = k == 0 or window[i] != window[j] or key[i] != key[j]
    return out


@njit(nogil=True, cache=True)
def first_of_codes(code):  # type: ignore[no-untyped-def]
    """The first row of each row's code, int64[n]; `code` is sorted."""
    out = np.empty(code.shape[0], np.int64)
    first = 0
    for i in range(code.shape[0]):
        if code[i] != code[first]:
            first = i
        out[i] = first
    return out


@njit(nogil=True, cache=True)
def dense_ranks(code, key, valid, order):  # type: ignore[no-untyped-def]
    """Ranks of the valid rows' keys within each code, from 0: (rank int64[n], -1 where not valid; largest number of
    ranks).
    """
    rank = np.full(code.shape[0], -1, np.int64)
    most = 0
    r = -1
    previous = -1
    for i in order:
        if not valid[i]:
            continue
        if previous < 0 or code[previous] != code[i]:
            r = 0
        elif key[previous] != key[i]:
            r += 1
        previous = i
        rank[i] = r
        most = max(most, r + 1)
    return rank, most


@njit(nogil=True, cache=True)
def _find_kth(tree, top, k):  # type: ignore[no-untyped-def]
    """The rank of the k-th smallest (from 0) in a Fenwick tree of counts; top: the largest power of two in its size."""
    at = 0
    step = top
    while step > 0:
        if at + step < tree.shape[0] and tree[at + step] <= k:
            at += step
            k -= tree[at]
        step >>= 1
    return at


@njit(nogil=True, cache=True)
def _slide_to(lo, hi, a, b, rank, tree):  # type: ignore[no-untyped-def]
    """Moves the multiset from rows [a, b) to rows [lo, hi); returns the change of its size."""
    size = 0
    for side in range(4):
        if side == 0:  # rows that leave at the front
            first, beyond, change = a, min(lo, b), -1
        elif side == 1:  # rows that leave at the back
            first, beyond, change = max(hi, a, min(lo, b)), b, -1
        elif side == 2:  # rows that enter at the front
            first, beyond, change = lo, min(a, hi), 1
        else:  # rows that enter at the back
            first, beyond, change = max(lo, b), hi, 1
        for i in range(first, beyond):
            r = rank[i]
            if r < 0:
                continue
            size += change
            j = r + 1
            while j < tree.shape[0]:
                tree[j] += change
                j += j & -j
    return size


@njit(nogil=True, cache=True)
def slide_select(lo, hi, rank, ranks, wanted):  # type: ignore[no-untyped-def]
    """Order statistics of each window by a sliding multiset of ranks.

    `wanted` float64[q]: fractions f in [0, 1] of (size - 1), each giving two ranks, floor and ceil: (below, above
    int64[windows, q], -1 where the window is empty; size int64[windows]). Windows come in any order; sorted by (code,
    lo, hi) they cost least.
    """
    windows = lo.shape[0]
    below = np.full((windows, wanted.shape[0]), -1, np.int64)
    above = np.full((windows, wanted.shape[0]), -1, np.int64)
    sizes = np.zeros(windows, np.int64)
    tree = np.zeros(ranks + 1, np.int64)
    top = 1
    while top * 2 <= ranks:
        top *= 2
    a = 0
    b = 0
    size = 0
    for w in range(windows):
        x = lo[w]
        y = max(hi[w], x)
        size += _slide_to(x, y, a, b, rank, tree)
        a = x
        b = y
        sizes[w] = size
        if size == 0:
            continue
        for q in range(wanted.shape[0]):
            position = wanted[q] * (size - 1)
            low = np.int64(np.floor(position))
            below[w, q] = _find_kth(tree, top, low)
            above[w, q] = below[w, q] if low == position else _find_kth(tree, top, low + 1)
    return below, above, sizes


@njit(nogil=True, cache=True)
def slide_top(lo, hi, rank, ranks, k):  # type: ignore[no-untyped-def]
    """The ranks of the k largest rows of each window, repeats included: (rank int64[total], first int64[windows + 1]),
    descending.
    """
    windows = lo.shape[0]
    first = np.zeros(windows + 1, np.int64)
    out = np.empty(1024, np.int64)
    tree = np.zeros(ranks + 1, np.int64)
    top = 1
    while top * 2 <= ranks:
        top *= 2
    a = 0
    b = 0
    size = 0
    n = 0
    for w in range(windows):
        x = lo[w]
        y = max(hi[w], x)
        size += _slide_to(x, y, a, b, rank, tree)
        a = x
        b = y
        for j in range(min(k, size)):
            if n == out.shape[0]:
                out = wider(out)
            out[n] = _find_kth(tree, top, size - 1 - j)
            n += 1
        first[w + 1] = n
    return out[:n], first
