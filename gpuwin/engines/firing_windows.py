"""The open windows of a `FiringEngine`: which there are, and what can be dropped once some are gone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.engines.cold import Cold
from gpuwin.engines.contents import Contents
from gpuwin.engines.firings import Ledger
from gpuwin.planning.plan import empty_cells
from gpuwin.state.cells import Columns, concat_cells, take_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys import KeyDictionary
from gpuwin.state.rows import RowState
from gpuwin.vocabulary.durations import INT64_MIN
from gpuwin_kernels.layout import CellLayout

_FEW_KEYS = 1 << 12


@dataclass(frozen=True, slots=True)
class FiringWindows:
    """Open (key, window)s, sorted by window and key: contents, ledger, and the results that were handed out last; and
    those that wait on disk."""

    keys: KeyDictionary
    heap: BytesHeap
    code: np.ndarray
    window: np.ndarray
    contents: Contents
    ledger: Ledger
    results: list[pa.Array]
    rows: RowState | None
    cold: Cold = Cold()  # noqa: RUF009 - frozen, so it can be shared

    def __len__(self) -> int:
        return len(self.code)

    def grown(self, layout: CellLayout, code: np.ndarray, window: np.ndarray, old: np.ndarray) -> FiringWindows:
        """With more windows: `old` says which were there (-1: new)."""
        new = np.flatnonzero(old < 0)
        at = np.where(old < 0, len(self) + np.cumsum(old < 0) - 1, old)
        cells: Columns = concat_cells([self.contents.cells, empty_cells(layout, len(new))])
        held = np.concatenate((self.contents.held, np.zeros(len(new), np.uint8)))
        fresh = Ledger.fresh(len(new), INT64_MIN)
        both = Ledger(*(np.concatenate(p) for p in zip(self.ledger.arrays(), fresh.arrays(), strict=True)))
        contents = Contents(take_cells(cells, at), held[at])
        return replace(self, code=code, window=window, contents=contents, ledger=both.take(at))

    def taken(self, at: np.ndarray) -> FiringWindows:
        """The windows at these places (int64). Rows stay."""
        contents = Contents(take_cells(self.contents.cells, at), self.contents.held[at])
        return replace(
            self,
            code=self.code[at],
            window=self.window[at],
            contents=contents,
            ledger=self.ledger.take(at),
        )

    def with_fewer_keys(self) -> FiringWindows:
        """Keys without a window leave the dictionary once they are the majority."""
        if len(self.keys) <= max(_FEW_KEYS, 2 * (len(self) + len(self.cold))):
            return self
        used = np.union1d(self.code, self.cold.used_codes()).astype(np.int32)
        if self.rows is not None:
            used = np.union1d(used, self.rows.used_codes()).astype(np.int32)
        if 2 * len(used) >= len(self.keys):
            return self
        keys, new_code = self.keys.kept(used)
        rows = None if self.rows is None else self.rows.recoded(new_code)
        code, cold = new_code[self.code].astype(np.int32), self.cold.recoded(new_code)
        return replace(self, keys=keys, code=code, rows=rows, cold=cold)
