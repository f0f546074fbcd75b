"""Walks over cells that are sorted by pane: which (window, key) pairs there are, and running totals of sums.

The cells of a span lie in *stretches*, one per pane and run: stretch j holds the cells [start[j], start[j + 1]), sorted
by key code, and is part of the windows [enter_at[j], leave_after[j]]; both never decrease with j. A *step* is a
non-empty window: before it, stretches enter up to `step_entered` and leave up to `step_left`. All windows of a slide, a
period, or a gap between windows are this one queue, and no arithmetic on panes is left.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.scalar import wide_add

from .growing import wider

_FAR = np.iinfo(np.int64).max
_NEVER = np.iinfo(np.int64).min
_BLOCK = 6  # log2 of the keys that share an entry of `block_leave`
_SAMPLE = 1024  # rows that are looked at to cut codes


class Stretches(NamedTuple):
    """Cells of a span as a queue of stretches."""

    code: np.ndarray  # int32[cells]
    start: np.ndarray  # int64[stretches + 1]
    enter_at: np.ndarray  # int64[stretches]
    leave_after: np.ndarray  # int64[stretches]


class Share(NamedTuple):
    """Part of a walk for some keys: of stretch j the cells [begin[j], end[j]), of step s the rows [row_begin[s],
    row_end[s]). Threads can share a walk.
    """

    begin: np.ndarray
    end: np.ndarray
    row_begin: np.ndarray
    row_end: np.ndarray


class Steps(NamedTuple):
    """Some steps of a walk, and the rows to fill."""

    code: np.ndarray
    start: np.ndarray
    leave_after: np.ndarray
    entered: int  # stretches that entered before the first step
    left: int  # stretches that left before it
    step_window: np.ndarray
    step_entered: np.ndarray
    step_left: np.ndarray
    row: np.ndarray  # int64[steps + 1]: rows of each step
    row_code: np.ndarray  # int32[rows]

    def shares(self, parts: int) -> list[Share]:
        """Shares of all keys, in ranges of codes that have about as many rows each."""
        some = np.sort(self.row_code[:: len(self.row_code) // _SAMPLE + 1]) if parts > 1 else self.row_code[:0]
        cuts = [some[len(some) * k // parts] for k in range(1, parts)]
        cells = [self.start[:-1], *(cut_stretches(self.code, self.start, c) for c in cuts), self.start[1:]]
        rows = [self.row[:-1], *(cut_stretches(self.row_code, self.row, c) for c in cuts), self.row[1:]]
        return [Share(*lo_hi, *row) for lo_hi, row in zip(pairwise(cells), pairwise(rows), strict=True)]


@njit(nogil=True, cache=True)
def stretches_of(pane):  # type: ignore[no-untyped-def]
    """Stretches of a sorted run: (pane int64[m], start int64[m + 1])."""
    n = pane.shape[0]
    panes = np.empty(64, np.int64)
    start = np.empty(65, np.int64)
    m = 0
    i = 0
    while i < n:
        if m == panes.shape[0]:
            panes = wider(panes)
            start = wider(start)
        p = pane[i]
        panes[m] = p
        start[m] = i
        m += 1
        step = 1
        while i + step < n and pane[i + step] == p:
            i += step
            step <<= 1
        high = min(n, i + step)
        low = i + 1
        while low < high:
            middle = (low + high) >> 1
            if pane[middle] == p:
                low = middle + 1
            else:
                high = middle
        i = low
    start[m] = n
    return panes[:m].copy(), start[: m + 1].copy()


@njit(nogil=True, cache=True)
def plan_steps(stretches, first, last, codes):  # type: ignore[no-untyped-def]
    """Non-empty windows in [first, last] and the number of keys of each: (window int64[m], rows int64[m])."""
    code, start, enter_at, leave_after = stretches
    n = enter_at.shape[0]
    window = np.empty(64, np.int64)
    rows = np.empty(64, np.int64)
    latest = np.full(codes, -1, np.int32)  # the last stretch that each key was seen in
    ending = np.zeros(n, np.int64)  # how many keys were seen last in this stretch
    m = 0
    live = 0
    entered = 0
    left = 0
    k = first
    while True:
        if live == 0:
            if entered == n:
                break
            k = max(k, enter_at[entered])
        if k > last:
            break
        while left < entered and leave_after[left] < k:
            live -= ending[left]
            left += 1
        while entered < n and enter_at[entered] <= k:
            if leave_after[entered] >= k:
                for i in range(start[entered], start[entered + 1]):
                    before = latest[code[i]]
                    if before >= left:
                        ending[before] -= 1
                    else:
                        live += 1
                    ending[entered] += 1
                    latest[code[i]] = entered
            entered += 1
        while left < entered and leave_after[left] < k:
            live -= ending[left]
            left += 1
        if live == 0:
            continue
        if m == window.shape[0]:
            window = wider(window)
            rows = wider(rows)
        window[m] = k
        rows[m] = live
        m += 1
        if k == _FAR:
            break
        k += 1
    return window[:m].copy(), rows[:m].copy()


def none_leaves(codes: int) -> tuple[np.ndarray, np.ndarray]:
    """Leaves before any cell entered: the last window that each key is in use in (int64[codes]), and that of each block
    of keys.
    """
    return np.full(codes, _NEVER, np.int64), np.full((codes >> _BLOCK) + 1, _NEVER, np.int64)


@njit(nogil=True, cache=True)
def list_rows(stretches, entered, step_window, step_entered, leaves, row, out_code, out_window):  # type: ignore[no-untyped-def]
    """Rows of some steps, by (window, code). Stretches before `entered` are in `leaves` already, which begin as
    `none_leaves`, or in none of the steps.
    """
    code, start, _enter_at, leave_after = stretches
    key_leave, block_leave = leaves
    codes = key_leave.shape[0]
    for s in range(step_window.shape[0]):
        k = step_window[s]
        for j in range(entered, step_entered[s]):
            leave = leave_after[j]
            if leave < k:
                continue
            for i in range(start[j], start[j + 1]):
                c = code[i]
                key_leave[c] = leave
                block_leave[c >> _BLOCK] = leave
        entered = step_entered[s]
        r = row[s]
        end = row[s + 1]
        for b in range(block_leave.shape[0]):
            if block_leave[b] < k:
                continue
            for c in range(b << _BLOCK, min((b + 1) << _BLOCK, codes)):
                if r < end:  # without a branch on what is hard to foretell: a row that is none is written over
                    out_code[r] = c
                r += key_leave[c] >= k
        for i in range(row[s], end):
            out_window[i] = k


@njit(nogil=True, cache=True)
def mark_leave(code, start, leave_after, key_leave, block_leave):  # type: ignore[no-untyped-def]
    """Marks the last window that the keys of some stretches are in use in."""
    for j in range(leave_after.shape[0]):
        _mark(code, start[j], start[j + 1], leave_after[j], key_leave, block_leave)


@njit(nogil=True, cache=True, inline="always")
def _mark(code, begin, end, leave, key_leave, block_leave):  # type: ignore[no-untyped-def]
    for i in range(begin, end):
        c = code[i]
        key_leave[c] = max(key_leave[c], leave)
        block_leave[c >> _BLOCK] = max(block_leave[c >> _BLOCK], leave)


@njit(nogil=True, cache=True, inline="always")
def _keys_in_use(leaves, k, out, r):  # type: ignore[no-untyped-def]
    """Writes the codes in use in window k behind the first r of `out`; returns `out`, and how many codes it has."""
    key_leave, block_leave = leaves
    codes = key_leave.shape[0]
    for b in range(block_leave.shape[0]):
        if block_leave[b] < k:
            continue
        if r + (1 << _BLOCK) > out.shape[0]:
            out = wider(out)
        for c in range(b << _BLOCK, min((b + 1) << _BLOCK, codes)):
            if key_leave[c] >= k:
                out[r] = c
                r += 1
    return out, r


@njit(nogil=True, cache=True)
def find_rows(stretches, upto, last, leaves):  # type: ignore[no-untyped-def]
    """Rows of the windows after `upto` to `last`, by (window, code). `leaves` have the keys of the stretches that
    entered before, in windows up to `upto`.

    Returns (stretches that entered before, window int64[steps], step_entered int64[steps], step_left int64[steps],
    row int64[steps + 1], code int32[rows], window of each row int64[rows]). One more step than there are windows,
    without rows, drops cells that the window after `last` does not hold: their panes may be evicted by then.
    """
    code, start, enter_at, leave_after = stretches
    key_leave, block_leave = leaves
    n = enter_at.shape[0]
    window = np.empty(16, np.int64)
    step_entered = np.empty(16, np.int64)
    step_left = np.empty(16, np.int64)
    row = np.zeros(17, np.int64)
    out_code = np.empty(key_leave.shape[0] + (1 << _BLOCK), np.int32)
    m = 0
    r = 0
    there = 0
    while there < n and enter_at[there] <= upto:
        there += 1
    entered = there
    left = 0
    k = upto
    while k <= last:
        k += 1
        while left < n and leave_after[left] < k:
            left += 1
        while entered < n and enter_at[entered] <= k:
            if leave_after[entered] >= k and k <= last:
                _mark(code, start[entered], start[entered + 1], leave_after[entered], key_leave, block_leave)
            entered += 1
        before = r
        if k <= last:
            out_code, r = _keys_in_use(leaves, k, out_code, r)
        if r > before or k > last:
            if m == window.shape[0]:
                window = wider(window)
                step_entered = wider(step_entered)
                step_left = wider(step_left)
                row = wider(row)
            window[m] = k
            step_entered[m] = entered
            step_left[m] = left
            row[m + 1] = r
            m += 1
        elif entered == n:
            k = last
        else:
            k = max(k, min(last, enter_at[entered] - 1))
    out_window = np.empty(r, np.int64)
    for s in range(m):
        number = window[s]
        for i in range(row[s], row[s + 1]):
            out_window[np.uint64(i)] = number  # unsigned: see `copy_items`
    return there, window[:m], step_entered[:m], step_left[:m], row[: m + 1], out_code[:r].copy(), out_window


@njit(nogil=True, cache=True)
def find_code(code, low, high, c):  # type: ignore[no-untyped-def]
    """The first place in [low, high), in order of code, that is not before code c."""
    while low < high:
        middle = (low + high) >> 1
        if code[middle] < c:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def cut_stretches(code, start, c):  # type: ignore[no-untyped-def]
    """Places in each stretch at which the codes from c on begin, int64[stretches]."""
    out = np.empty(start.shape[0] - 1, np.int64)
    for j in range(out.shape[0]):
        out[j] = find_code(code, start[j], start[j + 1], c)
    return out


@njit(nogil=True, cache=True)
def walk_int(steps, share, cells, total, valid_upto, out):  # type: ignore[no-untyped-def]
    """Totals of an int64 sum modulo 2**64. `cells`, `out`: `CellArrays.given`. `valid_upto` (int64 per code): the last
    window of the newest valid cell of the key.
    """
    code, _start, leave_after, entered, left, step_window, step_entered, step_left, _row, row_code = steps
    begin, end, row_begin, row_end = share
    (v,), valid = cells
    (sums,), sums_valid = out
    nullable = valid.shape[0] > 0 or sums_valid.shape[0] > 0  # there may be no cells, or no rows
    for s in range(step_window.shape[0]):
        enter_to = step_entered[s]
        leave_to = step_left[s]
        for j in range(left, min(leave_to, entered)):
            for i in range(begin[j], end[j]):
                if not nullable or valid[i] != 0:
                    total[code[i]] -= v[i]
        for j in range(max(entered, leave_to), enter_to):
            for i in range(begin[j], end[j]):
                if nullable:
                    if valid[i] == 0:
                        continue
                    valid_upto[code[i]] = max(valid_upto[code[i]], leave_after[j])
                total[code[i]] += v[i]
        entered = max(entered, enter_to)
        left = max(left, leave_to)
        k = step_window[s]
        for r in range(row_begin[s], row_end[s]):
            c = row_code[r]
            sums[r] = total[c]
            if nullable:
                sums_valid[r] = valid_upto[c] >= k


@njit(nogil=True, cache=True)
def walk_wide(steps, share, cells, totals, valid_upto, out):  # type: ignore[no-untyped-def]
    """Totals of an int128 sum, as `walk_int`; returns whether one left 128 bits. `totals`: (high, low) per code."""
    code, _start, leave_after, entered, left, step_window, step_entered, step_left, _row, row_code = steps
    begin, end, row_begin, row_end = share
    (hi, lo), valid = cells
    total_hi, total_lo = totals
    (sums_hi, sums_lo), sums_valid = out
    bad = np.int64(0)
    nullable = valid.shape[0] > 0 or sums_valid.shape[0] > 0  # there may be no cells, or no rows
    for s in range(step_window.shape[0]):
        enter_to = step_entered[s]
        leave_to = step_left[s]
        for j in range(left, min(leave_to, entered)):
            for i in range(begin[j], end[j]):
                if not nullable or valid[i] != 0:
                    c = code[i]
                    borrow = np.int64(1) if total_lo[c] < lo[i] else np.int64(0)
                    total_lo[c] -= lo[i]
                    total_hi[c] -= hi[i] + borrow
        for j in range(max(entered, leave_to), enter_to):
            for i in range(begin[j], end[j]):
                c = code[i]
                if nullable:
                    if valid[i] == 0:
                        continue
                    valid_upto[c] = max(valid_upto[c], leave_after[j])
                total_hi[c], total_lo[c], over = wide_add(total_hi[c], total_lo[c], hi[i], lo[i])
                bad |= over
        entered = max(entered, enter_to)
        left = max(left, leave_to)
        k = step_window[s]
        for r in range(row_begin[s], row_end[s]):
            c = row_code[r]
            sums_hi[r] = total_hi[c]
            sums_lo[r] = total_lo[c]
            if nullable:
                sums_valid[r] = valid_upto[c] >= k
    return bad < 0


@njit(nogil=True, cache=True)
def gather_stretches(source, begin, end, target, at):  # type: ignore[no-untyped-def]
    """Copies source[begin[j]:end[j]] to target[at[j]:]."""
    for j in range(begin.shape[0]):
        offset = at[j] - begin[j]
        for i in range(begin[j], end[j]):
            target[i + offset] = source[i]


@njit(nogil=True, cache=True)
def narrow_wide(hi, lo, valid, out):  # type: ignore[no-untyped-def]
    """int128 to int64 where it fits; returns whether all (valid ones) did."""
    for i in range(hi.shape[0]):
        out[i] = np.int64(lo[i])
        if hi[i] != out[i] >> np.int64(63) and (valid.shape[0] == 0 or valid[i] != 0):
            return False
    return True
