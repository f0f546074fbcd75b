"""Properties of the window grid, against plain integers of any length."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuwin as gw
from gpuwin.calendar import DAY_US, Calendar
from gpuwin.grid import FIRST_WINDOW, WindowGrid
from gpuwin_kernels import tuning

LEAST, MOST = -(1 << 63), (1 << 63) - 1
ENDS = st.one_of(st.integers(LEAST, LEAST + 60), st.integers(MOST - 60, MOST))
TIMES = st.one_of(st.integers(-100, 100), st.integers(LEAST, MOST), ENDS)
GRIDS = st.one_of(
    st.builds(WindowGrid.sliding, st.integers(1, 40), st.integers(1, 40), st.integers(-100, 100)),
    st.builds(lambda steps, step, origin: WindowGrid(steps, 1, True, step, origin % (steps * step)),
              st.integers(1, 9), st.integers(1, 7), st.integers(0, 99)),
)  # fmt: skip


def windows_with(grid: WindowGrid, time: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each window that holds a time, by a look at all that might."""
    step, size = grid.panes_per_slide * grid.width, grid.panes_per_window * grid.width
    near = (time - grid.origin) // step
    for k in range(near - size // step - 1, near + (grid.panes_per_window if grid.cumulative else 1) + 1):
        start = grid.origin + (k // grid.panes_per_window * size if grid.cumulative else k * step)
        end = grid.origin + (k + 1) * step if grid.cumulative else start + size
        if start <= time < end:
            yield k, start, end


@given(GRIDS, st.lists(TIMES, min_size=1, max_size=8))
def test_windows_of_times(grid: WindowGrid, times: list[int]) -> None:
    pane = grid.panes(np.array(times))
    first, last = grid.windows_of(pane)
    for i, time in enumerate(times):
        wanted = [w for w in windows_with(grid, time) if FIRST_WINDOW <= w[0] <= MOST]
        found = range(int(first[i]), int(last[i]) + 1)
        if grid.width == 1 and time - grid.origin < FIRST_WINDOW:  # put into the first pane that there is
            assert int(pane[i]) == FIRST_WINDOW
            continue
        assert [w[0] for w in wanted] == list(found)
        assert bool(grid.in_gap(pane[i : i + 1])[0] if grid.gaps else False) == (not wanted and not list(found))
        number = np.array(list(found), np.int64)
        assert grid.starts(number).tolist() == [max(w[1], LEAST) for w in wanted] == [*map(grid.start_of, found)]
        assert grid.ends(number).tolist() == [min(w[2], MOST) for w in wanted] == [*map(grid.end_of, found)]
        for k in found:
            assert grid.first_pane(k) <= pane[i] <= grid.last_pane(k)


@given(GRIDS, TIMES, TIMES)
def test_a_window_is_closed_once_its_end_has_passed(grid: WindowGrid, watermark: int, time: int) -> None:
    closed = grid.last_closed(watermark)
    each = int(grid.last_closed_each(np.array([watermark]))[0])
    if grid.width > 1 or watermark - grid.origin >= FIRST_WINDOW:
        assert each == (MOST - 1 if closed is None else closed)
    for k, _, end in windows_with(grid, time):
        if FIRST_WINDOW <= k <= MOST:
            assert (closed is None or k <= closed) == (watermark == MOST or end <= watermark)


@given(GRIDS, st.integers(-50, 50), st.integers(0, 20))
def test_panes_of_a_range_are_those_of_its_windows(grid: WindowGrid, first: int, more: int) -> None:
    covered = [p for k in range(first, first + more + 1) for p in (grid.first_pane(k), grid.last_pane(k))]
    if not grid.cumulative:
        assert grid.panes_of(first, first + more) == (min(covered), max(covered))
    assert grid.panes_of(first, first + more)[1] == max(covered)


@pytest.mark.parametrize(
    ("window", "grid"),
    [
        (gw.TumblingWindow("1 minute", "10 seconds"), WindowGrid(1, 1, width=60_000_000, origin=10_000_000)),
        (gw.SlidingWindow("1 minute", "25 seconds"), WindowGrid(12, 5, width=5_000_000)),
        (gw.SlidingWindow(timedelta(seconds=2), "5 seconds", "-1 seconds"), WindowGrid(2, 5, False, 10**6, 4 * 10**6)),
        (gw.CumulativeWindow("1 hour", "20 minutes"), WindowGrid(3, 1, cumulative=True, width=1_200_000_000)),
        (gw.CalendarWindow("2 weeks"), WindowGrid(1, 1, width=DAY_US, calendar=Calendar(14, 0, 4, "UTC"))),
        (gw.GlobalWindow(), WindowGrid(1, 1, endless=True)),
        (gw.InheritedWindow(), WindowGrid(1, 1, inherited=True)),
    ],
)
def test_grids_of_the_vocabulary(window: gw.GlobalWindow, grid: WindowGrid) -> None:
    assert WindowGrid.of(window) == grid


def test_what_has_no_grid() -> None:
    with pytest.raises(TypeError, match="sessions begin with their rows"):
        WindowGrid.of(gw.SessionWindow("1 minute"))
    with pytest.raises(ValueError, match="at least one pane"):
        WindowGrid(0, 1)
    with pytest.raises(ValueError, match="slides by one pane"):
        WindowGrid(4, 2, cumulative=True)


@pytest.mark.parametrize("window", [
    gw.TumblingWindow(timedelta(microseconds=1)),
    gw.SlidingWindow(timedelta(microseconds=3), timedelta(microseconds=1)),
    gw.SlidingWindow(timedelta(microseconds=3), timedelta(microseconds=2), timedelta(microseconds=1)),
    gw.CumulativeWindow(timedelta(microseconds=4), timedelta(microseconds=1), timedelta(microseconds=3)),
])  # fmt: skip
@pytest.mark.parametrize("emit", [gw.OnClose(), gw.OnUpdate(), gw.Complete(), gw.Trigger()])
@pytest.mark.parametrize("ends", ["first", "last"])
def test_panes_of_a_microsecond_at_the_ends_of_int64(window: gw.TumblingWindow, emit: gw.OnClose, ends: str) -> None:
    """Each row is in each of its windows, once."""
    import pyarrow as pa

    time = [LEAST + k for k in range(8)] if ends == "first" else [MOST - k for k in range(7, -1, -1)]
    spec = gw.WindowedAggregation(
        window=window, keys=[], time="t", aggregates={"n": gw.count(), "s": gw.sum("v")}, emit=emit,
        watermark=gw.ExplicitWatermark(),
    )  # fmt: skip
    op = spec.start(device="cpu")
    rows = pa.table({"t": pa.array(time, pa.int64()).cast(pa.timestamp("us")), "v": [1 << k for k in range(8)]})
    grid = WindowGrid.of(window)
    found: dict[int, int] = {}
    tables = [op.process(rows.slice(0, 5)), op.process(rows.slice(5)), op.finish()]
    for table in tables[1:2] if isinstance(emit, gw.Complete) else tables:
        ends_of = table["window_end"].cast(pa.int64()).to_pylist()
        starts_of = table["window_start"].cast(pa.int64()).to_pylist()
        for start, end, total in zip(starts_of, ends_of, table["s"].to_pylist(), strict=True):
            key = (start, end)
            if isinstance(emit, gw.OnClose | gw.Trigger) and start > LEAST and end < MOST:
                assert key not in found, "a window was emitted twice"
            found[key] = found.get(key, 0) | total if isinstance(emit, gw.OnClose | gw.Trigger) else total
    rows_found = 0
    for total in found.values():
        rows_found |= total
    seen = grid.in_gap(grid.panes(np.array(time))) if grid.gaps else np.zeros(8, bool)
    assert rows_found == sum(1 << k for k in range(8) if not seen[k])


@pytest.mark.parametrize("n", [tuning.SPLIT_ROWS - 1, tuning.SPLIT_ROWS, 2 * tuning.SPLIT_ROWS + 1])
@pytest.mark.parametrize(
    "grid", [WindowGrid.sliding(7, 7, 3), WindowGrid.sliding(40, 6, 1), WindowGrid(9, 1, True, 7, 5)]
)
def test_bounds_of_many_windows(n: int, grid: WindowGrid) -> None:
    """As many as threads share have the bounds that each has by itself."""
    inner = np.arange(n) - n // 2
    for window in (inner, np.concatenate((inner[1:], [LEAST // 3])), np.concatenate(([MOST], inner[1:]))):
        some = [0, 1, n // 3, n // 2, n - 2, n - 1]
        starts, ends = grid.starts(window), grid.ends(window)
        assert starts[some].tolist() == [grid.start_of(w) for w in window[some].tolist()]
        assert ends[some].tolist() == [grid.end_of(w) for w in window[some].tolist()]
        halves = window[: n // 2], window[n // 2 :]
        assert (starts == np.concatenate([grid.starts(h) for h in halves])).all()
        assert (ends == np.concatenate([grid.ends(h) for h in halves])).all()
