"""Counting sort of rows by groups that a table says, by several threads."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit


@njit(nogil=True, cache=True)
def find_groups(code, pane, lo, hi, first, spread, codes, table, group, count):  # type: ignore[no-untyped-def]
    """Writes the group of each of the rows [lo, hi), -1 for none, and counts the rows of each.

    The group of a row of code c and pane p is table[(p - first) * codes + c], none outside of the table.
    """
    for i in range(lo, hi):
        p = pane[i] - first
        c = code[i]
        g = np.int32(-1)
        if 0 <= p < spread and c < codes:
            g = table[p * codes + c]
        group[i] = g
        if g >= 0:
            count[g] += 1


@njit(nogil=True, cache=True)
def begin_groups(counts):  # type: ignore[no-untyped-def]
    """Turns counts (int64[parts, groups]) into the place of each part's first row of a group; returns where each group
    begins, int64[groups + 1].
    """
    parts, groups = counts.shape
    first = np.empty(groups + 1, np.int64)
    at = 0
    for g in range(groups):
        first[g] = at
        for p in range(parts):
            n = counts[p, g]
            counts[p, g] = at
            at += n
    first[groups] = at
    return first


@njit(nogil=True, cache=True)
def place_groups(group, lo, hi, fill, order):  # type: ignore[no-untyped-def]
    """Puts the rows [lo, hi) that have a group into the order; `fill`: the place of the next row of each group."""
    for i in range(lo, hi):
        g = group[i]
        if g >= 0:
            order[fill[g]] = i
            fill[g] += 1
