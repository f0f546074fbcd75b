"""Sketches of the ranks of numbers: KLL (Karnin, Lang, Liberty, "Optimal quantile approximation in streams", 2016).

A sketch is a part of an array of int64 words: none for no values; one word, a value; or the number of levels, the
number of items of each, and the items, level by level. An item of level h stands for 2**h values. When there are more
items than a sketch of `k` holds, the lowest level that is full is sorted, and every other item of it goes up a level;
whether these are the odd or the even ones follows from the number of values, so that the same merges give the same
sketch. As long as nothing went up, the values are all there, and every answer is exact.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.distinct import mixed
from gpuwin_kernels.cpu.memory import copy_items

from .growing import wider

_LEVELS = 62
_SHRINK = 2.0 / 3.0  # of the capacity from a level to the one below it


@njit(nogil=True, cache=True)
def _capacity(k, levels, h):  # type: ignore[no-untyped-def]
    return max(np.int64(np.ceil(k * _SHRINK ** (levels - 1 - h))), 8)


@njit(nogil=True, cache=True)
def _shape_of(words, counts):  # type: ignore[no-untyped-def]
    """Adds the number of items of each level to `counts`; (where the items begin, levels)."""
    n = words.shape[0]
    if n == 0:
        return 0, 0
    if n == 1:
        counts[0] += 1
        return 0, 1
    levels = words[0]
    for h in range(levels):
        counts[h] += words[1 + h]
    return 1 + levels, levels


@njit(nogil=True, cache=True)
def _compact(items, start, stop, h, weight):  # type: ignore[no-untyped-def]
    """Level h gives every other item to level h + 1, which lies behind it."""
    n = stop[h] - start[h]
    gap = start[h + 1] - stop[h]  # that the level above left when it gave items up
    if gap:
        for i in range(stop[h] - 1, start[h] - 1, -1):
            items[i + gap] = items[i]
        start[h] += gap
        stop[h] += gap
    some = items[start[h] : stop[h]]
    some.sort()
    coins = mixed(np.uint64(weight) * np.uint64(64) + np.uint64(h))
    which, lowest = np.int64(coins & np.uint64(1)), np.int64(coins >> np.uint64(1)) & 1
    pairs = n >> 1
    lone = n & 1  # of an odd number one stays behind, the smallest or the largest
    left = some[0] if lowest else some[n - 1]
    begin = lone & lowest
    for i in range(pairs - 1, -1, -1):
        some[n - pairs + i] = some[begin + which + 2 * i]
    start[h + 1] = stop[h] - pairs
    stop[h] = start[h + 1]
    start[h] = stop[h] - lone
    if lone:
        items[start[h]] = left


@njit(nogil=True, cache=True)
def _append(sketch, items, stop):  # type: ignore[no-untyped-def]
    """Puts the items of a sketch behind those that there are: level h ends at stop[h], which moves."""
    if sketch.shape[0] == 1:
        items[stop[0]] = sketch[0]
        stop[0] += 1
    elif sketch.shape[0]:
        at = 1 + sketch[0]
        for h in range(sketch[0]):
            n = sketch[1 + h]
            copy_items(sketch, at, n, items, stop[h])
            stop[h] += n
            at += n


@njit(nogil=True, cache=True)
def _write(out, at, items, start, stop, levels):  # type: ignore[no-untyped-def]
    """Writes a sketch of the levels [start[h], stop[h]) of `items` to `out` from `at` on; where it ends."""
    total = 0
    for h in range(levels):
        total += stop[h] - start[h]
    if total == 1 and levels == 1:
        out[at] = items[start[0]]
        return at + 1
    if not total:
        return at
    out[at] = levels
    at += 1 + levels
    for h in range(levels):
        n = stop[h] - start[h]
        out[at - levels + h] = n
    for h in range(levels):
        n = stop[h] - start[h]
        copy_items(items, start[h], n, out, at)
        at += n
    return at


@njit(nogil=True, cache=True)
def merged(offsets, words, first, k):  # type: ignore[no-untyped-def]
    """Merges of the sketches [first[g], first[g + 1]), for each g: (offsets int64, in words; words int64).

    Sketch i is words[offsets[i]:offsets[i + 1]]; of the result none has many more than 3 * k items."""
    groups = first.shape[0] - 1
    out = np.empty(offsets[first[groups]] - offsets[first[0]] + 2 * groups + _LEVELS, np.int64)
    out_offsets = np.zeros(groups + 1, np.int64)
    counts = np.zeros(_LEVELS + 1, np.int64)
    start = np.zeros(_LEVELS + 1, np.int64)
    stop = np.zeros(_LEVELS + 1, np.int64)
    at = 0
    for g in range(groups):
        counts[:] = 0
        levels = 0
        for i in range(first[g], first[g + 1]):
            levels = max(levels, _shape_of(words[offsets[i] : offsets[i + 1]], counts)[1])
        total, weight = 0, 0
        for h in range(levels):
            start[h] = total
            stop[h] = total
            total += counts[h]
            weight += counts[h] << h
        items = np.empty(total, np.int64)
        for i in range(first[g], first[g + 1]):
            _append(words[offsets[i] : offsets[i + 1]], items, stop)
        start[levels] = total
        stop[levels] = total
        while True:
            room = 0
            for h in range(levels):
                room += _capacity(k, levels, h)
            if total <= room:
                break
            for h in range(levels):
                n = stop[h] - start[h]
                if n >= _capacity(k, levels, h):
                    break
            if h == levels - 1:
                levels += 1
                start[levels] = stop[levels - 1]
                stop[levels] = stop[levels - 1]
            _compact(items, start, stop, h, weight)
            total -= n >> 1
        while at + total + levels + 1 > out.shape[0]:
            out = wider(out)
        at = _write(out, at, items, start, stop, levels)
        out_offsets[g + 1] = at
    return out_offsets, out[:at].copy()


@njit(nogil=True, cache=True)
def _items_of(offsets, words, a, b):  # type: ignore[no-untyped-def]
    """The items of the sketches [a, b), the level of each, and where those of each sketch begin."""
    room = offsets[b] - offsets[a]
    value, level = np.empty(room, np.int64), np.empty(room, np.int64)
    begin = np.zeros(b - a + 1, np.int64)
    n = 0
    for i in range(a, b):
        sketch = words[offsets[i] : offsets[i + 1]]
        if sketch.shape[0] == 1:
            value[n], level[n] = sketch[0], 0
            n += 1
        elif sketch.shape[0]:
            from_ = 1 + sketch[0]
            for h in range(sketch[0]):
                for _ in range(sketch[1 + h]):
                    value[n], level[n] = sketch[from_], h
                    from_ += 1
                    n += 1
        begin[i - a + 1] = n
    return value[:n], level[:n], begin


@njit(nogil=True, cache=True)
def _wanted(q, weight):  # type: ignore[no-untyped-def]
    """The rank, from 1, of the quantile q of so many values."""
    return max(np.int64(np.ceil(q * weight)), 1)


@njit(nogil=True, cache=True)
def _add(tree, at, by):  # type: ignore[no-untyped-def]
    at += 1
    while at < tree.shape[0]:
        tree[at] += by
        at += at & -at


@njit(nogil=True, cache=True)
def _find(tree, rank):  # type: ignore[no-untyped-def]
    """The first place up to which the weights add up to `rank`."""
    at, step = 0, 1
    while step * 2 < tree.shape[0]:
        step *= 2
    while step:
        if at + step < tree.shape[0] and tree[at + step] < rank:
            at += step
            rank -= tree[at]
        step >>= 1
    return at


@njit(nogil=True, cache=True)
def quantile_of_windows(offsets, words, lo, hi, order, q):  # type: ignore[no-untyped-def]
    """The smallest value of whose rank the sketches [lo[w], hi[w]) say that it is at least q * n: (int64[windows],
    uint8[windows] whether there is a value). `order`: the windows by (lo, hi).
    """
    out, some = np.zeros(lo.shape[0], np.int64), np.zeros(lo.shape[0], np.uint8)
    i = 0
    while i < order.shape[0]:
        a, b = lo[order[i]], hi[order[i]]
        j = i + 1
        while j < order.shape[0] and lo[order[j]] < b:
            b = max(b, hi[order[j]])
            j += 1
        if b <= a:
            i = j
            continue
        value, level, begin = _items_of(offsets, words, a, b)
        by_value = np.argsort(value, kind="mergesort")
        if j - i == 1:
            weight = 0
            for h in level:
                weight += 1 << h
            if weight:
                rank = _wanted(q, weight)
                for at in by_value:
                    rank -= 1 << level[at]
                    if rank <= 0:
                        out[order[i]], some[order[i]] = value[at], 1
                        break
            i = j
            continue
        place = np.empty(by_value.shape[0], np.int64)
        for n in range(by_value.shape[0]):
            place[by_value[n]] = n
        tree = np.zeros(by_value.shape[0] + 1, np.int64)
        weight, from_, upto = 0, 0, 0  # sketches held, counted from a
        for n in range(i, j):
            w = order[n]
            while upto < hi[w] - a:
                for at in range(begin[upto], begin[upto + 1]):
                    _add(tree, place[at], 1 << level[at])
                    weight += 1 << level[at]
                upto += 1
            while upto > hi[w] - a:
                upto -= 1
                for at in range(begin[upto], begin[upto + 1]):
                    _add(tree, place[at], -(1 << level[at]))
                    weight -= 1 << level[at]
            while from_ < lo[w] - a:
                for at in range(begin[from_], begin[from_ + 1]):
                    _add(tree, place[at], -(1 << level[at]))
                    weight -= 1 << level[at]
                from_ += 1
            if weight:
                out[w], some[w] = value[by_value[_find(tree, _wanted(q, weight))]], 1
        i = j
    return out, some
