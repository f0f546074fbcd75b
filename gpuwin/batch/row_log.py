"""Log of rows of small batches that wait to be aggregated together: a kernel costs the same for one row and for
thousands, and so does merging its cells into the state.

The wait never shows. Before a batch emits, or somebody asks for the state, the rows are aggregated. A batch whose sums
might leave their type does not wait, so that the batch that brings an overflow is the one that raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import add

import numpy as np

from gpuwin.state.cells import is_exact_sum
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import Run
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.rows import RowInput, aggregate_rows
from gpuwin_kernels.layout import CellColumn, CellLayout


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a batch, in memory of their own."""

    pane: np.ndarray  # int64[n]
    code: np.ndarray  # int32[n]
    inputs: tuple[RowInput, ...]  # as `_kept` makes them

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        arrays = [a for i in self.inputs for a in (i.values, i.bitmap, i.time, i.seq) if a is not None]
        return self.pane.nbytes + self.code.nbytes + sum([a.nbytes for a in arrays])

    def taken(self, at: np.ndarray | slice) -> _Rows:
        """Some of the rows: those at places (int64), or those of a slice, which copies nothing."""

        def some(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array[at]

        inputs = (RowInput(some(i.values), some(i.bitmap), 0, some(i.time), some(i.seq)) for i in self.inputs)
        return _Rows(self.pane[at], self.code[at], tuple(inputs))


@dataclass(frozen=True, slots=True)
class RowLog:
    """Rows that are not in cells yet, in order of arrival. Immutable.

    `feeds`: the number of its input, for each column of the layout. `bounds`: a bound of |sum| over all rows, for each
    column. `nbytes`: bytes of memory held.
    """

    feeds: tuple[int, ...] = ()
    parts: tuple[_Rows, ...] = ()
    rows: int = 0
    bounds: tuple[int, ...] = ()
    nbytes: int = 0

    def is_full(self, keys: int) -> bool:
        """Whether the rows are to be aggregated now. `keys`: the size of the dictionary."""
        if len(self.parts) >= tuning.LOG_BATCHES:
            return True
        return self.rows >= tuning.LOG_ROWS and (
            self.rows >= tuning.LOG_PER_KEY * keys or self.nbytes >= tuning.LOG_BYTES
        )

    def with_rows(
        self, panes: PaneState, pane: np.ndarray, code: np.ndarray, inputs: Sequence[RowInput]
    ) -> RowLog | None:
        """Log with the rows of one more batch, which feed the columns with `inputs`; None if a sum might then leave its
        type.
        """
        rows = len(code)
        distinct: dict[int, RowInput] = {}
        numbers: dict[int, int] = {}
        feeding, limits = [], []
        for column, item in zip(panes.layout.columns, inputs, strict=True):
            feeding.append(numbers.setdefault(id(item), len(numbers)))
            distinct[id(item)] = item
            limits.append(_bound(column, item, rows))
        feeds = tuple(feeding)
        if self.parts and feeds != self.feeds:
            return None
        bounds = tuple(map(add, self.bounds, limits)) if self.bounds else tuple(limits)
        if not panes.holds(bounds):
            return None
        kept = _Rows(_own(pane), _own(code), tuple([_kept(item, rows) for item in distinct.values()]))
        return RowLog(feeds, (*self.parts, kept), self.rows + rows, bounds, self.nbytes + kept.nbytes)

    def codes(self) -> list[np.ndarray]:
        """Key codes of all rows, int32, batch by batch."""
        return [part.code for part in self.parts]

    def split(self, layout: CellLayout, pane: int) -> tuple[RowLog, RowLog]:
        """Two logs, when somebody asks for the cells up to `pane`: rows to be aggregated now, and rows that go on
        waiting.

        Only the newest batch is looked at: in a stream in order of time it is the one that has rows of later panes.
        """
        last = self.parts[-1]
        late = last.pane > pane
        count = int(np.count_nonzero(late))
        if not count:
            return self, RowLog()
        now: np.ndarray | slice
        then: np.ndarray | slice
        if late[-count:].all():
            now, then = slice(0, len(late) - count), slice(len(late) - count, len(late))
            if len(late) > tuning.LOG_BATCH:  # a view would keep all of a large batch in memory
                then = np.arange(len(late) - count, len(late))
        else:
            now, then = np.flatnonzero(~late), np.flatnonzero(late)
        waiting = last.taken(then)
        bounds = tuple(
            _bound(c, waiting.inputs[feed], len(waiting.code))
            for c, feed in zip(layout.columns, self.feeds, strict=True)
        )
        rest = RowLog(self.feeds, (waiting,), len(waiting.code), bounds, waiting.nbytes)
        first = (*self.parts[:-1], last.taken(now)) if count < len(late) else self.parts[:-1]
        return replace(self, parts=first, rows=self.rows - rest.rows, nbytes=self.nbytes - rest.nbytes), rest

    def recoded(self, old: KeyDictionary, new: KeyDictionary) -> RowLog:
        """Log with the codes of a new dictionary, which has all keys of these rows."""
        parts = (replace(part, code=new.lookup(old.take(part.code), len(part.code))) for part in self.parts)
        return replace(self, parts=tuple(parts))

    def run(self, layout: CellLayout, codes: int) -> Run:
        """Cells of all rows. `codes`: the size of the dictionary of keys."""
        pane = np.concatenate([part.pane for part in self.parts])
        code = np.concatenate([part.code for part in self.parts])
        sizes = [len(part.code) for part in self.parts]
        items = [_joined(same, sizes) for same in zip(*(part.inputs for part in self.parts), strict=True)]
        return Run(*aggregate_rows(layout, [items[k] for k in self.feeds], code, pane, 1, codes=codes))


def _bound(column: CellColumn, item: RowInput, rows: int) -> int:
    """Bound of |sum| over rows, for a column that raises where its sum leaves its type; 0 for others."""
    if not is_exact_sum(column):
        return 0
    values = item.values
    if values is None:
        return rows
    if values.ndim == 2:
        high = values[:, 1]
        return (max(abs(int(high.min())), abs(int(high.max()))) + 1 << 64) * rows
    return max(abs(int(values.min())), abs(int(values.max()))) * rows


def _own(array: np.ndarray) -> np.ndarray:
    """The array, copied if it is a view: a view would keep the whole batch in memory."""
    return array if array.flags.owndata else array.copy()


def _kept(item: RowInput, rows: int) -> RowInput:
    """Copy of an input, with its validity as one byte a row."""
    valid = None
    if item.bitmap is not None:
        first, skip = divmod(item.offset, 8)
        bits = np.unpackbits(item.bitmap[first : first + (skip + rows + 7) // 8], bitorder="little")
        valid = bits[skip : skip + rows].copy()
    if item.time is None:  # neither first nor last
        return RowInput(None if item.values is None else _own(item.values), valid)
    values, time, seq = (None if a is None else _own(a) for a in (item.values, item.time, item.seq))
    return RowInput(values, valid, 0, time, seq)


def _joined(items: Sequence[RowInput], sizes: Sequence[int]) -> RowInput:
    """One input of several that `_kept` made, ready for a kernel."""
    bitmap = None
    if any(item.bitmap is not None for item in items):
        each = [
            np.ones(n, np.uint8) if item.bitmap is None else item.bitmap for item, n in zip(items, sizes, strict=True)
        ]
        bitmap = np.packbits(np.concatenate(each), bitorder="little")

    def whole(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
        some = [a for a in arrays if a is not None]
        return np.concatenate(some) if some else None

    return RowInput(
        whole([item.values for item in items]),
        bitmap,
        0,
        whole([item.time for item in items]),
        whole([item.seq for item in items]),
    )
