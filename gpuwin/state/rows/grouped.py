"""Rows of windows that do not overlap, put together by window straight from those that wait.

A counting sort: a table says to which of the windows asked for a row belongs, by its pane and its key. Rows of a window
stay in order of arrival, and nothing is sorted by time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from gpuwin.state.rows.gathering import gathered, joined
from gpuwin.state.rows.row_runs import shown
from gpuwin.state.rows.slices import RowSlices
from gpuwin.state.rows.waiting_rows import WaitingRows
from gpuwin_kernels.cpu.groups import begin_groups, find_groups, place_groups
from gpuwin_kernels.cpu.kept_memory import empty, full
from gpuwin_kernels.cpu.parallel import each, ranges

_TABLE_ANYWAY = 1 << 16
"""Cells of a table that is always worth it."""

_TABLE_SPARSITY = 8
"""Cells of a larger table for each row and each window, at most."""


class GroupedSlices(RowSlices):
    """Slices whose codes, times and numbers of arrival are gathered when they are read, which few aggregates do."""

    _parts: Sequence[WaitingRows]
    _order: np.ndarray

    def __init__(
        self, parts: Sequence[WaitingRows], types: Sequence[pa.DataType], order: np.ndarray, first: np.ndarray
    ) -> None:
        """
        Args:
            types: of the values as they came.
            order: positions in the rows of all parts, window by window, int64[rows].
            first: where each window begins in it, int64[windows + 1].
        """
        columns = zip(*(p.values for p in parts), strict=True)
        whole = [column[0] if len(column) == 1 else pa.concat_arrays(column) for column in columns]
        set_ = object.__setattr__
        values = zip(gathered([], whole, order)[1], types, strict=True)
        set_(self, "values", tuple(shown(v, type_) for v, type_ in values))
        set_(self, "lo", first[:-1])
        set_(self, "hi", first[1:])
        set_(self, "by", "arrival")
        set_(self, "_parts", parts)
        set_(self, "_order", order)

    def _gathered(self, of: Callable[[WaitingRows], np.ndarray]) -> np.ndarray:
        gathered: np.ndarray = joined([of(part) for part in self._parts])[self._order]
        return gathered

    @cached_property
    def code(self) -> np.ndarray:
        return self._gathered(lambda part: part.code)

    @cached_property
    def time(self) -> np.ndarray:
        return self._gathered(lambda part: part.time)

    @cached_property
    def seq(self) -> np.ndarray:
        return self._gathered(lambda part: part.seq)


def grouped(
    parts: Sequence[WaitingRows],
    types: Sequence[pa.DataType],
    code: np.ndarray,
    window: np.ndarray,
    panes: Callable[[np.ndarray], np.ndarray],
) -> GroupedSlices | None:
    """Rows of the windows `window` (int64[w]) of keys `code` (int32[w]), each window once, and each one pane.

    `panes` gives the panes of times. None where keys and panes are so many that a table of them would cost more than
    the rows.
    """
    rows = sum(map(len, parts))
    if not rows or not len(code):
        return None
    codes, first = int(code.max()) + 1, int(window.min())
    spread = int(window.max()) - first + 1
    if spread * codes > max(_TABLE_ANYWAY, _TABLE_SPARSITY * (rows + len(code))):
        return None
    table = full(spread * codes, -1, np.int32)
    table[(window - first) * codes + code] = np.arange(len(code), dtype=np.int32)
    of_row = joined([p.code for p in parts])
    pane = joined([panes(p.time) for p in parts])
    cuts = list(enumerate(ranges(rows)))
    group = empty(rows, np.int32)
    counts = np.zeros((len(cuts), len(code)), np.int64)
    each(lambda cut: find_groups(of_row, pane, *cut[1], first, spread, codes, table, group, counts[cut[0]]), cuts)
    begins = begin_groups(counts)
    order = empty(begins[-1], np.int64)
    each(lambda cut: place_groups(group, *cut[1], counts[cut[0]], order), cuts)
    return GroupedSlices(parts, types, order, begins)
