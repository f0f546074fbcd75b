"""Joins with `device="cuda"`, whole: the rows of the CPU, in the same order, batch for batch."""

from __future__ import annotations

import gc
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw
from gpuwin.joins import device as joins_device
from gpuwin.joins.device import Mirrors, OnCuda
from gpuwin_kernels.cuda.runtime import OutOfDeviceMemory, waits

SIDES = {"keys": ["k"], "left_time": "lt", "right_time": "rt", "watermark": gw.BoundedOutOfOrderness("5 seconds")}


def interval(how: Any) -> gw.IntervalJoin:
    return gw.IntervalJoin(lower="-3 seconds", upper="4 seconds", how=how, **SIDES)  # type: ignore[arg-type]


def window(window: Any, how: Any = "inner", **more: Any) -> gw.WindowJoin:
    return gw.WindowJoin(window, how=how, **SIDES, **more)  # type: ignore[arg-type]


JOINS = {
    "interval": interval("inner"),
    "interval, full": interval("full"),
    "hash, left": gw.HashJoin(["k"], "left"),
    "as of": gw.AsOfJoin(tolerance="9 seconds", **SIDES),  # type: ignore[arg-type]
    "tumbling": window(gw.TumblingWindow("8 seconds")),
    "sliding, full": window(gw.SlidingWindow("8 seconds", "4 seconds"), "full"),
    "cumulative, left": window(gw.CumulativeWindow("8 seconds", "4 seconds"), "left"),
    "sessions, right": window(gw.SessionWindow("3 seconds"), "right"),
    "groups": window(gw.TumblingWindow("8 seconds"), "cogroup"),
    "first of each": window(gw.TumblingWindow("8 seconds"), "full", keep="first"),
}


def rows(rng: np.random.Generator, n: int, first: int, side: str) -> pa.Table:
    seconds = rng.integers(first - 4, first + 8, n)
    return pa.table(
        {
            "k": pa.array(rng.integers(0, 3, n), mask=rng.random(n) < 0.1),
            f"{side}t": pa.array(seconds * 1_000_000).view(pa.timestamp("us")),
            side: rng.integers(0, 100, n),
        }
    )


@pytest.mark.parametrize("name", JOINS)
def test_batches(name: str) -> None:
    rng = np.random.default_rng(len(name))
    spec = JOINS[name]
    host, device = spec.start(device="cpu"), spec.start(device="cuda")
    some = 0
    for step in range(3):
        left = None if step == 1 else rows(rng, 7, 8 * step, "l")
        right = rows(rng, 6, 8 * step, "r")
        expected, before = host.process(left=left, right=right), waits()
        assert device.process(left=left, right=right).equals(expected)
        some += waits() > before
        assert device.metrics == host.metrics
        if step == 1:
            assert host.snapshot() == device.snapshot()
            host, device = spec.restore(device.snapshot(), "cpu"), spec.restore(host.snapshot(), "cuda")
    expected = host.finish()
    assert device.finish().equals(expected)
    assert some, "the device was never asked"


def test_what_is_kept_moves_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    real = joins_device.to_device

    def counted(array: np.ndarray) -> Any:
        moved.append(len(array))
        return real(array)

    monkeypatch.setattr(joins_device, "to_device", counted)
    rng = np.random.default_rng(1)
    op = gw.HashJoin(["k"]).start(device="cuda")
    op.process(left=rows(rng, 64, 0, "l"))
    for _ in range(3):
        op.process(right=rows(rng, 2, 0, "r"))
    large = [n for n in moved if n > 16]  # rows with a null in their key are not kept
    assert len(large) == 2, "codes and times"


def test_mirrors_go_with_their_arrays() -> None:
    mirrors = Mirrors()
    a, b = np.arange(3), np.arange(3)
    assert [mirrors.of(x, lambda x=x: x.sum()) for x in (a, b, a)] == [3, 3, 3]
    assert len(mirrors) == 2
    del a
    gc.collect()
    assert len(mirrors) == 1


def test_without_room_pairs_are_found_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: np.ndarray) -> Any:
        raise OutOfDeviceMemory(99)

    monkeypatch.setattr(joins_device, "to_device", full)
    rng = np.random.default_rng(2)
    for name in ("interval", "groups", "sliding, full"):
        host, device = (JOINS[name].start(device=d) for d in ("cpu", "cuda"))
        caplog.clear()
        with caplog.at_level(logging.WARNING, "gpuwin"):
            for step in range(2):
                batch = {"left": rows(rng, 5, 30 * step, "l"), "right": rows(rng, 5, 30 * step, "r")}
                assert device.process(**batch).equals(host.process(**batch))
        assert "joined a batch on the CPU: the device has not 99 bytes" in caplog.text


def test_auto_is_the_cpu_and_other_names_are_refused() -> None:
    assert not isinstance(JOINS["tumbling"].start()._plan.logic.kernels, OnCuda)
    assert isinstance(JOINS["tumbling"].start(device="cuda")._plan.logic.kernels, OnCuda)
    with pytest.raises(gw.DeviceError, match="not 'gpu'"):
        JOINS["tumbling"].start(device="gpu")
