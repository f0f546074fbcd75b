"""Buffers of ``first``, ``last``, ``min_by`` and ``max_by``: a value, and what decides which of two is kept. (Where an
ordering does not fit 64 bits: `ordered_values`.)

Of ``first`` and ``last`` that is when the value arrived; of the others an ordering, and among equals the last arrival.
Spark numbers the rows of a batch; here the numbers of a batch become ranks that follow those of the batches before, so
that a log whose segments are read in their order gives the same order again.

Over sessions Spark merges in order of start: the rows of a batch, and among them, as one that comes before rows of the
same time, each open session with the value that it had. So a value arrives there at the event time of its row, and from
the next batch on at the start of its session: `InTime`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import array_of, rank_words, words_of
from gpuwin_kernels.layout import FIRST, LAST, CellArrays, CellColumn

from . import decimals
from .operator_spec import Merge
from .plain import validity_of, values_of

#: Which of the two words that decide is the arrival.
_WORD: Final = {"first": 0, "last": 0, "min_by": 1, "max_by": 1}
_LARGEST = np.int64((1 << 63) - 1)
_QUIET_NAN = np.int64(0x7FF8 << 48)


def columns_of(m: Merge, kind: str) -> list[CellColumn]:
    """The partial columns: the value, of dtype ``kind``, and whether it is null, where it can be."""
    merge = FIRST if m.merge == "first" else LAST
    value = CellColumn(f"{m.number}", merge, kind, nullable=True)
    return [value, CellColumn(f"{m.number}null", merge, "int64", nullable=True)] if m.nullable else [value]


def decode(m: Merge, buffers: Sequence[pa.Array], arrived: int | None, heap: BytesHeap) -> list[CellArrays]:
    """The buffers (value, and valueSet or the ordering) and the arrivals of n cells as partial columns."""
    value, other, arrival = buffers
    arrivals = ranked(values_of(arrival), validity_of(arrival), arrived)
    if m.merge in ("first", "last"):
        valid = (values_of(other) != 0).astype(np.uint8)
        decides = (arrivals, np.zeros(len(arrivals), np.int64))
    else:
        valid = validity_of(other)
        order = rank_words(other)
        decides = (~order if m.merge == "min_by" else order, arrivals)
    columns = [CellArrays((*decides, *words_of(value, heap)), valid)]
    if m.nullable:
        columns.append(CellArrays((*decides, 1 - validity_of(value).astype(np.int64)), valid))
    return columns


def encode(m: Merge, columns: Sequence[CellArrays], types: Sequence[pa.DataType], heap: BytesHeap) -> list[pa.Array]:
    """The opposite: [value, valueSet or ordering, arrival]."""
    first, second, *words = columns[0].values
    valid = columns[0].valid
    assert valid is not None
    shown = valid
    if m.nullable:
        null = columns[1].values[2]
        shown = ((valid != 0) & (null == 0)).astype(np.uint8)
    value = array_of(tuple(words), shown, types[0], heap)
    if m.merge in ("first", "last"):
        return [value, pa.array(valid != 0), pa.array(first, mask=valid == 0)]
    order = _in_order(~first if m.merge == "min_by" else first, types[1], valid, heap)
    return [value, order, pa.array(second, mask=valid == 0)]


def arriving_at(m: Merge, columns: Sequence[CellArrays], arrivals: np.ndarray) -> list[CellArrays]:
    """The partial columns of a merge with these arrivals, int64[n]."""
    at = _WORD[m.merge]
    return [c._replace(values=(*c.values[:at], arrivals, *c.values[at + 1 :])) for c in columns]


@dataclass(frozen=True)
class InTime:
    """Values of sessions, numbered in order of event time, and as they come where that is the same."""

    arrivals: pa.Array  # int64[n], each with room for 2^32 below it; null: there is no value
    times: np.ndarray  # int64[n], in order

    @classmethod
    def of(cls, times: pa.Array) -> InTime:
        """Values whose rows have these event times, int64[n]."""
        values = values_of(times)
        order = np.argsort(values, kind="stable")
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(1, len(order) + 1) << 32
        return cls(pa.array(numbers, mask=validity_of(times) == 0), values[order])

    def times_of(self, arrivals: pa.Array) -> pa.Array:
        """Event times of values that arrived then."""
        known = validity_of(arrivals) != 0
        return pa.array(self.times[np.where(known, (values_of(arrivals) >> 32) - 1, 0)], mask=~known)

    def of_open(self, start: np.ndarray) -> np.ndarray:
        """Arrivals of the values of open sessions with these starts, int64[n], those of a key in order: each is after
        earlier rows, and before those of its time.
        """
        return (np.searchsorted(self.times, start) << 32) + np.arange(1, len(start) + 1)


def ranked(numbers: np.ndarray, valid: np.ndarray, arrived: int | None) -> np.ndarray:
    """int64[n]: ranks of the numbers, from ``arrived`` on, or the numbers where that is None; what is not valid gets
    any.
    """
    out = np.zeros(len(numbers), np.int64)
    known = valid != 0
    if arrived is None:
        out[known] = numbers[known]
        return out
    _, rank = np.unique(numbers[known], return_inverse=True)
    out[known] = arrived + rank
    return out


def _in_order(order: np.ndarray, t: pa.DataType, valid: np.ndarray, heap: BytesHeap) -> pa.Array:
    """The values that `rank_words` ranked."""
    if pa.types.is_decimal(t):
        return decimals.join(order >> 63, order.view(np.uint64), t, valid=valid)
    if pa.types.is_floating(t):
        bits = np.where(order == _LARGEST, _QUIET_NAN, order ^ ((order >> 63) & _LARGEST))
        order = bits.view(np.float64)
    return array_of((order,), valid, t, heap)
