"""Kernels over slices of rows: window w holds rows [lo[w], hi[w]) of arrays that are sorted by key and time.

Here each window's rows are found, and listed and sorted by themselves. Where windows overlap much, `sliding_order` and
`repeats` look at the rows that enter and leave, and at no others.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
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
