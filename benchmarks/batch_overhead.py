# ruff: noqa: E402
"""What a call of `op.process` costs beyond its rows, on the warm path.

    python benchmarks/batch_overhead.py [--repeat 7] [--profile ROWS] [--json FILE]

The workload is the first one of kernels_cpu.py: 10,000 int64 keys, minutes, count sum avg min max, 10 M rows an hour
in order of time. A row costs what it costs in batches of a million. The overhead of a batch is the time of its call
less that of its rows. Each figure is the mean over a stream, so that the merging of runs and the closing of windows is
in it; streams of all sizes alternate within one process, and the fastest of the repeats counts, since other load only
ever adds. `processor` is the same in processor time of all threads, which load hardly moves.
"""

from __future__ import annotations

import argparse
import json
import os
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


def seconds_a_batch(table: pa.Table, rows: int, batches: int) -> tuple[float, float]:
    """The mean of the calls of one stream, slicing apart: (passed, of processor). Small batches are spread over the
    rows.
    """
    step = len(table) // batches
    parts = [table.slice(k * step, rows) for k in range(batches)]
    op = warm(table)
    began, used = time.perf_counter(), time.process_time()
    for part in parts:
        op.process(part)
    return (time.perf_counter() - began) / batches, (time.process_time() - used) / batches


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
    found: dict[int, list[tuple[float, float]]] = {rows: [] for rows in sizes}
    for _ in range(options.repeat):
        for rows, batches in sizes.items():
            found[rows].append(seconds_a_batch(table, rows, batches))
    measured: dict[str, dict[str, float]] = {}
    for kind, k in (("passed", 0), ("processor", 1)):
        call = {rows: min(times[k] for times in several) for rows, several in found.items()}
        row = call[BIG] / BIG
        print(f"{kind}: a row in batches of {BIG:,} takes {row * 1e9:.2f} ns")
        for rows in SIZES:
            print(f"  {rows:6,} rows: {call[rows] * 1e6:7.1f} us, overhead {(call[rows] - rows * row) * 1e6:7.1f} us")
        measured[kind] = {"row": row, **{str(rows): call[rows] for rows in SIZES}}
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
