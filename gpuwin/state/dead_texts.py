"""Dead texts of a heap, which no cell holds any more, and the heap without them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuwin.state.cells import Columns
from gpuwin.state.heap import BytesHeap
from gpuwin_kernels.layout import CellArrays, CellLayout


def smaller(layout: CellLayout, heap: BytesHeap, cells: Sequence[Columns]) -> tuple[BytesHeap, list[Columns]] | None:
    """Heap of the texts that these cells hold, and the cells with their codes in it. None unless the dead texts are
    looked for, and are more than half of the bytes.
    """
    if not heap.is_due:
        return None
    at = [i for i, column in enumerate(layout.columns) if column.dtype == "bytes"]
    used = np.zeros(len(heap), bool)
    for columns in cells:
        for i in at:
            codes, valid = columns[i].values[-1], columns[i].valid
            used[codes if valid is None else codes[valid != 0]] = True
    alive = np.flatnonzero(used)
    if 2 * heap.length_of(alive) > heap.used:
        heap.least = heap.used
        return None
    kept, new_code = heap.kept(alive)
    return kept, [tuple(_renumbered(c, new_code) if i in at else c for i, c in enumerate(columns)) for columns in cells]


def _renumbered(cells: CellArrays, new_code: np.ndarray) -> CellArrays:
    *others, codes = cells.values
    if cells.valid is not None:
        codes = np.where(cells.valid != 0, codes, 0)
    return cells._replace(values=(*others, new_code[codes]))
