"""Texts and keys that nothing holds any more: they leave memory under every engine, and no result changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import gpuwin as gw
from gpuwin.operator import WindowOperator
from gpuwin.state import heap, spill

SECOND = 1_000_000
DAY = gw.TumblingWindow("1 day")
WAYS: dict[str, dict[str, Any]] = {
    "close": {"window": DAY},
    "short": {"window": gw.TumblingWindow("4 seconds")},
    "sliding": {"window": gw.SlidingWindow("10 seconds", "2 seconds")},
    "update": {"window": DAY, "emit": gw.OnUpdate()},
    "complete": {"window": DAY, "emit": gw.Complete()},
    "change": {"window": gw.TumblingWindow("3 seconds"), "emit": gw.OnChange()},
    "trigger": {"window": DAY, "emit": gw.Trigger(gw.EveryRows(7))},
    "session": {"window": gw.SessionWindow("1 hour")},
    "session update": {"window": gw.SessionWindow("2 seconds"), "emit": gw.OnUpdate()},
    "session complete": {"window": gw.SessionWindow("1 hour"), "emit": gw.Complete()},
    "session trigger": {"window": gw.SessionWindow("1 hour"), "emit": gw.Trigger(gw.EveryRows(7))},
    "by row": {
        "window": gw.SessionWindow("1 hour"),
        "emit": gw.Trigger(gw.EveryRows(7)),
        "semantics": gw.Semantics(watermark_advance="row"),
    },
}


def specified(way: str) -> gw.WindowedAggregation:
    aggregates = {"least": gw.min("s"), "most": gw.max("s"), "newest": gw.last("s"), "by": gw.max_by("s", "v")}
    return gw.WindowedAggregation(
        keys=["k"],
        time="t",
        aggregates=aggregates,
        watermark=gw.BoundedOutOfOrderness("1 second"),
        **WAYS[way],
    )


def batches(count: int, size: int) -> Iterator[pa.Table]:
    """A batch a second, of twelve keys; some texts are null."""
    draw = np.random.default_rng(5)
    for second in range(count):
        n = 60
        texts = [None if draw.random() < 0.1 else f"{draw.integers(1 << 40)}" + "x" * size for _ in range(n)]
        times = np.sort(second * SECOND + draw.integers(0, SECOND, n))
        yield pa.table(
            {
                "k": draw.integers(0, 12, n),
                "t": pa.array(times, pa.timestamp("us")),
                "s": texts,
                "v": draw.integers(0, 1 << 40, n),
            }
        )


def played(way: str, monkeypatch: pytest.MonkeyPatch, anyway: int, size: int) -> list[pa.Table]:
    monkeypatch.setattr(heap, "ANYWAY", anyway)
    spec = specified(way)
    op, results = spec.start(device="cpu"), []
    for at, batch in enumerate(batches(25, size)):
        results.append(op.process(batch))
        if at == 12:
            op = spec.restore(op.snapshot(), device="cpu")
    return [*results, op.finish()]


@pytest.mark.parametrize("way", WAYS)
def test_no_result_changes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the dead ones are looked for all the time, and never."""
    assert played(way, monkeypatch, 0, 3) == played(way, monkeypatch, 1 << 40, 3)


@pytest.mark.parametrize("way", ["trigger", "session trigger"])
def test_windows_on_disk_have_their_texts(way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each batch is about a quarter of the keys; the windows of the others are on disk."""
    few = [batch.filter(pc.equal(pc.bit_wise_and(batch["k"], 3), at % 4)) for at, batch in enumerate(batches(25, 3))]
    monkeypatch.setattr(f"{__name__}.batches", lambda count, size: iter(few))
    expected = played(way, monkeypatch, 1 << 40, 3)

    def spilled(self: Any, held: Any, after: Any) -> Any:
        return replace(after, windows=held.spilled(1 << 62, os.fspath(tmp_path)))

    monkeypatch.setattr(spill, "_LEAST", 1)
    monkeypatch.setattr(WindowOperator, "_within_limits", spilled)
    assert played(way, monkeypatch, -1 << 40, 3) == expected


@pytest.mark.parametrize("way", WAYS)
def test_the_state_does_not_grow(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "ANYWAY", 1 << 12)
    op = specified(way).start(device="cpu")
    for batch in batches(30, 5_000):
        op.process(batch)
    # Of 1,800 texts of 5 kB up to four are in each of twelve cells, or in three for each of up to five panes.
    assert op.metrics.state_bytes < 3 << 20


def number_of_keys(op: WindowOperator) -> int:
    assert op._running.windows is not None
    return len(op._running.windows.names().keys)


@pytest.mark.parametrize("emit", [gw.OnClose(), gw.Trigger(), gw.OnUpdate()], ids=lambda emit: type(emit).__name__)
@pytest.mark.parametrize(
    "window", [gw.TumblingWindow("1 second"), gw.SessionWindow("1 second")], ids=["grid", "sessions"]
)
def test_keys_of_late_rows_are_not_kept(window: Any, emit: Any) -> None:
    spec = gw.WindowedAggregation(window=window, keys=["k"], time="t", aggregates={"n": gw.count()}, emit=emit)
    op = spec.start(device="cpu")
    for second in (1_000, 2_000):
        op.process(pa.table({"k": [0], "t": pa.array([second], pa.timestamp("s"))}))
    for batch in range(10):
        late = pa.array(np.full(2_000, batch), pa.timestamp("s"))
        op.process(pa.table({"k": np.arange(2_000) + 2_000 * batch, "t": late}))
    assert op.metrics.rows_late == 20_000
    assert number_of_keys(op) <= 6_100
    last = op.process(pa.table({"k": [0, 5], "t": pa.array([2_000, 2_001], pa.timestamp("s"))}))
    assert sorted(last["k"].to_pylist() + op.finish()["k"].to_pylist()) == [0, 5]


def test_keys_of_windows_with_an_evictor_leave_with_them() -> None:
    trigger = gw.Trigger(gw.EveryRows(1), evict=gw.KeepLast(2))
    spec = gw.WindowedAggregation(
        window=gw.TumblingWindow("1 second"), keys=["k"], time="t", aggregates={"s": gw.sum("v")}, emit=trigger
    )
    op, totals = spec.start(device="cpu"), []
    for second in range(6):
        times = pa.array(np.full(2_000, second * 1_000), pa.timestamp("ms"))
        keys = np.arange(2_000) + 2_000 * second
        totals += op.process(pa.table({"k": keys, "t": times, "v": keys}))["s"].to_pylist()
        if second == 3:
            op = spec.restore(op.snapshot(), device="cpu")
    assert number_of_keys(op) <= 6_000
    totals += op.finish()["s"].to_pylist()
    assert set(totals) == set(range(12_000))
