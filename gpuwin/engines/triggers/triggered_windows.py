"""State of windows with triggers, in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.engines.triggers.cold import Cold, Entries
from gpuwin.engines.triggers.contents import Contents
from gpuwin.engines.triggers.emitted import pooled
from gpuwin.engines.triggers.ledger import Ledger, joined_ledgers
from gpuwin.state.cells import (
    Columns,
    cell_arrays,
    concat_cells,
    empty_cells,
    take_cells,
)
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys import dead_keys
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.panes.runs import order_of_cells
from gpuwin.state.rows.row_state import RowState
from gpuwin.vocabulary.durations import INT64_MIN
from gpuwin_kernels.cpu.distinct_codes import distinct_codes
from gpuwin_kernels.layout import CellLayout, columns_from_arrays


@dataclass(frozen=True, slots=True)
class TriggeredWindows:
    """State of windows with triggers: open (key, window)s, sorted by window and key, with contents, ledger and the
    results that were emitted last; and the cold ones on disk.
    """

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

    def grown(self, layout: CellLayout, code: np.ndarray, window: np.ndarray, old: np.ndarray) -> TriggeredWindows:
        """State with more windows. `old`: the place of each before (-1: it is new)."""
        new = np.flatnonzero(old < 0)
        at = np.where(old < 0, len(self) + np.cumsum(old < 0) - 1, old)
        cells: Columns = concat_cells([self.contents.cells, empty_cells(layout, len(new))])
        held = np.concatenate((self.contents.held, np.zeros(len(new), np.uint8)))
        fresh = Ledger.fresh(len(new), INT64_MIN)
        both = Ledger(*(np.concatenate(p) for p in zip(self.ledger.arrays(), fresh.arrays(), strict=True)))
        contents = Contents(take_cells(cells, at), held[at])
        return replace(self, code=code, window=window, contents=contents, ledger=both.take(at))

    def taken(self, at: np.ndarray) -> TriggeredWindows:
        """State with the windows at these places (int64) only. Raw rows stay."""
        contents = Contents(take_cells(self.contents.cells, at), self.contents.held[at])
        return replace(
            self,
            code=self.code[at],
            window=self.window[at],
            contents=contents,
            ledger=self.ledger.take(at),
        )

    def with_fewer_keys(self) -> TriggeredWindows:
        """State without the keys that have no window, once they are the majority of the dictionary."""
        if not dead_keys.may_be_many(self.keys, len(self) + len(self.cold)):
            return self
        of_rows = () if self.rows is None else (self.rows.used_codes(),)
        used = distinct_codes(self.code, self.cold.used_codes(), *of_rows)
        found = dead_keys.without(self.keys, used)
        if found is None:
            return self
        keys, new_code = found
        rows = None if self.rows is None else self.rows.recoded(new_code)
        code, cold = new_code[self.code].astype(np.int32), self.cold.recoded(new_code)
        return replace(self, keys=keys, code=code, rows=rows, cold=cold)


def all_spilled(
    state: TriggeredWindows, empty: TriggeredWindows, wake: tuple[np.ndarray, np.ndarray], folder: str
) -> TriggeredWindows:
    """State with all windows on disk. `empty`: the state before the first batch; `wake`: see `cold.wake_times`.

    Raises LimitExceeded if the folder cannot be written.
    """
    ledger, contents = state.ledger, state.contents
    arrays = (state.window, contents.held, *ledger.without_last(), *cell_arrays(contents.cells))
    cold = state.cold.put(Entries(state.code, *wake, arrays, ledger.last, tuple(state.results)), folder)
    return replace(empty, keys=state.keys, heap=state.heap, rows=state.rows, cold=cold)


def read_back(layout: CellLayout, state: TriggeredWindows, back: Entries | None) -> TriggeredWindows:
    """State with these windows back in memory."""
    if back is None:
        return state
    window, held, *rest = back.arrays
    windows, codes = np.concatenate((state.window, window)), np.concatenate((state.code, back.code))
    order = order_of_cells(windows, codes)
    before = len(state.results[0]) if state.results else 0
    ledger = joined_ledgers(state.ledger, rest[:5], back.last, before)
    cells = concat_cells([state.contents.cells, columns_from_arrays(layout, rest[5:])])
    helds = np.concatenate((state.contents.held, held))
    return replace(
        state,
        window=windows[order],
        code=codes[order],
        ledger=ledger.take(order),
        contents=Contents(take_cells(cells, order), helds[order]),
        results=pooled(state.results, list(back.results)) if back.result_count else state.results,
    )
