"""Parts of a state as record batches, and their inverse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuwin.engines.step import Parts
from gpuwin.planning.plan import Plan
from gpuwin.state.cells import Columns, arrow_of
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import Run
from gpuwin.state.rows.row_state import RowState
from gpuwin_kernels.layout import CellArrays, CellLayout


def key_part(keys: KeyDictionary) -> pa.RecordBatch:
    """Keys in the order of their codes; a counter stands in where there are no key columns."""
    codes = np.arange(len(keys), dtype=np.int32)
    columns = keys.take(codes)
    return pa.record_batch([pa.array(codes), *columns], names=["code", *(f"key_{k}" for k in range(len(columns)))])


def keys_of(types: Sequence[pa.DataType], part: pa.RecordBatch) -> KeyDictionary:
    """Inverse of `key_part`. Raises ValueError if two keys are equal."""
    keys = KeyDictionary(types)
    codes = keys.encode(part.columns[1:], part.num_rows)
    if types and not np.array_equal(codes, np.asarray(part.column("code"))):
        raise ValueError("the keys of the snapshot are not all different")
    return keys


def cell_columns(layout: CellLayout, cells: Columns, heap: BytesHeap) -> tuple[list[pa.Array], list[str]]:
    """Arrays of cells and their names: `<number>.<word>` for each array of a partial column, and `<number>.valid`.
    Texts are written out, not as codes of the heap.
    """
    named = {
        f"{number}.{word}": array
        for number, (column, part) in enumerate(zip(layout.columns, cells, strict=True))
        for word, array in arrow_of(column, part, heap).items()
    }
    return list(named.values()), list(named)


def cells_of(layout: CellLayout, part: pa.RecordBatch, heap: BytesHeap) -> Columns:
    """Inverse of `cell_columns`. Raises ValueError or KeyError for columns of another layout."""
    cells = []
    for number, column in enumerate(layout.columns):
        values = []
        for k, word in enumerate(column.words):
            array = part.column(f"{number}.{k}")
            if column.dtype == "bytes" and k == len(column.words) - 1:
                values.append(heap.put(array.fill_null(b"")))
                continue
            if array.type != pa.from_numpy_dtype(np.dtype(word)):
                raise ValueError(f"cells of {column.name!r} are {array.type}, not {word}")
            values.append(np.asarray(array))
        valid = np.asarray(part.column(f"{number}.valid")) if column.nullable else None
        cells.append(CellArrays(tuple(values), valid))
    return tuple(cells)


def with_numbers(part: pa.RecordBatch, **numbers: int) -> pa.RecordBatch:
    """The part with single numbers in its metadata."""
    return part.replace_schema_metadata({name: str(value) for name, value in numbers.items()})


def number(part: pa.RecordBatch, name: str) -> int:
    """Inverse of `with_numbers` for one number. Raises ValueError if it is missing."""
    found = (part.schema.metadata or {}).get(name.encode())
    if found is None:
        raise ValueError(f"{name} is missing")
    return int(found)


def pane_parts(panes: PaneState, **numbers: int) -> Parts:
    """Keys and cells of a state of panes, as named parts."""
    whole = panes.compacted()
    run = whole.runs[0] if whole.runs else Run.empty(panes.layout)
    arrays, names = cell_columns(panes.layout, run.columns, panes.heap)
    cells = pa.record_batch([pa.array(run.pane), pa.array(run.code), *arrays], names=["pane", "code", *names])
    return {"keys": key_part(panes.keys), "cells": with_numbers(cells, **numbers)}


def panes_of(layout: CellLayout, key_types: Sequence[pa.DataType], parts: Parts) -> PaneState:
    """Inverse of `pane_parts`. Raises ValueError for a cell whose key is missing."""
    empty = PaneState.empty(layout, key_types)
    keys, cells = keys_of(key_types, parts["keys"]), parts["cells"]
    columns = cells_of(layout, cells, empty.heap)
    state = PaneState(layout, keys, empty.heap)
    pane, code = np.asarray(cells.column("pane")), np.asarray(cells.column("code"))
    if len(code) and (int(code.min()) < 0 or int(code.max()) >= max(len(keys), 1)):
        raise ValueError("a cell has a key that is not in the dictionary")
    return state.add(Run.from_cells(layout, pane, code, columns, empty.heap)) if len(pane) else state


def row_parts(rows: RowState | None) -> Parts:
    """Raw rows as a named part; no part where there are none."""
    return {} if rows is None else {"rows": rows.to_arrow()}


def rows_of(plan: Plan, parts: Parts) -> RowState | None:
    """Inverse of `row_parts`; None for a plan that keeps no rows."""
    if not plan.keeps_rows:
        return None
    return RowState.from_arrow(
        [plan.types[name] for name in plan.row_names], parts["rows"], plan.sketches, plan.kept_rows
    )
