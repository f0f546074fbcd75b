"""Running windowed aggregation: batches of rows in, results out.

Every call makes a new state beside the old one and replaces it at the very end, so a call that raises has changed
nothing.
"""

from __future__ import annotations

import os
import time as system_time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.batch.late_rows import kept, one_table
from gpuwin.batch.timed_rows import Drops, read_rows
from gpuwin.bounds import ResultBounds
from gpuwin.choice import cpu_only, engine_of
from gpuwin.device.choice import device_of_plan, resolve_device
from gpuwin.engines.results import as_table as result_table
from gpuwin.engines.results import merges_schema
from gpuwin.engines.step import EngineStart, RunningWindows
from gpuwin.errors import GpuwinError, LimitExceeded, SpecificationError
from gpuwin.metrics import Metrics
from gpuwin.planning.ingest import as_table
from gpuwin.planning.plan import Plan, plan_of, provisional_schema
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.running import Running, bytes_of
from gpuwin.snapshots import read_snapshot, write_snapshot
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.instant import check_clock
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.watermarks import MultipleInputs
from gpuwin.vocabulary.whole import is_whole


def system_micros() -> int:
    """The system clock in microseconds."""
    return system_time.time_ns() // 1_000


class WindowOperator:
    """Running windowed aggregation, started by `WindowedAggregation.start`. Not for use by several threads at once."""

    def __init__(
        self,
        spec: Specification,
        device: str = "auto",
        clock: Callable[[], int] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        check_clock(clock)
        if schema is not None and not isinstance(schema, pa.Schema):
            raise SpecificationError(f"schema is a pyarrow.Schema of the input, not {type(schema).__name__}")
        self._spec = spec
        self._asked = device
        self._device = resolve_device(device)
        self._clock = system_micros if clock is None else clock
        self._rule = WatermarkRule(spec.watermark, spec.semantics)
        self._bounds = ResultBounds.of(spec)
        self._plan: Plan | None = None
        self._engine: EngineStart[Any] | None = None
        self._input: pa.Schema | None = schema
        self._running = Running(self._rule.begin())
        self._reads_clock = self._rule.clocked or spec.trigger_reads_clock
        if schema is not None:
            self._plan = plan_of(spec, schema)
            self._engine = self._engine_of(self._plan)

    # -- batches in, rows out ----------------------------------------------------------------------------------------

    def process(self, batch: Any, source: int = 0) -> pa.Table:
        """Results of one batch, which is aggregated and moves the watermark; always in `output_schema`.

        batch: pyarrow, polars, pandas, duckdb, cudf, or anything else that speaks the Arrow PyCapsule protocol. source:
        the number of the input that the batch comes from, with `gw.MultipleInputs`.

        Raises gw.SchemaError for a batch that does not fit, gw.OverflowError for an exact sum that leaves its type,
        gw.LimitExceeded for one that would take the state over a limit; in each case the state is as it was.
        """
        running = self._open()
        self._check_source(source)
        data = as_table(batch)
        plan, engine = self._plan, self._engine
        if plan is None or engine is None:
            plan = plan_of(self._spec, data.schema)
            engine = self._engine_of(plan)
        windows = engine.begin(running.progress) if running.windows is None else running.windows
        entered = windows.names().sizes()
        try:
            after, table = self._applied(plan, windows, running, data, source)
        except BaseException as error:
            _note_accumulations(error, self._spec)
            names = None
            with suppress(MemoryError):  # keys and texts that no row has take room, and harm nothing
                names = windows.names().back_to(entered)
            if names is not None and self._engine is not None:
                self._running = replace(running, windows=windows.renamed(names))
            raise
        self._plan, self._engine, self._running = plan, engine, after
        self._input = data.schema
        return table

    def _applied(
        self, plan: Plan, windows: RunningWindows[Any], running: Running, data: pa.Table | pa.RecordBatch, source: int
    ) -> tuple[Running, pa.Table]:
        """Results of a batch, through all its steps: clock, rows, lateness, cells, watermark, emission, limits."""
        progress, results = running.progress, []
        now = None
        if self._reads_clock:
            progress = self._rule.tick_clock(progress, self._now())
            now = progress.now if self._rule.system else None
            if self._rule.clocked:
                step = windows.advance(replace(progress, before=running.progress.watermark))
                windows, progress, results = step.state, step.progress, step.results
        rows, timeless = read_rows(plan, data, running.seq, now)
        step = windows.rows(rows, progress, source)
        counted = _counted(running.counted, data.num_rows, timeless, step.drops)
        late = kept(running.late, data, step.drops.late) if self._spec.collect_late else ()
        table = result_table(plan, [*results, *step.results])
        merges = (*running.merges, *step.merges)
        after = Running(
            step.progress,
            step.state,
            running.seq + data.num_rows,
            counted,
            late,
            merges,
            waiting_bytes=running.waiting_bytes + bytes_of([*late[len(running.late) :], *step.merges]),
        )
        return self._within_limits(step.state, after), table

    def advance_watermark(self, time: int | datetime | date | np.datetime64, source: int = 0) -> pa.Table:
        """Results of the windows that close once rows before `time` (a datetime, or int microseconds) no longer come.
        The watermark never goes back.

        Whether rows of exactly `time` may come is `Semantics.watermark_inclusive`. A datetime without a zone is taken
        as UTC.
        """
        running = self._open()
        self._check_source(source)
        watermark = self._rule.from_user(time)
        if isinstance(self._spec.watermark, MultipleInputs):
            progress = self._rule.source_at(running.progress, source, watermark)
        else:
            progress = self._rule.advanced(running.progress, watermark)
        progress = replace(progress, before=running.progress.watermark)
        if self._reads_clock and not self._rule.clocked:
            progress = self._rule.tick_clock(progress, self._now())
        return self._moved(running, progress, ended=False)

    def finish(self) -> pa.Table:
        """Results at the end of the stream: the watermark goes to plus infinity, all that is left is emitted, and the
        operator is done.
        """
        running = self._open()
        by_key = running.progress.by_key
        ended = None if by_key is None else np.full(len(by_key), INT64_MAX)
        return self._moved(running, replace(running.progress, watermark=INT64_MAX, by_key=ended), ended=True)

    def late_rows(self) -> pa.Table:
        """Late input rows since the last call, with `collect_late=True`; with the columns of the input.

        Where batches differ in encodings, units or further columns, the types hold the values of all.
        """
        if not self._spec.collect_late:
            raise SpecificationError("late rows are not kept: write WindowedAggregation(..., collect_late=True)")
        late = self._running.late
        table = one_table(late, self._input)
        self._running = replace(self._running, late=(), waiting_bytes=bytes_of(self._running.merges))
        return table

    def session_merges(self) -> pa.Table:
        """Sessions that became one since the last call, with `collect_merges=True`.

        One row for each session that a row of the stream bridged with an earlier one of its key, in order of arrival:
        the keys, `window_start` and `window_end` of the session after that row, `merged_start` and `merged_end` of the
        one that is now part of it. (Bytewax's `merged_ids`; a session of a key is known by its start.)
        """
        if not self._spec.collect_merges:
            raise SpecificationError("merges are not kept: write WindowedAggregation(..., collect_merges=True)")
        merges = self._running.merges
        self._running = replace(self._running, merges=(), waiting_bytes=bytes_of(self._running.late))
        schema = merges_schema(self.output_schema, len(self._spec.keys))
        return pa.Table.from_batches(merges, schema)

    # -- properties --------------------------------------------------------------------------------------------------

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of every table that is returned. Before the first batch (and without `start(schema=...)`), types that
        depend on the input are null.
        """
        return provisional_schema(self._spec) if self._plan is None else self._plan.schema

    @property
    def watermark(self) -> int | None:
        """Watermark in microseconds since the epoch, None before the first. With a watermark per key, the smallest of
        them.
        """
        progress = self._running.progress
        now = progress.watermark
        if progress.by_key is not None:
            known = progress.by_key[progress.by_key > INT64_MIN]  # others are keys of a branch, which shares the codes
            now = max(now, int(known.min())) if len(known) else now
        return self._rule.to_user(now)

    @property
    def output_watermark(self) -> int | None:
        """Watermark of the results, for an operator that goes on with them: later ones have a `window_end` after it, so
        that their `gw.window_time` is not before it. Microseconds, stated as `watermark` is.

        It is the watermark by which windows are evicted, and so behind `watermark` by the allowed lateness, and by the
        gap of sessions that end with their last event. Where each key has a watermark of its own, it is that of keys
        which have not come yet. None as long as nothing can be promised, which is for ever with `GlobalWindow`,
        `Complete`, an `InheritedWindow` by `SystemClock`, and sessions that end with their last event and have a gap
        for each row. After `finish` it is the largest int64.
        """
        if self._bounds is None:
            return None
        running = self._running
        if running.finished:
            return INT64_MAX
        return self._rule.result_watermark(self._bounds.after(self._rule.tested_against(running.progress)))

    @property
    def metrics(self) -> Metrics:
        """Counters of the operator."""
        running = self._running
        cells = size = open_windows = growths = 0
        if running.windows is not None:
            cells = running.windows.cells()
            size = _state_bytes(running.windows, running)
            open_windows = running.windows.open_windows(running.progress)
            growths = running.windows.names().keys.growths
        return replace(
            running.counted,
            windows_open=open_windows,
            cells=cells,
            state_bytes=size,
            key_growths=growths,
            watermark=self.watermark,
        )

    @property
    def device(self) -> str:
        """Device that runs the kernels, "cpu" or "cuda". With "auto" the first batch settles it: its types decide what
        can run where.
        """
        return self._device

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Whole state as one self-describing, versioned payload, for `WindowedAggregation.restore` on any device."""
        return write_snapshot(self._spec, self._plan, self._running, self._input)

    @classmethod
    def restored(
        cls,
        spec: Specification,
        data: bytes,
        device: str = "auto",
        clock: Callable[[], int] | None = None,
        allow_changes: bool = False,
    ) -> WindowOperator:
        """Operator that goes on from a snapshot; see `WindowedAggregation.restore`."""
        operator = cls(spec, device=device, clock=clock)
        found = read_snapshot(spec, data, operator._engine_of, allow_changes)
        operator._plan, operator._engine, operator._running, operator._input = found
        return operator

    def branch(self, clock: Callable[[], int] | None = None) -> WindowOperator:
        """Second operator that goes on from here, at no cost, with another clock if one is given; this one stays as it
        is. For a caller who does not know yet whether a batch will count. The two share their dictionary of keys, which
        only grows, so they are not to be used by several threads at once either.
        """
        check_clock(clock)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        if clock is not None:
            other._clock = clock
        return other

    def __repr__(self) -> str:
        return f"<WindowOperator on {self.device}: {self.metrics}>"

    def __reduce__(self) -> Any:
        raise TypeError("an operator is not pickled or copied: take op.snapshot(), and go on with spec.restore(data)")

    # -- steps -------------------------------------------------------------------------------------------------------

    def _engine_of(self, plan: Plan) -> EngineStart[Any]:
        """Engine for a plan, on the device that was asked for, if it can run there."""
        if self._device == "cuda":
            self._device = device_of_plan(self._asked, self._device, cpu_only(plan))
        return engine_of(plan, self._rule, self._device)

    def _open(self) -> Running:
        if self._running.finished:
            raise SpecificationError("this operator has finished: start another one")
        return self._running

    def _now(self) -> int:
        now = self._clock()
        if not is_whole(now) or not INT64_MIN < int(now) < INT64_MAX:
            raise SpecificationError(f"clock must return int microseconds, and they must fit int64, not {now!r}")
        return int(now)

    def _check_source(self, source: int) -> None:
        watermark = self._spec.watermark
        inputs = len(watermark.inputs) if isinstance(watermark, MultipleInputs) else 1
        if not is_whole(source) or not 0 <= int(source) < inputs:
            raise SpecificationError(
                f"source is the number of an input, 0 to {inputs - 1}, not {source!r}; MultipleInputs declares several"
            )

    def _moved(self, running: Running, progress: Progress, ended: bool) -> pa.Table:
        """Results of a move of the watermark to `progress`, which becomes the operator's state."""
        if self._engine is None or self._plan is None:
            progress = self._rule.followed(progress, progress)
            self._running = replace(running, progress=progress, finished=ended)
            return self.output_schema.empty_table()
        windows = running.windows if running.windows is not None else self._engine.begin(running.progress)
        try:
            step = windows.advance(progress)
            table = result_table(self._plan, step.results)
        except Exception as error:
            _note_accumulations(error, self._spec)
            raise
        after = replace(running, progress=step.progress, windows=step.state, finished=ended)
        self._running = after if ended else self._spilled(step.state, after)
        return table

    def _spilled(self, windows: RunningWindows[Any], after: Running) -> Running:
        """State with its largest parts on disk, if it exceeds a limit."""
        limits = self._spec.limits
        if limits.max_state_bytes is None or limits.spill_to is None:
            return after
        excess = _state_bytes(windows, after) - limits.max_state_bytes
        if excess <= 0:
            return after
        return replace(after, windows=windows.spilled(excess, os.fspath(limits.spill_to)))

    def _within_limits(self, windows: RunningWindows[Any], after: Running) -> Running:
        limits = self._spec.limits
        if limits.max_open_windows is not None:
            open_windows = windows.open_windows(after.progress)
            if open_windows > limits.max_open_windows:
                raise LimitExceeded(
                    f"the batch would leave {open_windows} open windows, and Limits.max_open_windows is "
                    f"{limits.max_open_windows}; nothing of it was applied"
                )
        if limits.max_state_bytes is not None:
            after = self._spilled(windows, after)
            size = _state_bytes(windows if after.windows is None else after.windows, after)
            if size > limits.max_state_bytes:
                raise LimitExceeded(
                    f"the batch would leave a state of {size} bytes, and Limits.max_state_bytes is "
                    f"{limits.max_state_bytes}; nothing of it was applied"
                )
        return after


def _note_accumulations(error: BaseException, spec: Specification) -> None:
    """Names the accumulations of a specification in an error that is none of gpuwin's own: compiled code has no line of
    the user's in its traceback.
    """
    found = [f"{name!r} ({a.accumulation.name})" for name, a in spec.aggregates.items() if a.accumulation is not None]
    if found and isinstance(error, Exception) and not isinstance(error, GpuwinError):
        error.add_note(f"It may come from add, merge or result of {', '.join(found)}. The state is as it was before.")


def _state_bytes(windows: RunningWindows[Any], running: Running) -> int:
    """Bytes of memory: windows, late rows and merges that nobody has asked for yet, and watermarks of keys."""
    by_key = 0 if running.progress.by_key is None else running.progress.by_key.nbytes
    return int(windows.size()[1] + running.waiting_bytes + by_key)


def _counted(before: Metrics, rows: int, timeless: int, drops: Drops) -> Metrics:
    return Metrics(
        rows_in=before.rows_in + rows,
        rows_null_time=before.rows_null_time + timeless,
        rows_late=before.rows_late + drops.rows_late,
        rows_unassigned=before.rows_unassigned + drops.unassigned,
        window_rows_late=before.window_rows_late + drops.window_rows_late,
    )
