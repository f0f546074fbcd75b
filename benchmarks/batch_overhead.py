# ruff: noqa: E402
"""Cost of a call of `op.process` beyond its rows and its results, on the warm path.

    python benchmarks/batch_overhead.py [--repeat 7] [--only NAME] [--profile ROWS] [--json FILE]

The workloads are those of kernels_cpu.py that go through `op.process`: 10 M rows in order of time. A call of N rows
that hands out R result rows is compared with what N rows and R results cost in batches of a million:

* a result is priced by a call that only closes: `finish()` after a million rows of which nothing has closed;
* a row is priced by the stream in batches of a million, less its results.

Each figure is the mean over a stream, so that the merging of runs, the closing of windows and the clearing of the
dictionary are in it; streams of all sizes alternate within one process, and the fastest of the repeats counts, since
other load only ever adds. `processor` is the same in processor time of all threads, which load hardly moves.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

for _name in ("GPUWIN_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "2")  # before any of them is imported

import numpy as np
import pyarrow as pa

import gpuwin as gw

ROWS, HOUR = 10_000_000, 3_600_000_000
BIG = 1_000_000
SIZES = (0, 1, 100, 1_000, 10_000)  # rows of a batch, 1,000 batches of each
BATCHES = 1_000
FIVE = {"n": gw.count(), "s": gw.sum("v"), "m": gw.mean("v"), "lo": gw.min("v"), "hi": gw.max("v")}
TWO = {"n": gw.count(), "s": gw.sum("v")}
Both = tuple[float, float]  # seconds: passed, of processor


@dataclass(frozen=True)
class Workload:
    name: str
    keys: int
    span: int  # microseconds
    window: gw.TumblingWindow | gw.SlidingWindow | gw.SessionWindow
    aggregates: dict[str, Any]

    def specification(self) -> gw.WindowedAggregation:
        return gw.WindowedAggregation(window=self.window, keys=["key"], time="ts", aggregates=self.aggregates)

    def table(self) -> pa.Table:
        rng = np.random.default_rng(7)
        ts = pa.array(np.sort(rng.integers(0, self.span, ROWS))).view(pa.timestamp("us"))
        return pa.table({"ts": ts, "key": rng.integers(0, self.keys, ROWS), "v": rng.normal(size=ROWS)})

    def warm(self) -> gw.WindowOperator:
        """Operator that has seen every key, in rows whose windows have closed."""
        op = self.specification().start(device="cpu")
        n = max(self.keys, 100_000)
        ts = pa.array(np.full(n, -2 * self.span)).view(pa.timestamp("us"))
        op.process(pa.table({"ts": ts, "key": np.arange(n) % self.keys, "v": np.zeros(n)}))
        op.advance_watermark(-1)
        return op


WORKLOADS = (
    Workload("tumbling, 10,000 int keys", 10_000, HOUR, gw.TumblingWindow("1 minute"), FIVE),
    Workload("tumbling, 1,000,000 int keys", 1_000_000, HOUR, gw.TumblingWindow("1 minute"), FIVE),
    Workload("sliding 1 h / 1 min, 10,000 keys", 10_000, 6 * HOUR, gw.SlidingWindow("1 hour", "1 minute"), TWO),
    Workload("session gap 30 s, 10,000 keys", 10_000, 6 * HOUR, gw.SessionWindow("30 seconds"), TWO),
)


def timed(work: Callable[[], int]) -> tuple[Both, int]:
    """(passed, of processor) and what it returned."""
    gc.collect()
    began, used = time.perf_counter(), time.process_time()
    found = work()
    return (time.perf_counter() - began, time.process_time() - used), found


def stream(load: Workload, table: pa.Table, rows: int, batches: int) -> tuple[Both, int]:
    """Time that the calls of one stream took together, slicing apart, and the rows they returned. Small batches are
    spread over the rows.
    """
    step = len(table) // batches
    parts = [table.slice(k * step, rows) for k in range(batches)]
    op = load.warm()
    return timed(lambda: sum(op.process(part).num_rows for part in parts))


def closing(load: Workload, table: pa.Table) -> tuple[Both, int]:
    """Time that it takes to close the windows of a million rows at once, and how many results that gives."""
    waiting = replace(load.specification(), watermark=gw.BoundedOutOfOrderness("365 days"))
    op = waiting.start(device="cpu")
    op.process(table.slice(0, BIG))
    return timed(lambda: op.finish().num_rows)


def least(several: list[tuple[Both, int]], kind: int) -> float:
    return min(both[kind] for both, _ in several)


def measured(load: Workload, repeat: int) -> dict[str, Any]:
    table = load.table()
    runs: dict[str, Callable[[], tuple[Both, int]]] = {"closing": lambda: closing(load, table)}
    runs["big"] = lambda: stream(load, table, BIG, ROWS // BIG)
    runs |= {str(rows): lambda rows=rows: stream(load, table, rows, BATCHES) for rows in SIZES}  # type: ignore[misc]
    for run in runs.values():
        run()  # compiles
    found: dict[str, list[tuple[Both, int]]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            found[name].append(run())
    out: dict[str, Any] = {"results": {name: found[name][0][1] / BATCHES for name in map(str, SIZES)}}
    for kind, k in (("passed", 0), ("processor", 1)):
        result = least(found["closing"], k) / found["closing"][0][1]
        row = max(0.0, least(found["big"], k) - result * found["big"][0][1]) / ROWS
        calls = {name: least(found[name], k) / BATCHES for name in map(str, SIZES)}
        out[kind] = {"row": row, "result": result, "calls": calls}
    return out


def printed(name: str, found: dict[str, Any]) -> None:
    for kind in ("passed", "processor"):
        prices = found[kind]
        print(f"{name}, {kind}: a row {prices['row'] * 1e9:.1f} ns, a result {prices['result'] * 1e9:.1f} ns")
        for size, call in prices["calls"].items():
            beyond_rows = call - int(size) * prices["row"]
            beyond = beyond_rows - found["results"][size] * prices["result"]
            print(
                f"  {int(size):6,} rows, {found['results'][size]:8,.1f} results: {call * 1e6:7.1f} us, "
                f"beyond rows {beyond_rows * 1e6:7.1f}, and results {beyond * 1e6:7.1f}",
                flush=True,
            )


def profiled(load: Workload, rows: int) -> None:
    import cProfile
    import pstats

    table = load.table()
    stream(load, table, rows, BATCHES)  # compiles
    step = len(table) // BATCHES
    parts = [table.slice(k * step, rows) for k in range(BATCHES)]
    op = load.warm()
    profile = cProfile.Profile()
    profile.enable()
    for part in parts:
        op.process(part)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--only", default="", help="part of the name of a workload")
    parser.add_argument("--profile", type=int, help="rows of a batch: profile instead")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [load for load in WORKLOADS if options.only in load.name]
    if options.profile is not None:
        for load in chosen:
            profiled(load, options.profile)
        return
    found = {}
    for load in chosen:
        found[load.name] = measured(load, options.repeat)
        printed(load.name, found[load.name])
    if options.json:
        whole = {"load": os.getloadavg()[0], "workloads": found}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
