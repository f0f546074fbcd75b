"""Everything that is to be known of the CUDA kernels on one GPU, in one call and one JSON file.

    python benchmarks/gpu_check.py --json h200.json
    python benchmarks/gpu_check.py --only equality --rows 200000     # one part, small
    NUMBA_ENABLE_CUDASIM=1 python benchmarks/gpu_check.py --rows 90  # does the script work? figures mean nothing

Parts, in this order: `versions`; `walls` (the two rates that nothing can beat, measured here: a copy within device
memory, and a copy from pinned host memory); `equality` (the public operator on the device against the CPU, on fresh
random rows); `sanitizer` (the equality part, small, under compute-sanitizer); `workloads` (rows a second on rows that
are in device memory already, and from the host, each with its share of its own wall; CuPy and, where it is installed,
cuDF beside them). A part that fails is written down with its error, and the others still run; the exit code then is 1.

A row is int64 time, int32 key and float64 value: 20 bytes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import gpuwin as gw
from gpuwin.state import KeyDictionary, PaneState, WindowGrid
from gpuwin.state.device_panes import DevicePaneState, DeviceRun
from gpuwin_kernels.cpu.rows import RowInput
from gpuwin_kernels.cuda import runtime
from gpuwin_kernels.cuda.rows import aggregate_rows
from gpuwin_kernels.cuda.sessions import cut
from gpuwin_kernels.layout import CellColumn, CellLayout

MINUTE = 60_000_000
HOUR = 60 * MINUTE
ROW_BYTES = 20
PARTS = ("versions", "walls", "equality", "sanitizer", "workloads")
FIVE = CellLayout(
    (
        CellColumn("n", "sum", "int64"),
        CellColumn("s", "sum", "float64"),
        CellColumn("lo", "min", "float64"),
        CellColumn("hi", "max", "float64"),
    )
)
TWO = CellLayout(FIVE.columns[:2])


# -- versions and walls ------------------------------------------------------------------------------------------------


def versions(_: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "simulated": runtime.simulated()}
    for name in ("numpy", "numba", "numba-cuda", "cupy-cuda13x", "cupy-cuda12x", "cuda-cccl", "cudf-cu13", "pyarrow"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    smi = shutil.which("nvidia-smi")
    if smi:
        query = [smi, "--query-gpu=name,driver_version,memory.total,clocks.max.mem", "--format=csv,noheader"]
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return found


def timed(work: Callable[[], Any], repeat: int = 7) -> float:
    """Seconds, the median of the repeats; the first call, which compiles, is not among them."""
    work()
    runtime.synchronize()
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        runtime.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def walls(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes a second: read and written within device memory, and from pinned host memory to the device."""
    size = min(options.rows * ROW_BYTES // 2, 4 << 30)
    a, b = runtime.full(size // 8, 1.0, np.float64), runtime.empty(size // 8, np.float64)
    within = timed(lambda: b.copy_to_device(a))
    pinned_size = min(size, 1 << 30)
    pinned = runtime.cuda.pinned_array(pinned_size // 8, np.float64)
    pinned[:] = 1.0
    target = runtime.empty(pinned_size // 8, np.float64)
    moved = timed(lambda: target.copy_to_device(pinned))
    return {"device_bytes_per_s": 2 * size / within, "pinned_bytes_per_s": pinned_size / moved}


# -- equality ----------------------------------------------------------------------------------------------------------

AGGREGATES = {
    "n": gw.count(),
    "total": gw.sum("v"),
    "mean": gw.mean("v"),
    "least": gw.min("v"),
    "most": gw.max("v"),
    "exact": gw.sum("i"),
    "spread": gw.std("v"),
    "first": gw.first("i"),
}
EQUALITY = {
    "sessions, gap 30 s": (gw.SessionWindow("30 seconds"), 1_000, HOUR, gw.OnClose()),
    "tumbling, 10,000 keys": (gw.TumblingWindow("1 minute"), 10_000, HOUR, gw.OnClose()),
    "tumbling, sparse": (gw.TumblingWindow("1 minute"), 1_000_000, HOUR, gw.OnClose()),
    "tumbling, few cells": (gw.TumblingWindow("10 minutes"), 20, HOUR, gw.OnClose()),
    "sliding 1 h / 1 min": (gw.SlidingWindow("1 hour", "1 minute"), 1_000, 6 * HOUR, gw.OnClose()),
    "sliding, on update": (gw.SlidingWindow("10 minutes", "3 minutes"), 1_000, HOUR, gw.OnUpdate()),
    "cumulative": (gw.CumulativeWindow("1 hour", "5 minutes"), 1_000, 3 * HOUR, gw.OnClose()),
    "global, complete": (gw.GlobalWindow(), 1_000, HOUR, gw.Complete()),
}


def random_rows(rng: np.random.Generator, rows: int, keys: int, span: int) -> pa.Table:
    times = rng.integers(-span // 2, span // 2, rows)
    times.sort()
    values = rng.normal(size=rows)
    values[rng.integers(0, rows, max(rows // 100, 1))] = rng.choice([np.nan, -0.0, np.inf])
    return pa.table(
        {
            "ts": pa.array(times).view(pa.timestamp("us")),
            "key": rng.integers(0, keys, rows),
            "v": pa.array(values, mask=rng.random(rows) < 0.1),
            "i": rng.integers(-(1 << 40), 1 << 40, rows),
        }
    )


def differences(a: pa.Table, b: pa.Table) -> str | None:
    """What differs between two results, whose rows may come in any order; floats may in their last bits."""
    order = [(name, "ascending") for name in ("key", "window_start", "window_end")]
    a, b = a.sort_by(order), b.sort_by(order)
    if a.schema != b.schema or a.num_rows != b.num_rows:
        return f"{a.num_rows} rows on the CPU and {b.num_rows} on the device"
    for name in a.schema.names:
        x, y = a[name].combine_chunks(), b[name].combine_chunks()
        if pa.types.is_floating(x.type):
            if not x.is_null().equals(y.is_null()):
                return f"{name}: nulls differ"
            p, q = (np.asarray(z.fill_null(0.0)) for z in (x, y))
            if not np.allclose(p, q, rtol=1e-9, atol=1e-9, equal_nan=True):
                return f"{name}: differs by up to {np.nanmax(np.abs(p - q))}"
        elif not x.equals(y):
            return f"{name}: differs"
    return None


def equality(options: argparse.Namespace) -> dict[str, Any]:
    """Each workload in three batches, with rows of a new seed each time the script runs."""
    seed = int(time.time()) if options.seed is None else options.seed
    found: dict[str, Any] = {"seed": seed, "rows": options.check_rows, "cases": {}}
    for name, (window, keys, span, emit) in EQUALITY.items():
        rng = np.random.default_rng([seed, len(found["cases"])])
        table = random_rows(rng, options.check_rows, min(keys, options.check_rows), span)
        spec = gw.WindowedAggregation(window=window, keys=["key"], time="ts", aggregates=AGGREGATES, emit=emit)
        results = []
        for device in ("cpu", "cuda"):
            op = spec.start(device=device)
            third = -(-len(table) // 3)
            parts = [op.process(table.slice(at, third)) for at in range(0, len(table), third)]
            results.append(
                pa.concat_tables([*parts[-1:], op.finish()] if emit == gw.Complete() else [*parts, op.finish()])
            )
        if emit == gw.OnUpdate():  # a window is emitted once for each batch that changes it: compared by batch count
            results = [
                r.group_by(["key", "window_start", "window_end"]).aggregate(
                    [("n", "max"), ("exact", "max"), ("least", "min")]
                )
                for r in results
            ]
        found["cases"][name] = {"rows_out": results[0].num_rows, "difference": differences(*results)}
    wrong = {name: case["difference"] for name, case in found["cases"].items() if case["difference"]}
    if wrong:
        raise AssertionError(f"seed {seed}: {wrong}")
    return found


def sanitizer(options: argparse.Namespace) -> dict[str, Any]:
    """memcheck and racecheck over the equality part, small."""
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if tool is None or runtime.simulated():
        return {"skipped": "compute-sanitizer is not on this machine" if tool is None else "in the simulator"}
    found = {}
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, sys.executable, __file__, "--only", "equality", "--check-rows", "20000"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit, check=False)
        summary = [line for line in (done.stdout + done.stderr).splitlines() if "SUMMARY" in line]
        found[check] = {"exit": done.returncode, "summary": summary}
        if done.returncode or not summary or not any(" 0 " in line for line in summary):
            raise AssertionError(f"{check}: {summary or (done.stdout + done.stderr)[-2000:]}")
    return found


# -- workloads ---------------------------------------------------------------------------------------------------------


class Resident:
    """Rows in device memory: time int64 in order, key code int32, value float64."""

    def __init__(self, rows: int, keys: int, span: int) -> None:
        self.keys = keys
        if runtime.simulated():
            rng = np.random.default_rng(0)
            self.time = runtime.to_device(np.sort(rng.integers(0, span, rows)))
            self.code = runtime.to_device(rng.integers(0, keys, rows).astype(np.int32))
            self.value = runtime.to_device(rng.normal(size=rows))
            return
        import cupy

        self.time = runtime.as_numba((cupy.arange(rows, dtype=np.float64) * (span / rows)).astype(np.int64))
        self.code = runtime.as_numba(cupy.random.randint(0, keys, rows, dtype=np.int32))
        self.value = runtime.as_numba(cupy.random.standard_normal(rows, dtype=np.float64))

    def inputs(self, layout: CellLayout) -> list[RowInput]:
        value = RowInput(self.value)
        return [RowInput(None), value, value, value][: len(layout.columns)]

    def cells(self, layout: CellLayout) -> Any:
        return aggregate_rows(layout, self.inputs(layout), self.code, self.time, MINUTE, codes=self.keys)


def closed(rows: Resident, layout: CellLayout, grid: WindowGrid) -> int:
    """Cells, and all windows of them; returns rows emitted. Keys are codes already."""
    keys = KeyDictionary([pa.int64()])
    keys.encode([pa.array(np.arange(rows.keys))], rows.keys)
    state = DevicePaneState(layout, keys, PaneState.empty(layout, [pa.int64()]).heap)
    state = state.add(DeviceRun.of(layout, rows.cells(layout)))
    return sum(len(batch.code) for batch in state.closing_chunks(grid, None, None))


def share(rows: int, seconds: float, wall: float, row_bytes: int = ROW_BYTES) -> dict[str, float]:
    return {"seconds": seconds, "rows_per_s": rows / seconds, "share_of_wall": rows * row_bytes / seconds / wall}


def workloads(options: argparse.Namespace) -> dict[str, Any]:
    measured = walls(options)
    wall, n = measured["device_bytes_per_s"], options.rows
    found: dict[str, Any] = {"walls": measured}
    found |= tumbling_resident(n, wall) | sliding_resident(n, wall)
    found |= million_keys_resident(n, wall)
    found |= sessions_resident(n, wall)
    found["from host memory"] = from_host(options, measured["pinned_bytes_per_s"])
    return found


def tumbling_resident(n: int, wall: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rows = Resident(n, min(10_000, n), HOUR)
    found["tumbling, 10,000 keys, resident"] = share(n, timed(lambda: rows.cells(FIVE)), wall)
    before = runtime.pool_bytes()
    rows.cells(FIVE)
    found["bytes allocated by a warm batch"] = runtime.pool_bytes() - before
    found["against CuPy"] = against_cupy(rows, n)
    found["against cuDF"] = against_cudf(rows, n)
    return found


def sliding_resident(n: int, wall: float) -> dict[str, Any]:
    rows = Resident(n, min(10_000, n), 6 * HOUR)
    tumbling = timed(lambda: closed(rows, TWO, WindowGrid(1, 1)))
    sliding = timed(lambda: closed(rows, TWO, WindowGrid(60, 1)))
    return {
        "tumbling, count and sum, with its rows out": share(n, tumbling, wall),
        "sliding 1 h / 1 min, with its rows out": share(n, sliding, wall) | {"times_tumbling": sliding / tumbling},
    }


def million_keys_resident(n: int, wall: float) -> dict[str, Any]:
    rows = Resident(n, min(1_000_000, n), HOUR)
    return {"tumbling, 1,000,000 keys, resident": share(n, timed(lambda: rows.cells(FIVE)), wall)}


def sessions_resident(n: int, wall: float) -> dict[str, Any]:
    """Rows to proto-sessions of a gap of 30 s, with a count and a sum."""
    rows = Resident(n, min(10_000, n), 6 * HOUR)
    zeros = runtime.zeros(n, np.int64)

    def work() -> Any:
        protos = cut(rows.code, rows.time, 30_000_000, False, rows.keys)
        return aggregate_rows(TWO, rows.inputs(TWO), protos.slot, zeros, 1, codes=len(protos.code))

    return {"sessions, gap 30 s, resident": share(n, timed(work), wall)}


def from_host(options: argparse.Namespace, wall: float) -> dict[str, Any]:
    """Rows that begin in pinned host memory, as a share of the plain copy of as many bytes."""
    n = min(options.rows, 1 << 28)
    rng = np.random.default_rng(1)
    arrays = []
    for values in (np.sort(rng.integers(0, HOUR, n)), rng.integers(0, 10_000, n).astype(np.int32), rng.normal(size=n)):
        pinned = runtime.cuda.pinned_array(n, values.dtype)
        pinned[:] = values
        arrays.append(pinned)
    times, code, value = arrays

    def work() -> Any:
        item = RowInput(runtime.cuda.to_device(value))
        moved = runtime.cuda.to_device(code), runtime.cuda.to_device(times)
        return aggregate_rows(FIVE, [RowInput(None), item, item, item], *moved, MINUTE, codes=10_000)

    return share(n, timed(work), wall)


def against_cupy(rows: Resident, n: int) -> dict[str, Any]:
    """The same cells by CuPy: scatters into a dense table, which is its best formulation."""
    if runtime.simulated():
        return {"skipped": "in the simulator"}
    import cupy
    import cupyx

    times, code, value = (runtime.as_cupy(x) for x in (rows.time, rows.code, rows.value))
    records = 60 * rows.keys

    def work() -> Any:
        cell = (times // MINUTE) * rows.keys + code
        count, total = cupy.bincount(cell, minlength=records), cupy.bincount(cell, value, minlength=records)
        least, most = cupy.full(records, np.inf), cupy.full(records, -np.inf)
        cupyx.scatter_min(least, cell, value)
        cupyx.scatter_max(most, cell, value)
        return count, total, least, most

    seconds, own = timed(work, 3), timed(lambda: rows.cells(FIVE), 3)
    return {"seconds": seconds, "gpuwin_seconds": own, "times_as_fast": seconds / own, "rows": n}


def against_cudf(rows: Resident, n: int) -> dict[str, Any]:
    try:
        import cudf
    except ImportError:
        return {"skipped": "cuDF is not installed"}
    frame = cudf.DataFrame(
        {"ts": runtime.as_cupy(rows.time), "key": runtime.as_cupy(rows.code), "v": runtime.as_cupy(rows.value)}
    )

    def work() -> Any:
        frame["w"] = frame["ts"] // MINUTE
        return frame.groupby(["w", "key"], sort=False).agg({"v": ["count", "sum", "min", "max"]})

    seconds, own = timed(work, 3), timed(lambda: rows.cells(FIVE), 3)
    return {"seconds": seconds, "gpuwin_seconds": own, "times_as_fast": seconds / own, "rows": n}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--only", action="append", choices=PARTS, help="may be repeated")
    parser.add_argument("--rows", type=int, default=1 << 30, help="rows of the workloads")
    parser.add_argument("--check-rows", type=int, help="rows of the equality part, 2,000,000 or as many as --rows")
    parser.add_argument("--seed", type=int, help="of the equality part; the time of day if none is given")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one run of compute-sanitizer")
    options = parser.parse_args()
    options.check_rows = options.check_rows or min(options.rows, 2_000_000)
    missing = runtime.why_not()
    if missing:
        print(f"no GPU to check: {missing}", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "rows": options.rows}
    failed = False
    for part in PARTS:
        if options.only and part not in options.only:
            continue
        began = time.perf_counter()
        try:
            results[part] = globals()[part](options)
        except Exception as error:  # the other parts are still worth their time on the device
            traceback.print_exc()
            results[part] = {"failed": f"{type(error).__name__}: {error}"}
            failed = True
        results.setdefault("seconds", {})[part] = round(time.perf_counter() - began, 2)
        print(part, json.dumps(results[part], indent=1, default=str), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1, default=str) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
