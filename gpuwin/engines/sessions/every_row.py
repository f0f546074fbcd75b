"""Engine of sessions that are emitted after each of their rows, all rows of a batch at once.

A kernel plays the rows one by one: it finds the session of each row at that moment, and the sessions that the row
joins. A second kernel replays the partial aggregates along these steps. So a key with many rows in a batch costs no
more than many keys with one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from gpuwin.batch.pane_cells import unit_cells
from gpuwin.batch.timed_rows import NOTHING_DROPPED, Drops, TimedRows
from gpuwin.engines.results import finished, result
from gpuwin.engines.sessions.engine import SessionUpkeep
from gpuwin.engines.sessions.rows import OpenSessions
from gpuwin.engines.step import Step
from gpuwin.planning.plan import Plan
from gpuwin.progress import Progress
from gpuwin.state.cells import Columns, concat_cells, empty_cells, merge_cells, take_cells
from gpuwin.state.every_row import cells_after_each
from gpuwin.state.sessions.assignment import Assignment
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import EveryRow


def serves(spec: Specification, plan: Plan) -> bool:
    """Whether this engine serves a specification: accumulating results after each row, of aggregates that partial
    columns answer.
    """
    return isinstance(spec.emit, EveryRow) and spec.accumulation == "accumulating" and not plan.keeps_rows


class EveryRowSessions(SessionUpkeep):
    """Engine of sessions, for `EveryRow`, all rows of a batch at once where `serves` says so."""

    def rows(self, state: OpenSessions, rows: TimedRows, progress: Progress, source: int) -> Step[OpenSessions]:
        logic = self.logic
        code = state.keys.encode(rows.keys(self.plan), len(rows))
        after, each = logic.watermarks(state, rows, code, progress, source)
        kept, code, each, drops = logic.admitted(rows, code, each)
        state, results, late, merges = self._played(state, kept, code, each)
        closes_by = logic.rule.closing_progress(progress, after)
        return Step(logic.evicted(state, closes_by)[0], after, results, drops + late, merges)

    def advance(self, state: OpenSessions, progress: Progress) -> Step[OpenSessions]:
        progress = self.logic.rule.followed(progress, progress)
        return Step(self.logic.evicted(state, progress)[0], progress, [])

    def _played(
        self, state: OpenSessions, rows: TimedRows, code: np.ndarray, each: int | np.ndarray
    ) -> tuple[OpenSessions, list[pa.RecordBatch], Drops, tuple[pa.RecordBatch, ...]]:
        if not len(rows):
            return state, [], NOTHING_DROPPED, ()
        played, drops = self.logic.played(state, rows, code, each, keep_steps=True)
        units = unit_cells(self.plan, rows, state.heap)
        results = [self._results(state, rows, code, played, units)]
        slot = played.slot
        if drops.rows_late:
            stay = np.flatnonzero(slot >= 0)
            units, slot = take_cells(units, stay), slot[stay]
        cells = merge_cells(self.plan.layout, units, slot, len(played.code), state.heap)
        sessions, _ = state.host.merge(played, cells)
        return replace(state, sessions=sessions), results, drops, self.logic.merges(state.keys, played.bridges)

    def _results(
        self, state: OpenSessions, rows: TimedRows, code: np.ndarray, played: Assignment, units: Columns
    ) -> pa.RecordBatch:
        """Results after each row that is not late: its session as that row left it."""
        steps = played.steps
        assert steps is not None
        new = steps.sessions - len(steps.old)
        before = concat_cells([steps.old.columns, empty_cells(self.plan.layout, new)])
        held = np.concatenate((steps.old.filled, np.zeros(new, np.uint8)))
        cells = cells_after_each(
            self.plan.layout,
            units,
            np.arange(len(rows)),
            steps.session,
            before,
            held,
            merges=steps.merges,
            heap=state.heap,
        )
        emitted = np.flatnonzero(steps.session >= 0)
        end = steps.last if self.logic.to_last_event else steps.end
        values = finished(self.plan, take_cells(cells, emitted), state.heap, None)
        return result(self.plan, state.keys, code[emitted], steps.start[emitted], end[emitted], values)
