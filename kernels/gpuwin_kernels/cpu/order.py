"""Stable orders of rows by (key code, time), for streams that are nearly in order of time.

A counting sort by code keeps the order of arrival within a key, which is nearly that of time: most keys are then in
order already, a few rows are moved by insertion, and only what is really shuffled pays for a sort: of keys of a narrow
range a radix sort, the least digit first, and of others one into about as many parts as rows, which insertion sorts.
"""

from __future__ import annotations

import itertools

import numpy as np
from numba import njit

from gpuwin_kernels.cpu.kept_memory import empty

from .groups import begin_groups, place_groups
from .parallel import each, ranges

_INSERTION_MOVES = 8  # moves per row that insertion may cost before a part is sorted instead
_SHORT = 48  # rows up to which insertion is always good enough
_FEW = 16  # rows up to which insertion beats a spread
_NARROW = 22  # bits of a range of keys up to which a radix sort takes few passes
_SPREAD_BITS = 11  # of the number of parts that keys of a wider range are spread over ...
_SPREADS = 3  # ... and how often the rows of such a part are spread again, before a radix sort takes them
_LONG = 1 << 14  # rows from which a digit of 11 bits beats one of 8


@njit(nogil=True, cache=True)
def _radix_part(key, order, lo, hi, base, span):  # type: ignore[no-untyped-def]
    """Sorts order[lo:hi] by key, whose values lie in [base, base + span]; span is a uint64."""
    n = hi - lo
    width = 8 if n < _LONG else 11
    digits = 1 << width
    source = order[lo:hi].copy()
    target = np.empty(n, np.int64)
    count = np.empty(digits + 1, np.int64)
    shift = np.uint64(0)
    mask = np.uint64(digits - 1)
    unsigned_base = np.uint64(base)
    while shift < np.uint64(64) and (span >> shift) != np.uint64(0):
        count[:] = 0
        for i in range(n):
            digit = np.int64(((np.uint64(key[source[i]]) - unsigned_base) >> shift) & mask)
            count[digit + 1] += 1
        for d in range(digits):
            count[d + 1] += count[d]
        for i in range(n):
            row = source[i]
            digit = np.int64(((np.uint64(key[row]) - unsigned_base) >> shift) & mask)
            target[count[digit]] = row
            count[digit] += 1
        source, target = target, source
        shift += np.uint64(width)
    order[lo:hi] = source


@njit(nogil=True, cache=True)
def _insert(key, order, lo, hi, some, each):  # type: ignore[no-untyped-def]
    """Stably sorts order[lo:hi] by insertion, while rows make no more moves than `some`, and `each` for every row so
    far: up to where it is sorted.
    """
    moves = 0
    i = lo + 1
    while i < hi and moves <= some + each * (i - lo):
        row = order[i]
        value = key[row]
        j = i - 1
        while j >= lo and key[order[j]] > value:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = row
        moves += i - 1 - j
        i += 1
    return min(i, hi)


@njit(nogil=True, cache=True)
def _spread(key, order, lo, hi, base, span, source, ends):  # type: ignore[no-untyped-def]
    """Stably moves order[lo:hi] to parts by the upper bits of key - base, in [0, span]. Returns the number of parts,
    and writes where each ends. source int64: room for the rows.
    """
    bits = 3
    while bits < _SPREAD_BITS and (hi - lo) >> bits:
        bits += 1
    shift = np.uint64(0)
    while span >> shift >> np.uint64(bits):
        shift += np.uint64(1)
    parts = 1 << bits
    ends[: parts + 1] = 0
    for k in range(lo, hi):
        row = order[k]
        source[k - lo] = row
        ends[np.int64((np.uint64(key[row]) - base) >> shift) + 1] += 1
    ends[0] = lo
    for p in range(parts):
        ends[p + 1] += ends[p]
    for k in range(hi - lo):  # and the beginning of a part becomes its end
        row = source[k]
        part = np.int64((np.uint64(key[row]) - base) >> shift)
        order[ends[part]] = row
        ends[part] += 1
    return parts


@njit(nogil=True, cache=True)
def _sort_range(key, order, lo, hi):  # type: ignore[no-untyped-def]
    """Stably sorts order[lo:hi], at least one row."""
    # Ranges that are still to be sorted, and how often their rows were spread. A stack, since Numba cannot load a
    # function that calls itself from its cache.
    todo = np.empty(((hi - lo) // _FEW + 1, 3), np.int64)
    source, ends = np.empty(hi - lo, np.int64), np.empty((1 << _SPREAD_BITS) + 1, np.int64)
    todo[0] = lo, hi, 0
    count = 1
    while count:
        count -= 1
        begin, end, depth = todo[count]
        least = most = key[order[begin]]
        for k in range(begin, end):
            value = key[order[k]]
            least = min(least, value)
            most = max(most, value)
        span = np.uint64(most) - np.uint64(least)
        if depth == _SPREADS or span >> np.uint64(_NARROW) == np.uint64(0):
            _radix_part(key, order, begin, end, least, span)
            continue
        for part in range(_spread(key, order, begin, end, np.uint64(least), span, source, ends)):
            upto = ends[part]
            if upto - begin > _FEW:
                todo[count] = begin, upto, depth + 1
                count += 1
            elif upto - begin > 1:
                _insert(key, order, begin, upto, _FEW * _FEW, 0)
            begin = upto


@njit(nogil=True, cache=True)
def sort_part(key, order, lo, hi):  # type: ignore[no-untyped-def]
    """Stably sorts the row numbers order[lo:hi] by key[row] (int64), in place."""
    some = _SHORT * (4 if hi - lo > _SHORT else _SHORT)
    # Insertion is stable as far as it comes, so a sort may start from there.
    if _insert(key, order, lo, hi, some, _INSERTION_MOVES) < hi:
        _sort_range(key, order, lo, hi)


@njit(nogil=True, cache=True)
def order_by_part(part, parts):  # type: ignore[no-untyped-def]
    """A stable counting sort of rows by a number (`part` integers in [0, parts)): the row numbers in their order
    (int64[n]), and where each part begins in it (int64[parts + 1]).
    """
    n = part.shape[0]
    first = np.zeros(parts + 1, np.int64)
    for i in range(n):
        first[part[i] + 1] += 1
    for p in range(parts):
        first[p + 1] += first[p]
    order = np.empty(n, np.int64)
    fill = first[:parts].copy()
    for i in range(n):
        p = part[i]
        order[fill[p]] = i
        fill[p] += 1
    return order, first


@njit(nogil=True, cache=True)
def _order_dense(code, key, codes):  # type: ignore[no-untyped-def]
    order, first = order_by_part(code, codes)
    for c in range(codes):
        if first[c + 1] - first[c] > 1:
            sort_part(key, order, first[c], first[c + 1])
    return order


@njit(nogil=True, cache=True)
def is_ordered(code, key):  # type: ignore[no-untyped-def]
    """True if the rows are already sorted by (code, key)."""
    for i in range(1, code.shape[0]):
        if code[i] < code[i - 1] or (code[i] == code[i - 1] and key[i] < key[i - 1]):
            return False
    return True


def order_by_code(code: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The stable order (int64[n], row numbers) of rows by (`code` int32 >= 0, `key` int64)."""
    n = len(code)
    if is_ordered(code, key):
        return np.arange(n, dtype=np.int64)
    codes = int(code.max()) + 1
    if codes > 4 * n + 1024:  # few rows of a large dictionary: a table of all codes would cost more than the rows
        return np.lexsort((key, code))
    return _order_dense(code, key, codes)  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def _count_codes(code, lo, hi, count):  # type: ignore[no-untyped-def]
    """Counts the rows [lo, hi) of each code."""
    for i in range(lo, hi):
        count[code[i]] += 1


@njit(nogil=True, cache=True)
def _sort_codes(key, order, first, lo, hi):  # type: ignore[no-untyped-def]
    """Sorts the rows of the codes [lo, hi) by key."""
    for c in range(lo, hi):
        if first[c + 1] - first[c] > 1:
            sort_part(key, order, first[c], first[c + 1])


def order_in_threads(code: np.ndarray, key: np.ndarray) -> np.ndarray:
    """`order_by_code`, by all threads where rows are many. Not to be called on a thread of `each`."""
    n = len(code)
    parts = ranges(n)
    if len(parts) == 1 or is_ordered(code, key):
        return order_by_code(code, key)
    codes = int(code.max()) + 1
    if codes > n:  # a table for each thread would cost more than the rows
        return order_by_code(code, key)
    counts = np.zeros((len(parts), codes), np.int64)
    numbered = list(enumerate(parts))
    each(lambda part: _count_codes(code, *part[1], counts[part[0]]), numbered)
    first = begin_groups(counts)
    order = empty(n, np.int64)
    each(lambda part: place_groups(code, *part[1], counts[part[0]], order), numbered)
    edges = np.searchsorted(first, [lo for lo, _ in parts] + [n])
    each(lambda part: _sort_codes(key, order, first, *part), list(itertools.pairwise(edges.tolist())))
    return order


@njit(nogil=True, cache=True)
def _sort_groups(code, key, order, lo, hi):  # type: ignore[no-untyped-def]
    """Sorts the rows [lo, hi) of each code by key. `code` is sorted, and [lo, hi) holds all rows of its codes."""
    begin = lo
    while begin < hi:
        end = begin + 1
        while end < hi and code[end] == code[begin]:
            end += 1
        for i in range(begin, end):
            order[i] = i
        sort_part(key, order, begin, end)
        begin = end


def parts_by_code(code: np.ndarray) -> list[tuple[int, int]]:
    """A part of the rows for each thread, all rows of a code in one; `code` int32[n] is sorted."""
    if not len(code):
        return [(0, 0)]
    cuts = np.searchsorted(code, code[[lo for lo, _ in ranges(len(code))]])
    return list(itertools.pairwise([*cuts.tolist(), len(code)]))


def order_within_codes(code: np.ndarray, key: np.ndarray) -> np.ndarray:
    """`order_by_code` of rows that lie by code already, by all threads. Not to be called on a thread of `each`."""
    order = empty(len(code), np.int64)
    each(lambda part: _sort_groups(code, key, order, *part), parts_by_code(code))
    return order


@njit(nogil=True, cache=True)
def merged_order(code_a, key_a, code_b, key_b):  # type: ignore[no-untyped-def]
    """The order that merges two sorted lists: numbers below len(a) are rows of a, the others rows of b; equal rows of a
    come first.
    """
    na = code_a.shape[0]
    nb = code_b.shape[0]
    order = np.empty(na + nb, np.int64)
    i = 0
    j = 0
    for k in range(na + nb):
        if j >= nb or (i < na and (code_a[i] < code_b[j] or (code_a[i] == code_b[j] and key_a[i] <= key_b[j]))):
            order[k] = i
            i += 1
        else:
            order[k] = na + j
            j += 1
    return order


@njit(nogil=True, cache=True)
def _is_set(bits, i):  # type: ignore[no-untyped-def]
    return (bits[i >> 3] >> (i & 7)) & 1


@njit(nogil=True, cache=True)
def _merge_live(a, b, least, part, out):  # type: ignore[no-untyped-def]
    """Writes part [a0, a1) and [b0, b1) of `merged_live`, from out[a0 + b0] on; the number of rows."""
    code_a, key_a, gone_a = a
    code_b, key_b, gone_b = b
    i, a1, j, b1 = part
    begin = i + j
    k = begin
    while i < a1 or j < b1:
        if j >= b1 or (i < a1 and (code_a[i] < code_b[j] or (code_a[i] == code_b[j] and key_a[i] <= key_b[j]))):
            if key_a[i] >= least and not _is_set(gone_a, i):
                out[k] = i
                k += 1
            i += 1
        else:
            if key_b[j] >= least and not _is_set(gone_b, j):
                out[k] = code_a.shape[0] + j
                k += 1
            j += 1
    return k - begin


SortedRows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Rows by (code int32[n], key int64[n]), and a bit set (uint8) of those that are gone."""


def merged_live(a: SortedRows, b: SortedRows, least: int) -> np.ndarray:
    """`merged_order` of the rows that are not gone, with key >= least, by all threads."""
    n, m = len(a[0]), len(b[0])
    out = empty(n + m, np.int64)
    longer = a[0] if n >= m else b[0]
    firsts = [longer[lo] for lo, _ in ranges(len(longer))[1:]]
    cuts = [(0, 0), *((int(np.searchsorted(a[0], c)), int(np.searchsorted(b[0], c))) for c in firsts), (n, m)]
    parts = [(i, end_i, j, end_j) for (i, j), (end_i, end_j) in itertools.pairwise(cuts)]
    counts = each(lambda part: int(_merge_live(a, b, least, part, out)), parts)
    if sum(counts) == n + m:
        return out
    return np.concatenate([out[i + j : i + j + count] for (i, _, j, _), count in zip(parts, counts, strict=True)])


@njit(nogil=True, cache=True)
def lower_bound_from(code, key, from_, c, k):  # type: ignore[no-untyped-def]
    """The first position >= from_ of the sorted list (code, key) that is not before (c, k): by doubling steps, so that
    a near one costs little.
    """
    n = code.shape[0]
    lo = from_
    step = 1
    while lo + step <= n and (code[lo + step - 1] < c or (code[lo + step - 1] == c and key[lo + step - 1] < k)):
        lo += step
        step <<= 1
    hi = min(n, lo + step - 1)
    while lo < hi:
        mid = (lo + hi) >> 1
        if code[mid] < c or (code[mid] == c and key[mid] < k):
            lo = mid + 1
        else:
            hi = mid
    return lo


@njit(nogil=True, cache=True)
def lower_bounds(code, key, want_code, want_key):  # type: ignore[no-untyped-def]
    """For each wanted pair, in any order (sorted costs least), the first position of the sorted list (code, key) that
    is not before it.
    """
    out = np.empty(want_code.shape[0], np.int64)
    at = 0
    for w in range(want_code.shape[0]):
        c = want_code[w]
        k = want_key[w]
        if w > 0 and (c < want_code[w - 1] or (c == want_code[w - 1] and k < want_key[w - 1])):
            at = 0
        at = lower_bound_from(code, key, at, c, k)
        out[w] = at
    return out
