"""Memory of a process with `Limits(max_state_bytes=..., spill_to=...)`, and what that costs.

    python benchmarks/spill.py [name ...]            one line for each case, without a limit and with one
    python benchmarks/spill.py --record [name ...]   the same, and into benchmarks/results/spill.json

Each run is a process of its own. `anonymous` is the memory that the process cannot give back (RssAnon of Linux, after
each batch, the largest) above what it had before the first batch: interpreter, Arrow, compiled kernels, and the input,
which is made batch by batch. Pages of mapped files are not in it: the system drops those that it needs elsewhere. The
rows handed out are counted and summed in both runs, and have to be the same.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import gpuwin as gw

MINUTE = 60_000_000
BATCHES, ROWS, KEYS = 40, 250_000, 200_000
BUDGETS = {"windows of 5 minutes": 24, "windows of 5 minutes, early at 100 rows": 24}  # MiB; the others: 32
RESULTS = Path(__file__).parent / "results" / "spill.json"


def batch(number: int) -> pa.Table:
    """Keys that come and go: each batch has rows of a tenth of them, and a few of any key."""
    random = np.random.default_rng(number)
    near = random.integers(0, KEYS // 10, ROWS) + KEYS // 10 * (number % 10)
    key = np.where(random.random(ROWS) < 0.01, random.integers(0, KEYS, ROWS), near)
    at = np.sort(random.integers(number * MINUTE, (number + 1) * MINUTE, ROWS))
    return pa.table({"key": key, "time": pa.array(at).cast(pa.timestamp("us")), "value": random.random(ROWS)})


AGGREGATES = {"n": gw.count(), "total": gw.sum("value"), "high": gw.max("value"), "low": gw.min("value")}
CASES: dict[str, dict[str, Any]] = {
    "windows of 5 minutes": {"window": gw.TumblingWindow("5 minutes")},
    "sessions": {"window": gw.SessionWindow("90 seconds")},
    "sessions, median": {"window": gw.SessionWindow("90 seconds"), "aggregates": {"middle": gw.median("value")}},
    "sessions, early at 100 rows, retracting": {
        "window": gw.SessionWindow("90 seconds"),
        "emit": gw.Trigger(early=gw.EveryRows(100)),
        "semantics": gw.Semantics(count_trigger="batch"),
        "accumulation": "retracting",
    },
    "windows of 5 minutes, early at 100 rows": {
        "window": gw.TumblingWindow("5 minutes"),
        "emit": gw.Trigger(early=gw.EveryRows(100)),
        "semantics": gw.Semantics(count_trigger="batch"),
    },
}


def anonymous() -> int:
    """Bytes of memory of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no RssAnon: this benchmark runs on Linux")


def measure(name: str, limited: bool) -> dict[str, float]:
    """One run of a case."""
    more = {"aggregates": AGGREGATES, **CASES[name]}
    with tempfile.TemporaryDirectory() as folder:
        budget = BUDGETS.get(name, 32) << 20
        limits = gw.Limits(max_state_bytes=budget, spill_to=folder) if limited else gw.Limits()
        views = gw.WindowedAggregation(
            keys=["key"], time="time", watermark=gw.BoundedOutOfOrderness("30 minutes"), limits=limits, **more
        )
        warm = views.start()  # compiles the kernels
        for number in (0, 1):
            warm.process(batch(number).slice(0, 20_000))
        warm.finish()
        op, before, most, state, rows, total, took = views.start(), anonymous(), 0, 0, 0, 0.0, 0.0
        column = next(iter(more["aggregates"]))
        for number in range(BATCHES):
            data = batch(number)
            began = time.perf_counter()
            out = op.process(data)
            took += time.perf_counter() - began
            rows, total = rows + out.num_rows, total + (pc.sum(out[column]).as_py() or 0)
            del data, out
            pa.default_memory_pool().release_unused()
            most, state = max(most, anonymous() - before), max(state, op.metrics.state_bytes)
    return {
        "budget_mib": budget >> 20 if limited else 0,
        "anonymous_mib": most >> 20,
        "state_mib": state >> 20,
        "seconds": round(took, 2),
        "rows_out": rows,
        "sum": round(total, 3),
    }


def main(arguments: list[str]) -> None:
    record = "--record" in arguments
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in [name for name in arguments if name != "--record"] or list(CASES):
        runs = {}
        for limited in (False, True):
            with multiprocessing.get_context("spawn").Pool(1) as one:
                runs["spilled" if limited else "in memory"] = one.apply(measure, (name, limited))
        free, spilled = runs["in memory"], runs["spilled"]
        assert (free["rows_out"], free["sum"]) == (spilled["rows_out"], spilled["sum"]), (name, runs)
        found[name] = runs
        print(
            f"{name:42} in memory: {free['anonymous_mib']:5} MiB (state {free['state_mib']}) {free['seconds']:6.1f} s; "
            f"spilled: {spilled['anonymous_mib']:5} MiB (state {spilled['state_mib']}) {spilled['seconds']:6.1f} s",
            flush=True,
        )
    if record:
        machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
        RESULTS.write_text(json.dumps({"machine": machine, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
