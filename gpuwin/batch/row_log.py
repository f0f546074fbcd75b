"""Log of rows of small batches that wait to be aggregated together: a kernel costs the same for one row and for
thousands, and so do finding the codes of keys, and merging cells into the state.

The wait never shows. Before a batch emits, or somebody asks for the state, the rows are aggregated, as if they had come
in one batch. A batch whose sums might leave their type does not wait, so that the batch that brings an overflow is the
one that raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import add

import numpy as np

from gpuwin.batch.timed_rows import TimedRows, joined_rows
from gpuwin.planning.inputs import Known
from gpuwin.planning.plan import Plan
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.stores import PaneStore
from gpuwin_kernels import tuning


@dataclass(frozen=True, slots=True)
class RowLog:
    """Rows that are not in cells yet, in order of arrival. Immutable.

    `parts`: the rows of each batch, in memory of their own. `bounds`: a bound of |sum| over all rows, for each column
    of the plan. `nbytes`: bytes of memory held.
    """

    parts: tuple[TimedRows, ...] = ()
    rows: int = 0
    bounds: tuple[int, ...] = ()
    nbytes: int = 0

    def is_full(self, keys: int) -> bool:
        """Whether the rows are to be aggregated now. `keys`: the size of the dictionary."""
        if len(self.parts) >= tuning.LOG_BATCHES or self.nbytes >= tuning.LOG_BYTES:
            return True
        return self.rows >= tuning.LOG_ROWS and self.rows >= tuning.LOG_PER_KEY * keys

    def with_rows(self, plan: Plan, panes: PaneStore, rows: TimedRows) -> RowLog | None:
        """Log with the rows of one more batch, at least one; None if the batch that brings them has to aggregate them:
        a sum might leave its type, or code of the user's own might raise, or they are so large that texts of several
        such batches would not fit one array.
        """
        limits, nbytes = sum_limits(plan, rows), rows.nbytes
        if limits is None or nbytes >= tuning.LOG_BYTES:
            return None
        bounds = tuple(map(add, self.bounds, limits)) if self.bounds else limits
        if not panes.on_host().holds(bounds):
            return None
        kept = rows.copied(self.parts[-1] if self.parts else None)
        return RowLog((*self.parts, kept), self.rows + len(rows), bounds, self.nbytes + nbytes)

    def joined(self) -> TimedRows:
        """All rows, as of one batch; there must be one."""
        return joined_rows(self.parts)

    def split(self, plan: Plan, later: np.ndarray) -> tuple[RowLog, RowLog]:
        """Two logs: rows to be aggregated now, and rows that go on waiting. `later` bool[n]: those of the newest batch
        that go on waiting.

        Only that batch is looked at: in a stream in order of time it is the one that has rows of later panes.
        """
        last = self.parts[-1]
        count = int(np.count_nonzero(later))
        if not count:
            return self, RowLog()
        first = len(last) - count
        if not later[first:].all():
            now, waiting = last.take(np.flatnonzero(~later)), last.take(np.flatnonzero(later))
        else:
            now, waiting = last.part(0, first), last.part(first, len(last))
            if len(last) > tuning.LOG_BATCH:  # a view would keep all of a large batch in memory
                waiting = waiting.copied()
        bounds = sum_limits(plan, waiting)
        assert bounds is not None  # or the batch would not wait
        parts, rest = (*self.parts[:-1], now) if first else self.parts[:-1], waiting.nbytes
        left = RowLog((waiting,), count, bounds, rest)
        return replace(self, parts=parts, rows=self.rows - count, nbytes=self.nbytes - rest), left

    def enter_keys(self, plan: Plan, keys: KeyDictionary) -> None:
        """Gives the keys of all rows their codes in order of arrival, before some rows are aggregated and some wait."""
        last = self.parts[-1]
        if (keys.lookup(last.keys(plan), len(last)) < 0).any():  # else no order can be lost
            for part in self.parts:
                keys.encode(part.keys(plan), len(part))

    def codes(self, plan: Plan, keys: KeyDictionary) -> Iterator[np.ndarray]:
        """Codes of the keys of the rows that a dictionary has, int32, batch by batch, each found when it is asked
        for.
        """
        for part in self.parts:
            code = keys.lookup(part.keys(plan), len(part))
            yield code[code >= 0]


def sum_limits(plan: Plan, rows: TimedRows) -> tuple[int, ...] | None:
    """Bounds of |sum| over rows, for each column of the plan: 0 where a sum never raises. None where aggregating the
    rows might raise anything else.
    """
    known: Known = {}
    limits = []
    for part in plan.inputs:
        limit = part.sum_limit(rows, known)
        if limit is None:
            return None
        limits.append(limit)
    return tuple(limits)
