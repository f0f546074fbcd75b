"""Spark's aggregation buffers as the partial columns of cells, and back.

A buffer column arrives as an Arrow array of the wire type of its Spark type, and leaves as one. In between it is one or
more :class:`~gpuwin_kernels.layout.CellColumn`. Most map one to one. A decimal sum does not: Spark's buffer is a sum
that is null once it has overflowed, and a flag that says whether anything was added. Nor does a bitmap, whose bytes are
a column for each word of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import array_of, dtype_of, words_of
from gpuwin_kernels.layout import BIT_AND, BIT_OR, STATISTICS, CellArrays, CellColumn, CellLayout

from . import arrivals, decimals, ordered_values
from .operator_spec import ARRIVAL_MERGES, PLAIN_MERGES, CellColumns, Merge
from .plain import validity_of, values_of

# A decimal sum of this precision or less cannot leave 128 bits before 10^8 cells of the largest value were added.
NARROW_PRECISION: Final = 30
# Words of 64 bits in a bitmap: Spark's have 4096 bytes (`BitmapExpressionUtils.NUM_BYTES`).
BITMAP_WORDS: Final = 512


@dataclass(frozen=True)
class _Codec:
    """The buffers of a merge as partial columns of a physical dtype, and back; ``decode`` gets how many values arrived
    before."""

    columns: Callable[[Merge, str], list[CellColumn]]
    decode: Callable[[Merge, Sequence[pa.Array], int | None, BytesHeap], list[CellArrays]]
    encode: Callable[[Merge, Sequence[CellArrays], Sequence[pa.DataType], BytesHeap], list[pa.Array]]


def layout_of(spec: CellColumns) -> CellLayout:
    """The partial columns of an operator's cells. A column's name begins with the position of its buffer."""
    return CellLayout(tuple(c for m in spec.merges for c in _columns(m, spec)))


def _columns(m: Merge, spec: CellColumns) -> list[CellColumn]:
    return _codec_of(m, spec).columns(m, _dtype(spec.buffer_types[m.columns[0]]))


def _codec_of(m: Merge, spec: CellColumns) -> _Codec:
    if m.merge in ("min_by", "max_by") and ordered_values.is_wide(spec.buffer_types[m.columns[1]]):
        return _ORDERED
    return _CODECS[m.merge]


@dataclass(frozen=True)
class BufferCodec:
    """Translation of the buffers of one operator; ``heap`` holds the bytes of minima and maxima of strings."""

    spec: CellColumns
    heap: BytesHeap

    def decode(self, buffers: list[pa.Array], arrived: int | None = 0) -> tuple[CellArrays, ...]:
        """Arrow buffers of n cells, in the order of the specification, the hidden ones included, to partial columns.

        ``arrived``: how many values arrived before these; None where they keep the numbers that Spark gave them, since
        others will be put between them.
        """
        out: list[CellArrays] = []
        for m in self.spec.merges:
            out += _codec_of(m, self.spec).decode(m, [buffers[c] for c in m.places], arrived, self.heap)
        return tuple(out)

    def encode(self, columns: tuple[CellArrays, ...], hidden: bool = False) -> list[pa.Array]:
        """Partial columns of n cells or windows to Arrow buffers in the order of the specification, and the hidden ones
        of cells.
        """
        types = self.spec.buffer_types
        out: dict[int, pa.Array] = {}
        at = 0
        for m in self.spec.merges:
            end = at + len(_columns(m, self.spec))
            of_merge = [types[c] for c in m.columns]
            arrays = _codec_of(m, self.spec).encode(m, columns[at:end], of_merge, self.heap)
            out.update(zip(m.places, arrays, strict=True))
            at = end
        return [out[c] for c in range(len(types) + (self.spec.hidden if hidden else 0))]


def arriving_at(
    spec: CellColumns, columns: Sequence[CellArrays], hidden: Sequence[np.ndarray]
) -> tuple[CellArrays, ...]:
    """The partial columns of n cells with these hidden columns, int64[n] each: when their values arrived."""
    out: list[CellArrays] = []
    at = 0
    for m in spec.merges:
        end = at + len(_columns(m, spec))
        part = columns[at:end]
        out += part if m.arrival < 0 else arrivals.arriving_at(m, part, hidden[m.arrival - len(spec.buffer_types)])
        at = end
    return tuple(out)


def _dtype(t: pa.DataType) -> str:
    """The dtype of a partial column that holds values of this type."""
    found = dtype_of(t)
    assert found is not None
    return found


def _plain_columns(m: Merge, kind: str) -> list[CellColumn]:
    return [CellColumn(f"{m.number}", m.merge, kind, nullable=m.nullable, wrap=m.wrap)]


def _decode_plain(m: Merge, buffers: Sequence[pa.Array], arrived: int | None, heap: BytesHeap) -> list[CellArrays]:
    return [CellArrays(words_of(buffers[0], heap), validity_of(buffers[0]) if m.nullable else None)]


def _encode_plain(
    m: Merge, columns: Sequence[CellArrays], types: Sequence[pa.DataType], heap: BytesHeap
) -> list[pa.Array]:
    return [array_of(columns[0].values, columns[0].valid, types[0], heap)]


def _bit_columns(m: Merge, kind: str) -> list[CellColumn]:
    if kind != "bytes":
        return _plain_columns(m, kind)
    return [CellColumn(f"{m.number}word{w}", m.merge, "int64") for w in range(BITMAP_WORDS)]


def _decode_bits(m: Merge, buffers: Sequence[pa.Array], arrived: int | None, heap: BytesHeap) -> list[CellArrays]:
    if _dtype(buffers[0].type) != "bytes":
        return _decode_plain(m, buffers, arrived, heap)
    bitmaps = buffers[0].cast(pa.binary(8 * BITMAP_WORDS))  # raises where one has another length
    words = np.frombuffer(bitmaps.buffers()[1], np.int64).reshape(-1, BITMAP_WORDS)
    return [CellArrays((w,), None) for w in words[bitmaps.offset : bitmaps.offset + len(bitmaps)].T.copy()]


def _encode_bits(
    m: Merge, columns: Sequence[CellArrays], types: Sequence[pa.DataType], heap: BytesHeap
) -> list[pa.Array]:
    if _dtype(types[0]) != "bytes":
        return _encode_plain(m, columns, types, heap)
    words = np.stack([c.values[0] for c in columns], axis=1)
    fixed = pa.Array.from_buffers(pa.binary(8 * BITMAP_WORDS), len(words), [None, pa.py_buffer(words)])
    return [fixed.cast(types[0])]


def _statistic_columns(m: Merge, kind: str) -> list[CellColumn]:
    return [CellColumn(f"{m.number}", m.merge, "float64")]


def _decode_statistic(m: Merge, buffers: Sequence[pa.Array], arrived: int | None, heap: BytesHeap) -> list[CellArrays]:
    return [CellArrays(_statistics(m.merge, [values_of(a) for a in buffers]), None)]


def _encode_statistic(
    m: Merge, columns: Sequence[CellArrays], types: Sequence[pa.DataType], heap: BytesHeap
) -> list[pa.Array]:
    return [pa.array(v) for v in columns[0].values]


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


def _decimal_columns(m: Merge, kind: str) -> list[CellColumn]:
    first = m.number
    sums = [
        CellColumn(f"{first}{p}", "sum", "int128") for p in ([""] if m.precision <= NARROW_PRECISION else ["hi", "lo"])
    ]
    return [*sums, CellColumn(f"{first}lost", "max", "int64"), CellColumn(f"{first}some", "max", "int64")]


def _decode_decimal(m: Merge, buffers: Sequence[pa.Array], arrived: int | None, heap: BytesHeap) -> list[CellArrays]:
    array = buffers[0]
    empty = values_of(buffers[1]) != 0 if m.merge == "decimal_sum" else np.zeros(len(array), bool)
    null = validity_of(array) == 0
    hi, lo = words_of(array, None)
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


def _encode_decimal(
    m: Merge, parts: Sequence[CellArrays], types: Sequence[pa.DataType], heap: BytesHeap
) -> list[pa.Array]:
    """The total, null where it overflowed, now or in a buffer that came in."""
    lost = parts[-2].values[0] != 0
    if m.precision <= NARROW_PRECISION:
        hi, lo = parts[0].values
        fits = np.ones(len(hi), bool)
    else:
        (high_hi, high_lo), (low_hi, low_lo) = parts[0].values, parts[1].values
        hi, lo, fits = decimals.combine((high_hi, high_lo), (low_hi, low_lo))
    lost = lost | ~fits | ~decimals.within(hi, lo, m.precision)
    some = parts[-1].values[0] != 0
    known = ~lost | ~some if m.merge == "decimal_sum" else ~lost
    total = decimals.join(np.where(lost, 0, hi), np.where(lost, np.uint64(0), lo), types[0], valid=known)
    return [total, pa.array(~some)] if m.merge == "decimal_sum" else [total]


_PLAIN = _Codec(_plain_columns, _decode_plain, _encode_plain)
_BITS = _Codec(_bit_columns, _decode_bits, _encode_bits)
_STATISTIC = _Codec(_statistic_columns, _decode_statistic, _encode_statistic)
_DECIMAL = _Codec(_decimal_columns, _decode_decimal, _encode_decimal)
_ARRIVAL = _Codec(arrivals.columns_of, arrivals.decode, arrivals.encode)
_ORDERED = _Codec(ordered_values.columns_of, ordered_values.decode, ordered_values.encode)
_CODECS: Final = {
    **dict.fromkeys(PLAIN_MERGES, _PLAIN),
    **dict.fromkeys((BIT_AND, BIT_OR), _BITS),
    **dict.fromkeys(STATISTICS, _STATISTIC),
    **dict.fromkeys(("decimal_sum", "decimal_avg_sum"), _DECIMAL),
    **dict.fromkeys(ARRIVAL_MERGES, _ARRIVAL),
}
