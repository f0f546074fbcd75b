"""Sessions of rows, for the engines of sessions: late rows, merging, and the state of keys, sessions and raw rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

import numpy as np
import pyarrow as pa

from gpuwin.batch.pane_cells import unit_cells
from gpuwin.batch.timed_rows import NOTHING_DROPPED, Drops, TimedRows, late_by_time, without
from gpuwin.bounds import Bounds
from gpuwin.engines.results import finished, merges_schema
from gpuwin.engines.saved import key_part, keys_of, row_parts, rows_of
from gpuwin.engines.step import Parts
from gpuwin.engines.triggers.cold import Cold
from gpuwin.planning.plan import Plan
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.state.cells import Columns, merge_cells
from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys import dead_keys
from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary, Names
from gpuwin.state.rows.row_state import RowState
from gpuwin.state.sessions.assignment import Assignment, Touch, as_gaps, assign
from gpuwin.state.sessions.bridges import Bridges
from gpuwin.state.sessions.session_state import SessionState
from gpuwin.state.sessions.table import SessionTable
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin.state.spill import memory_of_rows, memory_of_sessions, spilled_sessions
from gpuwin.state.stores import SessionStore, Trace
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN, micros
from gpuwin.vocabulary.triggers import Complete
from gpuwin.vocabulary.windows import SessionWindow
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.distinct_codes import distinct_codes

_FEW_KEYS = 4 * FEW_KEYS  # few sessions are open at a time beside keys that come again


@dataclass(frozen=True, slots=True)
class OpenSessions:
    """State of sessions: keys, sessions with their partial aggregates, and raw rows of holistic ones. `emitted`:
    sessions that end up to there were emitted. `cold`: sessions on disk, with their ledgers. `table`: all open
    sessions, where they are so few that they are not in `sessions`. `untabled`: number of batches until a table is
    tried again.
    """

    keys: KeyDictionary
    heap: BytesHeap
    sessions: SessionStore
    rows: RowState | None
    emitted: int = INT64_MIN
    cold: Cold = Cold()  # noqa: RUF009 - frozen, so it can be shared
    table: SessionTable | None = None
    untabled: int = 0

    @property
    def host(self) -> SessionState:
        """The `sessions`, which are in host memory."""
        assert isinstance(self.sessions, SessionState)
        return self.sessions

    @property
    def open(self) -> int:
        """Number of open sessions in memory."""
        return self.sessions.cells + (0 if self.table is None else len(self.table))

    def with_table(self, table: SessionTable) -> OpenSessions:
        """State with another table. Each batch makes two, so it does without `replace`, which looks at each field."""
        return OpenSessions(
            self.keys, self.heap, self.sessions, self.rows, self.emitted, self.cold, table, self.untabled
        )

    def without_table(self) -> OpenSessions:
        """State with all sessions in `sessions`."""
        if self.table is None:
            return self
        sessions = self.host.with_new(self.table.sessions()) if len(self.table) else self.sessions
        return replace(self, sessions=sessions, table=None)


def reaches_back(plan: Plan) -> bool:
    """Whether sessions that are evicted within a batch have to leave before its next rows come. Raw rows are found by
    their times, and a later session may reach back over the times of one that is evicted, or begin at its last.
    """
    semantics, window = plan.spec.semantics, plan.spec.window
    assert isinstance(window, SessionWindow)
    over = not isinstance(window.gap, timedelta) or not window.gap or semantics.session_late_check == "after_merge"
    return plan.keeps_rows and semantics.watermark_advance == "row" and over


class SessionRows:
    """Logic that the engines of sessions share: from rows to sessions, and from sessions to results."""

    def __init__(self, plan: Plan, rule: WatermarkRule) -> None:
        spec = plan.spec
        semantics = spec.semantics
        assert isinstance(spec.window, SessionWindow)
        self.plan = plan
        self.rule = rule
        self.bounds = Bounds.of(spec)
        gap = spec.window.gap
        self.gap = micros(gap) if isinstance(gap, timedelta) else None
        # Sessions of an instant touch where they are the same one.
        self.touch: Touch = "merge" if self.gap == 0 and semantics.session_touch == "split" else semantics.session_touch
        self.after_merge = semantics.session_late_check == "after_merge"
        self.to_last_event = semantics.session_end == "last_event"
        self.never_late = isinstance(spec.emit, Complete) or rule.system
        self.collects_merges = spec.collect_merges

    def begin(self) -> OpenSessions:
        heap = BytesHeap()
        rows = self.plan.no_rows()
        return OpenSessions(KeyDictionary(self.plan.key_types), heap, SessionState.empty(self.plan.layout, heap), rows)

    # -- rows --------------------------------------------------------------------------------------------------------

    def gap_of(self, rows: TimedRows) -> int | np.ndarray:
        """Session gap of all rows, or of each row (int64[n]), microseconds."""
        return self.gap if rows.gap is None else rows.gap  # type: ignore[return-value]

    def own_ends(self, rows: TimedRows) -> np.ndarray:
        """Ends of the sessions that each row would make alone, int64[n], saturated."""
        gap = self.gap_of(rows)
        most = INT64_MAX - gap
        return np.where(rows.time > most, INT64_MAX, np.minimum(rows.time, most) + gap)

    def watermarks(
        self, state: OpenSessions, rows: TimedRows, code: np.ndarray, progress: Progress, source: int
    ) -> tuple[Progress, int | np.ndarray]:
        """Progress after the batch, and the watermark that each row is tested against (one number, where they share
        it).
        """
        rule = self.rule
        if rule.per_key:
            after, each = rule.after_rows_by_key(progress, rows.time, code, len(state.keys))
            return after, each if rule.per_row else progress.of_keys(len(state.keys))[code]
        if rule.per_row:
            return rule.after_each_row(progress, rows.time, source)
        after = rule.after_rows(progress, rows.time, source)
        return rule.followed(progress, after), rule.tested_against(progress)

    def _all_after(self, rows: TimedRows, passed: int) -> bool:
        """Whether the oldest row shows that no row alone ends by `passed`."""
        return rows.gap is None and int(rows.time.min(initial=INT64_MAX)) > passed - (self.gap or 0)

    def admitted(
        self, rows: TimedRows, code: np.ndarray, each: int | np.ndarray
    ) -> tuple[TimedRows, np.ndarray, int | np.ndarray, Drops]:
        """Rows that have a gap and are not late alone, their codes and watermarks, and what was dropped."""
        free = rows.gap <= 0 if rows.gap is not None else None
        late = None
        if not self.never_late:
            if self.bounds.by_time:
                late = late_by_time(rows.time, each, self.bounds.lateness)
            elif not self.after_merge:
                if isinstance(each, np.ndarray):
                    late = self.own_ends(rows) <= self.bounds.evicting_each(each)
                elif (passed := self.bounds.evicting(each)) != INT64_MIN and not self._all_after(rows, passed):
                    late = self.own_ends(rows) <= passed
            if late is not None and free is not None:
                late = late & ~free
        kept, drops = without(rows, late, free)
        if len(kept) != len(rows):
            stay = np.ones(len(rows), bool)
            for mask in (late, free):
                if mask is not None:
                    stay &= ~mask
            code = code[stay]
            each = each[stay] if isinstance(each, np.ndarray) else each
        if drops.rows_late:
            drops = replace(drops, window_rows_late=drops.rows_late)
        return kept, code, each, drops

    def in_order(self, each: int | np.ndarray) -> bool:
        """Whether rows are played one by one. `each`: the watermarks that they were tested against."""
        by_row = isinstance(each, np.ndarray) or self.touch == "forward_split" or self.after_merge
        return by_row or self.collects_merges

    def merged(
        self, state: OpenSessions, rows: TimedRows, code: np.ndarray, each: int | np.ndarray
    ) -> tuple[OpenSessions, Trace | None, TimedRows, np.ndarray, Drops]:
        """(state, trace, rows, session, drops): the state with these rows; the trace of the merge; the rows that were
        not dropped on the way; the session of each in the trace; and what was dropped.
        """
        if not len(rows):
            return state, None, rows, np.empty(0, np.int64), NOTHING_DROPPED
        if not self.in_order(each):
            state, trace, session = self._joined(state, rows, code, *self.cut(state, rows, code))
            return state, trace, rows, session, NOTHING_DROPPED
        protos, drops = self.played(state, rows, code, each, self.collects_merges)
        if drops.rows_late:
            stay = np.flatnonzero(protos.slot >= 0)
            rows, code, protos = rows.take(stay), code[stay], replace(protos, slot=protos.slot[stay])
        cells = self._cells(state, rows, protos.slot, len(protos.code))
        state, trace, session = self._joined(state, rows, code, protos, cells)
        return state, trace, rows, session, drops

    def played(
        self, state: OpenSessions, rows: TimedRows, code: np.ndarray, each: int | np.ndarray, keep_steps: bool
    ) -> tuple[Assignment, Drops]:
        """Proto-sessions of rows that are played one by one, and what was dropped on the way: the rows whose slot is
        negative. `keep_steps`: see `SessionState.play`.
        """
        late: Literal["before_merge", "after_merge"] = (
            "after_merge" if self.after_merge and not self.bounds.by_time else "before_merge"
        )
        gaps, evicted = self.gap_of(rows), self.evicted_by(each)
        protos = state.host.play(code, rows.time, gaps, evicted, touch=self.touch, late=late, keep_steps=keep_steps)
        drops = without(rows, protos.slot < 0, None)[1]
        return protos, replace(drops, window_rows_late=drops.rows_late) if drops.rows_late else drops

    def evicted_by(self, each: int | np.ndarray) -> int | np.ndarray:
        """The end by which a session is evicted under each watermark, when its row comes."""
        at_the_end = self.bounds.by_time and not self.rule.per_row  # of a batch; a row on time may make a session of it
        if self.never_late or at_the_end:
            return INT64_MIN
        return self.bounds.evicting_each(each) if isinstance(each, np.ndarray) else self.bounds.evicting(each)

    def cut(self, state: OpenSessions, rows: TimedRows, code: np.ndarray) -> tuple[Assignment, Columns]:
        """Proto-sessions of rows whose order of arrival does not matter, and the cell of each."""
        protos = assign(code, rows.time, self.gap_of(rows), self.touch)
        return protos, self._cells(state, rows, protos.slot, len(protos.code))

    def _cells(self, state: OpenSessions, rows: TimedRows, slot: np.ndarray, protos: int) -> Columns:
        return merge_cells(self.plan.layout, unit_cells(self.plan, rows, state.heap), slot, protos, state.heap)

    def _joined(
        self, state: OpenSessions, rows: TimedRows, code: np.ndarray, protos: Assignment, cells: Columns
    ) -> tuple[OpenSessions, Trace, np.ndarray]:
        """State with the proto-sessions merged into the open sessions; the trace and the sessions as in `merged`."""
        sessions, trace = state.host.merge(protos, cells)
        raw = state.rows
        if raw is not None and len(rows):
            values = [rows.columns[name] for name in self.plan.row_names]
            raw = raw.add(code, rows.time, rows.seq, values, sessions.session_at)
        session = trace.slot_session[protos.slot]
        return replace(state, sessions=sessions, rows=raw), trace, session

    def tabled(self, state: OpenSessions, rows: TimedRows, code: np.ndarray) -> tuple[OpenSessions, bool]:
        """State with these rows in a table of all open sessions, and whether it has one: not if there are too many
        sessions, or rows have too little order in time. Only for rows whose order of arrival does not matter, and where
        no trace is needed.
        """
        n, codes = len(rows), len(state.keys)
        if state.untabled:
            return replace(state, untabled=state.untabled - 1), False
        most = tuning.TABLE_SESSIONS if state.table is None else 2 * tuning.TABLE_SESSIONS
        if state.open > most or codes > tuning.TABLE_CODES * (state.open + n) + tuning.TABLE_SESSIONS:
            return state.without_table(), False
        table = SessionTable.of(state.sessions.ending(None, None)) if state.table is None else state.table
        units = unit_cells(self.plan, rows, state.heap)
        gaps = as_gaps(self.gap_of(rows), n)
        found = table.with_rows(self.plan.layout, codes, code, rows.time, gaps, self.touch == "split", units)
        if found is None:
            return replace(state.without_table(), untabled=tuning.UNTABLED), False
        if state.table is None:
            state = replace(state, sessions=replace(state.host, tiers=()))
        return state.with_table(found), True

    # -- results -----------------------------------------------------------------------------------------------------

    def values(self, state: OpenSessions, batch: SessionBatch) -> list[pa.Array]:
        """Finished aggregates of sessions."""
        slices = state.rows.select(batch.code, batch.start, batch.last + 1) if state.rows is not None else None
        return finished(self.plan, batch.columns, state.heap, slices)

    def result_end(self, batch: SessionBatch) -> np.ndarray:
        """Ends of sessions as they are emitted, int64[n]."""
        return batch.last if self.to_last_event else batch.end

    def merges(self, keys: KeyDictionary, bridges: Bridges | None) -> tuple[pa.RecordBatch, ...]:
        """Sessions that became one, in the schema of `WindowOperator.session_merges`."""
        if bridges is None or not self.collects_merges:
            return ()
        part_start, part_last, part_end = bridges.part
        ends = (bridges.last, part_last) if self.to_last_event else (bridges.end, part_end)
        schema = merges_schema(self.plan.schema, len(self.plan.key_types))
        found = [*keys.take(bridges.code), *map(pa.array, (bridges.start, ends[0], part_start, ends[1]))]
        columns = [a if a.type == f.type else a.cast(f.type) for a, f in zip(found, schema, strict=True)]
        return (pa.RecordBatch.from_arrays(columns, schema=schema),)

    # -- eviction ------------------------------------------------------------------------------------------------------

    def without_rows(self, rows: RowState | None, evicted: SessionBatch) -> RowState | None:
        """Raw rows without those of evicted sessions."""
        if rows is None or not len(evicted):
            return rows
        return rows.evict_windows(evicted.code, evicted.start, evicted.last + 1)

    def evicted(self, state: OpenSessions, progress: Progress) -> tuple[OpenSessions, SessionBatch]:
        """State without the sessions whose allowed lateness is over, and these sessions."""
        if state.table is not None:
            evicted, table = state.table.closed(self.bounds.evicting(progress.watermark))
            if not len(evicted):
                return state, evicted
            return self.with_fewer_keys(state.with_table(table)), evicted
        evicted, sessions = state.sessions.close(self.evicts_until(state, progress))
        return self.without(state, sessions, evicted), evicted

    def evicts_until(self, state: OpenSessions, progress: Progress) -> int | np.ndarray:
        """End up to which sessions are evicted: one for all keys, or int64[keys]."""
        if self.rule.per_key:
            return self.bounds.evicting_each(progress.of_keys(len(state.keys)))
        return self.bounds.evicting(progress.watermark)

    def without(self, state: OpenSessions, sessions: SessionStore, evicted: SessionBatch) -> OpenSessions:
        """State with `sessions`, from which those in `evicted` were evicted."""
        if not len(evicted):
            return state
        return self.with_fewer_keys(replace(state, sessions=sessions, rows=self.without_rows(state.rows, evicted)))

    def evicted_by_key(self, state: OpenSessions, upto: np.ndarray) -> tuple[OpenSessions, SessionBatch]:
        """State without the sessions that end up to `upto[code]`, and these sessions. Keys keep their codes."""
        evicted, sessions = state.sessions.close(upto)
        if not len(evicted):
            return state, evicted
        return replace(state, sessions=sessions, rows=self.without_rows(state.rows, evicted)), evicted

    def with_fewer_keys(self, state: OpenSessions) -> OpenSessions:
        """State without the keys that have no session, once they are the majority of the dictionary. (Not where keys
        have watermarks of their own.)
        """
        if self.rule.per_key or not dead_keys.may_be_many(state.keys, state.open + len(state.cold), _FEW_KEYS):
            return state
        state = state.without_table()
        used = distinct_codes(state.sessions.used_codes(), state.cold.used_codes())
        found = dead_keys.without(state.keys, used)
        if found is None:
            return state
        keys, new_code = found
        rows = None if state.rows is None else state.rows.recoded(new_code)
        sessions, cold = state.sessions.recoded(new_code), state.cold.recoded(new_code)
        return replace(state, keys=keys, sessions=sessions, rows=rows, cold=cold)

    def with_smaller_heap(self, state: OpenSessions) -> OpenSessions:
        """State without the texts that no session has, once they are the majority of the heap; this state where other
        sessions are on disk, with their codes.
        """
        if not self.plan.layout.uses_heap or len(state.cold):
            return state
        sessions = state.sessions.with_smaller_heap()
        if sessions is state.sessions or sessions.heap is None:
            return state
        return replace(state, heap=sessions.heap, sessions=sessions)

    def tidied(self, state: OpenSessions) -> OpenSessions:
        """State without dead keys and texts, once they are the majority. Late rows may bring keys that have nothing."""
        return self.with_smaller_heap(self.with_fewer_keys(state))

    # -- what it takes -----------------------------------------------------------------------------------------------

    def sizes(self, state: OpenSessions) -> tuple[int, int]:
        """(cells, bytes) of the state."""
        size = memory_of_sessions(state.sessions) + state.keys.nbytes + state.heap.nbytes
        size += memory_of_rows(state.rows) + state.cold.nbytes + (0 if state.table is None else state.table.nbytes)
        rows = 0 if state.rows is None else state.rows.cells
        return state.open + len(state.cold) + rows, size

    def spilled(self, state: OpenSessions, excess: int, folder: str) -> OpenSessions:
        """State with its largest parts on disk, until `excess` bytes have left memory."""
        state = state.without_table()
        sessions, (rows,) = spilled_sessions(state.host, [state.rows], excess, folder)
        return replace(state, sessions=sessions, rows=rows)

    def renamed(self, state: OpenSessions, names: Names) -> OpenSessions:
        sessions = state.sessions.with_heap(names.heap)
        return replace(state, keys=names.keys, heap=names.heap, sessions=sessions)

    def parts(self, state: OpenSessions) -> Parts:
        """The state as named record batches."""
        state = state.without_table()
        sessions = state.sessions.on_host().to_arrow()
        metadata = {**(sessions.schema.metadata or {}), b"emitted": str(state.emitted).encode()}
        parts = {"keys": key_part(state.keys), "sessions": sessions.replace_schema_metadata(metadata)}
        return parts | row_parts(state.rows)

    def from_parts(self, parts: Parts) -> OpenSessions:
        """Inverse of `parts`."""
        heap = BytesHeap()
        sessions = SessionState.from_arrow(self.plan.layout, parts["sessions"], heap)
        emitted = int((parts["sessions"].schema.metadata or {})[b"emitted"])
        keys = keys_of(self.plan.key_types, parts["keys"])
        return OpenSessions(keys, heap, sessions, rows_of(self.plan, parts), emitted)
