"""Raw values, kept for the aggregates that no fixed-size partial can answer (median, collect_list, ...).

Rows are kept in runs sorted by (key code, time, seq): every window of a key is a contiguous slice of what `select` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RowSlices:
    """The rows of some windows: window w holds rows [lo[w], hi[w]) of `time`, `seq` and `values`. Windows of one key may overlap."""

    code: np.ndarray  # int32[rows]
    time: np.ndarray  # int64[rows]
    seq: np.ndarray  # int64[rows]
    values: tuple[pa.Array, ...]
    lo: np.ndarray  # int64[windows]
    hi: np.ndarray  # int64[windows]


class RowState:
    """Rows by (key code, time, seq). Immutable like the other states; keys are codes of the caller's dictionary."""

    types: tuple[pa.DataType, ...]
    cells: int  # rows kept
    nbytes: int

    @classmethod
    def empty(cls, types: Sequence[pa.DataType]) -> RowState:
        """`types`: the value columns that the holistic aggregates read (any Arrow type, nulls allowed)."""

    def add(self, code: np.ndarray, time: np.ndarray, seq: np.ndarray, values: Sequence[pa.Array | pa.ChunkedArray]) -> RowState:
        """int32[n], int64[n], int64[n] (arrival number, growing over the life of the stream), one array of n values per column."""

    def select(self, code: np.ndarray, start: np.ndarray, end: np.ndarray, since: np.ndarray | None = None) -> RowSlices:
        """The rows of each window: key `code[w]`, `start[w] <= time < end[w]` (int64; int64 max as end: no end), and `seq >= since[w]` if given (discarding)."""

    def evict(self, before: int) -> RowState:
        """Forgets rows with `time < before`."""

    def dropped(self, code: np.ndarray, start: np.ndarray, end: np.ndarray) -> RowState:
        """Forgets the rows of these windows (closed sessions: their rows must not be seen by a later session of the key)."""

    def used_codes(self) -> np.ndarray: ...

    def recoded(self, new_code: np.ndarray) -> RowState: ...

    def to_arrow(self) -> pa.RecordBatch: ...

    @classmethod
    def from_arrow(cls, types: Sequence[pa.DataType], data: pa.RecordBatch) -> RowState: ...


# gpuwin/state/holistic.py: the finishing functions. Each takes the slices, the number of the value column, and gives one Arrow array with one value per window;
# nulls are skipped. `order`: "arrival" or "time", the order in which order-dependent results list their values.
#
#   median(slices, column) -> float64               null for a window without values; linear interpolation; NaN is the largest
#   quantile(slices, column, q) -> float64          exact, linear interpolation (Spark's percentile)
#   approx_quantile(slices, column, q, accuracy) -> type of the column
#   count_distinct(slices, column) -> int64
#   approx_count_distinct(slices, column, rsd) -> int64
#   collect_list(slices, column, order) -> list<T>
#   collect_set(slices, column, order) -> list<T>   first occurrences, in that order
#   top_k(slices, column, k) -> list<T>             descending
#   histogram(slices, column) -> map<T, int64>      by value
#   mode / min_by ... are pane-able and not here
