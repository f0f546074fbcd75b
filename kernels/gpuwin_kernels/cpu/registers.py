"""Registers of HyperLogLog as Spark keeps them, ten of six bits in a word of 64, raised by hashes of values.

A hash of 64 bits names a register by its first p bits; its value there is the place of the first 1 behind them
(Flajolet et al., "HyperLogLog", 2007). The words are those of Spark's `HyperLogLogPlusPlusHelper`.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.distinct import rank
from gpuwin_kernels.cpu.statistics import registers_max

_BITS = 6
_REGISTERS = 10  # in a word


def words_of(precision: int) -> int:
    """Number of words of 2**precision registers, as Spark has it: one more than are full."""
    return (1 << precision) // _REGISTERS + 1


@njit(nogil=True, cache=True)
def raise_by_hashes(words, first, cell, hashes, valid, precision, rows):  # type: ignore[no-untyped-def]
    """Raises registers by rows, in place.

    Args:
        words: int64[m, words_of(precision)] of the cells from the number `first` on, of 2**precision registers each.
        cell: int64[n], the number of the cell of each row.
        hashes: uint64[n].
        valid: uint8[n], 0 where a row has no value; or empty: each has one.
        precision: from 4 to 32.
        rows: int64[k], the rows that count.
    """
    some = valid.shape[0] > 0
    shift = np.uint64(64 - precision)
    for row in rows:
        if some and not valid[row]:
            continue
        index = np.int64(hashes[row] >> shift)
        at = index // _REGISTERS
        place = np.int64(_BITS * (index - at * _REGISTERS))
        mask = np.int64(((1 << _BITS) - 1) << place)
        into = words[cell[row] - first]
        word = into[at]
        raised = np.int64(rank(hashes[row], precision)) << place
        # The mask of the tenth register has no sign bit, so the masked values compare as the registers do.
        if raised > word & mask:
            into[at] = (word & ~mask) | raised


@njit(nogil=True, cache=True)
def raise_by_words(words, first, cell, others, rows):  # type: ignore[no-untyped-def]
    """Raises registers, as `raise_by_hashes`, by those of others: int64[n, w], of which the rows int64[k] count."""
    for row in rows:
        into = words[cell[row] - first]
        for at in range(words.shape[1]):
            into[at] = registers_max(into[at], others[row, at])
