"""Number of open windows of a state, however its cells are held."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwin.batch.pane_cells import count_open
from gpuwin.grid import FIRST_WINDOW, WindowGrid
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import Run
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.layout import CellLayout

GRIDS = {
    "tumbling": WindowGrid.sliding(5, 5),
    "sliding": WindowGrid.sliding(6, 2),
    "uneven": WindowGrid.sliding(7, 3),
    "gaps": WindowGrid.sliding(4, 6),
    "cumulative": WindowGrid(4, 1, cumulative=True, width=1),
}
CELLS = st.sets(st.tuples(st.integers(-9, 20), st.integers(0, 3)), max_size=12)


def state(runs: list[set[tuple[int, int]]]) -> PaneState:
    """State of runs of cells (pane, code), without columns."""
    layout = CellLayout(())
    empty = PaneState.empty(layout, [])
    made = []
    for cells in runs:
        pane, code = zip(*sorted(cells), strict=True)
        made.append(Run(np.array(pane, np.int64), np.array(code, np.int32), ()))
    keys = type("Keys", (), {"__len__": lambda _: 4})()
    return PaneState(layout, keys, empty.heap, tuple(made), ((),) * len(made))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(GRIDS)), st.lists(CELLS.filter(bool), max_size=4), st.integers(-9, 20))
@example("sliding", [{(0, 1)}, {(0, 1), (1, 1)}], INT64_MIN)
@example("sliding", [{(FIRST_WINDOW, 1), (INT64_MAX, 1)}], INT64_MIN)
@example("tumbling", [{(0, 1)}], INT64_MAX)
def test_each_window_of_a_key_counts_once(name: str, runs: list[set[tuple[int, int]]], passed: int) -> None:
    grid = GRIDS[name]
    expected = set()
    for pane, code in set().union(*runs):
        first, last = (int(a[0]) for a in grid.windows_of(np.array([pane])))
        expected |= {(code, window) for window in range(first, last + 1) if window > passed}
    assert count_open(grid, state(runs), passed) == len(expected)


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_no_cells(name: str) -> None:
    assert count_open(GRIDS[name], state([]), 0) == 0
