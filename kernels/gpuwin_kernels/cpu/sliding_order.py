"""Values of windows that slide over the rows of a key, in order of value: a set of bits, one for each row at its place
in that order, of which those are set whose rows the window holds.

A row that enters or leaves flips a bit. The k-th value is found by counting bits, word by word, and block by block of
words where the rows of a key are many. So a row costs the same however many windows it lies in.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.memory import bits_float, ones, trailing_zeros

_NAN_KEY = np.iinfo(np.int64).max
_SIGN = np.int64(np.iinfo(np.int64).min)
_WORDS = 6  # of a block: 1 << 6
_WORD_BITS = 6
_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def float_of_key(key):  # type: ignore[no-untyped-def]
    """The float64 that `slices.float_keys` makes this key (int64) of."""
    if key == _NAN_KEY:
        return np.nan
    return bits_float(key if key >= 0 else ~key | _SIGN)


@njit(nogil=True, cache=True)
def places_of(order, k0, k1, place):  # type: ignore[no-untyped-def]
    """Writes the places of the rows order[k0:k1], int64: `order[place[row]]` is `row`."""
    for k in range(k0, k1):
        place[order[k]] = k


@njit(nogil=True, cache=True)
def _flip(place, valid, lo, hi, words, blocks, change):  # type: ignore[no-untyped-def]
    """Sets (change 1) or clears (-1) the bits of the valid rows [lo, hi); returns the change of their number."""
    n = 0
    for i in range(lo, hi):
        if valid[i]:
            at = place[i]
            words[at >> _WORD_BITS] ^= _ONE << np.uint64(at & 63)
            blocks[at >> (_WORD_BITS + _WORDS)] += change
            n += change
    return n


@njit(nogil=True, cache=True)
def _slide(place, valid, a, b, lo, hi, words, blocks):  # type: ignore[no-untyped-def]
    """Moves the set from the rows [a, b) to the rows [lo, hi), a <= lo; returns the change of its size."""
    kept, beyond = min(max(lo, a), b), min(max(hi, lo), b)  # of [a, b) these stay, if any do
    n = _flip(place, valid, a, kept, words, blocks, -1)
    n += _flip(place, valid, max(beyond, kept), b, words, blocks, -1)
    return n + _flip(place, valid, max(lo, b), hi, words, blocks, 1)


@njit(nogil=True, cache=True)
def _bit_of(word, k):  # type: ignore[no-untyped-def]
    """The place of the k-th bit that is set, from 0, in a word that has so many."""
    at = np.uint64(0)
    width = np.uint64(32)
    while width:
        below = ones(word & ((_ONE << width) - _ONE))
        if k >= below:
            k -= below
            word >>= width
            at += width
        width >>= _ONE
    return np.int64(at)


@njit(nogil=True, cache=True)
def _find(words, blocks, base, k):  # type: ignore[no-untyped-def]
    """The place of the k-th bit that is set, from 0; none is before the place `base`."""
    w = base >> _WORD_BITS
    while True:
        if not w & ((1 << _WORDS) - 1):
            while blocks[w >> _WORDS] <= k:
                k -= blocks[w >> _WORDS]
                w += 1 << _WORDS
        n = ones(words[w])
        if k < n:
            return (w << _WORD_BITS) + _bit_of(words[w], k)
        k -= n
        w += 1


@njit(nogil=True, cache=True)
def _next(words, at):  # type: ignore[no-untyped-def]
    """The place of the next bit that is set; there must be one."""
    w = at >> _WORD_BITS
    word = (words[w] >> np.uint64(at & 63)) >> _ONE
    if word:
        return at + 1 + trailing_zeros(word)
    w += 1
    while not words[w]:
        w += 1
    return (w << _WORD_BITS) + trailing_zeros(words[w])


@njit(nogil=True, cache=True)
def _previous(words, at):  # type: ignore[no-untyped-def]
    """The place of the last bit before `at` that is set; there must be one."""
    w = at >> _WORD_BITS
    word = words[w] & ((_ONE << np.uint64(at & 63)) - _ONE)
    while not word:
        w -= 1
        word = words[w]
    return (w << _WORD_BITS) + _bit_of(word, ones(word) - 1)


@njit(nogil=True, cache=True)
def _bits(rows):  # type: ignore[no-untyped-def]
    """A set of no row: the bits, uint64, and the number that is set in each block, int64."""
    words = np.zeros((rows >> _WORD_BITS) + 1, np.uint64)
    return words, np.zeros((words.shape[0] >> _WORDS) + 1, np.int64)


@njit(nogil=True, cache=True)
def _first_of_code(code, row, known):  # type: ignore[no-untyped-def]
    """The first row of the code of `row`, where `code` int32 is sorted; `known`: that of another row's code."""
    if code[known] != code[row]:
        known = row
        while known > 0 and code[known - 1] == code[row]:
            known -= 1
    return known


@njit(nogil=True, cache=True)
def quantiles_of_sliding(code, lo, hi, windows, place, order, valid, key, fractions, w0, w1, out, size):  # type: ignore[no-untyped-def]
    """Writes quantiles, with linear interpolation, of the windows windows[w0:w1], and how many values each has.

    Window w holds the rows [lo[w], hi[w]), of one code; `windows`: all of them by (lo, hi). code int32: sorted. key
    int64: `slices.float_keys` of the values, of rows where valid (uint8). order int64: the rows by (code, key); place:
    see `places_of`. fractions float64[m]. out float64[m, windows], 0 where there is no value; size int64[windows].
    """
    words, blocks = _bits(place.shape[0])
    a = b = base = np.int64(0)
    n = 0
    for k in range(w0, w1):
        w = windows[k]
        first, beyond = lo[w], max(hi[w], lo[w])
        n += _slide(place, valid, a, b, first, beyond, words, blocks)
        a, b = first, beyond
        size[w] = n
        if n:
            base = _first_of_code(code, first, base)
        for f in range(fractions.shape[0]):
            out[f, w] = 0.0
            if n:
                position = fractions[f] * (n - 1)
                below = np.int64(np.floor(position))
                part = position - below
                at = _find(words, blocks, base, below)
                out[f, w] = float_of_key(key[order[at]])
                if part > 0.0:
                    out[f, w] = (1.0 - part) * out[f, w] + part * float_of_key(key[order[_next(words, at)]])


@njit(nogil=True, cache=True)
def top_of_sliding(code, lo, hi, windows, place, order, valid, first, w0, w1, row):  # type: ignore[no-untyped-def]
    """Writes the rows of the largest values of the windows windows[w0:w1], as many as have a place: those of window w
    from first[w] up to first[w + 1], the largest first. Else as `quantiles_of_sliding`.
    """
    words, blocks = _bits(place.shape[0])
    a = b = base = np.int64(0)
    n = 0
    for k in range(w0, w1):
        w = windows[k]
        begin, beyond = lo[w], max(hi[w], lo[w])
        n += _slide(place, valid, a, b, begin, beyond, words, blocks)
        a, b = begin, beyond
        at = np.int64(0)
        for j in range(first[w], first[w + 1]):
            if j == first[w]:
                base = _first_of_code(code, begin, base)
                at = _find(words, blocks, base, n - 1)
            else:
                at = _previous(words, at)
            row[j] = order[at]
