"""What saves launches in a small batch gives what the long way does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from on_both import in_order
from test_closing_ahead import PRESETS, stream

import gpuwin as gw
from gpuwin_kernels.cuda import cells, many, packed, ranks
from gpuwin_kernels.cuda.primitives import running_sum
from gpuwin_kernels.cuda.rows import DeviceCells
from gpuwin_kernels.cuda.runtime import cuda, kernel, launch, sent, to_device, to_host, zeros
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

LAYOUT = CellLayout((CellColumn("s", "sum", "int64", wrap=True),))


def run_of(rng: np.random.Generator, size: int, panes: int, codes: int) -> DeviceCells:
    """Different cells, sorted by (pane, code)."""
    place = np.sort(rng.choice(panes * codes, size, replace=False))
    values = to_device(rng.integers(-99, 99, size))
    return DeviceCells(
        to_device(place // codes - 3), to_device((place % codes).astype(np.int32)), (CellArrays((values,), None),)
    )


def arrays_of(windows: cells.DeviceWindows) -> list[list[int]]:
    count = int(to_host(windows.count)[0])
    found = [to_host(windows.code), to_host(windows.window), to_host(windows.columns[0].values[0])]
    return [array[:count].tolist() for array in found]


@pytest.mark.parametrize("runs", [1, 2, 3, 8, 9])
def test_runs_are_merged_as_a_sort_puts_them(runs: int) -> None:
    rng = np.random.default_rng(runs)
    parts = [run_of(rng, int(rng.integers(1, 60)), 9, 11) for _ in range(runs)]
    merged, sorted_ = (cells.combining(LAYOUT, parts, 11, -3, 5, runs=as_runs) for as_runs in (True, False))
    assert (packed.merged_runs(parts, -3, 4) is None) == (runs > 8)
    for name in ("packed", "place", "before"):
        np.testing.assert_array_equal(to_host(getattr(merged, name)), to_host(getattr(sorted_, name)))
    np.testing.assert_array_equal(to_host(merged.columns[0].values[0]), to_host(sorted_.columns[0].values[0]))


GRIDS = [cells.Grid(5, 1, False), cells.Grid(5, 2, False), cells.Grid(2, 3, False), cells.Grid(4, 1, True)]


@pytest.mark.parametrize("touched", [False, True], ids=["closing", "touched"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_windows_are_listed_as_by_a_scan(grid: cells.Grid, touched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    runs = [run_of(rng, size, 20, 7) for size in (40, 25)]

    def found(room: int | None) -> list[list[int]]:
        wanted = cells.WindowsWanted(grid, 6, (-3, 16), -4, to_device(np.array([11])), room)  # the code 6 is no key
        if touched:
            return arrays_of(cells.touched(LAYOUT, runs, runs[1], wanted, cells_room=None if room is None else 96))
        return arrays_of(cells.closing(LAYOUT, runs, wanted))

    before = sent.launches["_list_opened"]
    by_counter = found(400)
    assert sent.launches["_list_opened"] == before + 1
    monkeypatch.setattr(cells, "_FEW_CELLS", 0)
    assert by_counter == found(400) == found(None)
    assert len(by_counter[0]) > 10


def test_windows_that_there_is_no_room_for_are_counted() -> None:
    runs = [run_of(np.random.default_rng(3), 40, 20, 7)]
    wanted = [cells.WindowsWanted(GRIDS[0], 7, (-3, 16), -9, 99, room) for room in (16, 400)]
    few, all_of_them = (cells.closing(LAYOUT, runs, some) for some in wanted)
    assert int(to_host(few.count)[0]) == int(to_host(all_of_them.count)[0]) > len(few.code) == 16


@kernel("void(uint8[::1], int64[::1], int64[::1])")
def _mark(flags: Any, before: Any, tiles: Any) -> None:
    i = cuda.grid(1)
    if i < flags.shape[0]:
        before[i + 1] = flags[i]
        if flags[i] != 0:
            ranks.count_mark(tiles, i)


def marks(n: int) -> Iterator[np.ndarray]:
    yield np.zeros(n, np.uint8)
    yield np.ones(n, np.uint8)
    yield np.random.default_rng(n).integers(0, 2, n, np.uint8)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 4095, 4097, 8500])
def test_tiles_give_the_ranks_of_a_scan(n: int) -> None:
    for flags in marks(n):
        before, tiles, none = zeros(n + 1, np.int64), zeros(*ranks.tiles_of(n)), zeros(0, np.int64)
        launch(_mark, n, to_device(flags), before, tiles)
        values, total = to_device(np.arange(n)), int(flags.sum())
        by_tiles = many.parted([values], before, tiles, n)
        by_scan = many.parted([values], running_sum(to_device(np.append(0, flags).astype(np.int64))), none, n)
        assert int(to_host(ranks.total_of(before, tiles)).sum()) == total
        for (one,), (other,), size in zip(by_tiles, by_scan, (total, n - total), strict=True):
            np.testing.assert_array_equal(to_host(one)[:size], to_host(other)[:size])
        np.testing.assert_array_equal(to_host(by_tiles[0][0])[:total], np.flatnonzero(flags))


def test_many_marks_are_scanned() -> None:
    assert ranks.tiles_of(ranks.MOST_COUNTED)[0] > 0
    assert ranks.tiles_of(ranks.MOST_COUNTED + 1)[0] == 0
    before = to_device(np.array([0, 1, 0, 1]))
    assert to_host(ranks.counted(before, zeros(0, np.int64))).tolist() == [0, 1, 1, 2]


def test_what_does_not_fit_beside_is_launched_alone() -> None:
    out = zeros(1, np.int64)
    beside = many.Beside((("cell", "int64[::1]"),), ("if i == 2:", "    cell[0] = 7"), "", (out,), 3)
    runs = [run_of(np.random.default_rng(k), 4, 5, 5) for k in range(30)]
    before = sent.launches["beside"]
    packed.packed_cells(runs, -3, 3, False, [beside])
    assert sent.launches["beside"] == before + 1
    assert to_host(out).tolist() == [7]
    out = zeros(1, np.int64)
    packed.packed_cells(runs[:1], -3, 3, False, [many.Beside(beside.arguments, beside.lines, "", (out,), 3)])
    assert sent.launches["beside"] == before + 1
    assert to_host(out).tolist() == [7]


@pytest.mark.parametrize("name", PRESETS)
def test_large_batches_give_the_rows_of_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all were too large for what small ones do."""
    for module, limit in ((ranks, "MOST_COUNTED"), (cells, "_FEW_CELLS"), (packed, "_MOST_MERGED")):
        monkeypatch.setattr(module, limit, -1)
    window, more = PRESETS[name]
    specification = gw.WindowedAggregation(
        keys=["k"], window=window, time="ts", watermark=gw.BoundedOutOfOrderness("2 seconds"),
        aggregates={"n": gw.count(), "total": gw.sum("i")}, **more,
    )  # fmt: skip
    host, device = specification.start(device="cpu"), specification.start(device="cuda")
    before = sent.launches.copy()
    for rows in stream(np.random.default_rng(7)):
        assert in_order(device.process(rows)) == in_order(host.process(rows))
    assert in_order(device.finish()) == in_order(host.finish())
    launched = sent.launches - before
    assert launched["scan"] > 10
    assert launched["_list_opened"] == launched["merge"] == 0
