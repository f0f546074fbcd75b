"""A test of the tests: faults planted in the engine, each of which the comparison with the oracle has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from streams import answers, expected_answers, options, streams

import gpuwin.batch.timed_rows
import gpuwin.engines.admission
import gpuwin.engines.panes
import gpuwin.engines.triggers.contents
import gpuwin.engines.triggers.firings
import gpuwin.engines.triggers.windows
from gpuwin.bounds import Bounds
from gpuwin.engines.changes import ChangeEngine
from gpuwin.engines.panes import PaneEngine
from gpuwin.engines.sessions.rows import SessionRows
from gpuwin.engines.triggers.emitted import EmittedRows
from gpuwin.grid import WindowGrid
from gpuwin.state.sessions.session_state import SessionState

Fault = Callable[[pytest.MonkeyPatch], None]


def closes_one_window_early(patch: pytest.MonkeyPatch) -> None:
    sound = WindowGrid.last_closed
    patch.setattr(WindowGrid, "last_closed", lambda s, w: None if (c := sound(s, w)) is None else c + (c > -(10**12)))


def truncates_times_before_1970(patch: pytest.MonkeyPatch) -> None:
    def panes(self: WindowGrid, time: np.ndarray) -> np.ndarray:
        return np.trunc((time - self.origin) / self.width).astype(np.int64)

    patch.setattr(WindowGrid, "panes", panes)


def closes_at_the_end_where_it_should_be_after(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bounds, "closing", lambda self, watermark: watermark)


def loses_count_of_late_rows(patch: pytest.MonkeyPatch) -> None:
    sound = gpuwin.batch.timed_rows.without

    def without(*given: Any) -> Any:
        rows, drops = sound(*given)
        return rows, replace(drops, rows_late=0)

    patch.setattr(gpuwin.engines.admission, "without", without)


def evicts_a_pane_too_early(patch: pytest.MonkeyPatch) -> None:
    sound = gpuwin.engines.panes.PaneState.evict
    patch.setattr(gpuwin.engines.panes.PaneState, "evict", lambda s, pane, **more: sound(s, pane + 1, **more))


def forgets_the_first_window_of_a_row(patch: pytest.MonkeyPatch) -> None:
    sound = WindowGrid.windows_of

    def windows_of(self: WindowGrid, pane: np.ndarray) -> Any:
        first, last = sound(self, pane)
        return np.minimum(first + 1, np.maximum(last, first)), last

    patch.setattr(WindowGrid, "windows_of", windows_of)


def follows_the_last_row_and_not_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gpuwin.engines.panes, "ends_of", lambda time: (int(time.min()), int(time[-1])))


def forgets_the_rows_counted_before(patch: pytest.MonkeyPatch) -> None:
    found = gpuwin.engines.triggers.firings._FiringsFound
    sound = found._by_rows
    patch.setattr(found, "_by_rows", lambda self, schedule, count, late: sound(self, schedule, count * 0, late))


def discards_nothing(patch: pytest.MonkeyPatch) -> None:
    sound = gpuwin.engines.triggers.contents.at_firings

    def at_firings(plan: Any, before: Any, rows: Any, visits: Any, firings: Any, discarding: bool, heap: Any) -> Any:
        return sound(plan, before, rows, visits, firings, False, heap)

    patch.setattr("gpuwin.engines.triggers.windows.at_firings", at_firings)


def retracts_nothing(patch: pytest.MonkeyPatch) -> None:
    sound = gpuwin.engines.triggers.windows.emitted_rows

    def emitted_rows(*given: Any) -> EmittedRows:
        out = sound(*given)
        kept = ~out.retraction
        return EmittedRows(out.pool, out.value[kept], out.subject[kept], out.retraction[kept])

    patch.setattr(gpuwin.engines.triggers.windows, "emitted_rows", emitted_rows)


def reports_totals_of_before_the_batch(patch: pytest.MonkeyPatch) -> None:
    sound = PaneEngine._emitted

    def emitted(self: PaneEngine, state: Any, run: Any, tested: int, closes_by: int) -> Any:
        if run is not None and len(state.panes.runs) > 1:
            stale = replace(state.panes, runs=state.panes.runs[:-1], bounds=state.panes.bounds[:-1])
            return sound(self, replace(state, panes=stale), run, tested, closes_by)
        return sound(self, state, run, tested, closes_by)

    patch.setattr(PaneEngine, "_emitted", emitted)


def loses_on_restore_what_was_emitted(patch: pytest.MonkeyPatch) -> None:
    sound = PaneEngine.load
    patch.setattr(PaneEngine, "load", lambda s, parts: replace(sound(s, parts), emitted=-(1 << 63)))


def judges_sessions_by_their_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionRows, "own_ends", lambda self, rows: rows.time)


def keeps_sessions_apart(patch: pytest.MonkeyPatch) -> None:
    sound = SessionState._touching
    nobody = np.empty(0, np.int64)
    patch.setattr(SessionState, "_touching", lambda s, protos, strict: [nobody for _ in sound(s, protos, strict)])


def forgets_the_last_empty_window(patch: pytest.MonkeyPatch) -> None:
    sound = ChangeEngine._run_out

    def run_out(self: ChangeEngine, state: Any, closed: int | None) -> Any:
        looked = sound(self, state, closed)
        none = slice(0, 0)
        values = [column.slice(0, 0) for column in looked.values]
        return replace(
            looked, code=looked.code[none], window=looked.window[none], empty=looked.empty[none], values=values
        )

    patch.setattr(ChangeEngine, "_run_out", run_out)


FAULTS: list[tuple[Fault, str]] = [
    (closes_one_window_early, "panes"),
    (truncates_times_before_1970, "panes"),
    (closes_at_the_end_where_it_should_be_after, "panes"),
    (loses_count_of_late_rows, "panes"),
    (evicts_a_pane_too_early, "panes"),
    (reports_totals_of_before_the_batch, "panes"),
    (follows_the_last_row_and_not_the_newest, "panes"),
    (loses_on_restore_what_was_emitted, "panes"),
    (forgets_the_first_window_of_a_row, "firings"),
    (forgets_the_rows_counted_before, "firings"),
    (discards_nothing, "firings"),
    (retracts_nothing, "firings"),
    (judges_sessions_by_their_start, "sessions"),
    (keeps_sessions_apart, "sessions"),
    (forgets_the_last_empty_window, "changes"),
]


def compare(kind: str, examples: int, restore: bool) -> None:
    """Looks for a stream on which the engine, as it is now, and the oracle disagree."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def compared(data: st.DataObject) -> None:
        chosen = data.draw(options(kind))
        stream = data.draw(streams())
        assert answers(chosen, stream, restore=restore) == expected_answers(chosen, stream)

    compared()


@pytest.mark.parametrize(("fault", "kind"), [pytest.param(f, k, id=f.__name__) for f, k in FAULTS])
def test_each_fault_is_found(fault: Fault, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011 - a wrong answer, or whatever the fault leads to
        compare(kind, 600, restore=fault is loses_on_restore_what_was_emitted)


@pytest.mark.parametrize("kind", sorted({kind for _, kind in FAULTS}))
def test_the_sound_engine_passes_the_same_comparison(kind: str) -> None:
    compare(kind, 60, restore=True)
