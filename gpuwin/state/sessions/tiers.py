"""Tiers of open sessions: arrays sorted by (code, start) that never change, and a bit set of the sessions that have
left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuwin.state.cells import cells_nbytes, concat_cells, empty_cells, take_cells
from gpuwin_kernels.cpu.order import is_ordered, lower_bounds, merged_order, order_by_code
from gpuwin_kernels.cpu.session_join import take_bounds
from gpuwin_kernels.cpu.sessions import (
    clear_positions,
    live_between,
    live_by_code_bound,
    live_of,
    live_of_codes,
    with_bits,
)
from gpuwin_kernels.layout import CellArrays, CellLayout

_SCANS_BEFORE_INDEX = 4  # scans by end from which a tier is worth an index


@dataclass(frozen=True, slots=True)
class SessionBatch:
    """Sessions as rows, sorted by (code, start); all arrays have the same length n.

    `last` is the time of the newest event, `end` the furthest `time + gap`. `id` is unique in the life of a state; a
    session that grows keeps it, one that bridges others keeps that of the earliest. `filled` is 0 where the session
    was emptied: the cells then mean nothing.
    """

    code: np.ndarray  # int32[n]
    start: np.ndarray  # int64[n]
    last: np.ndarray  # int64[n]
    end: np.ndarray  # int64[n]
    id: np.ndarray  # int64[n]
    filled: np.ndarray  # uint8[n]
    columns: tuple[CellArrays, ...]

    @classmethod
    def empty(cls, layout: CellLayout) -> SessionBatch:
        none = np.empty(0, np.int64)
        return cls(none.astype(np.int32), none, none, none, none, none.astype(np.uint8), empty_cells(layout, 0))

    @classmethod
    def of(cls, bounds: Sequence[np.ndarray], columns: tuple[CellArrays, ...]) -> SessionBatch:
        """Batch of `bounds`, which are the arrays of `SessionBatch.bounds`, in that order."""
        code, start, last, end, number, filled = bounds
        return cls(code, start, last, end, number, filled, columns)

    def __len__(self) -> int:
        return len(self.code)

    def bounds(self) -> tuple[np.ndarray, ...]:
        return self.code, self.start, self.last, self.end, self.id, self.filled

    def take(self, positions: np.ndarray) -> SessionBatch:
        """Sessions at these positions, in this order."""
        columns = take_cells(self.columns, positions)
        return SessionBatch.of(take_bounds(self.bounds(), np.ascontiguousarray(positions, np.int64)), columns)

    def sorted(self) -> SessionBatch:
        return self if is_ordered(self.code, self.start) else self.take(order_by_code(self.code, self.start))

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.bounds()) + cells_nbytes(self.columns)


def concat_sessions(parts: Sequence[SessionBatch]) -> SessionBatch:
    """One batch of several, one after the other; not sorted."""
    if len(parts) == 1:
        return parts[0]
    arrays = zip(*(part.bounds() for part in parts), strict=True)
    return SessionBatch.of([np.concatenate(a) for a in arrays], concat_cells([part.columns for part in parts]))


def sorted_sessions(parts: Sequence[SessionBatch]) -> SessionBatch:
    """One batch of several, sorted by (code, start). It goes array by array, as they may be many."""
    code, start = (np.concatenate([getattr(part, name) for part in parts]) for name in ("code", "start"))
    order = order_by_code(code, start)
    bounds = [np.concatenate(several)[order] for several in zip(*(part.bounds() for part in parts), strict=True)]
    several = zip(*(part.columns for part in parts), strict=True)
    columns = [take_cells(concat_cells([(cells,) for cells in same]), order)[0] for same in several]
    return SessionBatch.of(bounds, tuple(columns))


@dataclass(slots=True)
class _EndIndex:
    """Positions of a tier in the order of their end. Derived data, built when it pays, shared by the versions of a
    tier.
    """

    scans: int = 0
    order: np.ndarray | None = None
    end: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Tier:
    """Tier of open sessions."""

    sessions: SessionBatch
    gone: np.ndarray  # uint8[(n + 7) // 8]: bit p is set once session p has left the tier
    live: int
    floor: int  # no live session ends before this
    ceiling: int  # nor after this
    _index: _EndIndex = field(default_factory=_EndIndex, compare=False)

    @classmethod
    def of(cls, sessions: SessionBatch) -> Tier:
        n = len(sessions)
        bits = np.zeros((n + 7) // 8, np.uint8)
        return cls(sessions, bits, n, int(sessions.end.min()), int(sessions.end.max()))

    def ending(self, least: int, most: int) -> np.ndarray:
        """Live positions with least <= end <= most."""
        least = max(least, self.floor)
        most = min(most, self.ceiling)
        if least > most:
            return np.empty(0, np.int64)
        index = self._index
        if index.order is None or index.end is None:
            index.scans += 1
            if index.scans <= _SCANS_BEFORE_INDEX:
                return live_between(self.sessions.end, self.gone, least, most)  # type: ignore[no-any-return]
            index.order = np.argsort(self.sessions.end, kind="stable")
            index.end = self.sessions.end[index.order]
        lo = np.searchsorted(index.end, least, "left")
        hi = np.searchsorted(index.end, most, "right")
        return np.sort(live_of(self.gone, index.order[lo:hi]))

    def ending_by_code(self, upto: np.ndarray) -> np.ndarray:
        """Live positions with end <= upto[code]."""
        return live_by_code_bound(self.sessions.code, self.sessions.end, self.gone, upto)  # type: ignore[no-any-return]

    def of_codes(self, codes: np.ndarray) -> np.ndarray:
        """Live positions of these keys (sorted, unique codes)."""
        return live_of_codes(self.sessions.code, self.gone, codes)  # type: ignore[no-any-return]

    def at(self, code: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Live positions of the sessions that begin exactly there; those that are not in this tier are left out."""
        sessions = self.sessions
        found = lower_bounds(sessions.code, sessions.start, code, start)
        inside = np.minimum(found, len(sessions) - 1)
        hit = (sessions.code[inside] == code) & (sessions.start[inside] == start)
        return np.sort(live_of(self.gone, found[hit]))

    def without(self, positions: np.ndarray, floor: int | None = None) -> Tier:
        """Tier without these live positions; `floor`, if given, promises that nothing live ends before it."""
        if not len(positions) and floor is None:
            return self
        bits = with_bits(self.gone, positions) if len(positions) else self.gone
        floor = self.floor if floor is None else max(floor, self.floor)
        return replace(self, gone=bits, live=self.live - len(positions), floor=floor)

    def emptied(self, positions: np.ndarray) -> Tier:
        filled = self.sessions.filled.copy()
        filled[positions] = 0
        return replace(self, sessions=replace(self.sessions, filled=filled))

    def live_sessions(self) -> SessionBatch:
        if self.live == len(self.sessions):
            return self.sessions
        return self.sessions.take(clear_positions(self.gone, len(self.sessions)))

    def moved(self, sessions: SessionBatch, order: np.ndarray, end: np.ndarray) -> Tier:
        """This tier with its sessions in other arrays: `order` are their positions by end, and `end` these ends."""
        return replace(self, sessions=sessions, _index=_EndIndex(order=order, end=end))

    def arrays(self) -> list[np.ndarray]:
        """All arrays of the tier."""
        index = [a for a in (self._index.order, self._index.end) if a is not None]
        cells = [a for c in self.sessions.columns for a in (*c.values, c.valid) if a is not None]
        return [*self.sessions.bounds(), *cells, self.gone, *index]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays())


def merged_tiers(older: Tier, newer: Tier) -> Tier:
    """One tier of two."""
    a, b = older.live_sessions(), newer.live_sessions()
    order = merged_order(a.code, a.start, b.code, b.start)
    return Tier.of(concat_sessions([a, b]).take(order))


def tidied(tiers: Sequence[Tier]) -> tuple[Tier, ...]:
    """Tiers without empty ones, with those that are mostly holes copied, and the newest merged while they are of
    comparable size.

    Each live tier is then at least twice as large as the next, so there are at most log2(sessions) of them, and a
    session is copied O(log sessions) times in its life.
    """
    kept: list[Tier] = []
    for tier in tiers:
        if not tier.live:
            continue
        holes = len(tier.sessions) - tier.live
        current = Tier.of(tier.live_sessions()) if holes > tier.live else tier
        while kept and kept[-1].live < 2 * current.live:
            current = merged_tiers(kept.pop(), current)
        kept.append(current)
    return tuple(kept)
