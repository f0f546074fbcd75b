"""Open sessions: an immutable state of tiers, merged with the sessions of a batch.

A batch takes three steps, and the state is only replaced when the last has succeeded:

1. `assign` (no order of arrival matters) or `SessionState.play` (it does: watermark per row, late check after the merge, one-sided touch)
   puts every row into one of `m` *proto-sessions*: `Assignment.slot`.
2. The caller reduces its rows to `m` cells per partial column, by that slot.
3. `SessionState.merge` joins the proto-sessions with the open sessions they touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from gpuwin_kernels.layout import CellArrays, CellLayout

Touch = Literal["merge", "split", "forward_split"]


@dataclass(frozen=True, slots=True)
class SessionBatch:
    """Sessions as rows, sorted by (code, start); all arrays have the same length n.

    `last` is the time of the newest event, `end` the furthest `time + gap`. `id` is unique in the life of a state; a session that grows keeps it,
    one that bridges others keeps that of the earliest. `filled` is 0 for a session whose contents were purged: its cells mean nothing.
    """

    code: np.ndarray  # int32[n]
    start: np.ndarray  # int64[n]
    last: np.ndarray  # int64[n]
    end: np.ndarray  # int64[n]
    id: np.ndarray  # int64[n]
    filled: np.ndarray  # uint8[n]
    columns: tuple[CellArrays, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which proto-session each row of a batch belongs to, and the bounds of the `m` proto-sessions, sorted by (code, start)."""

    slot: np.ndarray  # int32[rows]; -1: the row is late (only `play` with `late="after_merge"`)
    code: np.ndarray  # int32[m]
    start: np.ndarray  # int64[m]
    last: np.ndarray  # int64[m]
    end: np.ndarray  # int64[m]


@dataclass(frozen=True, slots=True)
class SessionTrace:
    """What a merge did. `sessions[j]` is what it left, and it replaces `replaced[offsets[j]:offsets[j + 1]]` (as they were, by start):
    none for a created session, one for an extended (or merely refilled) one, more for a bridge. `slot_session[s]` is the j of proto-session s.
    """

    sessions: SessionBatch
    replaced: SessionBatch
    offsets: np.ndarray  # int64[len(sessions) + 1]
    slot_session: np.ndarray  # int64[m]


def assign(code: np.ndarray, time: np.ndarray, gap: int | np.ndarray, touch: Touch = "merge") -> Assignment:
    """Cuts the rows of one batch into proto-sessions: for when the order of arrival does not matter.

    `code` int32[n] (any codes >= 0), `time` int64[n] microseconds, `gap` microseconds > 0, one for all or int64[n]. A row covers
    [time, time + gap); rows of a key whose intervals overlap (`touch="split"`), or overlap or meet (`"merge"`), are one session.
    Costs one pass over nearly ordered rows, and a sort of the pieces of disorder.
    """
    raise AssertionError


class SessionState:
    """The open sessions of all keys. Immutable: every method returns a new state, sharing arrays with the old one.

    Keys are codes of a dictionary that the caller keeps (`used_codes`, `recoded` serve its compaction).
    """

    layout: CellLayout
    cells: int  # open sessions
    nbytes: int

    @classmethod
    def empty(cls, layout: CellLayout) -> SessionState: ...

    def play(
        self,
        code: np.ndarray,
        time: np.ndarray,
        gap: int | np.ndarray,
        bound: int | np.ndarray,
        *,
        touch: Touch = "merge",
        late: Literal["before_merge", "after_merge"] = "before_merge",
    ) -> Assignment:
        """Plays the rows one by one, in order of arrival, against the open sessions; the state itself does not change, `merge` does that.

        `bound` (one, or int64[n]): a session with `end <= bound[i]` is gone when row i arrives, and is not joined by it (it stays in the state
        until `evict`/`close`). With `late="after_merge"` (Flink) a row whose session, after the merge, has `end <= bound[i]` is dropped (slot -1);
        with `"before_merge"` the caller has already filtered. `touch="forward_split"` is Apex Malhar's: an event exactly at the end of a session opens a new
        one, an event exactly one gap before a session joins it.
        """

    def merge(self, assignment: Assignment, columns: Sequence[CellArrays], touch: Touch = "merge") -> tuple[SessionState, SessionTrace]:
        """`columns`: one cell per proto-session and partial column of the layout. Raises gpuwin.OverflowError if an exact sum overflows."""

    def ending(self, after: int | None, upto: int | None) -> SessionBatch:
        """The sessions with `after < end <= upto`; None is open on that side (`ending(None, None)`: all of them)."""

    def evict(self, upto: int) -> SessionState:
        """Forgets the sessions with `end <= upto`."""

    def close(self, upto: int) -> tuple[SessionBatch, SessionState]:
        """`ending(None, upto)` and `evict(upto)` in one. Strict rules (`end < W`, Bytewax's `last < W - gap`) are `upto = W - 1`."""

    def close_by_key(self, upto: np.ndarray) -> tuple[SessionBatch, SessionState]:
        """As `close`, with a bound per key code (int64[>= largest code + 1]; the smallest int64 closes nothing)."""

    def of_codes(self, codes: np.ndarray) -> SessionBatch:
        """The open sessions of these keys (int32, any order)."""

    def purged(self, sessions: SessionBatch) -> SessionState:
        """Discards the contents of these sessions (matched by code and start), not the sessions: `filled` becomes 0, and merging skips their cells."""

    def used_codes(self) -> np.ndarray:
        """int32, sorted, unique."""

    def recoded(self, new_code: np.ndarray) -> SessionState:
        """After the dictionary was compacted: int32 old -> new, order preserving (-1 for codes not in use)."""

    def to_arrow(self) -> pa.RecordBatch: ...

    @classmethod
    def from_arrow(cls, layout: CellLayout, data: pa.RecordBatch) -> SessionState: ...
