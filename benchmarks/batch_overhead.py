# ruff: noqa: E402
"""What a call of `op.process` costs beyond its rows, on the warm path.

    python benchmarks/batch_overhead.py [--repeat 7] [--profile ROWS] [--json FILE]

The workload is the first one of kernels_cpu.py: 10,000 int64 keys, minutes, count sum avg min max, 10 M rows an hour
in order of time. A row costs what it costs in batches of a million. The overhead of a batch is the time of its call
less that of its rows; calls of all sizes alternate within one process, and the median of the repeats counts, each of
which is the mean of a stream, so that the merging of runs and the closing of windows is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

for _name in ("GPUWIN_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "2")  # before any of them is imported

import numpy as np
import pyarrow as pa

import gpuwin as gw

ROWS, KEYS, HOUR = 10_000_000, 10_000, 3_600_000_000
BIG = 1_000_000
SIZES = {0: 1_000, 1: 1_000, 100: 1_000, 1_000: 1_000, 10_000: 1_000}  # rows of a batch: batches of the stream
SPEC = gw.WindowedAggregation(
    window=gw.TumblingWindow("1 minute"),
    keys=["key"],
    time="ts",
    aggregates={"n": gw.count(), "s": gw.sum("v"), "m": gw.mean("v"), "lo": gw.min("v"), "hi": gw.max("v")},
)


def stream() -> pa.Table:
    rng = np.random.default_rng(7)
    ts = pa.array(np.sort(rng.integers(0, HOUR, ROWS))).view(pa.timestamp("us"))
    return pa.table({"ts": ts, "key": rng.integers(0, KEYS, ROWS), "v": rng.normal(size=ROWS)})


def warm(table: pa.Table) -> gw.WindowOperator:
    """An operator that has seen every key, in rows of the last hour but one."""
    op = SPEC.start(device="cpu")
    first = table.slice(0, 100_000)
    earlier = pa.array(np.asarray(first["ts"]).astype("int64") - HOUR).view(pa.timestamp("us"))
    op.process(first.set_column(0, "ts", earlier))
    return op


def seconds_a_batch(table: pa.Table, rows: int, batches: int) -> float:
    """The mean of the calls of one stream, slicing apart. Small batches are spread over the rows."""
    step = len(table) // batches
    parts = [table.slice(k * step, rows) for k in range(batches)]
    op = warm(table)
    began = time.perf_counter()
    for part in parts:
        op.process(part)
    return (time.perf_counter() - began) / batches


def profiled(table: pa.Table, rows: int) -> None:
    import cProfile
    import pstats

    batches = SIZES.get(rows, 1_000)
    step = len(table) // batches
    parts = [table.slice(k * step, rows) for k in range(batches)]
    op = warm(table)
    profile = cProfile.Profile()
    profile.enable()
    for part in parts:
        op.process(part)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--profile", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = stream()
    sizes = {BIG: ROWS // BIG, **SIZES}
    for rows, batches in sizes.items():
        seconds_a_batch(table, rows, batches)  # compiles
    if options.profile is not None:
        return profiled(table, options.profile)
    found: dict[int, list[float]] = {rows: [] for rows in sizes}
    for _ in range(options.repeat):
        for rows, batches in sizes.items():
            found[rows].append(seconds_a_batch(table, rows, batches))
    median = {rows: statistics.median(times) for rows, times in found.items()}
    row = median[BIG] / BIG
    print(f"a row in batches of {BIG:,}: {row * 1e9:.2f} ns")
    for rows in SIZES:
        call = median[rows]
        print(
            f"batch of {rows:6,} rows: {call * 1e6:7.1f} us, overhead {(call - rows * row) * 1e6:7.1f} us "
            f"(best {min(found[rows]) * 1e6:.1f})"
        )
    if options.json:
        overhead = {str(rows): median[rows] - rows * row for rows in SIZES}
        measured = {"row": row, "call": {str(k): v for k, v in median.items()}, "overhead": overhead}
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
