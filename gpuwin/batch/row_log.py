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

from gpuwin.batch.parts import Ends, joined_ends
from gpuwin.batch.row_buffer import RowBuffer
from gpuwin.batch.timed_rows import TimedRows, joined_rows
from gpuwin.planning.inputs import Known
from gpuwin.planning.plan import Plan
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.stores import PaneStore
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.extremes import ends_of


@dataclass(frozen=True, slots=True)
class RowLog:
    """Rows that are not in cells yet, in order of arrival. Immutable.

    `buffer`: what holds the first `buffered` of them, of which the very first is arrival `first`, while it can hold
    what comes; `parts`: the rows of each batch behind them, in memory of their own. `rows`, `batches`: how many;
    `newest`: rows of the newest batch. `bounds`: a bound of |sum| over all rows, for each column of the plan. `ends`:
    times that all rows lie between; `earlier`: those that the rows before the newest batch lie between. `nbytes`: bytes
    that the rows take.
    """

    buffer: RowBuffer | None = None
    buffered: int = 0
    first: int = 0
    parts: tuple[TimedRows, ...] = ()
    rows: int = 0
    batches: int = 0
    newest: int = 0
    bounds: tuple[int, ...] = ()
    ends: Ends = (INT64_MAX, INT64_MIN)
    earlier: Ends = (INT64_MAX, INT64_MIN)
    nbytes: int = 0

    def is_full(self, keys: int) -> bool:
        """Whether the rows are to be aggregated now. `keys`: the size of the dictionary."""
        if self.batches >= tuning.LOG_BATCHES or self.nbytes >= tuning.LOG_BYTES:
            return True
        return self.rows >= tuning.LOG_ROWS and self.rows >= tuning.LOG_PER_KEY * keys

    def with_rows(self, plan: Plan, panes: PaneStore, rows: TimedRows, ends: Ends) -> RowLog | None:
        """Log with the rows of one more batch, at least one, whose times lie between `ends`; None if the batch that
        brings them has to aggregate them: a sum might leave its type, or code of the user's own might raise, or they
        are so large that texts of several such batches would not fit one array.
        """
        limits = sum_limits(plan, rows)
        if limits is None:
            return None
        bounds = tuple(map(add, self.bounds, limits)) if self.bounds else limits
        if not panes.on_host().holds(bounds):
            return None
        log = self._with_batch(rows, bounds, ends)
        return None if log.nbytes - self.nbytes >= tuning.LOG_BYTES else log

    def _with_batch(self, rows: TimedRows, bounds: tuple[int, ...], ends: Ends, room: int = 0) -> RowLog:
        """Log with the rows of one more batch. `room`: rows that a new buffer has room for."""
        n, buffer, buffered, parts = len(rows), None, self.buffered, self.parts
        if self.buffer is None:
            buffer = None if parts else RowBuffer.of(rows, room)
        elif not parts and rows.first == self.first + buffered:
            buffer = self.buffer.with_rows(buffered, rows)
        if buffer is not None:
            buffered, nbytes = buffered + n, n * buffer.row_bytes
        else:
            buffer = self.buffer
            parts, nbytes = (*parts, rows.copied(parts[-1] if parts else None)), rows.nbytes
        return RowLog(
            buffer,
            buffered,
            self.first if self.rows else rows.first,
            parts,
            self.rows + n,
            self.batches + 1,
            n,
            bounds,
            joined_ends((self.ends, ends)),
            self.ends,
            self.nbytes + nbytes,
        )

    def joined(self) -> TimedRows:
        """All rows, as of one batch; there must be one."""
        return joined_rows(self._all_parts())

    def newest_rows(self) -> TimedRows:
        """Rows of the newest batch; there must be one."""
        if self.parts:
            return self.parts[-1]
        return self._of_buffer(self.buffered - self.newest, self.buffered)

    def split(self, plan: Plan, later: np.ndarray, before: int) -> tuple[RowLog, RowLog]:
        """Two logs: rows to be aggregated now, and rows that go on waiting. `later` bool[n]: those of the newest batch
        that go on waiting; of its other rows all times are before `before` (the largest int64: any).

        Only that batch is looked at: in a stream in order of time it is the one that has rows of later panes. Earlier
        ones may have some, too, where rows come out of order.
        """
        last = self.newest_rows()
        count = int(np.count_nonzero(later))
        if not count:
            return self, RowLog()
        first = len(last) - count
        buffered, parts = self.buffered, self.parts
        if later[first:].all():
            now, waiting = last.part(0, first), last.part(first, len(last))
        else:
            now, waiting = last.take(np.flatnonzero(~later)), last.take(np.flatnonzero(later))
        if parts:
            parts = (*parts[:-1], now) if first else parts[:-1]
        elif now.index is None:
            buffered -= count
        else:
            buffered, parts = buffered - len(last), (now,)
        newest = self.ends[1] if before == INT64_MAX else min(self.ends[1], before - 1)
        bounds = sum_limits(plan, waiting)
        assert bounds is not None  # or the batch would not wait
        left = RowLog()._with_batch(waiting, bounds, ends_of(waiting.time), self.rows + self.rows // 4)
        rest = replace(
            self,
            buffered=buffered,
            parts=parts,
            rows=self.rows - count,
            newest=first,
            ends=(self.ends[0], max(self.earlier[1], newest)),
            nbytes=self.nbytes - left.nbytes,
        )
        return rest, left

    def enter_keys(self, plan: Plan, keys: KeyDictionary) -> None:
        """Gives the keys of all rows their codes in order of arrival, before some rows are aggregated and some wait."""
        last = self.newest_rows()
        if (keys.lookup(last.keys(plan), len(last)) < 0).any():  # else no order can be lost
            for part in self._all_parts():
                keys.encode(part.keys(plan), len(part))

    def codes(self, plan: Plan, keys: KeyDictionary) -> Iterator[np.ndarray]:
        """Codes of the keys of the rows that a dictionary has, int32, part by part, each found when it is asked for."""
        for part in self._all_parts():
            code = keys.lookup(part.keys(plan), len(part))
            yield code[code >= 0]

    @property
    def held_bytes(self) -> int:
        """Bytes of memory held."""
        held = 0 if self.buffer is None else self.buffer.room * self.buffer.row_bytes
        return held + sum([part.nbytes for part in self.parts])

    def _all_parts(self) -> list[TimedRows]:
        """All rows in order of arrival, those of the buffer as of one batch."""
        return [self._of_buffer(0, self.buffered), *self.parts] if self.buffered else list(self.parts)

    def _of_buffer(self, lo: int, hi: int) -> TimedRows:
        assert self.buffer is not None
        return self.buffer.rows(self.first, lo, hi)


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
