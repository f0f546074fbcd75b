"""Windows and the rows that each of them holds, as places in a pool of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class HeldWindows:
    """Windows, sorted by (window, code). Window i holds the rows rows[first[i]:first[i + 1]], in order of arrival."""

    code: np.ndarray  # int32[w]
    window: np.ndarray  # int64[w]
    first: np.ndarray  # int64[w + 1]
    rows: np.ndarray  # int64[k], places
    count: np.ndarray  # int64[w], of rows, as in a `Ledger`
    closed: np.ndarray  # bool[w]

    @classmethod
    def none(cls) -> HeldWindows:
        no_numbers = np.empty(0, np.int64)
        one = np.zeros(1, np.int64)
        return cls(np.empty(0, np.int32), no_numbers, one, no_numbers, no_numbers, np.empty(0, bool))

    def __len__(self) -> int:
        return len(self.window)

    def recoded(self, new_code: np.ndarray) -> HeldWindows:
        """Windows with other codes, which ascend as the old ones do."""
        return replace(self, code=new_code[self.code].astype(np.int32))

    def with_places(self, place: np.ndarray) -> HeldWindows:
        """Windows whose rows have other places, `place` by the old ones."""
        return replace(self, rows=place[self.rows])

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(a.nbytes for a in (self.code, self.window, self.first, self.rows, self.count, self.closed))

    def to_arrow(self) -> pa.RecordBatch:
        """Record batch of a row for each window."""
        lists = pa.LargeListArray.from_arrays(pa.array(self.first), pa.array(self.rows))
        columns = {
            "code": pa.array(self.code.astype(np.int64)),
            "window": pa.array(self.window),
            "rows": lists,
            "count": pa.array(self.count),
            "closed": pa.array(self.closed),
        }
        return pa.record_batch(list(columns.values()), names=list(columns))

    @classmethod
    def from_arrow(cls, data: pa.RecordBatch) -> HeldWindows:
        """Inverse of `to_arrow`, whose windows may come in any order."""
        code, window = (np.asarray(data.column(name)) for name in ("code", "window"))
        ordered = data.take(pa.array(np.lexsort((code, window))))
        lists = ordered.column("rows")
        first = np.concatenate(([0], np.cumsum(np.asarray(lists.value_lengths(), dtype=np.int64), dtype=np.int64)))
        rows = np.asarray(lists.flatten()).astype(np.int64)
        closed = np.asarray(ordered.column("closed"))
        return cls(
            np.asarray(ordered.column("code")).astype(np.int32),
            np.asarray(ordered.column("window")),
            first,
            rows,
            np.asarray(ordered.column("count")),
            closed,
        )
