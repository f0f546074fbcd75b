# ruff: noqa: E402
"""Shapes of work beside four other engines: the same rows in memory, the same threads, one process, in turns.

    python benchmarks/shapes/measure.py --json benchmarks/results/shapes.json
    python benchmarks/shapes/measure.py --only "median" --rows 500_000
    python benchmarks/shapes/measure.py --memory            # the peak of each, in a process of its own

The engines but DuckDB and Polars are not among the test's requirements: `pip install datafusion chdb`. gpuwin gets the
rows in batches, as a stream brings them; the others answer one query over all of them. Printed is the time of the
fastest other engine over ours, the worst first, and "x" where that is less than wanted. Before it is measured, its
answers are compared: the number of result rows, and the sum of each column. Over overlapping windows the others say
only windows in whose last pane something came, where they do not copy rows, so there ours has more: a few of a hundred.
Where it would be many, the shape asks for `every_window`, and they copy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

THREADS = int(os.environ.get("GPUWIN_THREADS", "2"))
for _name in ("GPUWIN_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = str(THREADS)  # before any of them is imported

import pyarrow as pa
import pyarrow.compute as pc
from peers import PEERS, version
from shapes import SHAPES, Shape, rows_of, specification

Contestant = Callable[[], pa.Table]


def ours(shape: Shape, rows: pa.Table, batches: int) -> Contestant:
    """gpuwin: `process` for each batch, and the end of the stream."""
    spec = specification(shape)
    stamped = rows.set_column(0, "ts", rows["ts"].combine_chunks().view(pa.timestamp("us")))
    step = -(-len(rows) // batches)

    def run() -> pa.Table:
        op = spec.start(device="cpu")
        parts = [op.process(stamped.slice(i * step, step)) for i in range(batches)]
        parts.append(op.finish())
        return pa.concat_tables([p if isinstance(p, pa.Table) else pa.Table.from_batches([p]) for p in parts])

    return run


def totals(shape: Shape, result: pa.Table, names: dict[str, str]) -> dict[str, float]:
    """The number of result rows, and the sum of each aggregate that is a number; of a list, that of its lengths."""
    out = {"rows": float(len(result))}
    for name in shape.aggregates:
        column = result[names[name]]
        numbers = pc.list_value_length(column) if pa.types.is_nested(column.type) else column
        numbers = numbers.cast(pa.float64())
        numbers = pc.if_else(pc.is_nan(numbers), None, numbers)  # chDB's, where others have null
        out[name] = float(pc.sum(numbers).as_py() or 0.0)
    return out


def agree(shape: Shape, contestants: dict[str, Contestant]) -> None:
    """Runs each once, which compiles kernels, too, and raises where an answer is not that of gpuwin's first."""
    own: dict[str, float] = {}
    for name, contestant in contestants.items():
        mine = name.startswith("gpuwin")
        found = totals(shape, contestant(), {a: a if mine else f"{a}_" for a in shape.aggregates})
        own = own or found
        if shape.kind in ("sliding", "cumulative") and not shape.copies and not mine:
            same = 0 < found["rows"] <= own["rows"]
        else:
            same = all(abs(found[k] - own[k]) <= 1e-6 * max(1.0, abs(own[k])) for k in own)
        if not same:
            raise RuntimeError(f"{shape.name}: {name} answers {found}, gpuwin {own}")


def best_times(contestants: Mapping[str, Contestant], repeat: int) -> dict[str, float]:
    """Seconds of each, in turns, the best of the repeats."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(repeat):
        for name, contestant in contestants.items():
            begun = time.perf_counter()
            contestant()
            best[name] = min(best[name], time.perf_counter() - begun)
    return best


def measure(shape: Shape, rows: int, repeat: int) -> dict[str, Any]:
    """Seconds of each, the best of the repeats."""
    table = rows_of(shape, rows)
    contestants: dict[str, Contestant] = {f"gpuwin in {b}": ours(shape, table, b) for b in shape.batches}
    contestants |= {name: of(shape, table, THREADS) for name, of in PEERS.items()}
    mine = tuple(c for c in contestants if c.startswith("gpuwin"))
    agree(shape, contestants)
    best = best_times(contestants, repeat)
    fastest = min((name for name in contestants if name not in mine), key=best.__getitem__)
    return {
        "shape": shape.name,
        "rows": len(table),
        "seconds": {name: round(s, 4) for name, s in best.items()},
        "fastest": fastest,
        "ratio": {name: round(best[fastest] / best[name], 2) for name in mine},
        "least": shape.least,
    }


def peak(shape: Shape, rows: int, engine: str) -> float:
    """MiB that one run takes beyond the rows: the largest resident size during it less that before."""
    table = rows_of(shape, rows)
    run = ours(shape, table, shape.batches[0]) if engine == "gpuwin" else PEERS[engine](shape, table, THREADS)
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    run()
    return round(_resident("VmHWM:") - before, 1)


def _resident(field: str = "VmRSS:") -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def peaks(shape: Shape, rows: int) -> dict[str, Any]:
    """The peak of each engine, each in a process of its own."""
    found = {}
    for engine in ("gpuwin", *PEERS):
        command = [sys.executable, __file__, "--only", shape.name, "--rows", str(rows), "--peak", engine]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[engine] = float(done.stdout.rpartition("RESULT ")[2])
    return {"shape": shape.name, "mib": found, "over_smallest": round(found["gpuwin"] / min(found.values()), 2)}


def line_of(result: dict[str, Any]) -> str:
    """One line of the report."""
    ratios = "  ".join(f"{name} {ratio:5.2f}" for name, ratio in result["ratio"].items())
    short = "x" if min(result["ratio"].values()) < result["least"] else " "
    seconds = "  ".join(f"{name} {s:.3f}" for name, s in result["seconds"].items())
    return f"{short} {result['shape']:44s} {ratios:34s} (wanted {result['least']:g})  {seconds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a shape")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = [s for s in SHAPES if args.only in s.name]
    if args.peak:
        (shape,) = [s for s in chosen if s.name == args.only]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        print(f"RESULT {peak(shape, args.rows, args.peak)}")
        return
    load = [round(x, 1) for x in os.getloadavg()]
    head = {"machine": platform.machine(), "cpus": os.cpu_count(), "threads": THREADS, "load_before": load,
            "python": platform.python_version(), "peers": {p: version(p) for p in PEERS}}  # fmt: skip
    results = []
    for shape in chosen:
        results.append(peaks(shape, args.rows) if args.memory else measure(shape, args.rows, args.repeat))
        print(json.dumps(results[-1]) if args.memory else line_of(results[-1]), flush=True)
        if args.json:  # after each, so that a run that is cut short leaves what it has
            lines = ",\n".join(f"  {json.dumps(result)}" for result in results)
            args.json.write_text(f'{json.dumps(head)[:-1]},\n "results": [\n{lines}\n]}}\n')
    if not args.memory:
        results.sort(key=lambda r: min(r["ratio"].values()) / r["least"])
        print("\nthe worst first")
        for result in results:
            print(line_of(result))


if __name__ == "__main__":
    main()
