"""Join kernels: rows of one side against sorted rows of the other, and groups of both sides against each other.

Every result is listed in two passes, one that counts and one that fills, so that nothing is copied while it grows.
"""

from __future__ import annotations

import itertools

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import lower_bound_from
from gpuwin_kernels.cpu.parallel import each, ranges


@njit(nogil=True, cache=True)
def _find_rows(rows, wanted, lo, hi, first, count):  # type: ignore[no-untyped-def]
    """Writes where the rows of the wanted ones [lo, hi) begin in the run, and how many are live; their sum."""
    code, time, gone = rows
    want_code, least, most = wanted
    n = code.shape[0]
    at = 0
    total = 0
    for w in range(lo, hi):
        if w > lo and (
            want_code[w] < want_code[w - 1] or (want_code[w] == want_code[w - 1] and least[w] < least[w - 1])
        ):
            at = 0
        at = lower_bound_from(code, time, at, want_code[w], least[w])
        i = at
        found = 0
        while i < n and code[i] == want_code[w] and time[i] <= most[w]:
            if not (gone[i >> 3] >> (i & 7)) & 1:
                found += 1
            i += 1
        first[w] = at
        count[w] = found
        total += found
    return total


@njit(nogil=True, cache=True)
def _list_rows(gone, lo, hi, first, count, who, position):  # type: ignore[no-untyped-def]
    k = 0
    for w in range(lo, hi):
        i = first[w]
        left = count[w]
        while left > 0:
            if not (gone[i >> 3] >> (i & 7)) & 1:
                who[k] = w
                position[k] = i
                k += 1
                left -= 1
            i += 1


def probe(
    code: np.ndarray, time: np.ndarray, gone: np.ndarray, want_code: np.ndarray, least: np.ndarray, most: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Live rows of a run, sorted by (code int32, time int64), with code == want_code[w] and
    least[w] <= time <= most[w], by all threads.

    Returns (w int64[k], position int64[k]), by w and then position. `gone` is a bit set.
    """
    rows, wanted, parts = (code, time, gone), (want_code, least, most), ranges(len(want_code))
    first, count = empty((2, len(want_code)), np.int64)
    counts = each(lambda part: int(_find_rows(rows, wanted, *part, first, count)), parts)
    ends = np.cumsum(counts).tolist()
    who, position = empty((2, ends[-1]), np.int64)

    def fill(part: int) -> None:
        found = slice(ends[part] - counts[part], ends[part])
        _list_rows(gone, *parts[part], first, count, who[found], position[found])

    each(fill, range(len(parts)))
    return who, position


@njit(nogil=True, cache=True)
def _find_newest(code, time, wanted, lo, hi, position):  # type: ignore[no-untyped-def]
    want_code, most = wanted
    n = code.shape[0]
    at = 0
    for w in range(lo, hi):
        c = want_code[w]
        t = most[w]
        if w > lo and (c < want_code[w - 1] or (c == want_code[w - 1] and t < most[w - 1])):
            at = 0
        at = lower_bound_from(code, time, at, c, t)
        while at < n and code[at] == c and time[at] == t:
            at += 1
        position[w] = at - 1 if at > 0 and code[at - 1] == c else -1


def newest(code: np.ndarray, time: np.ndarray, want_code: np.ndarray, most: np.ndarray) -> np.ndarray:
    """The last row of a run, sorted by (code int32, time int64), with code == want_code[w] and time <= most[w], by all
    threads: positions, int64[k], -1 where there is none. The wanted come in any order; sorted ones cost least.
    """
    position = empty(len(want_code), np.int64)
    each(lambda part: _find_newest(code, time, (want_code, most), *part, position), ranges(len(want_code)))
    return position


@njit(nogil=True, cache=True)
def assign_windows(time, first, beyond):  # type: ignore[no-untyped-def]
    """Lists (row int64[k], window int64[k]) for the windows first[i] <= window < beyond[i] of each row."""
    n = time.shape[0]
    total = 0
    for i in range(n):
        total += max(beyond[i] - first[i], 0)
    row = np.empty(total, np.int64)
    window = np.empty(total, np.int64)
    k = 0
    for i in range(n):
        for w in range(first[i], beyond[i]):
            row[k] = i
            window[k] = w
            k += 1
    return row, window


@njit(nogil=True, cache=True)
def _cut_spans(spans, others, row, first, beyond, write):  # type: ignore[no-untyped-def]
    code, span_first, span_beyond = spans
    other_code, other_first, other_beyond = others
    m = other_code.shape[0]
    at = 0
    k = 0
    for i in range(code.shape[0]):
        while at < m and (
            other_code[at] < code[i] or (other_code[at] == code[i] and other_beyond[at] <= span_first[i])
        ):
            at += 1
        j = at
        while j < m and other_code[j] == code[i] and other_first[j] < span_beyond[i]:
            if write:
                row[k] = i
                first[k] = max(span_first[i], other_first[j])
                beyond[k] = min(span_beyond[i], other_beyond[j])
            k += 1
            j += 1
    return k


@njit(nogil=True, cache=True)
def common_spans(code, first, beyond, other_code, other_first, other_beyond):  # type: ignore[no-untyped-def]
    """Parts of the spans first[i] <= window < beyond[i], sorted by (code, first), that lie in spans of the others with
    the same code, which are sorted likewise and disjoint.

    Returns (i int64[k], first int64[k], beyond int64[k]), by i and then window.
    """
    none = np.empty(0, np.int64)
    spans, others = (code, first, beyond), (other_code, other_first, other_beyond)
    total = _cut_spans(spans, others, none, none, none, False)
    at = np.empty(total, np.int64)
    part_first = np.empty(total, np.int64)
    part_beyond = np.empty(total, np.int64)
    _cut_spans(spans, others, at, part_first, part_beyond, True)
    return at, part_first, part_beyond


@njit(nogil=True, cache=True)
def _group_end(code, window, i):  # type: ignore[no-untyped-def]
    j = i + 1
    while j < code.shape[0] and code[j] == code[i] and window[j] == window[i]:
        j += 1
    return j


@njit(nogil=True, cache=True)
def _walk(lefts, rights, part, keep_left, keep_right, left, right, write):  # type: ignore[no-untyped-def]
    """Walks through part (i, end of i, j, end of j) of both sides; the number of pairs, which it writes if asked to."""
    left_code, left_window = lefts
    right_code, right_window = rights
    i, nl, j, nr = part
    k = 0
    while i < nl or j < nr:
        if j >= nr:
            order = -1
        elif i >= nl:
            order = 1
        elif left_code[i] != right_code[j]:
            order = -1 if left_code[i] < right_code[j] else 1
        elif left_window[i] != right_window[j]:
            order = -1 if left_window[i] < right_window[j] else 1
        else:
            order = 0
        i_end = _group_end(left_code, left_window, i) if order <= 0 else i
        j_end = _group_end(right_code, right_window, j) if order >= 0 else j
        if order == 0:
            if write:
                at = k
                for a in range(i, i_end):
                    for b in range(j, j_end):
                        left[at] = a
                        right[at] = b
                        at += 1
            k += (i_end - i) * (j_end - j)
        elif order < 0 and keep_left:
            if write:
                for a in range(i, i_end):
                    left[k + a - i] = a
                    right[k + a - i] = -1
            k += i_end - i
        elif order > 0 and keep_right:
            if write:
                for b in range(j, j_end):
                    left[k + b - j] = -1
                    right[k + b - j] = b
            k += j_end - j
        i = i_end
        j = j_end
    return k


def pair_groups(
    left_code: np.ndarray,
    left_window: np.ndarray,
    right_code: np.ndarray,
    right_window: np.ndarray,
    keep_left: bool,
    keep_right: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of rows with equal (code int32, window int64), by which both sides are sorted, by all threads.

    Returns (left int64[k], right int64[k]), positions, -1 where a row has no partner and its side is kept (outer
    joins).
    """
    lefts, rights = (left_code, left_window), (right_code, right_window)
    longer = left_code if len(left_code) >= len(right_code) else right_code
    cuts = [longer[lo] for lo, _ in ranges(len(longer))[1:]]  # a code is in one part
    edges = [
        [0, *np.searchsorted(code, np.array(cuts, np.int32)).tolist(), len(code)] for code in (left_code, right_code)
    ]
    parts = [(*left, *right) for left, right in zip(*map(itertools.pairwise, edges), strict=True)]
    none = np.empty(0, np.int64)
    counts = each(lambda part: int(_walk(lefts, rights, part, keep_left, keep_right, none, none, False)), parts)
    ends = np.cumsum(counts).tolist()
    left, right = empty(ends[-1], np.int64), empty(ends[-1], np.int64)

    def fill(part: int) -> None:
        pairs = slice(ends[part] - counts[part], ends[part])
        _walk(lefts, rights, parts[part], keep_left, keep_right, left[pairs], right[pairs], True)

    each(fill, range(len(parts)))
    return left, right


@njit(nogil=True, cache=True)
def union_groups(left_code, left_window, right_code, right_window):  # type: ignore[no-untyped-def]
    """The distinct (code, window) of both sides, each sorted by it.

    Returns (code int32[g], window int64[g], left_first int64[g + 1], right_first int64[g + 1]): group g holds those
    rows of each side.
    """
    nl = left_code.shape[0]
    nr = right_code.shape[0]
    code = np.empty(nl + nr, np.int32)
    window = np.empty(nl + nr, np.int64)
    left_first = np.zeros(nl + nr + 1, np.int64)
    right_first = np.zeros(nl + nr + 1, np.int64)
    i = 0
    j = 0
    g = 0
    while i < nl or j < nr:
        take_left = i < nl and (
            j >= nr
            or left_code[i] < right_code[j]
            or (left_code[i] == right_code[j] and left_window[i] <= right_window[j])
        )
        code[g] = left_code[i] if take_left else right_code[j]
        window[g] = left_window[i] if take_left else right_window[j]
        while i < nl and left_code[i] == code[g] and left_window[i] == window[g]:
            i += 1
        while j < nr and right_code[j] == code[g] and right_window[j] == window[g]:
            j += 1
        g += 1
        left_first[g] = i
        right_first[g] = j
    return code[:g], window[:g], left_first[: g + 1], right_first[: g + 1]
