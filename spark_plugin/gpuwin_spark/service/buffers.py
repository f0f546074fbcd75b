"""Spark's aggregation buffers as the partial columns of cells, and back.

A buffer column arrives as an Arrow array of the wire type of its Spark type, and leaves as one. In between it is one or
more :class:`~gpuwin_kernels.layout.CellColumn`. Most map one to one; a decimal sum does not: Spark's buffer is a sum
that is null once it has overflowed, and a flag that says whether anything was added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.layout import STATISTICS, CellArrays, CellColumn, CellLayout

from . import arrivals, decimals
from .operator_spec import ARRIVAL_MERGES, CellColumns, Merge
from .plain import PlainCodec, physical, validity_of, values_of

# A decimal sum of this precision or less cannot leave 128 bits before 10^8 cells of the largest value were added.
NARROW_PRECISION: Final = 30


def layout_of(spec: CellColumns) -> CellLayout:
    """The partial columns of an operator's cells. A column's name begins with the position of its buffer."""
    return CellLayout(tuple(c for m in spec.merges for c in _columns(m, spec)))


def _columns(m: Merge, spec: CellColumns) -> list[CellColumn]:
    first = m.columns[0]
    kind = physical(spec.buffer_types[first])
    if m.merge in STATISTICS:
        return [CellColumn(f"{first}", m.merge, "float64")]
    if m.merge in ARRIVAL_MERGES:
        return arrivals.columns_of(m, kind)
    if m.merge in ("decimal_sum", "decimal_avg_sum"):
        parts = [""] if m.precision <= NARROW_PRECISION else ["hi", "lo"]
        sums = [CellColumn(f"{first}{p}", "sum", "int128") for p in parts]
        return [*sums, CellColumn(f"{first}lost", "max", "int64"), CellColumn(f"{first}some", "max", "int64")]
    return [CellColumn(f"{first}", m.merge, kind, nullable=m.nullable, wrap=m.wrap)]


@dataclass(frozen=True)
class BufferCodec:
    """Translates the buffers of one operator; ``heap`` holds the bytes of minima and maxima of strings."""

    spec: CellColumns
    heap: BytesHeap

    @property
    def _plain(self) -> PlainCodec:
        return PlainCodec(self.heap)

    def decode(self, buffers: list[pa.Array], arrived: int = 0) -> tuple[CellArrays, ...]:
        """Arrow buffers of n cells, in the order of the specification, the hidden ones included, to partial columns.

        ``arrived``: how many values arrived before these.
        """
        out: list[CellArrays] = []
        for m in self.spec.merges:
            arrays = [buffers[c] for c in m.columns]
            if m.merge in STATISTICS:
                out.append(CellArrays(_statistics(m.merge, [values_of(a) for a in arrays]), None))
            elif m.merge in ARRIVAL_MERGES:
                out.extend(arrivals.decode(m, arrays, buffers[m.arrival], arrived, self._plain))
            elif m.merge == "decimal_sum":
                out.extend(_decode_decimal_sum(m, arrays[0], empty=values_of(arrays[1]) != 0))
            elif m.merge == "decimal_avg_sum":
                out.extend(_decode_decimal_sum(m, arrays[0], empty=np.zeros(len(arrays[0]), bool)))
            else:
                valid = validity_of(arrays[0]) if m.nullable else None
                out.append(CellArrays(self._plain.words(arrays[0]), valid))
        return tuple(out)

    def encode(self, columns: tuple[CellArrays, ...], hidden: bool = False) -> list[pa.Array]:
        """Partial columns of n cells or windows to Arrow buffers in the order of the specification, and the hidden ones
        of cells.
        """
        types = self.spec.buffer_types
        out: list[pa.Array | None] = [None] * (len(types) + (self.spec.hidden if hidden else 0))
        at = 0
        for m in self.spec.merges:
            first = m.columns[0]
            if m.merge in STATISTICS:
                for c, v in zip(m.columns, columns[at].values, strict=True):
                    out[c] = pa.array(v)
                at += 1
            elif m.merge in ARRIVAL_MERGES:
                width = len(arrivals.columns_of(m, physical(types[first])))
                arrays = arrivals.encode(m, columns[at : at + width], [types[c] for c in m.columns], self._plain)
                for c, a in zip((*m.columns, m.arrival) if hidden else m.columns, arrays, strict=False):
                    out[c] = a
                at += width
            elif m.merge in ("decimal_sum", "decimal_avg_sum"):
                width = 3 if m.precision <= NARROW_PRECISION else 4
                parts = columns[at : at + width]
                at += width
                total, lost = _encode_decimal_sum(m, parts)
                some = parts[-1].values[0] != 0
                if m.merge == "decimal_sum":
                    out[first] = decimals.join(*total, types[first], valid=~lost | ~some)
                    out[m.columns[1]] = pa.array(~some)
                else:
                    out[first] = decimals.join(*total, types[first], valid=~lost)
            else:
                out[first] = self._plain.array(columns[at].values, columns[at].valid, types[first])
                at += 1
        return [a for a in out if a is not None]


def _statistics(merge: str, words: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The words of a buffer. Spark merges every buffer with an empty one first, by which a co-moment whose mean is
    infinite becomes NaN; the device's merge leaves a buffer as it is when the other is empty.
    """
    if merge not in ("comoments", "correlation"):
        return tuple(words)
    n, x, y = words[:3]
    products = ((x, y), (x, x), (y, y))[: len(words) - 3]
    with np.errstate(all="ignore"):
        lost = [np.where(n == 0, 0.0, a * (b / n) * 0.0) for a, b in products]
    return (n, x, y, *(w + z for w, z in zip(words[3:], lost, strict=True)))


def _decode_decimal_sum(m: Merge, array: pa.Array, empty: np.ndarray) -> list[CellArrays]:
    null = validity_of(array) == 0
    hi, lo = decimals.split(array)
    unusable = null | empty
    hi, lo = np.where(unusable, 0, hi), np.where(unusable, np.uint64(0), lo)
    if m.precision <= NARROW_PRECISION:
        sums = [CellArrays((hi, lo), None)]
    else:
        sums = [
            CellArrays((hi >> 63, hi.view(np.uint64)), None),
            CellArrays((np.zeros_like(hi), lo), None),
        ]
    lost = (null & ~empty).astype(np.int64)
    return [*sums, CellArrays((lost,), None), CellArrays(((~empty).astype(np.int64),), None)]


def _encode_decimal_sum(m: Merge, parts: tuple[CellArrays, ...]) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The total as (hi, lo), and where it overflowed, now or in a buffer that came in."""
    lost = parts[-2].values[0] != 0
    if m.precision <= NARROW_PRECISION:
        hi, lo = parts[0].values
        fits = np.ones(len(hi), bool)
    else:
        (high_hi, high_lo), (low_hi, low_lo) = parts[0].values, parts[1].values
        hi, lo, fits = decimals.combine((high_hi, high_lo), (low_hi, low_lo))
    lost = lost | ~fits | ~decimals.within(hi, lo, m.precision)
    return (np.where(lost, 0, hi), np.where(lost, np.uint64(0), lo)), lost
