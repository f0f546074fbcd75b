"""The state on the device does what the state on the host does, batch for batch, for every shape of window."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from device_arrays import LAYOUT, assert_same_cells, random_cells

from gpuwin.errors import OverflowError
from gpuwin.grid import WindowGrid
from gpuwin.state.device.panes import DevicePaneState
from gpuwin.state.device.runs import DeviceRun
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import Run
from gpuwin.state.panes.walks import WindowBatch
from gpuwin_kernels.cuda.runtime import waits
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

KEYS = 5


def random_run(rng: np.random.Generator, cells: int, first: int, last: int) -> Run:
    at = np.sort(rng.choice(KEYS * (last - first), cells, replace=False))
    return Run(at // KEYS + first, (at % KEYS).astype(np.int32), random_cells(rng, cells))


def states(layout: CellLayout) -> tuple[PaneState, DevicePaneState]:
    host = PaneState.empty(layout, [pa.int64()])
    host.keys.encode([pa.array(np.arange(KEYS))], KEYS)
    return host, DevicePaneState.of(host)


def assert_same(expected: WindowBatch, found: WindowBatch, what: str) -> None:
    np.testing.assert_array_equal(expected.window, found.window, what)
    np.testing.assert_array_equal(expected.code, found.code, what)
    assert_same_cells(LAYOUT, expected.columns, found.columns, what)


@pytest.mark.parametrize(
    "grid",
    [WindowGrid(1, 1), WindowGrid(4, 1), WindowGrid(3, 2), WindowGrid(2, 5), WindowGrid(4, 1, True)],
    ids=["tumbling", "sliding", "any slide", "gaps", "cumulative"],
)
def test_batches(grid: WindowGrid) -> None:
    rng = np.random.default_rng(grid.panes_per_window)
    host, device = states(LAYOUT)
    for step in range(2):
        run = random_run(rng, 9, 4 * step - 9, 4 * step - 4)
        host, device = host.add(run), device.add(run)
        assert_same(host.touched(grid, run, -1), device.touched(grid, run, -1), "touched")
        for bounds in ((None, None), (-3, 0)):
            expected, found = (list(state.closing_chunks(grid, *bounds)) for state in (host, device))
            rows = sum(len(batch.code) for batch in expected)
            assert rows == sum(len(batch.code) for batch in found)
            if rows:
                assert_same(expected[0], found[0], f"closing {bounds}")
        host, device = host.evict(4 * step - 7), device.evict(4 * step - 7)
        assert host.first_pane == device.first_pane
    np.testing.assert_array_equal(host.used_codes(), device.used_codes())
    whole, again = host.compacted().runs[0], device.on_host().compacted().runs[0]
    np.testing.assert_array_equal(whole.pane, again.pane)
    assert_same_cells(LAYOUT, whole.columns, again.columns)


def test_what_is_emitted_comes_in_chunks() -> None:
    _, device = states(LAYOUT)
    device = device.add(random_run(np.random.default_rng(0), 12, 0, 4))
    for max_rows, sizes in ((5, [5, 5, 2]), (64, [12]), (5, [5, 5, 2])):  # a guess, and room for it, and none
        chunks = list(device.closing_chunks(WindowGrid(1, 1), None, None, max_rows=max_rows))
        assert [len(chunk.code) for chunk in chunks] == sizes


def test_a_cut_that_was_read_before_is_that_of_the_runs() -> None:
    """Also where runs were merged since, and where another pane is asked for."""
    rng = np.random.default_rng(8)
    host, device = states(LAYOUT)
    runs = [random_run(rng, 8, 0, 4), random_run(rng, 3, 1, 5)]
    host = host.add(runs[0]).add(runs[1])
    uploaded = [DeviceRun.uploaded(LAYOUT, run) for run in runs]
    device = device.appended(uploaded[0]).appended(uploaded[1]).with_cut(2)
    list(device.closing_chunks(WindowGrid(1, 1), None, 1))
    before = waits()
    known = device.evict(2)
    assert waits() == before
    merging = device.appended(uploaded[1]).with_merge_begun()
    assert merging.merging is not None
    merged_host = host.add(runs[1])
    states_and_hosts = [(2, known, host), (2, merging.evict(2), merged_host), (3, device.evict(3), host)]
    for pane, state, same in [*states_and_hosts, (2, device.compacted().evict(2), host)]:
        expected, found = same.evict(pane).compacted().runs[0], state.on_host().compacted().runs[0]
        np.testing.assert_array_equal(expected.pane, found.pane)
        np.testing.assert_array_equal(expected.code, found.code)
        assert state.first_pane == same.evict(pane).first_pane


def test_overflow_of_a_cell_is_seen_when_it_arrives() -> None:
    layout = CellLayout((CellColumn("s", "sum", "int64"),))
    _, device = states(layout)
    one = [
        Run(np.zeros(1, np.int64), np.zeros(1, np.int32), (CellArrays((np.array([value]),), None),))
        for value in ((1 << 63) - 1, 5, -6)
    ]
    full = device.add(one[0])
    with pytest.raises(OverflowError, match="does not fit 64 bits"):
        full.add(one[1])
    assert full.cells == 1
    assert full.add(one[2]).on_host().runs[0].columns[0].values[0][0] == (1 << 63) - 7


def test_dead_keys_leave_the_dictionary_in_step_with_the_cells() -> None:
    _, device = states(LAYOUT)
    run = Run(np.zeros(2, np.int64), np.array([1, 4], np.int32), random_cells(np.random.default_rng(1), 2))
    device = device.add(run)
    smaller, new_code = device.keys.kept(device.used_codes())
    recoded = device.recoded(smaller, new_code)
    (batch,) = recoded.closing_chunks(WindowGrid(1, 1), None, None)
    assert recoded.keys.take(batch.code)[0].to_pylist() == [1, 4]
