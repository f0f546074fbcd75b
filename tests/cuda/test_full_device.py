"""A device that has no room, at any place of a stream: results are the CPU's, and no error is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.engines.sessions import rows as session_rows
from gpuwin.state.device import panes as device_panes
from gpuwin.state.device.keys import DeviceKeyDictionary
from gpuwin_kernels.cuda import runtime

pytestmark = pytest.mark.skipif(not runtime.simulated(), reason="fails allocations of the simulator's pool")

AGGREGATES = {"n": gw.count(), "total": gw.sum("v"), "exact": gw.sum("i"), "least": gw.min("v")}
IN_ORDER = AGGREGATES | {"first": gw.first("i"), "text": gw.max("t")}
WIDTH = "10 seconds"
STREAMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "tumbling": (gw.TumblingWindow(WIDTH), gw.OnClose(), AGGREGATES),
    "sliding": (gw.SlidingWindow(WIDTH, "5 seconds"), gw.OnClose(), AGGREGATES),
    "on update": (gw.SlidingWindow(WIDTH, "5 seconds"), gw.OnUpdate(), AGGREGATES),
    "sorted": (gw.TumblingWindow(WIDTH), gw.OnClose(), IN_ORDER),
    "sessions": (gw.SessionWindow("3 seconds"), gw.OnClose(), AGGREGATES),
    "sessions, sorted": (gw.SessionWindow("3 seconds"), gw.OnUpdate(), IN_ORDER),
}


class Device:
    """The simulator's pool. Allocations fail whose numbers `full` says."""

    def __init__(self, real: Callable[[int], np.ndarray]) -> None:
        self.real = real
        self.count = 0
        self.full: Callable[[int], bool] = lambda number: False

    def buffer(self, nbytes: int) -> np.ndarray:
        self.count += 1
        if self.full(self.count):
            raise runtime.OutOfDeviceMemory(nbytes)
        return self.real(nbytes)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    pool = Device(runtime._simulated_pool.buffer)
    monkeypatch.setattr(runtime._simulated_pool, "buffer", pool.buffer)
    monkeypatch.setattr(device_panes, "FEW_KEYS", 4)  # dictionaries are looked through for keys that nothing has
    monkeypatch.setattr(session_rows, "_FEW_KEYS", 4)
    return pool


def rows(rng: np.random.Generator, first: int, last: int) -> pa.Table:
    """Whole numbers as floats, so that sums are exact in any order, and keys that come once in a while."""
    n = 25
    seconds = rng.integers(first, last, n)
    return pa.table(
        {
            "ts": pa.array(seconds * 1_000_000).view(pa.timestamp("us")),
            "k": rng.integers(0, 30, n) + first,
            "v": pa.array(rng.integers(-9, 9, n).astype(float), mask=rng.random(n) < 0.2),
            "i": rng.integers(-(1 << 40), 1 << 40, n),
            "t": pa.array(rng.choice(["a", "bb", "ccc"], n)),
        }
    )


def results(name: str, on: str) -> list[list[dict[str, Any]]]:
    """Results of each batch, and of an operator that goes on from a snapshot."""
    window, emit, aggregates = STREAMS[name]
    watermark = gw.BoundedOutOfOrderness("3 seconds")
    spec = gw.WindowedAggregation(
        window=window, keys=["k"], time="ts", aggregates=aggregates, emit=emit, watermark=watermark
    )
    rng, found = np.random.default_rng(5), []
    op = spec.start(device=on)
    for first in (0, 9, 18, 40):
        found.append(op.process(rows(rng, first, first + 12)))
    second = spec.restore(op.snapshot(), device=on)
    found += [op.finish(), second.process(rows(rng, 52, 60)), second.finish()]
    return [
        sorted(table.to_pylist(), key=lambda row: str((row["k"], row["window_start"], row["window_end"])))
        for table in found
    ]


def check_places(name: str, once: bool, device: Device, places: int | None) -> None:
    """Compares the devices where allocations of the stream fail, from one of so many places (None: of all) on."""
    host = results(name, "cpu")
    assert results(name, "cuda") == host
    every = np.arange(1, device.count + 1)
    some = every if places is None else np.random.default_rng(len(name)).choice(every, places, replace=False)
    for number in [1, *some.tolist()]:
        device.count = 0
        device.full = (lambda n, at=number: n == at) if once else (lambda n, at=number: n >= at)
        assert results(name, "cuda") == host, f"allocation {number}"


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "once",
    [pytest.param(True, id="once"), pytest.param(False, id="from then on", marks=pytest.mark.long)],
)
def test_no_room(name: str, once: bool, device: Device) -> None:
    check_places(name, once, device, 4)


@pytest.mark.sweep
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("once", [True, False], ids=["once", "from then on"])
def test_no_room_at_any_place(name: str, once: bool, device: Device) -> None:
    check_places(name, once, device, None)


def test_keys_are_dropped_another_time(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dictionary is made anew to save memory, for which the device has to have some."""
    spec = gw.WindowedAggregation(window=gw.TumblingWindow(WIDTH), keys=["k"], time="ts", aggregates={"n": gw.count()})
    op = spec.start(device="cuda")
    real = DeviceKeyDictionary.kept

    def on_a_full_device(self: DeviceKeyDictionary, used: np.ndarray) -> Any:
        device.full = lambda number: True
        try:
            return real(self, used)
        finally:
            device.full = lambda number: False

    def known() -> int:
        return len(op._running.windows.names().keys)  # type: ignore[union-attr]

    def at(second: int, keys: list[int]) -> pa.Table:
        time = pa.array([second * 1_000_000] * len(keys)).view(pa.timestamp("us"))
        return pa.table({"ts": time, "k": keys})

    op.process(at(1, list(range(20))))
    with monkeypatch.context() as full:
        full.setattr(DeviceKeyDictionary, "kept", on_a_full_device)
        assert op.process(at(15, [99])).num_rows == 20
    assert (known(), op.metrics.cells) == (21, 1)
    assert op.process(at(35, [99])).num_rows == 1
    assert known() == 1


def test_the_error_of_a_batch_is_not_that_of_its_undoing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gw.WindowedAggregation(window=gw.TumblingWindow(WIDTH), keys=["k"], time="ts", aggregates={"s": gw.sum("i")})
    op = spec.start(device="cuda")
    time = pa.array([1, 1]).view(pa.timestamp("us"))
    op.process(pa.table({"ts": time, "k": [1, 1], "i": [1, 2]}))

    def full(self: DeviceKeyDictionary, used: np.ndarray) -> Any:
        raise runtime.OutOfDeviceMemory(77)

    monkeypatch.setattr(DeviceKeyDictionary, "kept", full)
    with pytest.raises(gw.OverflowError):
        op.process(pa.table({"ts": time, "k": [2, 2], "i": [(1 << 63) - 1, (1 << 63) - 1]}))
    assert op.finish().select(["k", "s"]).to_pylist() == [{"k": 1, "s": 3}]
