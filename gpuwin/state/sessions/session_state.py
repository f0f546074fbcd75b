"""Open sessions: an immutable state of tiers, merged with the sessions of a batch.

A batch takes three steps, and the state is only replaced when the last has succeeded:

1. `assign` (no order of arrival matters) or `SessionState.play` (it does: watermark per row, late check after the
   merge, one-sided touch) puts every row into one of `m` *proto-sessions*: `Assignment.slot`.
2. The caller reduces its rows to `m` cells per partial column, by that slot.
3. `SessionState.merge` joins the proto-sessions with the open sessions that they touch.

Sessions live in tiers of falling size, as in a log-structured merge tree: a batch takes what it touches out of the
tiers (one bit each) and adds a tier of its own, so it costs its rows and the sessions it touches, however many others
are open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from gpuwin.state.cells import Columns, empty_cells, merge_cells, merge_parts, take_cells
from gpuwin.state.dead_texts import smaller
from gpuwin.state.heap import BytesHeap
from gpuwin.state.sessions.arrow_form import sessions_from_arrow, sessions_to_arrow
from gpuwin.state.sessions.assignment import TOUCH_NUMBER, Assignment, Touch, as_gaps, assign
from gpuwin.state.sessions.bridges import Bridges, PlayedSteps, bridges_of
from gpuwin.state.sessions.tiers import SessionBatch, Tier, concat_sessions, tidied
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.distinct_codes import distinct_codes
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.order import lower_bounds
from gpuwin_kernels.cpu.session_join import join_sessions, name_sessions
from gpuwin_kernels.cpu.session_play import play
from gpuwin_kernels.cpu.sessions import find_touching
from gpuwin_kernels.layout import CellArrays, CellLayout


def columns_of(sessions: SessionBatch) -> Columns:
    """The partial columns of sessions, as they are."""
    return sessions.columns


@dataclass(frozen=True, slots=True)
class SessionTrace:
    """Sessions that a merge touched. `sessions[j]` is one that it left. It replaces `replaced[offsets[j]:offsets[j +
    1]]` (as they were, by start): none if it is new, one if it was extended or added to, more if it is a bridge.
    """

    sessions: SessionBatch
    replaced: SessionBatch
    offsets: np.ndarray  # int64[len(sessions) + 1]
    slot_session: np.ndarray  # int64[m]: the j of each proto-session
    bridges: Bridges | None = None  # where rows were played with `keep_steps`

    @classmethod
    def nothing(cls, layout: CellLayout) -> SessionTrace:
        """Trace of a batch without rows."""
        none = SessionBatch.empty(layout)
        return cls(none, none, np.zeros(1, np.int64), np.empty(0, np.int64))

    def ending(self, upto: int) -> SessionBatch:
        """Touched sessions that end at or before `upto`."""
        return self.sessions.take(np.flatnonzero(self.sessions.end <= upto))


@dataclass(frozen=True, slots=True)
class SessionState:
    """Open sessions of all keys. Immutable: every method returns a new state, which shares arrays with the old one.

    Keys are codes of a dictionary that the caller keeps (`used_codes` and `recoded` serve its compaction).
    """

    layout: CellLayout
    tiers: tuple[Tier, ...] = ()
    next_id: int = 0
    heap: BytesHeap | None = None  # bytes that cells hold codes of; append-only, shared by all versions of a state

    @classmethod
    def empty(cls, layout: CellLayout, heap: BytesHeap | None = None) -> SessionState:
        """State without sessions. `heap`: the one that the caller puts values into; a layout that needs one gets its
        own if none is given.
        """
        return cls(layout, heap=BytesHeap() if heap is None and layout.uses_heap else heap)

    @property
    def cells(self) -> int:
        """Number of open sessions."""
        return sum(tier.live for tier in self.tiers)

    @property
    def nbytes(self) -> int:
        return sum(tier.nbytes for tier in self.tiers)

    def __len__(self) -> int:
        return self.cells

    # -- what is open --------------------------------------------------------------------------------------------------

    def _gathered(self, positions: Sequence[np.ndarray]) -> SessionBatch:
        """Sessions at these positions of each tier, tier after tier."""
        parts = [tier.sessions.take(at) for tier, at in zip(self.tiers, positions, strict=True) if len(at)]
        return concat_sessions(parts) if parts else SessionBatch.empty(self.layout)

    def _without(self, positions: Sequence[np.ndarray]) -> tuple[Tier, ...]:
        return tuple(tier.without(at) for tier, at in zip(self.tiers, positions, strict=True))

    def ending(self, after: int | None, upto: int | None) -> SessionBatch:
        """Sessions with `after < end <= upto`; None is open on that side (`ending(None, None)`: all of them)."""
        if after == INT64_MAX:
            return SessionBatch.empty(self.layout)
        least = INT64_MIN if after is None else after + 1
        most = INT64_MAX if upto is None else upto
        return self._gathered([tier.ending(least, most) for tier in self.tiers]).sorted()

    def of_codes(self, codes: np.ndarray) -> SessionBatch:
        """Open sessions of these keys (int32, any order)."""
        wanted = distinct_codes(codes)
        return self._gathered([tier.of_codes(wanted) for tier in self.tiers]).sorted()

    def session_at(self, code: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Numbers of the open sessions that each (key, time) lies in, int64[n], from 0; negative, and each another,
        where there is none.
        """
        there = self.of_codes(code)
        number = -1 - np.arange(len(code))
        if not len(there):
            return number
        at = lower_bounds(there.code, there.start, code, np.minimum(time, INT64_MAX - 1) + 1) - 1
        inside = (at >= 0) & (there.code[at] == code) & (there.last[at] >= time)
        return np.where(inside, at, number)

    # -- closing -------------------------------------------------------------------------------------------------------

    def evict(self, upto: int) -> SessionState:
        """State without the sessions with `end <= upto`."""
        return self.close(upto)[1] if any(tier.floor <= upto for tier in self.tiers) else self

    def close(self, upto: int | np.ndarray) -> tuple[SessionBatch, SessionState]:
        """`ending(None, upto)` and `evict(upto)` in one. Strict rules (`end < W`, or Bytewax's `last < W - gap`) are
        `upto = W - 1`. A bound per key code is int64, longer than the largest code; the smallest int64 closes nothing.
        """
        if isinstance(upto, np.ndarray):
            positions = [tier.ending_by_code(upto) for tier in self.tiers]
            return self._gathered(positions).sorted(), replace(self, tiers=tidied(self._without(positions)))
        positions = [tier.ending(INT64_MIN, upto) for tier in self.tiers]
        floor = min(upto, INT64_MAX - 1) + 1
        tiers = tuple(tier.without(at, floor) for tier, at in zip(self.tiers, positions, strict=True))
        return self._gathered(positions).sorted(), replace(self, tiers=tidied(tiers))

    # -- a batch -------------------------------------------------------------------------------------------------------

    def play(
        self,
        code: np.ndarray,
        time: np.ndarray,
        gap: int | np.ndarray,
        bound: int | np.ndarray,
        *,
        touch: Touch = "merge",
        late: Literal["before_merge", "after_merge"] = "before_merge",
        keep_steps: bool = False,
    ) -> Assignment:
        """Proto-sessions of rows that are played one by one, in order of arrival, against the open sessions; `merge`
        makes the new state.

        `bound` (one for all, or int64[n], never falling for a key): a session with `end <= bound[i]` is gone when row i
        arrives, and is not joined by it; it stays in the state until `close` or `evict`, which must follow with the
        last bound. With `late="after_merge"` (Flink) a row whose session would have, after the merge, `end <= bound[i]`
        is dropped (slot -1); with `"before_merge"` the caller has dropped what is late. `touch="forward_split"` is Apex
        Malhar's: an event at the very end of a session opens a new one, an event exactly one gap before a session joins
        it. `keep_steps` fills `Assignment.steps`.
        """
        bounds = np.ascontiguousarray(bound, np.int64) if isinstance(bound, np.ndarray) else np.array([bound], np.int64)
        positions, old = self._bounds_of_keys(distinct_codes(code))
        slot, sessions, root, steps, merges, touched = play(
            code, time, as_gaps(gap, len(code)), bounds, TOUCH_NUMBER[touch], late == "after_merge", old, keep_steps
        )
        named = np.flatnonzero(touched)
        named = named[np.lexsort((sessions[named, 1], sessions[named, 0]))]
        number = np.full(len(sessions) + 1, -1, np.int64)  # and slot -1 stays -1
        number[named] = np.arange(len(named))
        slot = number[slot].astype(np.int32)
        old_slot = number[root[: len(old)]]
        parts = np.split(old_slot, np.cumsum([len(here) for here in positions])[:-1]) if positions else []
        found = sessions[named]
        played = None
        if keep_steps:
            number_then, start, last, end = (np.ascontiguousarray(steps[:, j]) for j in range(4))
            played = PlayedSteps(number_then, start, last, end, merges, self._gathered(positions), len(sessions))
        start, last, end = (np.ascontiguousarray(found[:, j]) for j in (1, 2, 3))
        return Assignment(
            slot,
            found[:, 0].astype(np.int32),
            start,
            last,
            end,
            touch=touch,
            played_on=self.tiers,
            joined=tuple(here[part >= 0] for here, part in zip(positions, parts, strict=True)),
            joined_slot=old_slot[old_slot >= 0],
            steps=played,
            bridges=None if played is None else bridges_of(code, played),
        )

    def _bounds_of_keys(self, codes: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Open sessions of these keys (sorted, unique): their positions in each tier, and int64[n, 4] of their (code,
        start, last, end).
        """
        positions = [tier.of_codes(codes) for tier in self.tiers]
        rows = empty((sum(map(len, positions)), 4), np.int64)
        at = 0
        for tier, here in zip(self.tiers, positions, strict=True):
            s = tier.sessions
            for column, values in enumerate((s.code, s.start, s.last, s.end)):
                rows[at : at + len(here), column] = values[here]
            at += len(here)
        return positions, rows

    def _touching(self, protos: Assignment, strict: bool) -> list[np.ndarray]:
        return [
            find_touching(
                tier.sessions.code,
                tier.sessions.start,
                tier.sessions.end,
                tier.gone,
                protos.code,
                protos.start,
                protos.end,
                strict,
            )
            for tier in self.tiers
        ]

    def merge(
        self,
        assignment: Assignment,
        columns: Sequence[CellArrays],
        of_open: Callable[[SessionBatch], Columns] = columns_of,
    ) -> tuple[SessionState, SessionTrace]:
        """State with the proto-sessions of a batch merged into the sessions that they touch, and the trace. `columns`:
        one cell per proto-session and partial column of the layout. `of_open`: the cells of open sessions, those of a
        key by start, as they are merged, where that is not as they are.

        An assignment that was played must have been played on this very state. Raises gpuwin.OverflowError if an exact
        sum overflows.
        """
        protos = assignment
        if protos.joined is not None and protos.joined_slot is not None:
            if protos.played_on is not self.tiers:
                raise ValueError("these rows were played against another state: play them again on this one")
            positions = list(protos.joined)
            old = self._gathered(positions)
            by_slot = np.lexsort((old.start, protos.joined_slot))
            old = old.take(by_slot)
            proto_part, old_part = np.arange(len(protos.code)), protos.joined_slot[by_slot]
            bounds: tuple[np.ndarray, ...] = (protos.code, protos.start, protos.last, protos.end)
        else:
            strict = protos.touch == "split"
            positions = self._touching(protos, strict)
            old = self._gathered(positions)
            if len(positions) > 1:
                old = old.sorted()
            new_bounds, old_bounds = ((s.code, s.start, s.last, s.end) for s in (protos, old))
            proto_part, old_part, bounds = join_sessions(new_bounds, old_bounds, strict)
        made = len(bounds[0])
        offsets, ids = empty(made + 1, np.int64), empty(made, np.int64)
        created = int(name_sessions(old_part, old.id, self.next_id, offsets, ids))
        if len(old):
            full = np.flatnonzero(old.filled)
            parts = [(tuple(columns), proto_part), (take_cells(of_open(old), full), old_part[full])]
            columns = merge_parts(self.layout, parts, made, self.heap)
        sessions = SessionBatch.of((*bounds, ids, np.ones(made, np.uint8)), tuple(columns))
        tiers = self._without(positions)
        if made:
            tiers = (*tiers, Tier.of(sessions))
        state = replace(self, tiers=tidied(tiers), next_id=self.next_id + created)
        return state, SessionTrace(sessions, old, offsets, proto_part, protos.bridges)

    def merge_rows(
        self,
        code: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
        columns: Columns,
        touch: Touch = "merge",
        of_open: Callable[[SessionBatch], Columns] = columns_of,
    ) -> tuple[SessionState, SessionTrace]:
        """State with intervals in any order, which may touch one another, merged into the sessions that they touch, and
        the trace. `columns`: one cell per interval. Raises gpuwin.OverflowError if an exact sum overflows.
        """
        protos = assign(code, start, end - start, touch)
        cells = merge_cells(self.layout, columns, protos.slot, len(protos.code), self.heap)
        return self.merge(protos, cells, of_open)

    def with_sessions(self, sessions: SessionBatch) -> SessionState:
        """State with sessions that were part of it before, at least one, in any order."""
        return replace(self, tiers=tidied((*self.tiers, Tier.of(sessions.sorted()))))

    def with_new(self, sessions: SessionBatch) -> SessionState:
        """State with new sessions, at least one, sorted by (code, start), that touch none of its own. They get ids."""
        ids = np.arange(self.next_id, self.next_id + len(sessions))
        tiers = tidied((*self.tiers, Tier.of(replace(sessions, id=ids))))
        return replace(self, tiers=tiers, next_id=self.next_id + len(sessions))

    def emptied(self, sessions: SessionBatch) -> SessionState:
        """State in which these sessions (found by code and start) have no contents: merging skips their cells."""
        positions = [tier.at(sessions.code, sessions.start) for tier in self.tiers]
        tiers = (tier.emptied(at) if len(at) else tier for tier, at in zip(self.tiers, positions, strict=True))
        return replace(self, tiers=tuple(tiers))

    # -- keys and snapshots --------------------------------------------------------------------------------------------

    def used_codes(self) -> np.ndarray:
        """Key codes in use, int32, sorted, unique."""
        return distinct_codes(*(tier.live_sessions().code for tier in self.tiers))

    def recoded(self, new_code: np.ndarray) -> SessionState:
        """State with the codes of a new dictionary: `new_code` int32, old -> new, order preserving (-1: not in use)."""
        tiers = []
        for tier in self.tiers:
            live = tier.live_sessions()
            tiers.append(Tier.of(replace(live, code=new_code[live.code].astype(np.int32))))
        return replace(self, tiers=tuple(tiers))

    def on_host(self) -> SessionState:
        """This state."""
        return self

    def with_heap(self, heap: BytesHeap) -> SessionState:
        """State with another heap, in which the codes of its cells mean the same."""
        return replace(self, heap=heap)

    def with_smaller_heap(self) -> SessionState:
        """State with a heap of the texts in use, once the dead ones are the majority; else this state.

        Cells of the new state mean nothing in the old heap: a caller that holds a heap takes `SessionState.heap`.
        """
        if self.heap is None or not self.layout.uses_heap or not self.heap.is_due:
            return self
        live = [tier.live_sessions() for tier in self.tiers]
        found = smaller(self.layout, self.heap, [sessions.columns for sessions in live])
        if found is None:
            return self
        heap, cells = found
        tiers = [Tier.of(replace(s, columns=columns)) for s, columns in zip(live, cells, strict=True)]
        return replace(self, tiers=tuple(tiers), heap=heap)

    def to_arrow(self) -> pa.RecordBatch:
        """Record batch of all sessions, sorted by (code, start); `next_id` is in the schema's metadata. See
        `sessions_to_arrow`.
        """
        batch = sessions_to_arrow(self.layout, self.ending(None, None), self.heap)
        return batch.replace_schema_metadata({"next_id": str(self.next_id)})

    @classmethod
    def from_arrow(cls, layout: CellLayout, data: pa.RecordBatch, heap: BytesHeap | None = None) -> SessionState:
        """Inverse of `to_arrow`. Raises ValueError if the batch is not of this layout."""
        state = cls.empty(layout, heap)
        if b"next_id" not in (data.schema.metadata or {}):
            raise ValueError("not a state of sessions: its schema has no next_id")
        sessions = sessions_from_arrow(layout, empty_cells(layout, 0), data, state.heap)
        tiers = (Tier.of(sessions),) if len(sessions) else ()
        return replace(state, tiers=tiers, next_id=int(data.schema.metadata[b"next_id"]))
