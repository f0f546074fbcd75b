"""Runs that have no pane in common stay apart while only their ends are read, and are then joined at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwin import OverflowError
from gpuwin.grid import WindowGrid
from gpuwin.state import BytesHeap, PaneState, Run, spill
from gpuwin.state.cells import concat_cells
from gpuwin.state.panes import tiers
from gpuwin.state.panes.runs import concat_runs
from gpuwin.state.panes.tiers import joined, joined_few, trailing
from gpuwin.state.panes.walks import in_chunks
from gpuwin_kernels import tuning
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

LAYOUT = CellLayout((CellColumn("s", "sum", "int64"),))
GRID = WindowGrid(60, 1)


def run_of(panes: list[int], keys: int = 1, value: int = 1) -> Run:
    pane, code = np.repeat(np.array(panes, np.int64), keys), np.tile(np.arange(keys, dtype=np.int32), len(panes))
    return Run.from_cells(LAYOUT, pane, code, (CellArrays((np.full(len(pane), value),), None),))


def state_of(keys: int, *runs: Run) -> PaneState:
    state = PaneState.empty(LAYOUT, [pa.int64()])
    state.keys.encode([pa.array(range(keys))], keys)
    for run in runs:
        state = state.add(run)
    return state


def streamed(keys: int, panes: int) -> PaneState:
    """A pane after the other, each of which closes a window."""
    state = state_of(keys, run_of(list(range(60)), keys))
    state.closing(GRID, 0, 0)
    for pane in range(60, panes):
        state = state.evict(pane - 59).add(run_of([pane], keys))
        found = state.closing(GRID, pane - 59, pane - 59)
        assert found.code.tolist() == list(range(keys))
        assert found.columns[0].values[0].tolist() == [60] * keys
    return state


def test_a_cell_is_copied_once_or_twice_while_totals_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 0
    join = tiers.concat_runs

    def counted(parts: list[Run]) -> Run:
        nonlocal copied
        copied += sum(map(len, parts)) if len(parts) > 1 else 0
        return join(parts)

    monkeypatch.setattr(tiers, "concat_runs", counted)
    state = streamed(5, 500)
    assert state.carry is not None
    assert len(state.runs) <= 2 * tuning.TIER_RUNS
    assert state.cells <= 61 * 5
    assert copied <= 2 * 500 * 5


def test_without_totals_runs_are_tiers() -> None:
    state = state_of(1, *(run_of([pane]) for pane in range(100)))
    sizes = [len(run) for run in state.runs]
    assert sizes == [64, 32, 4]
    packed = streamed(3, 100).packed()
    assert all(len(a) >= 2 * len(b) for a, b in zip(packed.runs, packed.runs[1:], strict=False))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), min_size=1, max_size=60), st.sampled_from([2, 3, 16]))
def test_runs_stay_few_and_whole(spans: list[tuple[int, int]], fan: int) -> None:
    runs: list[Run] = []
    for first, panes in spans:
        runs.append(run_of(list(range(first, first + panes)), value=first + 1))
        count = trailing(runs, fan)
        runs[-count:] = [joined(LAYOUT, runs[-count:], BytesHeap())]
        assert trailing(runs, fan) == 1
        cells = sum(map(len, runs))
        assert len(runs) <= (fan - 1) * (1 + cells.bit_length())
    whole = joined(LAYOUT, runs, BytesHeap())
    want = {pane: 0 for first, panes in spans for pane in range(first, first + panes)}
    for first, panes in spans:
        for pane in range(first, first + panes):
            want[pane] += first + 1
    assert dict(zip(whole.pane.tolist(), whole.columns[0].values[0].tolist(), strict=True)) == want
    assert whole.pane.tolist() == sorted(want)


def test_what_shares_panes_is_merged_though_totals_are_kept() -> None:
    state = streamed(4, 70)
    before = len(state.runs)
    late = state.add(run_of([69], 4, value=5))
    assert len(late.runs) == before
    assert late.cells == state.cells
    assert len(state.runs) == before  # and the state before it is as it was
    assert late.closing(GRID, 11, 11).columns[0].values[0].tolist() == [59 + 5] * 4
    assert state.closing(GRID, 11, 11).columns[0].values[0].tolist() == [59] * 4


def test_a_sum_that_a_third_run_brings_back() -> None:
    """Wherever the third one is, and whatever is merged first."""
    most = (1 << 63) - 1
    state = state_of(1, run_of([0], value=-5), run_of(list(range(3))), run_of([0], value=most - 1))
    assert joined(LAYOUT, [run_of([0], value=-9), run_of([0], value=most), run_of([0], value=3)], BytesHeap()).columns[
        0
    ].values[0].tolist() == [most - 6]
    assert state.closing(WindowGrid(1, 1), 0, 0).columns[0].values[0].tolist() == [most - 5]
    with pytest.raises(OverflowError):
        state.add(run_of([0], value=9))


def test_bounds_of_what_is_joined_in_order_do_not_add_up() -> None:
    state = streamed(2, 400)
    assert max(bound for (bound,) in state.bounds) == 1


def test_small_runs_are_packed_before_they_are_spilled(tmp_path: Path) -> None:
    """Apart, each of them would be too small for a file."""
    keys = 500
    state = streamed(keys, 310)
    assert len(state.runs) > 8
    assert all(run.nbytes < 1 << 20 for run in state.runs)
    small = sum(run.nbytes for run in state.runs if not spill.worth_a_file(run.nbytes))
    assert small > 1 << 16
    left, _ = spill.spilled(state, None, 1 << 40, str(tmp_path))
    in_memory = [run.nbytes for run in left.runs if not spill.is_on_disk(run.pane)]
    assert sum(in_memory) < 1 << 17
    assert left.closing(GRID, 251, 251).code.tolist() == list(range(keys))
    assert replace(left, carry=None).closing(GRID, 251, 251).columns[0].values[0].tolist() == [59] * keys


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("cells", [1, tuning.SPLIT_ROWS // 2 - 1, tuning.SPLIT_ROWS // 2, tuning.SPLIT_ROWS])
def test_runs_are_put_together_by_any_number_of_threads(
    cells: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "threads", lambda: threads)
    rng = np.random.default_rng(cells)
    runs = []
    for pane in (-3, 4):
        words = rng.integers(-99, 99, cells), rng.normal(size=cells)
        columns = CellArrays(words[:1], (rng.random(cells) < 0.5).astype(np.uint8)), CellArrays(words[1:], None)
        runs.append(Run(np.full(cells, pane), np.arange(cells, dtype=np.int32), columns))
    one = concat_runs(runs)
    assert (one.pane == np.repeat([-3, 4], cells)).all()
    assert (one.code == np.tile(np.arange(cells), 2)).all()
    assert one.code.dtype == np.int32
    for k, column in enumerate(one.columns):
        assert [a.dtype for a in column.arrays] == [a.dtype for a in runs[0].columns[k].arrays]
        for i, array in enumerate(column.arrays):
            assert array.tobytes() == b"".join(run.columns[k].arrays[i].tobytes() for run in runs)
    joined_cells = concat_cells([run.columns for run in runs])
    assert [a.tobytes() for c in joined_cells for a in c.arrays] == [a.tobytes() for c in one.columns for a in c.arrays]
    assert concat_cells([(), ()]) == ()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), min_size=1, max_size=40), st.integers(1, 30))
def test_runs_that_stay_apart_are_the_joined_one(spans: list[tuple[int, int]], apart: int) -> None:
    runs = [run_of(list(range(first, first + panes)), value=first + 1) for first, panes in spans]
    whole = joined(LAYOUT, runs, BytesHeap())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tuning, "APART_CELLS", apart)
        few = joined_few(LAYOUT, runs, BytesHeap())
        state = state_of(1, *runs)
        closing = list(state.closing_chunks(WindowGrid(1, 1), None, None, 7))
    assert len(few) <= tuning.TIER_RUNS
    assert all(a.last < b.first for a, b in pairwise(few))
    assert all(len(a) + len(b) >= apart for a, b in pairwise(few))
    one = concat_runs(few)
    for got in (
        one,
        Run(*(np.concatenate([c[k] for c in closing]) for k in (1, 0)), concat_cells([c[2] for c in closing])),
    ):
        assert got.pane.tolist() == whole.pane.tolist()
        assert got.code.tolist() == whole.code.tolist()
        assert got.columns[0].values[0].tolist() == whole.columns[0].values[0].tolist()
    assert all(len(c.code) <= 7 for c in closing)
    for run, (bound,) in zip(state.runs, state.bounds, strict=True):
        assert bound >= run.columns[0].values[0].max()
    assert len(state.runs) <= 2 * tuning.TIER_RUNS


def test_a_large_run_is_not_copied_for_the_pane_that_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "APART_CELLS", 10)
    newer = run_of([1, 2, 3], 20)
    state = state_of(20, run_of([1], 20), newer)
    assert [run.pane.tolist() for run in state.runs] == [[1] * 20, [2] * 20 + [3] * 20]
    assert np.shares_memory(state.runs[1].code, newer.code)
    assert state.runs[0].columns[0].values[0].tolist() == [2] * 20
    assert state.bounds == ((2,), (1,))
    left = state.evict(2)
    assert [run.pane.tolist() for run in left.runs] == [[2] * 20 + [3] * 20]
    assert len(state_of(20, *(run_of([pane, pane + 1], 20) for pane in range(200))).runs) <= 2 * tuning.TIER_RUNS


def test_windows_in_chunks() -> None:
    state = state_of(3, run_of(list(range(10)), 3))
    batches = list(state.closing_chunks(WindowGrid(1, 1), None, None, 7))
    assert [len(b.code) for b in batches] == [7, 7, 7, 7, 2]
    for most, sizes in ((1, [7, 7, 7, 7, 2]), (14, [14, 14, 2]), (29, [28, 2]), (30, [30])):
        chunks = list(in_chunks(LAYOUT, batches, most))
        assert [len(c.code) for c in chunks] == sizes
        assert np.concatenate([c.window for c in chunks]).tolist() == np.repeat(range(10), 3).tolist()
    assert list(in_chunks(LAYOUT, [], 3)) == []
