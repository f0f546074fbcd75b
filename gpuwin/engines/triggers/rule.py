"""Trigger of a specification as a rule for engines: its schedules, and what counts as early, on time or late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from gpuwin.vocabulary.durations import micros
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Every, EveryEventTime, EveryRow, EveryRows, OnClose, OnUpdate, Schedule, Trigger


@dataclass(frozen=True)
class TriggerRule:
    """Trigger of a specification, in the form that engines use. `early`, `late`: schedules, by rows or by time (None:
    never). `early_by_row`, `late_by_row`: a schedule by rows fires exactly at the n-th row, and not when the batch
    ends. `counts_on`: late rows continue the count of the window's earlier ones.
    """

    early: Schedule | None
    late: Schedule | None
    on_time: bool
    early_by_row: bool
    late_by_row: bool
    only_updated: bool = False
    empty_on_time: bool = False
    lateness: int = 0  # microseconds
    counts_on: bool = False
    late_after_end: bool = False  # a window whose first row comes after its end is late, and not on time
    margin: int = 1  # microseconds before the end of a window, up to which EveryEventTime fires
    late_margin: int = 0  # microseconds before the end of the lateness, up to which EveryEventTime fires
    carries: bool = False  # late firings go on with the count of rows from before the end
    once: bool = False  # one firing of a window in a batch, also where it closes in it

    def without(self, *kinds: type) -> TriggerRule:
        """Rule without its schedules of these kinds."""
        early, late = (None if isinstance(schedule, kinds) else schedule for schedule in (self.early, self.late))
        return replace(self, early=early, late=late)

    @staticmethod
    def of(spec: Specification) -> TriggerRule:
        emit, semantics = spec.emit, spec.semantics
        if isinstance(emit, EveryRow):
            return TriggerRule(EveryRows(1), EveryRows(1), False, True, True)
        if isinstance(emit, OnUpdate):
            return TriggerRule(EveryRows(1), EveryRows(1), False, False, False, once=True)
        if isinstance(emit, OnClose):
            return TriggerRule(None, EveryRows(1), True, False, semantics.late_firing == "row")
        assert isinstance(emit, Trigger)
        by_row = semantics.count_trigger == "row"
        empty = semantics.on_time_pane == "always"
        assert isinstance(spec.allowed_lateness, timedelta)
        lateness = micros(spec.allowed_lateness)
        counts_on = semantics.late_count == "continue"
        return TriggerRule(
            emit.early,
            emit.late,
            emit.on_time,
            by_row,
            by_row,
            emit.only_updated,
            empty,
            lateness,
            counts_on,
            semantics.late_pane == "after_end",
            # An inclusive watermark closes a window when it reaches its last instant: a multiple there is on time.
            1 + semantics.tick if semantics.watermark_inclusive and emit.on_time else 1,
            # It evicts a window one tick before the end of the lateness, and with it a timer at that end (Flink).
            semantics.tick if semantics.watermark_inclusive else 0,
            # One trigger by number of rows that takes no notice of the end: Flink's CountTrigger, Beam's AfterCount.
            carries=counts_on or (not emit.on_time and emit.early == emit.late),
        )


def interval_of(schedule: Every | EveryEventTime) -> int:
    """Interval of a schedule in microseconds."""
    assert isinstance(schedule.interval, timedelta)
    return micros(schedule.interval)
