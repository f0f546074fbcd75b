"""Running join: batches of either side in, joined rows out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.batch.late_rows import kept, one_table
from gpuwin.errors import LimitExceeded, SpecificationError
from gpuwin.joins.batches import fitted
from gpuwin.joins.keys import by_side
from gpuwin.joins.output import JoinOutput
from gpuwin.joins.plan import JoinPlan
from gpuwin.joins.schemas import SIDE_NAMES, fresh_state, output_of, with_schema
from gpuwin.joins.side import Found
from gpuwin.joins.snapshots import snapshot_of
from gpuwin.joins.state import JoinMetrics, JoinState, memory_of, spilled
from gpuwin.joins.windows import WindowLogic, WindowSides
from gpuwin.planning.ingest import as_table, check_bounds, instants, last_instants, valid_mask
from gpuwin.progress import Progress
from gpuwin.state.keys.dictionary import FEW_KEYS
from gpuwin.state.rows.row_runs import RowRun
from gpuwin.state.rows.waiting_rows import WaitingRows
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.distinct_codes import distinct_codes

_RESERVED = 2  # codes of rows whose one key is null: 0 on the left, 1 on the right, so that they never meet


class JoinOperator:
    """Running join, started by the `start` of a `WindowJoin`, an `IntervalJoin`, an `AsOfJoin` or a `HashJoin`.

    `process(left=..., right=...)` takes a batch of either side or of both (anything that speaks the Arrow PyCapsule
    protocol) and returns the rows that are certain by now. A batch that does not fit raises `gpuwin.SchemaError` and
    changes nothing.
    """

    def __init__(self, plan: JoinPlan, state: JoinState) -> None:
        self._plan = plan
        self._state = state
        self._known_output = (state.schemas, output_of(plan, state.schemas))

    @classmethod
    def started(cls, plan: JoinPlan, left: pa.Schema | None, right: pa.Schema | None) -> JoinOperator:
        state = fresh_state(plan)
        for number, schema in enumerate((left, right)):
            if schema is not None:
                state = with_schema(plan, state, number, schema)
        return cls(plan, state)

    # -- the life of a batch ------------------------------------------------------------------------------------------

    def process(self, left: Any = None, right: Any = None) -> pa.Table:
        """Joined rows of a batch. Rows are tested for lateness against the watermark in force when the batch begins."""
        state = self._open_state()
        known = len(state.keys)
        try:
            return self._joined(state, left, right)
        except BaseException:
            if len(state.keys) != known:  # those of the batch are taken out again
                keys = state.keys.kept(np.arange(known, dtype=np.int32))[0]
                self._state = replace(self._state, keys=keys)
            raise

    def _joined(self, state: JoinState, left: Any, right: Any) -> pa.Table:
        tables = tuple(None if batch is None else as_table(batch) for batch in (left, right))
        state = self._with_schemas(state, (tables[0], tables[1]))
        came: list[RowRun | WaitingRows | None] = []
        progress = state.progress
        for number, table in enumerate(tables):
            rows, newest = None, None
            if table is not None:
                rows, newest, state = self._rows(state, number, table)
            if newest is not None:
                progress = self._plan.rule.after_newest(progress, newest, number)
            came.append(rows)
        sides, found = self._plan.logic.add(state.sides, came[0], came[1])  # type: ignore[arg-type]
        state = replace(state, sides=sides)
        state, more = self._advanced(state, progress)
        sides = replace(state.sides, left=state.sides.left.tidied(), right=state.sides.right.tidied())
        state = replace(state, sides=sides)
        return self._commit(self._within_limits(state), found + more)

    def advance_watermark(self, time: Any) -> pa.Table:
        """Joined rows once neither side has rows before `time` (datetime or int microseconds). The watermark never goes
        back. (A hash join gives out nothing for it, and goes on keeping every row.)
        """
        state, rule = self._open_state(), self._plan.rule
        state, found = self._advanced(state, rule.advanced(state.progress, rule.from_user(time)))
        return self._commit(self._spilled(state), found)

    def finish(self) -> pa.Table:
        """Joined rows at the end of both sides: every window closes, and rows without a partner are emitted if their
        side is kept.
        """
        state = self._open_state()
        sides, found = self._plan.logic.finish(state.sides)  # type: ignore[arg-type]
        ended = replace(state.progress, watermark=INT64_MAX)
        return self._commit(replace(state, sides=sides, progress=ended, finished=True), found)

    def late_rows(self) -> tuple[pa.Table, pa.Table]:
        """Late rows of the left side and of the right since the last call, with `collect_late=True`; with the columns
        of the input. Where batches differ in encodings, units or further columns, the types hold the values of all.
        """
        if not self._plan.collect_late:
            raise SpecificationError(
                "late rows are not kept: write WindowJoin(..., collect_late=True), and likewise of an IntervalJoin or "
                "an AsOfJoin; a HashJoin has none"
            )
        state = self._state
        left, right = (one_table(late, batch) for late, batch in zip(state.late, state.batches, strict=True))
        state = replace(state, late=((), ()), late_bytes=0)
        self._state = replace(state, metrics=replace(state.metrics, state_bytes=memory_of(state)))
        return left, right

    def _open_state(self) -> JoinState:
        if self._state.finished:
            raise SpecificationError("this join has finished: start another one")
        return self._state

    def _advanced(self, state: JoinState, progress: Progress) -> tuple[JoinState, list[Found]]:
        if progress.watermark <= state.progress.watermark:
            return replace(state, progress=progress), []
        bound = self._plan.bound(progress.watermark)
        sides, found = self._plan.logic.advance(state.sides, bound)  # type: ignore[arg-type]
        return self._with_fewer_keys(replace(state, sides=sides, progress=progress)), found

    def _commit(self, state: JoinState, found: list[Found]) -> pa.Table:
        sides, size = state.sides, memory_of(state)
        table = self._output(state).table(found)
        metrics = replace(
            state.metrics,
            rows_out=state.metrics.rows_out + table.num_rows,
            rows_kept=sides.left.rows + sides.right.rows,
            state_bytes=size,
            watermark=self._plan.rule.to_user(state.progress.watermark),
        )
        self._state = replace(state, metrics=metrics, keys_known=len(state.keys))
        return table

    def _spilled(self, state: JoinState) -> JoinState:
        """State with its largest parts on disk, if it exceeds the limit and there is a folder."""
        limits = self._plan.limits
        excess = 0 if limits.max_state_bytes is None else memory_of(state) - limits.max_state_bytes
        return state if excess <= 0 or limits.spill_to is None else spilled(state, excess, os.fspath(limits.spill_to))

    def _within_limits(self, state: JoinState) -> JoinState:
        """State after a batch, spilled where it may be. Raises LimitExceeded if it exceeds the limit even so."""
        most = self._plan.limits.max_state_bytes
        if most is None:
            return state
        state = self._spilled(state)
        size = memory_of(state)
        if size > most:
            raise LimitExceeded(
                f"the join would keep {size} bytes, and Limits.max_state_bytes is {most}; nothing of the batch was "
                "applied"
            )
        return state

    # -- rows in ------------------------------------------------------------------------------------------------------

    def _with_schemas(self, state: JoinState, tables: tuple[Any, Any]) -> JoinState:
        for number, table in enumerate(tables):
            if table is not None and state.schemas[number] is None:
                state = with_schema(self._plan, state, number, table.schema)
        return state

    def _rows(
        self, state: JoinState, number: int, table: pa.Table | pa.RecordBatch
    ) -> tuple[RowRun | WaitingRows | None, int | None, JoinState]:
        """Rows of a batch that may find a partner, and its newest time. Dropped rows are counted."""
        plan, schema = self._plan, state.schemas[number]
        assert schema is not None
        columns = dict(zip(schema.names, fitted(table, schema, SIDE_NAMES[number]), strict=True))
        state = state.with_batch(number, table.schema)
        rows = table.num_rows
        if plan.times is None:
            came = _Came(np.zeros(rows, np.int64), np.ones(rows, bool), _NONE_LATE, None, state.metrics)
        else:
            bounds = (columns["window_start"],) if plan.carried else ()
            if plan.carried:
                check_bounds(columns["window_start"], columns["window_end"])
            came = self._on_time(state, columns[plan.times[number]], bounds)
            if plan.collect_late:
                state = _with_late(state, number, table, came.late)
        keys = [columns[name] for name in plan.keys]
        whole = np.ones(rows, bool)
        for key in keys:
            known = valid_mask(key)
            if known is not None:
                whole &= known
        unmatched = (plan.logic.keep_left, plan.logic.keep_right)[number] or plan.cogroup
        at = np.flatnonzero(came.kept if unmatched else came.kept & whole)  # a null key never matches
        metrics = replace(came.metrics, rows_in=came.metrics.rows_in + rows)
        after = replace(state, metrics=metrics, seq=state.seq + rows)
        if not len(at):
            return None, came.newest, after
        time, types = came.time, (state.sides.left, state.sides.right)[number].types
        values = list(columns.values()) if types else []
        if len(at) < rows:
            time, whole, keys = time[at], whole[at], [key.take(pa.array(at)) for key in keys]
            values = [v.take(pa.array(at)) for v in values]
        code = _coded(state, number, keys, whole)
        made = WaitingRows.of if plan.logic.waits else RowRun.of
        return made(code, time, state.seq + at, values, types), came.newest, after

    def _on_time(self, state: JoinState, column: pa.Array, bounds: Sequence[pa.Array]) -> _Came:
        """Rows that have a time, are not late, and lie in a window. `bounds`: columns that make it, beside the time."""
        time = last_instants(column) if self._plan.carried else instants(column)
        timed = np.ones(len(time), bool)
        for part in (column, *bounds):
            known = valid_mask(part)
            if known is not None:
                timed &= known
        late, nowhere = self._fate(state, time)
        late &= timed
        before = state.metrics
        counted = replace(
            before,
            rows_null_time=before.rows_null_time + int((~timed).sum()),
            rows_late=before.rows_late + int(late.sum()),
            rows_unassigned=before.rows_unassigned + int((nowhere & timed).sum()),
        )
        newest = int((time if timed.all() else time[timed]).max()) if timed.any() else None
        return _Came(time, timed & ~late & ~nowhere, late, newest, counted)

    def _fate(self, state: JoinState, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Late rows and rows in no window, bool[n] each."""
        logic, watermark = self._plan.logic, state.progress.watermark
        if isinstance(logic, WindowLogic):
            return logic.fate(time, None if watermark == INT64_MIN else self._plan.bound(watermark))
        return time < watermark, np.zeros(len(time), bool)

    def _with_fewer_keys(self, state: JoinState) -> JoinState:
        """State without the keys that no row has any more, once the dictionary has doubled since the last time."""
        if len(state.keys) < 2 * state.keys_checked:
            return state
        sides = state.sides
        used = distinct_codes(sides.left.used_codes(), sides.right.used_codes())
        kept, moved = state.keys.kept(used[used >= _RESERVED] - _RESERVED)
        new_code = np.concatenate((np.arange(_RESERVED), np.where(moved < 0, -1, moved + _RESERVED))).astype(np.int32)
        sides = replace(sides, left=sides.left.recoded(new_code), right=sides.right.recoded(new_code))
        if isinstance(sides, WindowSides):
            sides = replace(sides, sessions=sides.sessions.recoded(new_code))
        return replace(state, sides=sides, keys=kept, keys_checked=max(FEW_KEYS, len(kept)))

    # -- what is known ------------------------------------------------------------------------------------------------

    def _output(self, state: JoinState) -> JoinOutput:
        if self._known_output[0] is not state.schemas:
            self._known_output = (state.schemas, output_of(self._plan, state.schemas))
        return self._known_output[1]

    @property
    def output_schema(self) -> pa.Schema:
        """Keys, `window_start` and `window_end` of a window join, the left columns, the right columns.

        The columns of a side are those of its first batch, or of `start(left_schema=..., right_schema=...)`; until then
        they are missing.
        """
        return self._output(self._state).schema

    @property
    def watermark(self) -> int | None:
        """Microseconds: the smaller of the watermarks of both sides, None until both have one."""
        return self._plan.rule.to_user(self._state.progress.watermark)

    @property
    def output_watermark(self) -> int | None:
        """Watermark of the results, for an operator that goes on with them; microseconds, stated as `watermark` is.

        Later results of a window join have a `window_end` after it, so that their `gw.window_time` is not before it. Of
        an interval join, neither the left time nor the right time of later results is before it. None as long as
        nothing can be promised, which is for ever with `HashJoin` and `GlobalWindow`. After `finish` it is the largest
        int64.
        """
        times = self._plan.output
        return self._promised(None if times is None else times.end)

    @property
    def left_output_watermark(self) -> int | None:
        """Watermark of the results of an interval join by the time of the left rows: the join's, less `upper` where
        that is positive. None for other joins.
        """
        times = self._plan.output
        return self._promised(None if times is None else times.left)

    @property
    def right_output_watermark(self) -> int | None:
        """Watermark of the results of an interval join by the time of the right rows: the join's, plus `lower` where
        that is negative. None for other joins.
        """
        times = self._plan.output
        return self._promised(None if times is None else times.right)

    def _promised(self, behind: int | None) -> int | None:
        """Watermark of results that are so many microseconds behind at most."""
        watermark = self._state.progress.watermark
        if behind is None or watermark == INT64_MIN:
            return None
        if self._state.finished:
            return INT64_MAX
        return self._plan.rule.result_watermark(max(INT64_MIN, self._plan.bound(watermark) - behind))

    @property
    def metrics(self) -> JoinMetrics:
        return self._state.metrics

    def snapshot(self) -> bytes:
        """Whole state as bytes, for `restore` of an equal specification."""
        return snapshot_of(self._plan, self._state)

    def __reduce__(self) -> Any:
        raise TypeError("a join is not pickled or copied: take op.snapshot(), and go on with join.restore(data)")


@dataclass(frozen=True, slots=True)
class _Came:
    """Rows of a batch: the time of each (int64[n]), those that are kept and those that are late (bool[n] each), the
    newest time, and the metrics in which the others are counted.
    """

    time: np.ndarray
    kept: np.ndarray
    late: np.ndarray
    newest: int | None
    metrics: JoinMetrics


_NONE_LATE = np.zeros(0, bool)


def _with_late(state: JoinState, number: int, table: pa.Table | pa.RecordBatch, which: np.ndarray) -> JoinState:
    """State with these late rows (bool[n]) of a batch of one side, for `late_rows`."""
    if not which.any():
        return state
    late = kept(state.late[number], table, [np.flatnonzero(which)])
    both = (late, state.late[1]) if number == 0 else (state.late[0], late)
    return replace(state, late=both, late_bytes=state.late_bytes + late[-1].nbytes)


def _coded(state: JoinState, number: int, keys: list[pa.Array], whole: np.ndarray) -> np.ndarray:
    """Codes of the keys of rows, int32[n]; `whole` (bool[n]): rows without a null among their keys."""
    if len(keys) > 1:
        return state.keys.encode(by_side(whole, number, keys), len(whole)) + _RESERVED
    if whole.all():
        return state.keys.encode(keys, len(whole)) + _RESERVED
    code = np.full(len(whole), number, np.int32)  # there is but one null key
    known = np.flatnonzero(whole)
    code[known] = state.keys.encode([key.take(pa.array(known)) for key in keys], len(known)) + _RESERVED
    return code
