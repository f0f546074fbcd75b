"""Running deduplication: batches in, the first row of each key out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.batch.late_rows import kept, one_table
from gpuwin.deduplication.plan import DeduplicatePlan
from gpuwin.deduplication.remembered_keys import RememberedKeys
from gpuwin.deduplication.snapshots import snapshot_of
from gpuwin.deduplication.state import DeduplicateMetrics, DeduplicateState, fresh_keys, planned_schema
from gpuwin.errors import LimitExceeded, SpecificationError
from gpuwin.planning.ingest import as_table, instants, planned_column, valid_mask
from gpuwin.state.buffers import copied, with_own_dictionaries
from gpuwin.state.rows.gathering import gathered
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN


class DeduplicateOperator:
    """Running deduplication, started by `gw.Deduplicate.start`. Not for use by several threads at once.

    `process` takes a batch (anything that speaks the Arrow PyCapsule protocol) and returns its rows whose keys are new,
    in order of arrival. A batch that does not fit raises `gpuwin.SchemaError` and changes nothing.
    """

    def __init__(self, plan: DeduplicatePlan, state: DeduplicateState, remembered: RememberedKeys) -> None:
        self._plan = plan
        self._state = state
        self._remembered = remembered

    @classmethod
    def started(cls, plan: DeduplicatePlan, schema: pa.Schema | None) -> DeduplicateOperator:
        state = DeduplicateState(progress=plan.rule.begin())
        if schema is None:
            return cls(plan, state, RememberedKeys([]))
        planned = planned_schema(plan, schema)
        return cls(plan, replace(state, schema=planned, batch=schema), fresh_keys(plan, planned))

    def process(self, batch: Any) -> pa.Table:
        """Rows of a batch whose keys are new. They are tested for lateness against the watermark in force when the
        batch begins.
        """
        state, table = self._open_state(), as_table(batch)
        remembered = self._remembered
        schema = state.schema
        if schema is None:
            schema = planned_schema(self._plan, table.schema)
            remembered = fresh_keys(self._plan, schema)
        columns = [planned_column(table, f.name, f.type, keep_codes=False) for f in schema]
        state = replace(state, schema=schema, batch=table.schema)
        came = self._on_time(state, table, columns)
        keys = [columns[schema.get_field_index(name)] for name in self._plan.keys]
        first, before = remembered.first(keys, came.on_time, came.time, self._plan.within)
        try:
            after = self._counted(came, table.num_rows, len(first))
            kept = self._kept(remembered, state, after)
            if len(first) == table.num_rows:
                passed = [copied(column) for column in columns]
            else:
                passed = gathered((), [with_own_dictionaries(column) for column in columns], first)[1]
            result = pa.table(passed, schema=schema)
        except BaseException:
            remembered.back_to(before)
            raise
        self._state, self._remembered = after, kept
        return result

    def _on_time(self, state: DeduplicateState, table: pa.Table | pa.RecordBatch, columns: list[pa.Array]) -> _Came:
        """Rows of a batch that are not late, and the state with the others."""
        plan = self._plan
        if plan.time is None:
            return _Came(None, None, state)
        assert state.schema is not None
        column = columns[state.schema.get_field_index(plan.time)]
        time, timed = instants(column), valid_mask(column)
        late = time < state.progress.watermark
        dropped = late
        if timed is not None:
            late, dropped = late & timed, late | ~timed
        counted = replace(
            state.counted,
            rows_late=state.counted.rows_late + int(late.sum()),
            rows_null_time=state.counted.rows_null_time + column.null_count,
        )
        newest = time if timed is None else time[timed]
        after = replace(state, progress=plan.rule.after_rows(state.progress, newest, 0), counted=counted)
        if plan.collect_late and late.any():
            rows_late = kept(state.late, table, [np.flatnonzero(late)])
            after = replace(after, late=rows_late, late_bytes=state.late_bytes + rows_late[-1].nbytes)
        return _Came(time, np.flatnonzero(~dropped) if dropped.any() else None, after)

    @staticmethod
    def _counted(came: _Came, rows: int, first: int) -> DeduplicateState:
        """State after a batch of so many rows, of which so many come out."""
        counted = came.after.counted
        counted = replace(counted, rows_in=counted.rows_in + rows, rows_out=counted.rows_out + first)
        return replace(came.after, counted=counted)

    def _kept(self, remembered: RememberedKeys, state: DeduplicateState, after: DeduplicateState) -> RememberedKeys:
        """Keys that are kept between two states. Raises LimitExceeded if these are too many; then none has changed."""
        plan, least = self._plan, after.progress.watermark
        if plan.forgets and least > state.progress.watermark:
            remembered = remembered.without_many(least)
        most = INT64_MAX if plan.most_bytes is None else plan.most_bytes
        if plan.forgets and remembered.nbytes + after.late_bytes > most:
            remembered = remembered.without(least)
        size = remembered.nbytes + after.late_bytes
        if size > most:
            raise LimitExceeded(
                f"the deduplication would keep {size} bytes, and Limits.max_state_bytes is {most}; nothing of the "
                "batch was applied. Remember keys for less long (within=...), take late rows out (op.late_rows()), or "
                "raise the limit"
            )
        return remembered

    def advance_watermark(self, time: Any) -> pa.Table:
        """No rows: keys are forgotten once no row can come before `time` (datetime or int microseconds). The watermark
        never goes back. Without event time it is of no effect.
        """
        state, rule = self._open_state(), self._plan.rule
        progress = rule.advanced(state.progress, rule.from_user(time))
        if self._plan.time is not None:
            if self._plan.forgets:
                self._remembered = self._remembered.without_many(progress.watermark)
            self._state = replace(state, progress=progress)
        return self.output_schema.empty_table()

    def finish(self) -> pa.Table:
        """No rows: the end of the stream, after which no batch is taken."""
        state = self._open_state()
        self._state = replace(state, progress=replace(state.progress, watermark=INT64_MAX), finished=True)
        return self.output_schema.empty_table()

    def late_rows(self) -> pa.Table:
        """Late rows since the last call, with `collect_late=True`; with the columns of the input. Where batches differ
        in encodings, units or further columns, the types hold the values of all.
        """
        if not self._plan.collect_late:
            raise SpecificationError("late rows are not kept: write Deduplicate(..., collect_late=True)")
        table = one_table(self._state.late, self._state.batch)
        self._state = replace(self._state, late=(), late_bytes=0)
        return table

    def _open_state(self) -> DeduplicateState:
        if self._state.finished:
            raise SpecificationError("this deduplication has finished: start another one")
        return self._state

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of the input. They are those of the first batch, or of `start(schema=...)`; until then there are
        none.
        """
        return pa.schema([]) if self._state.schema is None else self._state.schema

    @property
    def watermark(self) -> int | None:
        """Microseconds; None until there is one."""
        return self._plan.rule.to_user(self._state.progress.watermark)

    @property
    def output_watermark(self) -> int | None:
        """Watermark of the rows that come out, for an operator that goes on with them; microseconds, stated as
        `watermark` is, and the same. None without event time, and until there is one. After `finish` it is the largest
        int64.
        """
        return None if self._plan.time is None else self._plan.rule.result_watermark(self._state.progress.watermark)

    @property
    def metrics(self) -> DeduplicateMetrics:
        state = self._state
        least = state.progress.watermark if self._plan.forgets else INT64_MIN
        return replace(
            state.counted,
            keys=self._remembered.count(least),
            state_bytes=self._remembered.nbytes + state.late_bytes,
            watermark=self.watermark,
        )

    def snapshot(self) -> bytes:
        """Whole state as bytes, for `Deduplicate.restore` of an equal specification."""
        return snapshot_of(self._plan, self._state, self._remembered)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a deduplication is not pickled or copied: take op.snapshot(), and go on with spec.restore(data)"
        )


@dataclass(frozen=True, slots=True)
class _Came:
    """Rows of a batch: the time of each (int64[n]; None: they have none), those that are not late (int64[k], ascending;
    None: all), and the state in which the others are counted.
    """

    time: np.ndarray | None
    on_time: np.ndarray | None
    after: DeduplicateState
