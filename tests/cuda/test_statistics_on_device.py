"""Aggregates of bits, statistics and pairs on the device: rows are sorted and merged there, as no atomics do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpuwin as gw

AGGREGATES = {
    "true": gw.count_if("flag"),
    "and": gw.bit_and("i"),
    "or": gw.bit_or("i"),
    "xor": gw.bit_xor("i"),
    "some": gw.any_value("i"),
    "skewness": gw.skewness("y"),
    "kurtosis": gw.kurtosis("y"),
    "covariance": gw.covar_samp("x", "y"),
    "r": gw.corr("y", "x"),
    "slope": gw.regr_slope("y", "x"),
    "pairs": gw.regr_count("y", "x"),
    "mean": gw.regr_avgx("y", "x"),
}
BOUNDS = ("k", "window_start", "window_end")


def batch(rng: np.random.Generator, rows: int, first: int) -> pa.Table:
    return pa.table(
        {
            "ts": pa.array(rng.integers(first, first + 15, rows) * 1_000_000).view(pa.timestamp("us")),
            "k": pa.array(rng.choice(["a", "b"], rows)),
            "y": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.2),
            "x": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.2),
            "i": pa.array(rng.integers(-(1 << 40), 1 << 40, rows), mask=rng.random(rows) < 0.2),
            "flag": pa.array(rng.random(rows) < 0.5, mask=rng.random(rows) < 0.2),
        }
    )


@pytest.mark.parametrize("window", [gw.SlidingWindow("20 seconds", "10 seconds"), gw.SessionWindow("4 seconds")])
def test_the_same_as_on_the_cpu(window: Any) -> None:
    views = gw.WindowedAggregation(
        window, ["k"], "ts", AGGREGATES, watermark=gw.BoundedOutOfOrderness("3 seconds"), allowed_lateness="0 seconds"
    )
    rng = np.random.default_rng(4)
    batches = [batch(rng, 12, 10 * step) for step in range(2)]
    found: dict[str, list[dict[str, Any]]] = {}
    for device in ("cpu", "cuda"):
        op = views.start(device=device)
        assert op.device == device
        parts = [*map(op.process, batches), op.finish()]
        rows = [row for part in parts for row in part.to_pylist()]
        found[device] = sorted(rows, key=lambda row: (row["k"], row["window_start"]))
    assert len(found["cpu"]) == len(found["cuda"]) > 2
    for host, there in zip(found["cpu"], found["cuda"], strict=True):
        assert [there[name] for name in BOUNDS] == [host[name] for name in BOUNDS]
        for name in AGGREGATES:
            if host[name] is None:
                assert there[name] is None, name
            else:
                assert there[name] == pytest.approx(host[name], rel=1e-9, abs=1e-9), name
