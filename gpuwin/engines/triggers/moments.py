"""Moments within a batch at which a trigger of event time fires, where the watermark moves with each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from gpuwin.batch.timed_rows import NOTHING_DROPPED, TimedRows
from gpuwin.engines.step import Step
from gpuwin.engines.triggers.rule import TriggerRule, interval_of
from gpuwin.planning.plan import Plan
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.vocabulary.triggers import EveryEventTime

S = TypeVar("S")


class Moments:
    """Rule that finds the moments of one specification. It finds none where all that fires by event time fires when the
    batch ends anyway.
    """

    def __init__(self, plan: Plan, rule: WatermarkRule, trigger: TriggerRule) -> None:
        self.plan = plan
        self.rule = rule
        schedules = (trigger.early, trigger.late)
        self.steps = [interval_of(s) for s in schedules if isinstance(s, EveryEventTime)]
        # What is late by the watermark before the last batch depends on batches, and so these stay whole.
        self.any = bool(self.steps) and rule.per_row and plan.spec.semantics.late_filter != "previous"

    def within(self, keys: KeyDictionary, rows: TimedRows, progress: Progress, source: int) -> np.ndarray:
        """Numbers of rows after which something may fire by event time, ascending, the last of them that of all rows:
        int64[moments]. There must be a row.
        """
        before, after = self._watermarks(keys, rows, progress, source)
        fires = np.zeros(len(rows), bool)
        for step in self.steps:
            passed = after // step
            # A row behind the watermark opens a window whose first multiple has passed: that one fires at once.
            fires |= (passed > before // step) | (rows.time // step < passed)
        fires[-1] = True
        return np.flatnonzero(fires) + 1

    def _watermarks(
        self, keys: KeyDictionary, rows: TimedRows, progress: Progress, source: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Watermarks, as the user states them, before and after each row: of its key, where each key has its own."""
        if self.rule.per_key:
            code = keys.encode(rows.keys(self.plan), len(rows))
            _, each = self.rule.after_rows_by_key(progress, rows.time, code, len(keys))
            then = np.maximum(each, self.rule.asked_by_each(rows.time))
        else:
            whole, each = self.rule.after_each_row(progress, rows.time, source)
            then = np.append(each[1:], whole.watermark)
        return self.rule.to_user_each(each), self.rule.to_user_each(then)


def in_parts(
    step: Callable[[S, TimedRows, Progress, int, bool], Step[S]],
    ends: np.ndarray,
    state: S,
    rows: TimedRows,
    progress: Progress,
    source: int,
) -> Step[S]:
    """Step of a batch as the steps of its parts, one after the other. `ends`: see `Moments.within`. `step` is told last
    whether more parts follow.
    """
    if rows.index is None:
        rows = replace(rows, index=np.arange(len(rows)))  # dropped rows are named by their places in the whole batch
    drops, merges, first = NOTHING_DROPPED, (), 0
    results: list[pa.RecordBatch] = []
    for end in ends.tolist():
        done = step(state, rows.part(first, end), progress, source, end < len(rows))
        state, progress, first = done.state, done.progress, end
        drops, results, merges = drops + done.drops, results + done.results, merges + done.merges
    return Step(state, progress, results, drops, merges)
