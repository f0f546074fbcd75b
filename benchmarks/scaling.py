"""Costs of rows, cells and results, fitted to queries that run, and checked with other queries: for `gpuwin size`.

    python benchmarks/scaling.py                      # both, into results/scaling.json; the costs stay as they are
    python benchmarks/scaling.py --only check --no-save
    python benchmarks/scaling.py --keep               # the costs that were found become those of `gpuwin size`
    python benchmarks/scaling.py --predict            # no query runs: predictions beside what was measured before

Each query runs twice in a process of its own, with rows as in spark_queries.py, and the second run counts: processor
time of Spark's tasks by its event log, that of the device service by /proc, bytes of the shuffle and of the state log
by Spark's metrics. The memory is the most that the service had resident. A cost is never below 0, and the fit takes the
errors as shares of what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from spark_map_side import Service
from spark_queries import HOUR, RESULTS, Workload, in_process_of, machine, memory, query, rows_of, run_query, start

import gpuwin_spark.size as sizing
from gpuwin_spark.size.estimate import estimate, quantities

DELAY = 10.0  # seconds, of the watermark of spark_queries.py
PARTITIONS = 2
STEP = 6 * HOUR // 20

RESULT = RESULTS / "scaling.json"
COSTS = Path(sizing.__file__).with_name("measured.json")


def _of(name: str, size: int, slide: int, keys: int, rows: int, aggregates: str = "sum,count", **more: Any) -> Workload:
    files = 6
    return Workload(name, size, slide, files, rows, keys, files * STEP, 0.0, aggregates=aggregates, **more)


FITTED = [
    _of("tumbling, 10,000 keys", 60, 60, 10_000, 500_000),
    _of("tumbling, a million keys", 60, 60, 1_000_000, 300_000),
    _of("tumbling, few rows", 60, 60, 1_000, 20_000),
    _of("tumbling, 10 keys", 60, 60, 10, 500_000),
    _of("tumbling, strings", 60, 60, 10_000, 250_000, key="string"),
    _of("10 min / 1 min", 600, 60, 10_000, 200_000),
    _of("1 h / 1 min, four aggregates", HOUR, 60, 2_000, 100_000, "sum,count,min,max"),
    _of("sessions of 30 s", 30, 0, 10_000, 400_000),
    _of("sessions of 60 s, sparse", 60, 0, 100_000, 100_000),
    _of("5 min, four aggregates", 300, 300, 100_000, 200_000, "sum,count,min,max"),
    _of("10 min / 1 min, avg and stddev", 600, 60, 3_000, 300_000, "avg,stddev"),
    _of("1 h / 10 min, strings", HOUR, 600, 5_000, 100_000, "count,avg", key="string"),
    _of("sessions of 2 min, five aggregates", 120, 0, 5_000, 200_000, "sum,count,min,max,avg"),
    _of("2 h / 20 min, a large state", 2 * HOUR, 1200, 2_000_000, 1_500_000),
    _of("sessions of 1 h, a large state", HOUR, 0, 5_000_000, 1_500_000),
]
CHECKED = [
    _of(f"{name}, {rows:,} rows", size, slide, keys, rows, aggregates, **more)
    for name, size, slide, keys, sizes, aggregates, more in (
        ("1 min, 20,000 keys", 60, 60, 20_000, (100_000, 300_000, 800_000), "sum,count", {}),
        ("5 min, 500,000 keys", 300, 300, 500_000, (100_000, 300_000, 800_000), "sum,count", {}),
        ("1 h / 1 min, 5,000 keys", HOUR, 60, 5_000, (50_000, 150_000, 400_000), "sum,count", {}),
        ("10 min / 2 min, strings", 600, 120, 20_000, (50_000, 150_000, 400_000), "avg,min,max", {"key": "string"}),
        ("sessions of 20 s", 20, 0, 10_000, (100_000, 300_000, 800_000), "sum,count", {}),
        ("sessions of 5 min", 300, 0, 50_000, (50_000, 150_000, 400_000), "sum,count,min,max", {}),
    )
    for rows in sizes
]
#: The quantities that a figure depends on.
FITTED_BY = {
    "jvm_seconds": ("tasks", "rows", "values", "rows_of_text_keys", "cell_bytes", "result_words"),
    "service_seconds": (
        *("tasks", "rows", "values", "rows_of_text_keys", "rows_of_sessions"),
        *("cell_words", "cells_of_sessions", "state_keys", "result_words"),
    ),
    "shuffle_bytes": ("number_bytes", "text_bytes", "place_bytes", "value_bytes", "count_bytes"),
    "log_bytes": ("number_bytes", "text_bytes", "place_bytes", "value_bytes", "count_bytes", "partitions"),
    "service_memory": ("services", "state_bytes", "state_keys", "row_bytes"),
}
FIGURES = ("cpu_seconds_per_million", "service_memory", "log_bytes", "shuffle_bytes")


def load_of(w: Workload) -> sizing.Load:
    """The load of `gpuwin size` that a workload's rows are."""
    step = w.span / w.files
    return sizing.Load(
        rows_per_second=w.rows_per_file / step,
        keys=w.keys,
        size=w.size,
        slide=w.slide or None,
        interval=step,
        delay=DELAY,
        map_tasks=1,
        partitions=PARTITIONS,
        key_bytes=12 if w.key == "string" else 8,
        text_keys=w.key == "string",
        aggregates=tuple(w.aggregates.split(",")),
    )


def measure(w: Workload) -> dict[str, float]:
    """What the second run of a query took, of one batch on average; in a process of its own."""
    with tempfile.TemporaryDirectory() as events:
        log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events, "spark.eventLog.compress": "false"}
        spark = start("gpuwin", {**w.conf, **log, "spark.gpuwin.mapside": "device"})
        source = rows_of(w, small=False)
        service = Service(int(spark._jvm.java.lang.ProcessHandle.current().pid()))
        run_query(query(spark, w, source), "gpuwin", "noop")
        before, began = service.seconds(), time.time() * 1e3
        run = run_query(query(spark, w, source), "gpuwin", "noop")
        took = service.seconds() - before
        resident = memory(spark)["service_mib"] * (1 << 20)
        spark.stop()
        tasks = tasks_since(next(p for p in Path(events).rglob("*") if p.is_file() and p.stat().st_size > 1000), began)
    return {
        "jvm_seconds": sum(t["Executor CPU Time"] for t in tasks) / 1e9 / w.files,
        "service_seconds": took / w.files,
        "service_memory": resident,
        "shuffle_bytes": sum(t["Shuffle Write Metrics"]["Shuffle Bytes Written"] for t in tasks) / w.files,
        "log_bytes": sum(b["metrics"]["gpuwinLogBytesWritten"] for b in run["batches"]) / w.files,
        "cells": sum(b["metrics"]["gpuwinCellsIn"] for b in run["batches"]) / w.files,
        "state_cells": max(b["state_rows"] for b in run["batches"]),
        "seconds": run["seconds"],
    }


def tasks_since(log: Path, began: float) -> list[dict[str, Any]]:
    """Metrics of the tasks that were launched since then, milliseconds since 1970."""
    events = (json.loads(line) for line in log.read_text().splitlines())
    ends = (e for e in events if e["Event"] == "SparkListenerTaskEnd")
    return [e["Task Metrics"] for e in ends if e["Task Info"]["Launch Time"] >= began]


def fitted(found: Sequence[tuple[Workload, dict[str, float]]], measured: str) -> sizing.Costs:
    """Costs by which the estimates of these workloads come nearest to what was measured."""
    of = [quantities(load_of(w), load_of(w).counts) for w, _ in found]

    def costs(figure: str) -> dict[str, float]:
        features = np.array([[quantity[name] for name in FITTED_BY[figure]] for quantity in of])
        factors = not_negative(features, np.array([figures[figure] for _, figures in found]))
        return dict(zip(FITTED_BY[figure], factors, strict=True))

    return sizing.Costs(**{figure: costs(figure) for figure in FITTED_BY}, measured=measured)


def not_negative(features: np.ndarray, wanted: np.ndarray) -> list[float]:
    """Factors, none below 0, whose products with the features come nearest to what is wanted, by relative error.

    Features whose factors come out below 0 are left out, one after another.
    """
    left = list(range(features.shape[1]))
    while True:
        scaled = features[:, left] / wanted[:, None]
        norms = np.linalg.norm(scaled, axis=0)
        factors = np.linalg.lstsq(scaled / norms, np.ones(len(wanted)), rcond=None)[0] / norms
        if (factors >= 0).all():
            break
        del left[int(np.argmin(factors * norms))]
    whole = np.zeros(features.shape[1])
    whole[left] = factors
    return [float(f"{factor:.4g}") for factor in whole]


def predicted(w: Workload, costs: sizing.Costs) -> dict[str, float]:
    found = estimate(load_of(w), costs, 1)
    return {
        "cpu_seconds_per_million": found.seconds_per_million_rows,
        "service_memory": found.service_memory,
        "log_bytes": found.log_bytes,
        "shuffle_bytes": found.shuffle_bytes,
        "cells": found.counts.cells,
        "state_cells": found.counts.state_cells,
        "jvm_seconds": found.jvm_seconds,
        "service_seconds": found.service_seconds,
    }


def with_rate(w: Workload, figures: dict[str, float]) -> dict[str, float]:
    both = figures["jvm_seconds"] + figures["service_seconds"]
    return {**figures, "cpu_seconds_per_million": both / w.rows_per_file * 1e6}


def compared(w: Workload, figures: dict[str, float], costs: sizing.Costs) -> dict[str, float]:
    """Of each figure, what was predicted over what was measured."""
    known, said = with_rate(w, figures), predicted(w, costs)
    return {name: round(said[name] / known[name], 3) for name in said}


def show(name: str, ratios: dict[str, float]) -> None:
    shown = "  ".join(f"{figure} {ratio:.2f}" for figure, ratio in ratios.items())
    print(f"{name:34s} {shown}", flush=True)


def run(workloads: list[Workload], timeout: float) -> list[tuple[Workload, dict[str, float]]]:
    made = []
    for w in workloads:
        rows_of(w, small=False)
        made.append((w, in_process_of(__file__, ["--case", w.name], timeout)))
        print(f"{w.name}: {made[-1][1]}", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["fit", "check"])
    parser.add_argument("--predict", action="store_true", help="run nothing")
    parser.add_argument("--keep", action="store_true", help="write the costs into the package")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one query (default: %(default)s)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    by_name = {w.name: w for w in (*FITTED, *CHECKED)}
    if args.case:
        print("RESULT " + json.dumps(measure(by_name[args.case])))
        return
    load = round(os.getloadavg()[0], 1)
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part, workloads in (("fit", FITTED), ("check", CHECKED)):
        if not args.predict and args.only in (None, part):
            known[part] = {w.name: figures for w, figures in run(workloads, args.timeout)}
            known[f"{part}_load_before"] = load
    of = machine()
    where = f"measured on {of['cpus']} cores of {of['machine']}, Spark {of['spark']}, {time.strftime('%Y-%m-%d')}"
    if args.predict or args.only == "check":  # the costs rest on what was measured before
        of, where = known["machine"], sizing.measured_costs().measured
    costs = fitted([(by_name[name], figures) for name, figures in known["fit"].items()], where)
    print(costs.as_json())
    known["ratios"] = {
        name: compared(by_name[name], figures, costs)
        for part in ("fit", "check")
        for name, figures in known.get(part, {}).items()
    }
    for name, ratios in known["ratios"].items():
        show(name, ratios)
    wide = [(n, f) for n in known.get("check", {}) for f in FIGURES if abs(known["ratios"][n][f] - 1) > 0.25]
    made = len(known.get("check", {})) * len(FIGURES)
    print(f"{len(wide)} of {made} predictions are off by more than a quarter: {wide}")
    if not args.no_save:
        known["machine"] = of
        RESULT.write_text(json.dumps(known, indent=1) + "\n")
    if args.keep:
        COSTS.write_text(costs.as_json())


if __name__ == "__main__":
    main()
