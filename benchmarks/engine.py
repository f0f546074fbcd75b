"""The engine in this process: rows a second and microseconds a batch, for the shapes that issue reports ask about.

    python benchmarks/engine.py [name ...]

Every line is a second run of the same stream, after one that compiled what it needed; peak memory is of the
process so far.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import gpuwin as gw

SECOND = 1_000_000
DAY = 86_400 * SECOND


def batch(rows: int, keys: int, start: int, length: int, seed: int) -> pa.Table:
    """Rows in order of time, of uniform keys and values."""
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "key": pa.array(random.integers(0, keys, rows)),
            "time": pa.array(np.sort(random.integers(start, start + length, rows))).cast(pa.timestamp("us")),
            "value": pa.array(random.random(rows)),
        }
    )


def stream(batches: int, rows: int, keys: int, length: int) -> list[pa.Table]:
    return [batch(rows, keys, k * length, length, k) for k in range(batches)]


def spec(window: Any, **more: Any) -> gw.WindowedAggregation:
    given: dict[str, Any] = {
        "keys": ["key"],
        "time": "time",
        "aggregates": {"n": gw.count(), "total": gw.sum("value")},
        "watermark": gw.BoundedOutOfOrderness("5 seconds"),
    }
    return gw.WindowedAggregation(window=window, **{**given, **more})


TUMBLING, HOUR, WEEK = (
    gw.TumblingWindow("1 minute"),
    gw.SlidingWindow("1 hour", "1 minute"),
    gw.SlidingWindow("7 days", "1 minute"),
)
Case = tuple[gw.WindowedAggregation, Callable[[], list[pa.Table]]]
CASES: dict[str, Case] = {
    "tumbling": (spec(TUMBLING), lambda: stream(10, 1_000_000, 10_000, 600 * SECOND)),
    "one minute of 1 M rows": (spec(TUMBLING), lambda: stream(12, 1_000_000, 1_000, 60 * SECOND)),
    "60 windows a row": (spec(HOUR), lambda: stream(12, 1_000_000, 1_000, 60 * SECOND)),
    "10,080 windows a row": (spec(WEEK), lambda: stream(12, 1_000_000, 1_000, 60 * SECOND)),
    "1 M rows in 14 days, 7 d / 1 min": (spec(WEEK), lambda: stream(20, 50_000, 1_000, 14 * DAY // 20)),
    "7 d / 1 min on change": (spec(WEEK, emit=gw.OnChange()), lambda: stream(4, 1_000_000, 1_000, 60 * SECOND)),
    "a million keys": (spec(TUMBLING), lambda: stream(6, 1_000_000, 1_000_000, 60 * SECOND)),
    "sessions": (spec(gw.SessionWindow("10 seconds")), lambda: stream(10, 1_000_000, 10_000, 600 * SECOND)),
    "1,000 batches of 1,000 rows": (spec(TUMBLING), lambda: stream(1_000, 1_000, 1_000, 10 * SECOND)),
    "1,000 batches of one row": (spec(TUMBLING), lambda: stream(1_000, 1, 1_000, 10 * SECOND)),
    "a batch of 20 M rows": (spec(TUMBLING), lambda: stream(1, 20_000_000, 10_000, 3_600 * SECOND)),
    "updates": (spec(HOUR, emit=gw.OnUpdate()), lambda: stream(5, 100_000, 1_000, 60 * SECOND)),
    "every row": (spec(TUMBLING, emit=gw.EveryRow()), lambda: stream(5, 100_000, 1_000, 60 * SECOND)),
    "early at 100 rows": (
        spec(TUMBLING, emit=gw.Trigger(early=gw.EveryRows(100))),
        lambda: stream(5, 1_000_000, 1_000, 60 * SECOND),
    ),
    "a watermark per key": (
        spec(TUMBLING, semantics=gw.Semantics.BYTEWAX),
        lambda: stream(5, 1_000_000, 1_000, 60 * SECOND),
    ),
    "medians": (
        spec(TUMBLING, aggregates={"middle": gw.median("value")}),
        lambda: stream(5, 1_000_000, 1_000, 60 * SECOND),
    ),
}


def measure(views: gw.WindowedAggregation, batches: list[pa.Table]) -> dict[str, float]:
    op = views.start()
    began = time.perf_counter()
    out = sum(op.process(rows).num_rows for rows in batches)
    took = time.perf_counter() - began
    began = time.perf_counter()
    out += op.finish().num_rows
    return {
        "rows": sum(rows.num_rows for rows in batches),
        "seconds": took,
        "finish": time.perf_counter() - began,
        "batches": len(batches),
        "out": out,
    }


def main(names: list[str]) -> None:
    for name in names or CASES:
        views, make = CASES[name]
        batches = make()
        measure(views, batches[:2])
        m = measure(views, batches)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(
            f"{name:34} {m['rows'] / m['seconds'] / 1e6:8.2f} M rows/s "
            f"{m['seconds'] / m['batches'] * 1e6:12.0f} us a batch "
            f"{m['out']:10} rows out  finish {m['finish']:6.2f} s  peak {peak} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
