"""Windows and the rows that each of them holds, as places in a pool of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.state.rows.shared_end import SharedEnd
from gpuwin_kernels.cpu.evictors import joined_stretches

_UNUSED = 1024  # places of no window, which do not matter


@dataclass(frozen=True, slots=True)
class HeldWindows:
    """Windows, sorted by (window, code). Window i holds the rows places[lo[i]:hi[i]], in order of arrival.

    A window that a batch leaves as it was keeps its stretch of the places, so that a batch writes those of the windows
    that it visits. Not many more places than half of all are in no stretch.
    """

    code: np.ndarray  # int32[w]
    window: np.ndarray  # int64[w]
    lo: np.ndarray  # int64[w]
    hi: np.ndarray  # int64[w]
    places: SharedEnd
    count: np.ndarray  # int64[w], of rows, as in a `Ledger`
    closed: np.ndarray  # bool[w]

    @classmethod
    def none(cls) -> HeldWindows:
        no_numbers = np.empty(0, np.int64)
        no_rows = no_numbers, no_numbers, SharedEnd(no_numbers)
        return cls(np.empty(0, np.int32), no_numbers, *no_rows, no_numbers, np.empty(0, bool))

    def __len__(self) -> int:
        return len(self.window)

    def where(self, mask: np.ndarray) -> HeldWindows:
        """Windows at which `mask`, bool[w], is true."""
        return HeldWindows(
            self.code[mask],
            self.window[mask],
            self.lo[mask],
            self.hi[mask],
            self.places,
            self.count[mask],
            self.closed[mask],
        )

    def recoded(self, new_code: np.ndarray) -> HeldWindows:
        """Windows with other codes, which ascend as the old ones do."""
        return replace(self, code=new_code[self.code].astype(np.int32))

    def with_places(self, place: np.ndarray) -> HeldWindows:
        """Windows whose rows have other places, `place` by the old ones."""
        rows, first = self.rows()
        return replace(self, places=SharedEnd(place[rows]), lo=first[:-1], hi=first[1:])

    def with_new(self, rows: np.ndarray, of_new: np.ndarray) -> HeldWindows:
        """Windows of which some (bool[w]) hold stretches of other rows (int64[k]), and not of `places` until now."""
        size = self.hi - self.lo
        used, new = int(size.sum()), np.flatnonzero(of_new)
        if len(self.places) + int(size[new].sum()) > used + used // 2 + _UNUSED:
            every, first = joined_stretches(self.places.values, rows, of_new, self.lo, self.hi)
            return replace(self, places=SharedEnd(every), lo=first[:-1], hi=first[1:])
        more, first = joined_stretches(rows, rows, np.zeros(len(new), bool), self.lo[new], self.hi[new])
        lo, hi = self.lo.copy(), self.hi.copy()
        lo[new], hi[new] = len(self.places) + first[:-1], len(self.places) + first[1:]
        return replace(self, places=self.places.with_more(more), lo=lo, hi=hi)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of all windows, one behind the other, int64[k], and where those of each begin, int64[w + 1]."""
        places = self.places.values
        rows, first = joined_stretches(places, places, np.zeros(len(self), bool), self.lo, self.hi)
        return rows, first

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.places.nbytes + sum(
            a.nbytes for a in (self.code, self.window, self.lo, self.hi, self.count, self.closed)
        )

    def to_arrow(self) -> pa.RecordBatch:
        """Record batch of a row for each window."""
        rows, first = self.rows()
        lists = pa.LargeListArray.from_arrays(pa.array(first), pa.array(rows))
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
            first[:-1],
            first[1:],
            SharedEnd(rows),
            np.asarray(ordered.column("count")),
            closed,
        )
