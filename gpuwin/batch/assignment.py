"""Windows that each row of a batch lies in, for engines that keep a state per (key, window)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwin.batch.timed_rows import Drops, TimedRows, late_by_time, without
from gpuwin.bounds import Bounds
from gpuwin.grid import WindowGrid
from gpuwin.progress import WatermarkRule
from gpuwin.state.room import check_room
from gpuwin.vocabulary.durations import INT64_MAX


@dataclass(frozen=True, slots=True)
class Assigned:
    """Rows in their windows: visit i puts row `row[i]` into the window (`code[i]`, `window[i]`)."""

    row: np.ndarray
    code: np.ndarray
    window: np.ndarray


def assign_windows(
    grid: WindowGrid, bounds: Bounds, rule: WatermarkRule, rows: TimedRows, code: np.ndarray, each: np.ndarray
) -> tuple[TimedRows, np.ndarray, Assigned, Drops]:
    """Rows that are not late, the watermark `each` of them is tested against, their windows, and what was dropped.

    Rows in no window, late rows, and late (row, window) pairs are left out and counted. The cost is rows times overlap.
    Raises LimitExceeded where that exceeds the memory of the machine.
    """
    pane = grid.panes(rows.at)
    first, last = grid.windows_of(pane)
    unassigned = last < first
    late = late_by_time(rows.time, each, bounds.lateness) if bounds.by_time else None
    passed = grid.last_closed_each(bounds.evicting_each(each))
    if bounds.by_time and grid.inherited:  # a row may lie outside of the window that it brings along
        late = last <= passed if late is None else late | (last <= passed)
    pairs = 0
    if not bounds.by_time and not rule.system:
        shut = ~unassigned & (first <= passed)
        pairs = int((np.minimum(last, passed) - first + 1)[shut].sum())
        late = ~unassigned & (last <= passed)
        first = np.maximum(first, np.where(passed == INT64_MAX - 1, INT64_MAX - 1, passed + 1))
    elif late is not None:
        late = late & ~unassigned
        pairs = int((last - first + 1)[late].sum())
    kept, drops = without(rows, late, unassigned)
    if pairs:
        drops = replace(drops, window_rows_late=pairs)
    if len(kept) != len(rows):
        stay = ~unassigned if late is None else ~unassigned & ~late
        first, last, code, each = first[stay], last[stay], code[stay], each[stay]
    visits = last - first + 1
    check_room(int(visits.sum(dtype=np.float64)), 3 * 8)
    row = np.repeat(np.arange(len(kept)), visits)
    window = np.arange(len(row)) - np.repeat(np.cumsum(visits) - visits, visits) + first[row]
    return kept, each, Assigned(row, code[row], window), drops
