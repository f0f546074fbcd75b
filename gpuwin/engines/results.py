"""Result rows: keys, window bounds and finished aggregates, in the types of the output schema."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuwin.errors import OverflowError
from gpuwin.planning.plan import Output, Plan
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.rows.slices import RowSlices
from gpuwin.vocabulary.windows import GlobalWindow
from gpuwin_kernels.layout import CellArrays

TIMINGS = pa.array(["early", "on_time", "late"])
EARLY, ON_TIME, LATE = 0, 1, 2


def merges_schema(output: pa.Schema, keys: int) -> pa.Schema:
    """Schema of `WindowOperator.session_merges`, for an output schema that begins with so many keys."""
    start, end = output.field("window_start"), output.field("window_end")
    parts = (start.with_name("merged_start"), end.with_name("merged_end"))
    return pa.schema([*(output.field(k) for k in range(keys)), start, end, *parts])


def finished(
    plan: Plan, columns: Sequence[CellArrays], heap: BytesHeap | None, slices: RowSlices | None
) -> list[pa.Array]:
    """Values of results, one array per aggregate."""
    heap = None if heap is None else heap.with_texts_of(plan.layout, columns)
    out = [_finished(output, columns, heap) for output in plan.outputs]
    for of_rows in plan.of_rows:
        assert slices is not None
        for at, array in zip(of_rows.at, of_rows.finish(slices), strict=True):
            type_ = plan.outputs[at].type
            out[at] = array if array.type == type_ else array.cast(type_)
    return out


def _finished(output: Output, columns: Sequence[CellArrays], heap: BytesHeap | None) -> pa.Array | None:
    if output.finish is None:
        return None
    try:
        return output.finish(columns, heap)
    except OverflowError as error:
        raise OverflowError(
            f"aggregate {output.name!r}: {error}; cast its column to float64, or aggregate smaller values"
        ) from error


def result(
    plan: Plan,
    keys: KeyDictionary,
    code: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    values: Sequence[pa.Array],
    timing: np.ndarray | None = None,
    retraction: np.ndarray | None = None,
) -> pa.RecordBatch:
    """Record batch of the output schema. `timing`: int64 of EARLY, ON_TIME, LATE; `retraction`: bool."""
    schema = plan.schema
    found = keys.take(code)[: len(plan.key_types)]
    arrays = [a if a.type == t else a.cast(t) for a, t in zip(found, plan.key_types, strict=True)]
    bound = schema.field("window_start").type
    if isinstance(plan.spec.window, GlobalWindow):
        arrays += [pa.nulls(len(code), bound)] * 2
    else:
        arrays += [pa.array(start).view(bound), pa.array(end).view(bound)]
    arrays += values
    if "pane" in schema.names[len(arrays) :]:
        arrays.append(TIMINGS.take(pa.array(timing if timing is not None else np.full(len(code), ON_TIME))))
    if len(arrays) < len(schema.names):
        arrays.append(pa.array(retraction if retraction is not None else np.zeros(len(code), bool)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_table(plan: Plan, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Results of one call as a table."""
    some = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(some, schema=plan.schema)
