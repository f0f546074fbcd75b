"""Windows with a ledger of firings, put away on disk and brought back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuwin.engines.cold import Entries
from gpuwin.engines.contents import Contents
from gpuwin.engines.firings import joined_ledgers
from gpuwin.engines.handout import pooled
from gpuwin.state.cells import cells_from_arrays, concat_cells, take_cells
from gpuwin.state.runs import order_of_cells
from gpuwin.state.spill import cell_arrays
from gpuwin_kernels.layout import CellLayout

if TYPE_CHECKING:
    from gpuwin.engines.firing_windows import FiringWindows


def frozen(
    state: FiringWindows, empty: FiringWindows, due: tuple[np.ndarray, np.ndarray], folder: str
) -> FiringWindows:
    """With all windows on disk. `empty`: the state before the first batch; `due`: see `cold.due_times`.

    Raises LimitExceeded if the folder cannot be written.
    """
    ledger, contents = state.ledger, state.contents
    arrays = (state.window, contents.held, *ledger.timing(), *cell_arrays(contents.cells))
    cold = state.cold.put(Entries(state.code, *due, arrays, ledger.last, tuple(state.results)), folder)
    return replace(empty, keys=state.keys, heap=state.heap, rows=state.rows, cold=cold)


def thawed(layout: CellLayout, state: FiringWindows, back: Entries | None) -> FiringWindows:
    """With these windows among those in memory again."""
    if back is None:
        return state
    window, held, *rest = back.arrays
    windows, codes = np.concatenate((state.window, window)), np.concatenate((state.code, back.code))
    order = order_of_cells(windows, codes)
    told = len(state.results[0]) if state.results else 0
    ledger = joined_ledgers(state.ledger, rest[:5], back.last, told)
    cells = concat_cells([state.contents.cells, cells_from_arrays(layout, rest[5:])])
    helds = np.concatenate((state.contents.held, held))
    return replace(
        state,
        window=windows[order],
        code=codes[order],
        ledger=ledger.take(order),
        contents=Contents(take_cells(cells, order), helds[order]),
        results=pooled(state.results, list(back.results)) if back.told else state.results,
    )
