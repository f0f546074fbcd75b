"""Sketches of sets, to count what is different in them: HyperLogLog (Flajolet, Fusy, Gandouet, Meunier, 2007), kept as
the hashes themselves while these are few, so that small sets are counted exactly.

A sketch is a part of an array of 64-bit words. One of fewer than `dense_words(p)` words is a sorted list of
different hashes, none for the empty set; one of just so many holds 2**p registers of one byte. Which it is follows from
the set alone, and so does what is in it: merging is associative, commutative and idempotent.

The estimator is the improved raw one of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017),
section 4, which needs neither tables nor a threshold: its relative standard deviation is about 1.04 / sqrt(2**p).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuwin_kernels.cpu.byte_keys import hash_bytes
from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.memory import copy_items

_FEW = 32  # so many hashes are always kept
_SLIDES = 16  # precision up to which registers are counted as windows slide: more would not fit a cache


@njit(nogil=True, cache=True)
def dense_words(p):  # type: ignore[no-untyped-def]
    """Number of words of a sketch with registers."""
    return max((1 << p) >> 3, _FEW) + 1


@njit(nogil=True, cache=True)
def mixed(x):  # type: ignore[no-untyped-def]
    """A hash of 64 bits whose every bit depends on every bit: the finalizer of MurmurHash3 (Appleby, public domain)."""
    h = np.uint64(x)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


@njit(nogil=True, cache=True)
def hashed(high, low):  # type: ignore[no-untyped-def]
    """uint64[n]: of numbers of 64 bits, `low`, or with `high` (of the same length, or none) of 128."""
    out = np.empty(low.shape[0], np.uint64)
    wide = high.shape[0] == low.shape[0]
    for i in range(low.shape[0]):
        h = mixed(np.uint64(low[i]) + np.uint64(0x9E3779B97F4A7C15))
        out[i] = mixed(h ^ np.uint64(high[i])) if wide else h
    return out


@njit(nogil=True, cache=True)
def hashed_bytes(offsets, data):  # type: ignore[no-untyped-def]
    """uint64[n]: of data[offsets[i]:offsets[i + 1]]."""
    out = np.empty(max(offsets.shape[0] - 1, 0), np.uint64)
    for i in range(out.shape[0]):
        out[i] = mixed(hash_bytes(data, offsets[i], offsets[i + 1]))
    return out


@njit(nogil=True, cache=True)
def rank(h, p):  # type: ignore[no-untyped-def]
    """The register value of a hash: the place of the first 1 behind its first p bits."""
    rest = np.uint64(h << np.uint64(p))
    n = 1
    most = 64 - p + 1
    while n < most and not rest >> np.uint64(63):
        rest = np.uint64(rest << np.uint64(1))
        n += 1
    return n


@njit(nogil=True, cache=True)
def _raise_registers(registers, hashes, p):  # type: ignore[no-untyped-def]
    for h in hashes:
        at = np.int64(h >> np.uint64(64 - p))
        registers[at] = max(registers[at], rank(h, p))


@njit(nogil=True, cache=True)
def _squeezed(hashes, n):  # type: ignore[no-untyped-def]
    """Sorts the first n, drops repeats, and returns how many are left."""
    hashes[:n].sort()
    k = 0
    for i in range(n):
        if i == 0 or hashes[i] != hashes[k - 1]:
            hashes[k] = hashes[i]
            k += 1
    return k


@njit(nogil=True, cache=True)
def merged(offsets, words, first, p):  # type: ignore[no-untyped-def]
    """The union of the sketches [first[g], first[g + 1]) for each g: (offsets int64, in words; words uint64).

    Sketch i is words[offsets[i]:offsets[i + 1]]."""
    groups = first.shape[0] - 1
    whole = dense_words(p)
    total = 0
    for g in range(groups):
        total += min(offsets[first[g + 1]] - offsets[first[g]], whole)
    out = np.empty(total, np.uint64)
    out_offsets = np.zeros(groups + 1, np.int64)
    room = 4 * whole
    hashes = np.empty(room, np.uint64)
    registers = np.zeros(1 << p, np.uint8)
    at = 0
    for g in range(groups):
        n = 0
        dense = False
        for i in range(first[g], first[g + 1]):
            a, b = offsets[i], offsets[i + 1]
            if b - a == whole:
                if not dense:
                    dense = True
                    registers[:] = 0
                    _raise_registers(registers, hashes[:n], p)
                    n = 0
                theirs = words[a:b].view(np.uint8)
                for r in range(registers.shape[0]):
                    registers[r] = max(registers[r], theirs[r])
            elif dense:
                _raise_registers(registers, words[a:b], p)
            else:
                full = n + b - a > room
                if full:
                    n = _squeezed(hashes, n)
                if full and n >= whole:
                    dense = True
                    registers[:] = 0
                    _raise_registers(registers, hashes[:n], p)
                    _raise_registers(registers, words[a:b], p)
                    n = 0
                else:
                    copy_items(words, a, b - a, hashes, n)
                    n += b - a
        if not dense:
            n = _squeezed(hashes, n)
            if n >= whole:
                dense = True
                registers[:] = 0
                _raise_registers(registers, hashes[:n], p)
        if dense:
            out[at : at + whole] = 0
            copy_items(registers, 0, registers.shape[0], out[at : at + whole].view(np.uint8), 0)
            at += whole
        else:
            copy_items(hashes, 0, n, out, at)
            at += n
        out_offsets[g + 1] = at
    return out_offsets, out[:at].copy()


@njit(nogil=True, cache=True)
def _sigma(x):  # type: ignore[no-untyped-def]
    if x == 1.0:
        return np.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z


@njit(nogil=True, cache=True)
def _tau(x):  # type: ignore[no-untyped-def]
    if x == 0.0 or x == 1.0:
        return 0.0
    y, z, before = 1.0, 1.0 - x, -1.0
    while z != before:
        x = np.sqrt(x)
        before = z
        y *= 0.5
        z -= (1.0 - x) * (1.0 - x) * y
    return z / 3.0


@njit(nogil=True, cache=True)
def estimate(counts, p):  # type: ignore[no-untyped-def]
    """Estimate of the number of different values, from how many registers hold each value: counts int64[64 - p + 2]."""
    m = float(1 << p)
    q = 64 - p
    z = m * _tau(1.0 - counts[q + 1] / m)
    for k in range(q, 0, -1):
        z = 0.5 * (z + counts[k])
    z += m * _sigma(counts[0] / m)
    return np.int64(np.rint(m / (2.0 * np.log(2.0)) * m / z))


class _Held(NamedTuple):
    """Sketches that a window holds: how often a hash is held, `times[rank]`, and a value of a register,
    `held[register, value]`; the largest value of each register, `now`; and how many registers have a value as their
    largest, `counts`. Of sketches without registers, `held` and `now` are empty.
    """

    times: np.ndarray
    held: np.ndarray
    now: np.ndarray
    counts: np.ndarray


@njit(nogil=True, cache=True)
def _enter(window, sketch, ranks, p, by):  # type: ignore[no-untyped-def]
    """Puts a sketch into what a window holds (by=1), or takes it out (by=-1); the change of different hashes. `ranks`:
    which hash each of its words is.
    """
    times, change = window.times, 0
    if sketch.shape[0] == dense_words(p):
        registers = sketch.view(np.uint8)
        for r in range(1 << p):
            if registers[r]:
                _register(window, r, registers[r], p, by)
        return 0
    for i in range(sketch.shape[0]):
        k = ranks[i]
        before = times[k]
        times[k] += by
        if before == 0 or times[k] == 0:
            change += by
        if window.held.shape[0]:
            _register(window, np.int64(sketch[i] >> np.uint64(64 - p)), rank(sketch[i], p), p, by)
    return change


@njit(nogil=True, cache=True)
def _register(window, r, value, p, by):  # type: ignore[no-untyped-def]
    _times, held, now, counts = window
    width = 64 - p + 2
    at = r * width + value
    held[at] += by
    before = now[r]
    if by > 0:
        if value <= before:
            return
        now[r] = value
    else:
        if value != before or held[at]:
            return
        while now[r] and not held[r * width + now[r]]:
            now[r] -= 1
    counts[before] -= 1
    counts[now[r]] += 1


@njit(nogil=True, cache=True)
def _slide(offsets, words, lo, hi, order, p, out):  # type: ignore[no-untyped-def]
    """The windows order[...], whose sketches overlap: what enters and leaves is counted, and not the overlap."""
    whole = dense_words(p)
    a = lo[order[0]]
    b = a
    for w in order:
        b = max(b, hi[w])
    base = offsets[a]
    some = words[base : offsets[b]]
    ranks = np.zeros(some.shape[0], np.int64)
    dense = 0
    sparse = np.empty(some.shape[0], np.int64)
    n = 0
    for i in range(a, b):
        if offsets[i + 1] - offsets[i] == whole:
            dense += 1
        else:
            for j in range(offsets[i] - base, offsets[i + 1] - base):
                sparse[n] = j
                n += 1
    by_hash = sparse[:n][np.argsort(some[sparse[:n]], kind="mergesort")]
    rank = -1
    for k in range(n):
        rank += k == 0 or some[by_hash[k]] != some[by_hash[k - 1]]
        ranks[by_hash[k]] = rank
    width = 64 - p + 2
    counts = np.zeros(width, np.int64)
    counts[0] = 1 << p
    held = np.zeros((1 << p) * width if dense else 0, np.int32)
    window = _Held(np.zeros(rank + 1, np.int32), held, np.zeros(1 << p if dense else 0, np.int64), counts)
    distinct, registers = 0, 0
    at, upto = a, a
    for w in order:
        while upto < hi[w]:
            x, y = offsets[upto] - base, offsets[upto + 1] - base
            distinct += _enter(window, some[x:y], ranks[x:y], p, 1)
            registers += y - x == whole
            upto += 1
        while upto > hi[w]:
            upto -= 1
            x, y = offsets[upto] - base, offsets[upto + 1] - base
            distinct += _enter(window, some[x:y], ranks[x:y], p, -1)
            registers -= y - x == whole
        while at < lo[w]:
            x, y = offsets[at] - base, offsets[at + 1] - base
            distinct += _enter(window, some[x:y], ranks[x:y], p, -1)
            registers -= y - x == whole
            at += 1
        out[w] = estimate(counts, p) if registers else distinct


@njit(nogil=True, cache=True)
def _counted(words, p):  # type: ignore[no-untyped-def]
    """Number of different values that a sketch stands for."""
    if words.shape[0] != dense_words(p):
        return words.shape[0]
    counts = np.zeros(64 - p + 2, np.int64)
    registers = words.view(np.uint8)
    for r in range(1 << p):
        counts[registers[r]] += 1
    return estimate(counts, p)


@njit(nogil=True, cache=True)
def count_windows(offsets, words, lo, hi, order, p):  # type: ignore[no-untyped-def]
    """int64[windows]: how many different values the sketches [lo[w], hi[w]) hold together; exact where none of them has
    registers. `order`: the windows by (lo, hi).
    """
    out = np.zeros(lo.shape[0], np.int64)
    edge = np.empty(2, np.int64)
    i = 0
    while i < order.shape[0]:
        upto = hi[order[i]]
        j = i + 1
        while j < order.shape[0] and lo[order[j]] < upto:
            upto = max(upto, hi[order[j]])
            j += 1
        if j - i > 1 and p <= _SLIDES:
            _slide(offsets, words, lo, hi, order[i:j], p, out)
        else:
            for k in range(i, j):
                w = order[k]
                registers = False
                for sketch in range(lo[w], hi[w]):
                    registers |= offsets[sketch + 1] - offsets[sketch] == dense_words(p)
                if registers:
                    edge[0], edge[1] = lo[w], hi[w]
                    out[w] = _counted(merged(offsets, words, edge, p)[1], p)
                elif hi[w] > lo[w]:
                    some = words[offsets[lo[w]] : offsets[hi[w]]].copy()
                    out[w] = _squeezed(some, some.shape[0])
        i = j
    return out
