"""The engine in this process: rows a second and microseconds a batch, for the shapes that issue reports ask about.

    python benchmarks/engine.py [name ...]            one line for each
    python benchmarks/engine.py --record [name ...]   the same, and into benchmarks/results/engine.json

Each case runs in a process of its own: once to compile what it needs, then several times, of which the fastest counts
(other load only ever adds). `cpu` is processor time of that run, which other load hardly moves. Peak memory includes
the input and about 250 MiB of interpreter, Arrow and Numba. LIMITS are the ratios that must hold, taken from cases of
the same recording.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
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
MINUTE = 60 * SECOND
EXTREMES = {"low": gw.min("value"), "high": gw.max("value"), "spread": gw.var("value"), "newest": gw.last("value")}


def minutes() -> list[pa.Table]:
    """A million rows a minute, a minute a batch: tumbling windows close as many as sliding ones of any size."""
    return stream(12, 1_000_000, 1_000, MINUTE)


def two_days() -> list[pa.Table]:
    """Enough minutes, a batch each, for windows that close one at a time to be compared with those of one pane."""
    return stream(400, 10_000, 1_000, MINUTE)


def one_key_sessions() -> list[pa.Table]:
    """10,000 sessions of one key, all open, in batches that each touch all of them."""
    time = np.arange(10_000) * 60 * SECOND
    return [
        pa.table(
            {
                "key": pa.array(np.zeros(10_000, np.int64)),
                "time": pa.array(time + k * SECOND).cast(pa.timestamp("us")),
                "value": pa.array(np.ones(10_000)),
            }
        )
        for k in range(10)
    ]


Case = tuple[gw.WindowedAggregation, Callable[[], list[pa.Table]]]
SESSION = gw.SessionWindow("10 seconds")
LONG_DELAY = gw.BoundedOutOfOrderness("30 days")
CASES: dict[str, Case] = {
    "tumbling": (spec(TUMBLING), lambda: stream(10, 1_000_000, 10_000, 600 * SECOND)),
    "1 window a row": (spec(TUMBLING), minutes),
    "60 windows a row": (spec(HOUR), minutes),
    "10,080 windows a row": (spec(WEEK), minutes),
    "1 window a row, min max var last": (spec(TUMBLING, aggregates=EXTREMES), two_days),
    "60 windows a row, min max var last": (spec(HOUR, aggregates=EXTREMES), two_days),
    "10,080 windows a row, min max var last": (spec(WEEK, aggregates=EXTREMES), two_days),
    "1 M rows in 14 days, 7 d / 1 min": (spec(WEEK), lambda: stream(20, 50_000, 1_000, 14 * DAY // 20)),
    "7 d / 1 min on change": (spec(WEEK, emit=gw.OnChange()), lambda: stream(4, 1_000_000, 1_000, MINUTE)),
    "a million keys": (spec(TUMBLING), lambda: stream(6, 1_000_000, 1_000_000, MINUTE)),
    "a thousand open windows": (spec(TUMBLING, watermark=LONG_DELAY), lambda: stream(10, 100_000, 100, 1_000 * MINUTE)),
    "sessions": (spec(SESSION), lambda: stream(10, 1_000_000, 10_000, 600 * SECOND)),
    "10,000 sessions of one key": (spec(SESSION, watermark=LONG_DELAY), one_key_sessions),
    "1,000 batches of 1,000 rows": (spec(TUMBLING), lambda: stream(1_000, 1_000, 1_000, 10 * SECOND)),
    "1,000 batches of one row": (spec(TUMBLING), lambda: stream(1_000, 1, 1_000, 10 * SECOND)),
    "1,000 empty batches": (spec(TUMBLING), lambda: stream(1, 1_000, 1_000, SECOND) + stream(999, 0, 1_000, SECOND)),
    "a batch of 20 M rows": (spec(TUMBLING), lambda: stream(1, 20_000_000, 10_000, 3_600 * SECOND)),
    "updates": (spec(HOUR, emit=gw.OnUpdate()), lambda: stream(5, 100_000, 1_000, MINUTE)),
    "every row": (spec(TUMBLING, emit=gw.EveryRow()), lambda: stream(5, 100_000, 1_000, MINUTE)),
    "early at 100 rows": (spec(TUMBLING, emit=gw.Trigger(early=gw.EveryRows(100))), minutes),
    "sessions, early at 10 rows": (
        spec(SESSION, emit=gw.Trigger(early=gw.EveryRows(10))),
        lambda: stream(5, 100_000, 1_000, MINUTE),
    ),
    "sessions of one key, early at 10 rows": (
        spec(SESSION, emit=gw.Trigger(early=gw.EveryRows(10))),
        lambda: stream(2, 2_000, 1, MINUTE),
    ),
    "a watermark per key": (spec(TUMBLING, semantics=gw.Semantics.BYTEWAX), minutes),
    "medians": (spec(TUMBLING, aggregates={"middle": gw.median("value")}), minutes),
}
LIMITS: tuple[tuple[str, str, float], ...] = (  # case, in proportion to, at most
    ("60 windows a row", "1 window a row", 1.3),
    ("10,080 windows a row", "1 window a row", 2.0),
    ("60 windows a row, min max var last", "1 window a row, min max var last", 3.0),
    ("10,080 windows a row, min max var last", "1 window a row, min max var last", 3.0),
)
RESULTS = Path(__file__).parent / "results" / "engine.json"


def measure(views: gw.WindowedAggregation, batches: list[pa.Table]) -> dict[str, float]:
    """One run of the stream; `seconds` and `cpu` are of `process` alone."""
    op = views.start()
    began, used = time.perf_counter(), time.process_time()
    out = sum(op.process(rows).num_rows for rows in batches)
    took, cpu = time.perf_counter() - began, time.process_time() - used
    began = time.perf_counter()
    out += op.finish().num_rows
    return {
        "rows": sum(rows.num_rows for rows in batches),
        "batches": len(batches),
        "rows_out": out,
        "seconds": took,
        "cpu": cpu,
        "finish": time.perf_counter() - began,
    }


def best_of(name: str, repeats: int = 5) -> dict[str, float]:
    """The fastest of some runs of a case, and the peak memory of the process."""
    views, make = CASES[name]
    batches = make()
    held = sum(rows.nbytes for rows in batches)
    measure(views, batches)
    peak = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    )  # of one run: repeats only add what is not yet freed
    runs = [measure(views, batches) for _ in range(repeats)]
    best = min(runs, key=lambda run: run["seconds"])
    best["cpu"], best["finish"] = min(run["cpu"] for run in runs), min(run["finish"] for run in runs)
    best |= {"input_mib": held >> 20, "peak_mib": peak}
    return best


def ratios(found: dict[str, dict[str, float]]) -> list[dict[str, object]]:
    """How much longer than its measure each limited case takes, by processor time, which load disturbs least."""
    return [
        {"case": case, "to": to, "at_most": most, "is": round(found[case]["cpu"] / found[to]["cpu"], 2)}
        for case, to, most in LIMITS
        if case in found and to in found
    ]


def main(arguments: list[str]) -> None:
    record = "--record" in arguments
    names = [name for name in arguments if name != "--record"] or list(CASES)
    found: dict[str, dict[str, float]] = {}
    for name in names:
        with multiprocessing.get_context("spawn").Pool(1) as one:
            m = found[name] = one.apply(best_of, (name,))
        print(
            f"{name:40} {m['rows'] / m['seconds'] / 1e6:8.2f} M rows/s "
            f"{m['seconds'] / m['batches'] * 1e6:10.0f} us a batch ({m['cpu'] / m['batches'] * 1e6:.0f} of processor) "
            f"{m['rows_out']:10} rows out  finish {m['finish']:6.2f} s  peak {m['peak_mib']} MiB",
            flush=True,
        )
    for limit in ratios(found):
        print(f"{limit['case']}: {limit['is']} times {limit['to']}, at most {limit['at_most']}")
    if record:
        before = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else {}
        cases = {**before, **found}
        machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
        recorded = {"machine": machine, "limits": ratios(cases), "cases": cases}
        RESULTS.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
