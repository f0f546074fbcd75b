"""A streaming query with its map side in the JVM and on the device service, in turns, in one JVM.

    python benchmarks/spark_map_side.py --json out.json
    python benchmarks/spark_map_side.py --only tumbling --repeat 5

The queries and their files are those of spark_queries.py: a Parquet file a micro-batch, so that a map stage is one
task. Of the batches after the first `WARM` of each run: the run time and processor time of the map stage's task, as
Spark counts it, the processor time of the service, and the whole batch. Both sides are run once before any counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from spark_queries import CONF, HOUR, WORKLOADS, Workload, in_process_of, machine, query, rows_of, run_query

SIDES = ("jvm", "device")
WARM = 3
SMALL = [
    Workload("batches_of_100_rows", 600, 60, 40, 100, 1_000, 6 * HOUR, 1.0),
    Workload("batches_of_10000_rows", 600, 60, 40, 10_000, 1_000, 6 * HOUR, 1.0),
]
NAMES = ("tumbling", "tumbling_million_keys", "sliding_more_rows", "sessions", *(w.name for w in SMALL))


def measure(w: Workload, repeat: int) -> dict[str, Any]:
    """Figures of one workload; in a process of its own, since a JVM lives as long as its Python."""
    from pyspark.sql import SparkSession

    import gpuwin as gw

    source = rows_of(w, small=False)
    with tempfile.TemporaryDirectory() as events:
        log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events, "spark.eventLog.compress": "false"}
        builder = SparkSession.builder.master("local[2]")
        for key, value in {**CONF, **w.conf, **log}.items():
            builder = builder.config(key, value)
        spark = gw.spark.configure(builder, device="cpu").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        service = Service(int(spark._jvm.java.lang.ProcessHandle.current().pid()))
        runs: list[tuple[str, dict[str, Any]]] = []
        for side in SIDES * (repeat + 1):
            spark.conf.set("spark.gpuwin.mapside", side)
            before = service.seconds()
            run = run_query(query(spark, w, source), "gpuwin", "noop")
            runs.append((side, {**run, "service": service.seconds() - before}))
        spark.stop()
        stages = map_stages(next(p for p in Path(events).rglob("*") if p.is_file() and p.stat().st_size > 1000))
    assert len(stages) == len(runs) * w.files, (len(stages), len(runs))
    return figures(w, stages, runs)


class Service:
    """Processor time of the device service of a JVM."""

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm

    def seconds(self) -> float:
        """Seconds that it has used so far."""
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
                if (
                    fields
                    and int(fields[1]) == self._jvm
                    and b"gpuwin_spark.service" in (entry / "cmdline").read_bytes()
                ):
                    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except (FileNotFoundError, ProcessLookupError):
                continue
        return 0.0


def figures(w: Workload, stages: list[dict[str, float]], runs: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the batches of all runs after the first of each side, without the first `WARM` of each."""
    out: dict[str, Any] = {"workload": w.name, "rows": w.rows_per_file, "keys": w.keys}
    for side in SIDES:
        own = [i for i, (name, _) in enumerate(runs) if name == side and i >= len(SIDES)]
        of = [s for i in own for s in stages[i * w.files + WARM : (i + 1) * w.files]]
        batches = [b for i in own for b in runs[i][1]["batches"] if b["rows"]]
        out[side] = {
            "map_ms": round(statistics.median(s["ms"] for s in of), 1),
            "map_cpu_ms": round(statistics.median(s["cpu_ms"] for s in of), 1),
            "shuffle_bytes": round(statistics.median(s["shuffle_bytes"] for s in of)),
            "batch_ms": round(statistics.median(b["trigger_ms"] for b in batches), 1),
            "seconds": [runs[i][1]["seconds"] for i in own],
            "service_cpu_ms_a_batch": round(1e3 * statistics.median(runs[i][1]["service"] for i in own) / w.files, 1),
        }
    for name in ("map_ms", "batch_ms"):
        out[f"ratio_{name}"] = round(out["jvm"][name] / out["device"][name], 2)
    best = {side: min(out[side]["seconds"]) for side in SIDES}
    out["ratio_seconds"] = round(best["jvm"] / best["device"], 2)
    return out


def map_stages(log: Path) -> list[dict[str, float]]:
    """Milliseconds and bytes of each stage that read a file and wrote a shuffle, in order."""
    stages: dict[int, dict[str, float]] = {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd" and event["Task Type"] == "ShuffleMapTask":
            m = event["Task Metrics"]
            if not m["Input Metrics"]["Records Read"]:
                continue  # a batch without data
            of = stages.setdefault(event["Stage ID"], {"ms": 0.0, "cpu_ms": 0.0, "shuffle_bytes": 0.0})
            of["ms"] += m["Executor Run Time"]
            of["cpu_ms"] += m["Executor CPU Time"] / 1e6
            of["shuffle_bytes"] += m["Shuffle Write Metrics"]["Shuffle Bytes Written"]
    return [stages[s] for s in sorted(stages)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="workloads of spark_queries.py, by comma")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each side that count")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    by_name = {w.name: w for w in (*WORKLOADS, *SMALL)}
    if args.case:
        print("RESULT " + json.dumps(measure(by_name[args.case], args.repeat)))
        return
    load = [round(x, 1) for x in os.getloadavg()]
    own = ["--repeat", str(args.repeat), "--case"]
    found = [in_process_of(__file__, [*own, name], 900.0) for name in args.only.split(",")]
    text = json.dumps({"machine": machine(), "load_before": load, "cases": found}, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
