"""Open sessions on the device are those of the host: joined with batches, closed, moved between the two."""

from __future__ import annotations

import numpy as np
import pytest
from device_arrays import assert_same_cells, random_cells, uploaded

import gpuwin
from gpuwin.state.device.sessions import DeviceSessionState
from gpuwin.state.sessions.assignment import Touch, assign
from gpuwin.state.sessions.session_state import SessionState
from gpuwin.state.sessions.tiers import SessionBatch
from gpuwin_kernels.cuda.runtime import to_device, to_host, waits
from gpuwin_kernels.cuda.session_join import DeviceSessions
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

LAYOUT = CellLayout(
    (CellColumn("s", "sum", "int64", nullable=True), CellColumn("f", "first", "float64", nullable=True))
)
MIN, MAX = -(1 << 63), (1 << 63) - 1


def same(host: SessionBatch, device: SessionBatch) -> None:
    for name in ("code", "start", "last", "end"):
        np.testing.assert_array_equal(getattr(host, name), getattr(device, name), name)
    assert_same_cells(LAYOUT, host.columns, device.columns)


@pytest.mark.parametrize(("touch", "seed"), [("merge", 0), ("split", 2)])
def test_random_streams(touch: Touch, seed: int) -> None:
    """Bridges over several open sessions, gaps of each row, what closes and what a batch touched."""
    rng = np.random.default_rng(seed)
    host, device = SessionState.empty(LAYOUT), DeviceSessionState.empty(LAYOUT)
    closed = bridged = 0
    for step in range(3):
        n = 8
        code = rng.integers(0, 3, n).astype(np.int32)
        start = rng.integers(10 * step, 10 * step + 60, n)
        end = start + rng.choice([1, 3, 8, 25] if step != 2 else [40], n)
        columns = random_cells(rng, n, LAYOUT)
        protos = assign(code, start, end - start, touch)
        before = host.cells
        if step % 2:
            firsts = np.unique(protos.slot, return_index=True)[1]
            cells = tuple(
                CellArrays(tuple(v[firsts] for v in c.values), None if c.valid is None else c.valid[firsts])
                for c in columns
            )
            host, told = host.merge(protos, cells)
            device, found = device.merge(protos, cells)
        else:
            host, told = host.merge_rows(code, start, end, columns, touch)
            device, found = device.merge_rows(code, start, end, columns, touch)
        bridged += before + len(protos.code) - host.cells
        same(told.sessions, found.sessions)
        if step == 1:
            same(told.ending(40), found.ending(40))
            same(host.ending(10, 50), device.ending(10, 50))
        same(host.ending(None, None), device.ending(None, None))
        gone, host = host.close(10 * step + 12)
        left, device = device.close(10 * step + 12)
        same(gone, left)
        closed += len(gone)
        assert host.cells == device.cells == len(device)
        np.testing.assert_array_equal(host.used_codes(), device.used_codes())
    assert closed > 1
    assert bridged > 2
    back = SessionState.from_arrow(LAYOUT, device.to_arrow())
    same(host.ending(None, None), DeviceSessionState.of(back).ending(None, None))
    new_code = np.array([-1 if c not in host.used_codes() else 2 * c for c in range(3)], np.int32)
    same(host.recoded(new_code).ending(None, None), device.recoded(new_code).ending(None, None))


def sessions(*rows: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[CellArrays, ...]]:
    """Rows (code, start, end, value)."""
    code, start, end, value = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    first = CellArrays((start, np.arange(n), np.ones(n)), np.ones(n, np.uint8))
    return code.astype(np.int32), start, end, (CellArrays((value,), np.ones(n, np.uint8)), first)


def test_times_as_far_apart_as_there_are_and_sums_that_come_back() -> None:
    """The join compares times as they are; rows are cut by the host. One sum leaves its type on the way."""
    host, device = SessionState.empty(LAYOUT), DeviceSessionState.empty(LAYOUT)
    batches = [
        sessions((0, 3, 9, MAX), (0, 20, 22, -7), (1, MIN, MIN + 5, 1), (1, MAX - 4, MAX, 2)),
        sessions((0, 9, 20, 5), (1, MIN + 5, MIN + 6, 1)),
        sessions((0, 22, 23, -1), (1, MIN + 6, 5, 3)),
    ]
    for code, start, end, cells in batches:
        protos = assign(code, start, end - start)
        whole = device.merge_rows(code, start, end, cells)[0]
        (host, told), (device, found) = (state.merge(protos, cells) for state in (host, device))
        same(told.sessions, found.sessions)
        same(host.ending(None, None), device.ending(None, None))
        same(host.ending(None, None), whole.ending(None, None))
    assert host.cells == 3
    with pytest.raises(gpuwin.OverflowError, match="'s'"):
        device.merge_rows(*sessions((0, 9, 10, 10)))
    same(host.ending(None, None), device.ending(None, None))
    same(host.close(MAX)[0], device.close(MAX)[0])


def test_more_closes_than_was_expected_and_nothing_is_not_waited_for() -> None:
    rows = sessions(*((k, 10 * t, 10 * t + 5, 1) for k in range(9) for t in range(9)))
    host, device = (
        SessionState.empty(LAYOUT).merge_rows(*rows)[0],
        DeviceSessionState.empty(LAYOUT).merge_rows(*rows)[0],
    )
    for upto in (4, 5, 85, 86):
        before = waits()
        (gone, host), (left, device) = host.close(upto), device.close(upto)
        same(gone, left)
        assert waits() - before == {4: 0, 5: 1, 85: 2, 86: 0}[upto]
    assert not device.cells


def test_a_list_that_is_not_sorted_makes_nonsense_and_no_index_that_is_none() -> None:
    """As when rows came in another order than was expected: what comes of it is thrown away. Memory is poisoned."""
    state = DeviceSessionState.empty(LAYOUT).merge_rows(*sessions(*((0, t, t + 3, 1) for t in range(0, 90, 9))))[0]
    start = np.array([70, 5, 40, 88, 14, 14, 60, 2])
    bounds = map(to_device, (np.zeros(8, np.int32), start, start, start + 3))
    new = DeviceSessions.of(bounds, uploaded(random_cells(np.random.default_rng(1), 8, LAYOUT)))
    begun = state.joining(new, to_device(np.array([8])), False)
    assert 0 < int(to_host(begun.numbers[0])[0]) <= 18
    assert sorted({*to_host(begun.place).tolist()} - {*range(18)}) == []
