"""Order by key of rows that lie by code already: each row is one word of its code, the upper bits of its key and its
number, and NumPy sorts the words, with vector instructions where the processor has them.
"""

from __future__ import annotations

import itertools

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import sort_part

from .parallel import each, ranges

_LEAST_BITS = 12
"""Bits of a word that are left for the key, at least: of fewer, too many rows would be alike."""


def parts_by_code(code: np.ndarray) -> list[tuple[int, int]]:
    """A part of the rows for each thread, all rows of a code in one; `code` int32[n] is sorted."""
    if not len(code):
        return [(0, 0)]
    cuts = np.searchsorted(code, code[[lo for lo, _ in ranges(len(code))]])
    return list(itertools.pairwise([*cuts.tolist(), len(code)]))


def order_within_codes(code: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The stable order (int64[n], row numbers) of rows by (code, key), by all threads; `code` int32[n] is sorted, `key`
    int64[n]. Not to be called on a thread of `each`.
    """
    order = empty(len(code), np.int64)
    each(lambda part: _order_part(code, key, *part, order), parts_by_code(code))
    return order


def _order_part(code: np.ndarray, key: np.ndarray, lo: int, hi: int, order: np.ndarray) -> None:
    """Writes order[lo:hi], of all rows of their codes."""
    if lo == hi:
        return
    least, most = int(key[lo:hi].min()), int(key[lo:hi].max())
    row_bits = (hi - lo - 1).bit_length()
    key_bits = 64 - row_bits - int(code[hi - 1] - code[lo]).bit_length()
    if key_bits < _LEAST_BITS:
        _sort_codes(code, key, lo, hi, order)
        return
    dropped = max(0, (most - least).bit_length() - key_bits)
    words = empty(hi - lo, np.uint64)
    shifts = np.uint64(dropped), np.uint64(row_bits), np.uint64(row_bits + key_bits)
    _pack(code, key, lo, hi, np.uint64(least & 0xFFFFFFFFFFFFFFFF), *shifts, words)
    words.sort()
    _unpack(words, key, lo, np.uint64(row_bits), dropped > 0, order)


@njit(nogil=True, cache=True)
def _pack(code, key, lo, hi, least, dropped, row_bits, below, words):  # type: ignore[no-untyped-def]
    """Writes the word of each of the rows [lo, hi). dropped: bits of a key that have no room; below: those of a word
    that are not of the code.
    """
    for i in range(lo, hi):
        word = ((np.uint64(key[i]) - least) >> dropped) << row_bits | np.uint64(i - lo)
        c = np.uint64(code[i] - code[lo])
        words[i - lo] = c << below | word if c else word  # a shift by all 64 bits is none


@njit(nogil=True, cache=True)
def _unpack(words, key, lo, row_bits, dropped, order):  # type: ignore[no-untyped-def]
    """Writes the rows of sorted words. dropped: whether keys lost bits, so that words may be alike, and keys not."""
    mask = (np.uint64(1) << row_bits) - np.uint64(1)
    for k in range(words.shape[0]):
        order[lo + k] = lo + np.int64(words[k] & mask)
    if not dropped:
        return
    begin = 0
    for k in range(1, words.shape[0] + 1):
        if k == words.shape[0] or words[k] >> row_bits != words[begin] >> row_bits:
            if k - begin > 1:
                sort_part(key, order, lo + begin, lo + k)
            begin = k


@njit(nogil=True, cache=True)
def _sort_codes(code, key, lo, hi, order):  # type: ignore[no-untyped-def]
    """Writes order[lo:hi], code by code."""
    begin = lo
    for i in range(lo, hi):
        order[i] = i
        if i + 1 == hi or code[i + 1] != code[i]:
            sort_part(key, order, begin, i + 1)
            begin = i + 1
