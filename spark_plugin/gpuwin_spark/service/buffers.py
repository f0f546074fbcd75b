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
import pyarrow.compute as pc

from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

from . import decimals
from .operator_spec import CellColumns, Merge

# A decimal sum of this precision or less cannot leave 128 bits before 10^8 cells of the largest value were added.
NARROW_PRECISION: Final = 30


def layout_of(spec: CellColumns) -> CellLayout:
    """The partial columns of an operator's cells. A column's name begins with the position of its buffer."""
    return CellLayout(tuple(c for m in spec.merges for c in _columns(m, spec)))


def _columns(m: Merge, spec: CellColumns) -> list[CellColumn]:
    first = m.columns[0]
    kind = _physical(spec.buffer_types[first])
    if m.merge == "moments":
        return [CellColumn(f"{first}", "moments", "float64")]
    if m.merge in ("decimal_sum", "decimal_avg_sum"):
        parts = [""] if m.precision <= NARROW_PRECISION else ["hi", "lo"]
        sums = [CellColumn(f"{first}{p}", "sum", "int128") for p in parts]
        return [*sums, CellColumn(f"{first}lost", "max", "int64"), CellColumn(f"{first}some", "max", "int64")]
    return [CellColumn(f"{first}", m.merge, kind, nullable=m.nullable, wrap=m.wrap)]


def _physical(t: pa.DataType) -> str:
    if pa.types.is_floating(t):
        return "float64"
    if pa.types.is_decimal(t):
        return "int128"
    if pa.types.is_string(t) or pa.types.is_binary(t):
        return "bytes"
    return "int64"


@dataclass(frozen=True)
class BufferCodec:
    """Translates the buffers of one operator; ``heap`` holds the bytes of minima and maxima of strings."""

    spec: CellColumns
    heap: BytesHeap

    def decode(self, buffers: list[pa.Array]) -> tuple[CellArrays, ...]:
        """Arrow buffers of n cells, in the order of the specification, to partial columns."""
        out: list[CellArrays] = []
        for m in self.spec.merges:
            arrays = [buffers[c] for c in m.columns]
            if m.merge == "moments":
                out.append(CellArrays(tuple(values_of(a) for a in arrays), None))
            elif m.merge == "decimal_sum":
                out.extend(_decode_decimal_sum(m, arrays[0], empty=values_of(arrays[1]) != 0))
            elif m.merge == "decimal_avg_sum":
                out.extend(_decode_decimal_sum(m, arrays[0], empty=np.zeros(len(arrays[0]), bool)))
            else:
                out.append(self._decode_plain(m, arrays[0]))
        return tuple(out)

    def _decode_plain(self, m: Merge, array: pa.Array) -> CellArrays:
        valid = validity_of(array) if m.nullable else None
        if pa.types.is_decimal(array.type):
            return CellArrays(decimals.split(array), valid)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            return CellArrays((self.heap.put(array),), valid)
        return CellArrays((values_of(array),), valid)

    def encode(self, columns: tuple[CellArrays, ...]) -> list[pa.Array]:
        """Partial columns of n cells or windows to Arrow buffers in the order of the specification."""
        types = self.spec.buffer_types
        out: list[pa.Array | None] = [None] * len(types)
        at = 0
        for m in self.spec.merges:
            first = m.columns[0]
            if m.merge == "moments":
                for c, v in zip(m.columns, columns[at].values, strict=True):
                    out[c] = pa.array(v)
                at += 1
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
                out[first] = self._encode_plain(columns[at], types[first])
                at += 1
        return [a for a in out if a is not None]

    def _encode_plain(self, column: CellArrays, t: pa.DataType) -> pa.Array:
        if pa.types.is_decimal(t):
            hi, lo = column.values
            return decimals.join(hi, lo, t, valid=column.valid)
        mask = None if column.valid is None else column.valid == 0
        if pa.types.is_string(t) or pa.types.is_binary(t):
            return self.heap.take(column.values[0], column.valid, t)
        values = column.values[0]
        if pa.types.is_boolean(t):
            values = values != 0
        elif values.dtype != t.to_pandas_dtype():
            if mask is not None:
                values = np.where(mask, 0, values)
            values = values.astype(t.to_pandas_dtype())
        return pa.array(values, t, mask=mask)


def values_of(array: pa.Array) -> np.ndarray:
    """The values of a numeric or boolean array as int64 or float64, whatever its nulls hold; shape (n,)."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    values = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype())[array.offset : array.offset + len(array)]
    return values.astype(np.float64 if pa.types.is_floating(array.type) else np.int64, copy=False)


def validity_of(array: pa.Array) -> np.ndarray:
    """uint8[n]: 1 where the array has a value."""
    if array.null_count == 0:
        return np.ones(len(array), np.uint8)
    return values_of(pc.is_valid(array)).astype(np.uint8)


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
