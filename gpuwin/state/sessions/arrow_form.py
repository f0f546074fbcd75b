"""Sessions as an Arrow record batch, for snapshots, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gpuwin.state.cells import arrow_of
from gpuwin.state.heap import BytesHeap
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin_kernels.layout import CellArrays, CellLayout

_BOUNDS = ("code", "start", "last", "end", "id", "filled")


def sessions_to_arrow(layout: CellLayout, sessions: SessionBatch, heap: BytesHeap | None) -> pa.RecordBatch:
    """Record batch with the columns code, start, last, end, id, filled, then `<column>.<k>` for each array of a partial
    column and `<column>.valid`.

    Bytes leave their heap and travel as large_binary.
    """
    arrays = dict(zip(_BOUNDS, map(pa.array, sessions.bounds()), strict=True))
    for column, cells in zip(layout.columns, sessions.columns, strict=True):
        arrays |= {f"{column.name}.{word}": array for word, array in arrow_of(column, cells, heap).items()}
    return pa.record_batch(arrays)


def sessions_from_arrow(
    layout: CellLayout, like: tuple[CellArrays, ...], data: pa.RecordBatch, heap: BytesHeap | None
) -> SessionBatch:
    """Inverse of `sessions_to_arrow`; `like` are the columns of no cells. Raises ValueError if the batch is not of this
    layout.
    """
    expected = list(_BOUNDS)
    for column, cells in zip(layout.columns, like, strict=True):
        expected += [f"{column.name}.{k}" for k in range(len(cells.values))]
        expected += [f"{column.name}.valid"] if cells.valid is not None else []
    if data.schema.names != expected:
        raise ValueError(f"not a state of sessions with columns {expected}: {data.schema.names}")
    columns = []
    for column, cells in zip(layout.columns, like, strict=True):
        heap_at = len(cells.values) - 1 if column.dtype == "bytes" else -1
        values = []
        for k, model in enumerate(cells.values):
            array = data.column(f"{column.name}.{k}")
            if k == heap_at and heap is not None:
                values.append(heap.put(array))
            elif array.type != pa.from_numpy_dtype(model.dtype):
                raise ValueError(f"column {column.name}.{k} is {array.type}, and should be {model.dtype}")
            else:
                values.append(np.array(array))
        valid = None if cells.valid is None else np.array(data.column(f"{column.name}.valid"))
        columns.append(CellArrays(tuple(values), valid))
    return SessionBatch.of([np.array(data.column(name)) for name in _BOUNDS], tuple(columns))
