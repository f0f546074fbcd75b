"""Sessions on the device through the public operator: the rows of the CPU, and how often a batch waits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from on_both import in_order, on_both

import gpuwin as gw
from gpuwin.device import session_batch, sessions
from gpuwin.engines.sessions import rows as session_rows
from gpuwin.state.device.sessions import DeviceSessionState
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, pool_stats, waits

SECOND = 1_000_000
AGGREGATES = {"n": gw.count(), "first": gw.first("v")}


def batch(rng: np.random.Generator, rows: int, first: int, last: int) -> pa.Table:
    return pa.table(
        {
            "ts": pa.array(rng.integers(first, last, rows) * SECOND).view(pa.timestamp("us")),
            "k": pa.array(rng.integers(0, 3, rows), mask=rng.random(rows) < 0.2),
            "v": pa.array(rng.integers(-9, 9, rows).astype(float), mask=rng.random(rows) < 0.2),
            "i": rng.integers(-(1 << 40), 1 << 40, rows),
            "gap": pa.array(rng.integers(-1, 7, rows) * SECOND, mask=rng.random(rows) < 0.1),
        }
    )


def spec(window: Any = None, **more: Any) -> gw.WindowedAggregation:
    options = {"keys": ["k"], "aggregates": AGGREGATES, "watermark": gw.BoundedOutOfOrderness("3 seconds")} | more
    window = gw.SessionWindow("4 seconds") if window is None else window
    return gw.WindowedAggregation(window=window, time="ts", collect_late=True, **options)


both = partial(on_both, metrics=("rows_late", "window_rows_late", "rows_unassigned", "windows_open", "cells"))


BATCHES = [(0, 20), (20, 35), (-30, 45)]
OWN_GAPS = gw.SessionWindow(gw.column("gap"))


@pytest.mark.parametrize(
    ("window", "more"),
    [
        (None, {"emit": gw.OnUpdate()}),
        (OWN_GAPS, {"emit": gw.Complete(), "keys": []}),
        (OWN_GAPS, {"allowed_lateness": "20 seconds"}),
        (None, {"semantics": gw.Semantics(late_by="timestamp", session_touch="split", late_filter="previous")}),
    ],
    ids=["on update", "complete, no keys", "lateness", "late by time"],
)
def test_same_rows_as_the_cpu(window: Any, more: Any) -> None:
    rng = np.random.default_rng(1)
    specification = spec(window, **more)
    host, device = both(specification, [batch(rng, 6, *span) for span in BATCHES])
    assert "emit" in more or host.metrics.rows_late > 0
    others = (
        specification.restore(device.snapshot(), device="cpu"),
        specification.restore(host.snapshot(), device="cuda"),
    )
    rows = batch(rng, 4, 40, 50)
    for op in (host, device, *others):
        op.process(rows)
    last = in_order(host.finish())
    assert all(in_order(op.finish()) == last for op in (device, *others))


def rows_at(seconds: Any, keys: Any) -> pa.Table:
    n = len(seconds)
    time = pa.array(np.asarray(seconds) * SECOND).view(pa.timestamp("us"))
    return pa.table({"ts": time, "k": keys, "v": np.ones(n), "i": np.arange(n)})


@pytest.mark.parametrize(
    ("every", "closed", "wanted"), [(0, 0, 1), (10, 2, 1)], ids=["nothing closes", "sessions close"]
)
def test_waits_of_a_batch_like_the_last_and_of_one_that_closes(every: int, closed: int, wanted: int) -> None:
    """For its numbers, with which the sessions that close come. Neither allocates."""
    op = spec(aggregates={"s": gw.sum("v")}, watermark=gw.BoundedOutOfOrderness("0 seconds")).start(device="cuda")
    waited, allocated, rows_out = [], [], []
    for step in range(7):
        rows = rows_at(every * step + np.array([0, 1, 3, 3]), np.arange(4) % 2)
        before, held = waits(), pool_stats().allocations
        rows_out.append(op.process(rows).num_rows)
        waited.append(waits() - before)
        allocated.append(pool_stats().allocations - held)
    assert rows_out[1:] == [closed] * 6
    assert waited[3:] == [wanted] * 4, waited
    assert allocated[5:] == [0] * 2, allocated


def test_guesses_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """More sessions than there was room for, rows out of order after rows in order, times far from the last ones, and
    times that fit no packed word.
    """
    monkeypatch.setattr(session_batch, "_FIRST_ROOM", 2)
    spans = [[0, 9, 18, 27], [1, 10], [28, 27, 10, 11, 2, 1], [10**6], [1, 2 * 10**11], [0, 3]]
    short = spec(aggregates={"n": gw.count()}, watermark=gw.BoundedOutOfOrderness("30 seconds"))
    host, device = both(short, [rows_at(list(seconds), np.arange(len(seconds)) % 2) for seconds in spans])
    assert in_order(host.finish()) == in_order(device.finish())


def test_keys_without_a_session_leave_the_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "_FEW_KEYS", 1)
    some = [rows_at([20 * step, 20 * step + 1], np.array([step, step + 1])) for step in range(4)]
    host, device = both(spec(aggregates={"n": gw.count()}), some)
    assert device._running.windows.state.keys.take(np.arange(2))[0].to_pylist() == [3, 4]
    assert in_order(host.finish()) == in_order(device.finish())


def test_a_sum_that_leaves_its_type_leaves_the_state_as_it_was() -> None:
    op = spec(aggregates={"s": gw.sum("i")}, watermark=gw.BoundedOutOfOrderness("1 hour")).start(device="cuda")
    time = pa.array([SECOND]).view(pa.timestamp("us"))
    op.process(pa.table({"ts": time, "k": [1], "i": [(1 << 63) - 1]}))
    before = op.snapshot()
    with pytest.raises(gw.OverflowError):
        op.process(pa.table({"ts": time, "k": [1], "i": [1]}))
    assert op.snapshot() == before
    two = pa.concat_arrays([time, time])
    op.process(pa.table({"ts": two, "k": [1, 1], "i": [1, -2]}))
    assert op.finish()["s"].to_pylist() == [(1 << 63) - 2]


@pytest.mark.parametrize("also_the_state", [False, True], ids=["the batch", "the state"])
def test_out_of_device_memory(
    also_the_state: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host cuts the batch; then the state moves to the host."""
    host, device = both(spec(aggregates={"s": gw.sum("v")}), [batch(np.random.default_rng(1), 5, 0, 20)])

    def full(*_: Any) -> None:
        raise OutOfDeviceMemory(77)

    monkeypatch.setattr(sessions.SessionTaker, "take", full)
    if also_the_state:
        monkeypatch.setattr(DeviceSessionState, "merge", full)
        monkeypatch.setattr("gpuwin.state.device.sessions.read", full)  # it makes a copy on the device first
    rng = np.random.default_rng(3)
    for span in ((10, 30), (30, 50)):
        rows = batch(rng, 5, *span)
        assert in_order(host.process(rows)) == in_order(device.process(rows))
    assert ("open sessions from the device to the host" in caplog.text) == also_the_state, caplog.text
    assert in_order(host.finish()) == in_order(device.finish())


def test_neither_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    op = spec(aggregates={"n": gw.count()}).start(device="cuda")
    op.process(rows_at([0, 1], np.arange(2)))
    before = op.snapshot()

    def full(*_: Any) -> None:
        raise OutOfDeviceMemory(77)

    def also_full(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(sessions.SessionTaker, "take", full)
        broken.setattr(DeviceSessionState, "merge", full)
        broken.setattr(DeviceSessionState, "on_host", also_full)
        with pytest.raises(gw.LimitExceeded, match="no room for the 2 open sessions; nothing of the batch was applied"):
            op.process(rows_at([2, 3], np.arange(2)))
    assert op.snapshot() == before
    assert op.finish()["n"].to_pylist() == [1, 1]


def test_sessions_whose_rows_are_kept_stay_on_the_host() -> None:
    rng = np.random.default_rng(4)
    merges = spec(collect_merges=True)
    host, device = both(merges, [batch(rng, 7, 0, 20) for _ in range(2)])
    assert host.session_merges() == device.session_merges()
    host, device = both(spec(aggregates={"m": gw.median("v")}), [batch(rng, 7, 0, 20) for _ in range(2)])
    assert in_order(host.finish()) == in_order(device.finish())
