"""Merges of quantile summaries in the bytes in which Spark's `percentile_approx` keeps them.

A summary is a sample of the values of a group, ascending, each with two numbers of the paper: `g`, by how many ranks at
least it lies above the one before it, and `delta`, by how many more it may (Greenwald and Khanna, "Space-efficient
online computation of quantile summaries", 2001). Two of them are merged as Spark merges them: samples side by side,
those among the other's with its uncertainty added, and then thinned out from the top.

In bytes, big-endian: a threshold that is carried along (int32), the relative error (float64), the number of values
(int64), the number of samples (int32), and 24 bytes a sample: value (float64), g, delta (int64 each). A piece is a
summary behind its length (int32).
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.lengths import read_int32, write_int32
from gpuwin_kernels.cpu.memory import bits_float, copy_items, float_bits, load_u64, store_u64, swap_bytes

_HEAD = 24  # bytes of a summary before its samples
_SAMPLE = 24
_LENGTH = 4


@njit(nogil=True, cache=True)
def _int64(data, at):  # type: ignore[no-untyped-def]
    return np.int64(swap_bytes(load_u64(data, at)))


@njit(nogil=True, cache=True)
def _write_int64(data, at, word):  # type: ignore[no-untyped-def]
    store_u64(data, at, swap_bytes(np.uint64(word)))


@njit(nogil=True, cache=True)
def count_pieces(data, begin, end):  # type: ignore[no-untyped-def]
    """Number of pieces in data[begin:end], -1 where they do not end there."""
    pieces = 0
    while begin < end:
        length = read_int32(data, begin) if end - begin >= _LENGTH + _HEAD else np.int64(-1)
        if length < _HEAD or length > end - begin - _LENGTH:
            return -1
        if length != _HEAD + _SAMPLE * read_int32(data, begin + _LENGTH + _HEAD - 4):
            return -1
        begin += _LENGTH + length
        pieces += 1
    return pieces


@njit(nogil=True, cache=True)
def are_single(data, offsets):  # type: ignore[no-untyped-def]
    """Whether each data[offsets[i]:offsets[i + 1]] is one piece, or none."""
    for i in range(offsets.shape[0] - 1):
        begin, end = offsets[i], offsets[i + 1]
        if begin < end and (end - begin < _LENGTH + _HEAD or begin + _LENGTH + read_int32(data, begin) != end):
            return False
    return True


@njit(nogil=True, cache=True)
def merge_two(sums, a, b, out, heads):  # type: ignore[no-untyped-def]
    """Merges the summaries a and b, places in `heads` (float64[m, 4]: first sample, their number, number of values,
    relative error), whose samples are rows of `sums` (float64 values, int64 g, int64 delta), into `out` from the first
    sample of a on. Returns (samples, values, relative error).
    """
    value, g, delta = sums
    out_value, out_g, out_delta = out
    i, m, count, error = np.int64(heads[a, 0]), np.int64(heads[a, 1]), heads[a, 2], heads[a, 3]
    j, n, others, other_error = np.int64(heads[b, 0]), np.int64(heads[b, 1]), heads[b, 2], heads[b, 3]
    first, end, other_first, other_end = i, i + m, j, j + n
    if count == 0.0 or others == 0.0:
        kept = a if others == 0.0 else b
        begin = np.int64(heads[kept, 0])
        size = np.int64(heads[kept, 1])
        for k in range(size):
            out_value[first + k], out_g[first + k] = value[begin + k], g[begin + k]
            out_delta[first + k] = delta[begin + k]
        return size, heads[kept, 2], heads[kept, 3]
    added, other_added = np.int64(np.floor(2 * other_error * others)), np.int64(np.floor(2 * error * count))
    at = first
    while i < end and j < other_end:
        if value[i] < value[j]:
            out_value[at], out_g[at] = value[i], g[i]
            out_delta[at] = delta[i] + (added if j > other_first else 0)
            i += 1
        else:
            out_value[at], out_g[at] = value[j], g[j]
            out_delta[at] = delta[j] + (other_added if i > first else 0)
            j += 1
        at += 1
    while i < end:
        out_value[at], out_g[at], out_delta[at] = value[i], g[i], delta[i]
        i += 1
        at += 1
    while j < other_end:
        out_value[at], out_g[at], out_delta[at] = value[j], g[j], delta[j]
        j += 1
        at += 1
    worst = max(error, other_error)
    return _thinned(out, first, at, 2 * worst * (count + others)), count + others, worst


@njit(nogil=True, cache=True)
def _thinned(sums, first, end, most):  # type: ignore[no-untyped-def]
    """Thins out the samples [first, end) in place, from the last to the first: one joins the one above it while their
    ranks stay below `most`. Returns how many are left, from `first` on.
    """
    value, g, delta = sums
    if end - first < 2:
        return end - first
    least, least_g, least_delta = value[first], g[first], delta[first]
    to = end - 1  # the one that others join, which lies at its place from the top
    for i in range(end - 2, first, -1):
        if g[i] + g[to] + delta[to] < most:
            g[to] += g[i]
        else:
            to -= 1
            value[to], g[to], delta[to] = value[i], g[i], delta[i]
    if least <= value[to]:
        to -= 1
        value[to], g[to], delta[to] = least, least_g, least_delta
    left = end - to
    for k in range(left):
        value[first + k], g[first + k], delta[first + k] = value[to + k], g[to + k], delta[to + k]
    return left


@njit(nogil=True, cache=True)
def fold_pieces(data, begins, lo, hi, out, sizes):  # type: ignore[no-untyped-def]
    """Merges the pieces of each group lo <= k < hi, which are data[begins[k]:begins[k + 1]], into one piece, at
    out[begins[k]:], of sizes[k] (int64) bytes; of a group without pieces there is none. Neighbours are merged, and then
    what became of them. Returns the first group whose pieces are damaged, or -1.
    """
    room = np.int64(0)
    most = np.int64(1)
    for k in range(lo, hi):
        pieces = count_pieces(data, begins[k], begins[k + 1])
        if pieces < 0:
            return k
        most = max(most, pieces)
        room = max(room, (begins[k + 1] - begins[k]) // _SAMPLE)
    sums = (np.empty(room, np.float64), np.empty(room, np.int64), np.empty(room, np.int64))
    other = (np.empty(room, np.float64), np.empty(room, np.int64), np.empty(room, np.int64))
    heads = np.empty((most, 4), np.float64)
    for k in range(lo, hi):
        begin, end = begins[k], begins[k + 1]
        if begin == end:
            sizes[k] = 0
            continue
        length = _LENGTH + read_int32(data, begin)
        if begin + length == end:
            copy_items(data, begin, end - begin, out, begin)
            sizes[k] = length
            continue
        pieces = _unpacked(data, begin, end, sums, heads)
        threshold = read_int32(data, _last_piece(data, begin, end) + _LENGTH)
        while pieces > 1:
            left = 0
            for p in range(0, pieces, 2):
                begin_at = heads[p, 0]
                alone = p + 1 == pieces
                found = _moved(sums, p, other, heads) if alone else merge_two(sums, p, p + 1, other, heads)
                heads[left, 0], heads[left, 1], heads[left, 2], heads[left, 3] = begin_at, found[0], found[1], found[2]
                left += 1
            pieces = left
            sums, other = other, sums
        sizes[k] = _packed(sums, heads, threshold, out, begin)
    return -1


@njit(nogil=True, cache=True)
def _last_piece(data, begin, end):  # type: ignore[no-untyped-def]
    while True:
        after = begin + _LENGTH + read_int32(data, begin)
        if after == end:
            return begin
        begin = after


@njit(nogil=True, cache=True)
def _moved(sums, p, other, heads):  # type: ignore[no-untyped-def]
    first, size = np.int64(heads[p, 0]), np.int64(heads[p, 1])
    for i in range(first, first + size):
        other[0][i], other[1][i], other[2][i] = sums[0][i], sums[1][i], sums[2][i]
    return size, heads[p, 2], heads[p, 3]


@njit(nogil=True, cache=True)
def _unpacked(data, begin, end, sums, heads):  # type: ignore[no-untyped-def]
    """Reads the pieces of data[begin:end] into samples and heads, as of `merge_two`. Returns how many they are."""
    value, g, delta = sums
    pieces = 0
    at = 0
    while begin < end:
        length = read_int32(data, begin)
        begin += _LENGTH
        samples = read_int32(data, begin + 20)
        heads[pieces, 0], heads[pieces, 1] = at, samples
        heads[pieces, 2] = _int64(data, begin + 12)
        heads[pieces, 3] = bits_float(_int64(data, begin + 4))
        place = begin + _HEAD
        for _ in range(samples):
            value[at] = bits_float(_int64(data, place))
            g[at], delta[at] = _int64(data, place + 8), _int64(data, place + 16)
            place += _SAMPLE
            at += 1
        begin += length
        pieces += 1
    return pieces


@njit(nogil=True, cache=True)
def _packed(sums, heads, threshold, out, at):  # type: ignore[no-untyped-def]
    """Writes the first summary as a piece. Returns its bytes."""
    value, g, delta = sums
    first, samples = np.int64(heads[0, 0]), np.int64(heads[0, 1])
    length = _HEAD + _SAMPLE * samples
    write_int32(out, at, length)
    write_int32(out, at + 4, threshold)
    _write_int64(out, at + 8, float_bits(heads[0, 3]))
    _write_int64(out, at + 16, np.int64(heads[0, 2]))
    write_int32(out, at + 24, samples)
    place = at + _LENGTH + _HEAD
    for i in range(first, first + samples):
        _write_int64(out, place, float_bits(value[i]))
        _write_int64(out, place + 8, g[i])
        _write_int64(out, place + 16, delta[i])
        place += _SAMPLE
    return _LENGTH + length


@njit(nogil=True, cache=True)
def pack_pieces(data, begins, offsets, out):  # type: ignore[no-untyped-def]
    """Copies what lies at begins[k] (int64) of data to out[offsets[k]:offsets[k + 1]]."""
    for k in range(offsets.shape[0] - 1):
        size = offsets[k + 1] - offsets[k]
        copy_items(data, begins[k], size, out, offsets[k])
