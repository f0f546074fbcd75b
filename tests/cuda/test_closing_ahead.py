"""What closes with a batch, windows and sessions, found before the host knows what does: the rows of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from on_both import in_order

import gpuwin as gw
from gpuwin.bounds import Bounds
from gpuwin.device.closing import panes_of, watermark_of
from gpuwin.grid import WindowGrid
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.state.device.closing_ahead import Ahead
from gpuwin.state.device.sessions import DeviceSessionState
from gpuwin_kernels import tuning
from gpuwin_kernels.cuda.many import alone
from gpuwin_kernels.cuda.rows import DeviceCells
from gpuwin_kernels.cuda.runtime import to_device, to_host, waits
from gpuwin_kernels.cuda.watermark import cuts_beside

SECOND = 1_000_000


def batch(rng: np.random.Generator, first: int, last: int, keys: int, rows: int = 6) -> pa.Table:
    seconds = np.append(rng.integers(first, last, rows - 2), [first, last - 1])
    return pa.table(
        {
            "ts": pa.array(seconds * SECOND).view(pa.timestamp("us")),
            "k": np.arange(rows) % keys,
            "i": pa.array(rng.integers(-(1 << 40), 1 << 40, rows), mask=rng.random(rows) < 0.2),
        }
    )


def stream(rng: np.random.Generator) -> list[pa.Table]:
    """Batches ten seconds apart, most of them; one jumps, one goes slowly, one brings keys, one is old, one many."""
    rows, at = [], 0
    for step in range(11):
        at += {4: 80, 6: 3}.get(step, 10)
        keys = 9 if step == 8 else 3
        rows.append(batch(rng, at - (25 if step == 7 else 2), at + 10, keys, 40 if step == 9 else 6))
    return rows


PRESETS = {
    "hashed": (gw.SlidingWindow("20 seconds", "10 seconds", offset="3 seconds"), {"semantics": gw.Semantics.FLINK}),
    "cumulative": (gw.CumulativeWindow("20 seconds", "10 seconds"), {"semantics": gw.Semantics.SPARK}),
    "complete": (gw.SlidingWindow("5 seconds", "10 seconds"), {"emit": gw.Complete()}),
    "on update": (
        gw.SlidingWindow("20 seconds", "10 seconds"),
        {"emit": gw.OnUpdate(), "semantics": gw.Semantics(late_by="timestamp"), "allowed_lateness": "3 seconds"},
    ),
    "sessions": (
        gw.SessionWindow("4 seconds"),
        {"semantics": gw.Semantics(session_touch="split", watermark_inclusive=True)},
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_random_streams_give_the_rows_of_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "hashed":
        monkeypatch.setattr(tuning, "CUDA_SHARED_BYTES", 0)
        monkeypatch.setattr(tuning, "CUDA_DENSE_BYTES", 0)
    window, more = PRESETS[name]
    specification = gw.WindowedAggregation(
        keys=["k"], window=window, time="ts", watermark=gw.BoundedOutOfOrderness("2 seconds"),
        aggregates={"n": gw.count(), "total": gw.sum("i")}, **more,
    )  # fmt: skip
    host, device = specification.start(device="cpu"), specification.start(device="cuda")
    held = failed = 0
    for rows in stream(np.random.default_rng(7)):
        before = waits()
        found = device.process(rows)
        held += found.num_rows > 0 and waits() == before + 1
        failed += found.num_rows > 0 and waits() > before + 1
        assert in_order(found) == in_order(host.process(rows))
    assert held > 1, "expectations hold for some"
    assert failed > 3, "and fail"
    assert in_order(device.finish()) == in_order(host.finish())


@pytest.mark.parametrize(
    ("window", "of", "name"),
    [
        (gw.TumblingWindow("10 seconds"), Ahead, "with_closed"),
        (gw.SessionWindow("3 seconds"), DeviceSessionState, "with_closed"),
    ],
    ids=["windows", "sessions"],
)
def test_a_closing_that_goes_wrong_leaves_the_state(
    window: Any, of: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    op = gw.WindowedAggregation(
        keys=["k"], window=window, time="ts", aggregates={"total": gw.sum("i")},
        watermark=gw.BoundedOutOfOrderness("0 seconds"),
    ).start(device="cuda")  # fmt: skip
    for at in range(0, 30, 10):
        op.process(batch(rng, at, at + 10, 3))
    before, rows = op.snapshot(), batch(rng, 30, 40, 3)

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(of, name, broken)
        with pytest.raises(RuntimeError, match="broken"):
            op.process(rows)
    assert op.snapshot() == before
    assert op.process(rows).num_rows >= 3


RULES = [
    gw.Semantics(),
    gw.Semantics.FLINK,
    gw.Semantics.SPARK,
    gw.Semantics.AKKA,
    gw.Semantics(close="after_end", watermark_inclusive=True, watermark_precision="ms"),
    gw.Semantics(late_filter="previous"),
]
WINDOWS = [
    gw.TumblingWindow("7 seconds", offset="3 seconds"),
    gw.SlidingWindow("20 seconds", "8 seconds"),
    gw.SlidingWindow("5 seconds", "8 seconds"),
    gw.CumulativeWindow("20 seconds", "5 seconds", offset="2 seconds"),
    gw.InheritedWindow(),
]


@pytest.mark.parametrize("semantics", RULES, ids=["", "flink", "spark", "akka", "strict", "previous"])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: type(window).__name__)
def test_what_is_due_is_what_the_host_says(window: Any, semantics: gw.Semantics) -> None:
    rng = np.random.default_rng(5)
    delay = gw.BoundedOutOfOrderness("1.5 seconds")
    spec = gw.WindowedAggregation(
        window=window, time="ts", aggregates={"n": gw.count()}, watermark=delay, semantics=semantics
    )
    grid, bounds, rule = WindowGrid.of(window), Bounds.of(spec), WatermarkRule(delay, semantics)
    lagged = semantics.late_filter == "previous"
    for newest, known in rng.integers(-(1 << 50), 1 << 50, (4, 2)).tolist():
        progress = Progress(known, known)
        watermark = watermark_of(bounds, rule, progress)
        assert watermark is not None
        surveyed = to_device(np.array([0, newest, 0, 0, 0, 0]))
        cells = DeviceCells(to_device(np.zeros(1, np.int64)), to_device(np.zeros(1, np.int32)), ())
        found, _, (beside,) = cuts_beside([cells], surveyed, watermark, panes_of(grid))
        alone(beside)
        last, oldest = to_host(found).tolist()
        reached = known if lagged else rule.after_newest(progress, newest, 0).watermark
        assert last == grid.last_closed(bounds.closing(reached))
        assert oldest == grid.first_pane(last + 1)
