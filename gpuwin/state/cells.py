"""Cells as tuples of partial columns: taking, joining and merging them, for columns of any kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpuwin.errors import OverflowError
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import widened
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.columns import column_kernels
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each
from gpuwin_kernels.cpu.walk import narrow_wide
from gpuwin_kernels.layout import SUM, CellArrays, CellColumn, CellLayout

Columns = tuple[CellArrays, ...]


def arrow_of(column: CellColumn, cells: CellArrays, heap: BytesHeap | None) -> dict[str, pa.Array]:
    """Arrays of a partial column, by the word that tells them apart: their number, or `valid`. Texts are written out as
    large_binary, not as codes of the heap, which may be None where the column has none.
    """
    arrays = {str(k): pa.array(values) for k, values in enumerate(cells.values)}
    if column.dtype == "bytes" and heap is not None:
        last = len(cells.values) - 1
        arrays[str(last)] = heap.take(cells.values[last], cells.valid, pa.large_binary())
    return arrays if cells.valid is None else {**arrays, "valid": pa.array(cells.valid)}


_NO_OFFSETS = np.zeros(1, np.int64)
_NO_DATA = np.zeros(0, np.uint8)


def empty_cells(layout: CellLayout, n: int) -> Columns:
    """n cells of no rows: what an aggregate is of an empty window."""
    return tuple(
        CellArrays(tuple(np.zeros(n, w) for w in c.words), np.zeros(n, np.uint8) if c.nullable else None)
        for c in layout.columns
    )


def empty_column(column: CellColumn, n: int) -> CellArrays:
    """n cells with unset contents, invalid if the column is nullable."""
    return CellArrays(tuple(empty(n, w) for w in column.words), np.zeros(n, np.uint8) if column.nullable else None)


def take_cells(columns: Columns, at: np.ndarray | slice) -> Columns:
    """The cells at some positions, or a slice of them (which copies nothing)."""
    return tuple(c.each(lambda v: v[at]) for c in columns)


def copied_cells(columns: Columns) -> Columns:
    """The cells in arrays of their own."""
    return tuple(c.each(np.copy) for c in columns)


def concat_cells(parts: Sequence[Columns]) -> Columns:
    """The cells of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    arrays = iter(concat_arrays(list(zip(*(cell_arrays(part) for part in parts), strict=True))))
    return tuple(column.each(lambda _: next(arrays)) for column in parts[0])


def concat_arrays(lists: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """The arrays of each list, one after the other; by all threads if that pays. The lists are of equal lengths."""
    if not lists or sum([len(array) for array in lists[0]]) < tuning.SPLIT_ROWS:
        return [np.concatenate(arrays) for arrays in lists]
    threads = tuning.threads()

    def some(k: int) -> list[np.ndarray]:
        return [np.concatenate(arrays) for arrays in lists[k::threads]]

    found = each(some, range(threads))
    return [found[i % threads][i // threads] for i in range(len(lists))]


def cell_arrays(columns: Columns) -> list[np.ndarray]:
    """All arrays of cells: of each column the words, then the validity if it is nullable. `columns_from_arrays` is the
    way back.
    """
    return [array for column in columns for array in column.arrays]


def cells_nbytes(columns: Columns) -> int:
    """Bytes of the arrays, as if none were shared."""
    return sum(a.nbytes for c in columns for a in c.arrays)


def heap_arrays(heap: BytesHeap | None) -> tuple[np.ndarray, np.ndarray]:
    """(offsets, data) for kernels that compare codes of a heap."""
    return (_NO_OFFSETS, _NO_DATA) if heap is None else (heap.offsets, heap.data)


def is_exact_sum(column: CellColumn) -> bool:
    """Whether a sum of this column raises where it leaves its type."""
    return column.merge == SUM and column.dtype in ("int64", "int128") and not column.wrap


def sum_limit(column: CellColumn) -> int:
    """Magnitude that the sums of an integer column have to stay below."""
    return 1 << 127 if column.dtype == "int128" else 1 << 63


def overflow_error(column: CellColumn) -> OverflowError:
    """Error for a sum that leaves the type of its column."""
    bits, wider = (128, "float64") if column.dtype == "int128" else (64, "a wider type (decimal, or float64)")
    error = OverflowError(f"a sum in {column.name!r} does not fit {bits} bits; sum it as {wider}, or smaller values")
    error.column = column.name
    return error


def merge_cells(
    layout: CellLayout, columns: Columns, group: np.ndarray, groups: int, heap: BytesHeap | None = None
) -> Columns:
    """Cells of groups: cell i is merged into group[i] (int64[n] or int32[n], in [0, groups)), in the order of i. A
    group without cells holds anything.

    Raises gpuwin.OverflowError if an exact sum leaves its type.
    """
    return merge_parts(layout, [(columns, group)], groups, heap)


def merge_parts(
    layout: CellLayout, parts: Sequence[tuple[Columns, np.ndarray]], groups: int, heap: BytesHeap | None = None
) -> Columns:
    """Cells of groups, as of `merge_cells`, from several lists of cells, one after the other."""
    return tuple(
        _merge_column(column, [(columns[i], group) for columns, group in parts], groups, heap)
        for i, column in enumerate(layout.columns)
    )


def merge_onto(
    layout: CellLayout,
    cells: Columns,
    kept: np.ndarray | None,
    place: np.ndarray | None,
    units: Columns,
    group: np.ndarray,
    groups: int,
) -> Columns:
    """Cells of groups, from cells of which some are `kept` (int64, positions; None: all), with others merged into them.

    Kept cell i becomes group i, or place[i] if that is given (several may share one); cell j of `units` is merged into
    group[j] (int32[n], in [0, groups)). Raises gpuwin.OverflowError if an exact sum leaves its type.
    """
    if place is not None:
        some = cells if kept is None else take_cells(cells, kept)
        return merge_parts(layout, [(some, place), (units, group)], groups)
    return tuple(
        _merge_onto(column, cells[i], kept, units[i], group, groups) for i, column in enumerate(layout.columns)
    )


def _merge_onto(
    column: CellColumn, old: CellArrays, kept: np.ndarray | None, unit: CellArrays, group: np.ndarray, groups: int
) -> CellArrays:
    before = len(old.values[0]) if kept is None else len(kept)
    out = tuple(empty(groups, w) for w in column.words)
    valid = empty(groups, np.uint8)
    for word, values in zip(out, old.values, strict=True):
        _copy_taken(values, kept, word[:before])
    if old.valid is None:
        valid[:before] = 1
    else:
        _copy_taken(old.valid, kept, valid[:before])
    valid[before:] = 0
    if column_kernels(column).scatter(group, unit.validity, *unit.values, *out, valid, *heap_arrays(None)):
        here = old if kept is None else take_cells((old,), kept)[0]
        out, valid = _merge_exactly(column, [(here, np.arange(before)), (unit, group)], groups)
    if column.nullable:
        for word in out:
            word[valid == 0] = 0
    return CellArrays(out, valid if column.nullable else None)


def _copy_taken(values: np.ndarray, at: np.ndarray | None, out: np.ndarray) -> None:
    if at is None:
        out[:] = values
    else:
        np.take(values, at, out=out, mode="clip")


def _merge_column(
    column: CellColumn, parts: Sequence[tuple[CellArrays, np.ndarray]], groups: int, heap: BytesHeap | None
) -> CellArrays:
    out = tuple(empty(groups, w) for w in column.words)
    valid = np.zeros(groups, np.uint8)
    scatter = column_kernels(column).scatter
    left_type = False
    for cells, group in parts:
        left_type |= bool(scatter(group, cells.validity, *cells.values, *out, valid, *heap_arrays(heap)))
    if left_type:
        out, valid = _merge_exactly(column, parts, groups)
    if column.nullable:
        for word in out:
            word[valid == 0] = 0
    return CellArrays(out, valid if column.nullable else None)


def _merge_exactly(
    column: CellColumn, parts: Sequence[tuple[CellArrays, np.ndarray]], groups: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Column of an int64 sum that left its type on the way, summed in 128 bits: it may fit its type in the end."""
    if column.dtype != "int64":
        raise overflow_error(column)
    wide = CellColumn(column.name, SUM, "int128")
    hi, lo = np.zeros(groups, np.int64), np.zeros(groups, np.uint64)
    valid = np.zeros(groups, np.uint8)
    for cells, group in parts:
        wide_values = widened(cells.values[0])
        column_kernels(wide).scatter(group, cells.validity, *wide_values, hi, lo, valid, *heap_arrays(None))
    out = np.zeros(groups, np.int64)
    if not narrow_wide(hi, lo, valid, out):
        raise overflow_error(column)
    return (out,), valid
