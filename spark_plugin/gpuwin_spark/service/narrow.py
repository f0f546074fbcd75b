"""Cells whose integers take the fewest bytes that hold them, for the shuffle and the log.

Keys, panes and counts of a batch lie close together. Such a column is kept as small integers ``v``, of which the values
are ``base + step * v``; one of equal values has no ``v`` at all. The field's metadata has base and step, and
``ArrowChunks.scala`` reads them too (frame of reference: Goldstein, Ramakrishnan, Shaft, "Compressing relations and
indexes", ICDE 1998).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from gpuwin.state.buffers import fixed_values
from gpuwin_kernels.cpu.floors import floors
from gpuwin_kernels.cpu.linear import linear

from .protocol import LEAST_NARROWED

_BASE: Final = b"gpuwin.base"
_STEP: Final = b"gpuwin.unit"  # as logs of checkpoints have it
_WIDE: Final = b"gpuwin.type"
_SMALL: Final = (np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32))


def narrowed(cells: pa.RecordBatch, steps: Mapping[int, int], streams: int = 1) -> pa.RecordBatch:
    """The cells with narrow columns where integers allow it; those with nulls, and batches of few bytes, stay.

    Args:
        cells: of any columns.
        steps: by column, the distance in which its values come, if they come in one: the width of a pane.
        streams: how many Arrow streams they will be.
    """
    if cells.nbytes < LEAST_NARROWED * streams:
        return cells
    columns, fields = [], []
    for i, field in enumerate(cells.schema):
        column, metadata = _narrow(cells.column(i), steps.get(i, 1))
        columns.append(column)
        fields.append(pa.field(field.name, column.type, metadata=metadata))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def widened(table: pa.Table) -> pa.Table:
    """The table that was narrowed, with the types that it had."""
    for i, field in enumerate(table.schema):
        if field.metadata is not None and _BASE in field.metadata:
            wide = np.dtype(field.metadata[_WIDE].decode("ascii"))
            base, step = int(field.metadata[_BASE]), int(field.metadata[_STEP])
            chunks = [_wide(chunk, base, step, wide) for chunk in table.column(i).chunks]
            table = table.set_column(i, field.name, pa.chunked_array(chunks, pa.from_numpy_dtype(wide)))
    return table


def _narrow(column: pa.Array, step: int) -> tuple[pa.Array, dict[bytes, bytes] | None]:
    if not pa.types.is_signed_integer(column.type) or column.null_count or not len(column):
        return column, None
    wide = np.dtype(column.type.to_pandas_dtype())
    values = fixed_values(column, wide)
    low, high = int(values.min()), int(values.max())
    if low == high:
        return pa.nulls(len(values)), _metadata(low, 1, wide)
    if step > 1 and wide == np.int64 and step <= high - low < 1 << 63:
        multiples = floors(values, low, step)
        if np.array_equal(linear(multiples, step, low), values):
            small = _smallest((high - low) // step, wide)
            if small is not None:
                half = 1 << (8 * small.itemsize - 1)
                return _less(multiples, half, small), _metadata(low + half * step, step, wide)
    small = _smallest(high - low, wide)
    if small is None:
        return column, None
    base = low + (1 << (8 * small.itemsize - 1))
    return _less(values, _wrapped(base), small), _metadata(base, 1, wide)


def _less(values: np.ndarray, base: int, small: np.dtype) -> pa.Array:
    """values - base, in the bits of a smaller dtype."""
    return pa.array(np.subtract(values, base, out=np.empty(len(values), small), dtype=np.int64, casting="unsafe"))


def _smallest(span: int, wide: np.dtype) -> np.dtype | None:
    """The smallest dtype that holds 0 to ``span``, less a half of what it holds; None where none is smaller."""
    return next((t for t in _SMALL if t.itemsize < wide.itemsize and span < 1 << (8 * t.itemsize)), None)


def _metadata(base: int, step: int, wide: np.dtype) -> dict[bytes, bytes]:
    return {_BASE: b"%d" % _wrapped(base), _STEP: b"%d" % step, _WIDE: wide.name.encode("ascii")}


def _wrapped(number: int) -> int:
    """The number modulo 2^64, as an int64: sums with it come out right where they fit."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _wide(chunk: pa.Array, base: int, step: int, wide: np.dtype) -> pa.Array:
    if pa.types.is_null(chunk.type):
        return pa.array(np.full(len(chunk), base, wide))
    small = fixed_values(chunk, np.dtype(chunk.type.to_pandas_dtype()))
    values = small.astype(np.int64) if step == 1 else np.multiply(small, step, dtype=np.int64)
    values += base
    return pa.array(values.astype(wide, copy=False))
