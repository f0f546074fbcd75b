"""Stable orders of rows by (key code, time), for streams that are nearly in order of time.

A counting sort by code (a sort of words of code and row, where codes are many more than rows) keeps the order of
arrival within a key, which is nearly that of time: most keys are then in order already, a few rows are moved by
insertion, and only what is really shuffled pays for a sort (a least-significant-digit radix sort of the key's rows).
"""

from __future__ import annotations

import itertools

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.memory import copy_items

from .groups import begin_groups, place_groups
from .parallel import each, ranges

_INSERTION_MOVES = 8  # moves per row that insertion may cost before a part is sorted instead
_SHORT = 48  # rows up to which insertion is always good enough
_LONG = 1 << 14  # rows from which a digit of 11 bits beats one of 8
_SMALL_TABLE = 1 << 14  # codes that have room in a cache
_SAMPLE = 1 << 10  # codes of which the ranges for threads are guessed
_ROW = (1 << 32) - 1  # the bits of a row number in a word


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
    copy_items(source, 0, n, order, lo)


@njit(nogil=True, cache=True)
def sort_part(key, order, lo, hi):  # type: ignore[no-untyped-def]
    """Stably sorts the row numbers order[lo:hi] by key[row] (int64), in place."""
    moves = 0
    budget = _INSERTION_MOVES * (hi - lo) if hi - lo > _SHORT else _SHORT * _SHORT
    i = lo + 1
    while i < hi:
        row = order[i]
        value = key[row]
        j = i - 1
        while j >= lo and key[order[j]] > value:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = row
        moves += i - 1 - j
        i += 1
        if moves > budget:
            break
    if i >= hi:
        return
    # The insertion so far was stable, so the radix sort may start from where it stopped.
    least = key[order[lo]]
    most = least
    for k in range(lo, hi):
        value = key[order[k]]
        least = min(least, value)
        most = max(most, value)
    _radix_part(key, order, lo, hi, least, np.uint64(most) - np.uint64(least))


@njit(nogil=True, cache=True)
def is_rising(key):  # type: ignore[no-untyped-def]
    """True if no item is smaller than the one before it."""
    rising = True
    for i in range(1, key.shape[0]):
        rising = rising and key[i] >= key[i - 1]
    return rising


@njit(nogil=True, cache=True)
def stable_order(key):  # type: ignore[no-untyped-def]
    """The stable order (int64[n], row numbers) of rows by `key` (int32[n] or int64[n])."""
    n = key.shape[0]
    order = np.arange(n)
    if is_rising(key):
        return order
    if n <= _SHORT:
        sort_part(key, order, 0, n)
        return order
    least = key[0]
    most = key[0]
    for i in range(n):
        least = min(least, key[i])
        most = max(most, key[i])
    _radix_part(key, order, 0, n, least, np.uint64(most) - np.uint64(least))
    return order


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
def _order_dense(code, key, codes, rising):  # type: ignore[no-untyped-def]
    """`rising`: the rows are by `key` as they are, so that those of a code are."""
    order, first = order_by_part(code, codes)
    if not rising:
        _sort_codes(key, order, first, 0, codes)
    return order


@njit(nogil=True, cache=True)
def _pack_codes(code, least, beyond, word):  # type: ignore[no-untyped-def]
    """Writes a word of code and row number for each row with least <= code < beyond; their number."""
    k = 0
    for i in range(code.shape[0]):
        c = np.int64(code[i])
        word[k] = c << 32 | i
        k += int(least <= c) & int(c < beyond)  # no branch, which would be guessed wrongly
    return k


@njit(nogil=True, cache=True)
def _unpack_rows(word, key, rising, order, at):  # type: ignore[no-untyped-def]
    """Writes the rows of sorted words from order[at] on, those of a code by `key`."""
    n = word.shape[0]
    for i in range(n):
        order[at + i] = word[i] & _ROW
    lo = n if rising else 0
    while lo < n:
        hi = lo + 1
        while hi < n and word[hi] >> 32 == word[lo] >> 32:
            hi += 1
        if hi - lo > 1:
            sort_part(key, order, at + lo, at + hi)
        lo = hi


def _order_sparse(code: np.ndarray, key: np.ndarray, most: int, rising: bool, parts: int) -> np.ndarray:
    """As `_order_dense`, of codes up to `most`, more than there are rows; a range of codes for each of `parts` threads.
    NumPy sorts the words, with vector instructions where the processor has them.
    """
    n = len(code)
    order = empty(n, np.int64)
    some = np.sort(code[:: max(1, n // _SAMPLE)])
    cuts = [0, *(int(some[len(some) * p // parts]) for p in range(1, parts)), most + 1]
    words = [empty(n + 1, np.int64) for _ in range(parts)]
    found = each(lambda p: int(_pack_codes(code, cuts[p], cuts[p + 1], words[p])), range(parts))
    begin = [0, *itertools.accumulate(found)]

    def put(part: int) -> None:
        some = words[part][: found[part]]
        some.sort()
        _unpack_rows(some, key, rising, order, begin[part])

    each(put, range(parts))
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
    most, rising = int(code.max()), bool(is_rising(key))
    if most > n + _SMALL_TABLE:  # a table of all codes would cost more than the rows
        return _order_sparse(code, key, most, rising, 1)
    return _order_dense(code, key, most + 1, rising)  # type: ignore[no-any-return]


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
    parts = list(enumerate(ranges(n)))
    if len(parts) == 1 or is_ordered(code, key):
        return order_by_code(code, key)
    most, rising = int(code.max()), bool(is_rising(key))
    if most >= n:  # a table for each thread would cost more than the rows
        return _order_sparse(code, key, most, rising, len(parts))
    counts = empty((len(parts), most + 1), np.int64)
    counts[:] = 0
    each(lambda part: _count_codes(code, *part[1], counts[part[0]]), parts)
    first = begin_groups(counts)
    order = empty(n, np.int64)
    each(lambda part: place_groups(code, *part[1], counts[part[0]], order), parts)
    if not rising:
        edges = np.searchsorted(first, [lo for _, (lo, _) in parts] + [n])
        each(lambda part: _sort_codes(key, order, first, *part), list(itertools.pairwise(edges.tolist())))
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
def _merge_live(a, b, least, most, part, out):  # type: ignore[no-untyped-def]
    """Writes part [a0, a1) and [b0, b1) of `merged_live`, from out[a0 + b0] on; the number of rows."""
    code_a, key_a, gone_a = a
    code_b, key_b, gone_b = b
    i, a1, j, b1 = part
    begin = i + j
    k = begin
    while i < a1 or j < b1:
        if j >= b1 or (i < a1 and (code_a[i] < code_b[j] or (code_a[i] == code_b[j] and key_a[i] <= key_b[j]))):
            if least <= key_a[i] <= most and not _is_set(gone_a, i):
                out[k] = i
                k += 1
            i += 1
        else:
            if least <= key_b[j] <= most and not _is_set(gone_b, j):
                out[k] = code_a.shape[0] + j
                k += 1
            j += 1
    return k - begin


SortedRows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Rows by (code int32[n], key int64[n]), and a bit set (uint8) of those that are gone."""


def merged_live(a: SortedRows, b: SortedRows, least: int, most: int) -> np.ndarray:
    """`merged_order` of the rows that are not gone, with least <= key <= most, by all threads."""
    n, m = len(a[0]), len(b[0])
    out = empty(n + m, np.int64)
    longer = a[0] if n >= m else b[0]
    firsts = [longer[lo] for lo, _ in ranges(len(longer))[1:]]
    cuts = [(0, 0), *((int(np.searchsorted(a[0], c)), int(np.searchsorted(b[0], c))) for c in firsts), (n, m)]
    parts = [(i, end_i, j, end_j) for (i, j), (end_i, end_j) in itertools.pairwise(cuts)]
    counts = each(lambda part: int(_merge_live(a, b, least, most, part, out)), parts)
    if sum(counts) == n + m:
        return out
    return np.concatenate([out[i + j : i + j + count] for (i, _, j, _), count in zip(parts, counts, strict=True)])


@njit(nogil=True, cache=True)
def take_of_two(a, b, at, lo, hi, out):  # type: ignore[no-untyped-def]
    """Writes the items at the places at[lo:hi] (int64) of two arrays, as of one behind the other."""
    n = a.shape[0]
    for i in range(lo, hi):
        p = at[i]
        out[i] = a[p] if p < n else b[p - n]


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
