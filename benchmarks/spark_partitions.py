"""Small batches on many partitions, plain Spark against gpuwin: same files, same conf, in turns, a fresh JVM each.

    python benchmarks/spark_partitions.py                     # every case, three times each side
    python benchmarks/spark_partitions.py --only defaults --repeat 1 --no-save

One micro-batch a file, `local[2]`, sums and counts by 1,000 keys over 10 minutes every minute, append mode, noop sink.
The figure of a side is the median of the batches with rows after the first four (class loading, kernels, JIT), of all
its runs: of the whole trigger, of `addBatch`, and of the processor time that the JVM, its children and the device
service took from the start of the trigger to the start of the next. Of the result only these figures are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import spark_queries
from spark_queries import RESULTS, Workload, in_process_of, machine, query, rows_of, run_query, start

WARM = 4
MINUTE = 60


@dataclass(frozen=True)
class Case:
    """`partitions` and `manager`: "" for Spark's default, which both sides get; `target`: gpuwin's share of plain
    Spark's time should be no more.
    """

    name: str
    rows: int
    batches: int
    partitions: str
    manager: str
    target: float

    @property
    def workload(self) -> Workload:
        span = self.batches * 2 * MINUTE
        return Workload(self.name, 10 * MINUTE, MINUTE, self.batches, self.rows, 1_000, span, 1.0)


FILES = spark_queries.CONF["spark.sql.streaming.checkpointFileManagerClass"]
CASES = [
    Case("200 partitions, Spark's defaults", 20_000, 10, "", "", 0.8),
    Case("200 partitions, checkpoint through FileSystem", 20_000, 12, "", FILES, 0.8),
    Case("Spark's defaults but 2 partitions, 100 rows", 100, 40, "2", "", 0.6),
    Case("Spark's defaults but 2 partitions, 10,000 rows", 10_000, 40, "2", "", 0.5),
    Case("2 partitions, 100 rows", 100, 40, "2", FILES, 0.6),
    Case("2 partitions, 10,000 rows", 10_000, 40, "2", FILES, 0.5),
]


def one_side(side: str, case: Case) -> dict[str, Any]:
    changes = {
        "spark.sql.shuffle.partitions": case.partitions,
        "spark.sql.streaming.checkpointFileManagerClass": case.manager,
    }
    for key, value in changes.items():
        if value:
            spark_queries.CONF[key] = value
        else:
            spark_queries.CONF.pop(key, None)
    spark = start(side, json.loads(os.environ.get("GPUWIN_BENCHMARK_CONF", "{}")))
    w = case.workload
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    samples: list[tuple[float, float]] = []
    over = threading.Event()
    sampler = threading.Thread(target=sample, args=(jvm, samples, over), daemon=True)
    sampler.start()
    found = run_query(query(spark, w, rows_of(w, small=False)), side, "noop")
    over.set()
    sampler.join()
    at = [datetime.fromisoformat(b["at"]).timestamp() for b in found["batches"]]
    times, used = zip(*samples, strict=True)
    for batch, begin, end in zip(found["batches"], at, [*at[1:], times[-1]], strict=True):
        batch["cpu_ms"] = 1e3 * float(np.interp(end, times, used) - np.interp(begin, times, used))
    spark.stop()
    return found


def sample(jvm: int, samples: list[tuple[float, float]], over: threading.Event) -> None:
    """Notes until it is `over` how much processor time the JVM, its children and the device service have taken."""
    service = 0
    while True:
        service = service or service_of(jvm)
        samples.append((time.time(), processor(jvm) + (processor(service) if service else 0.0)))
        if over.wait(0.02):
            return


def service_of(jvm: int) -> int:
    """The process id of the device service that is a child of the JVM, or 0."""
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and _parent(entry) == jvm
                and b"gpuwin_spark.service" in (entry / "cmdline").read_bytes()
            ):
                return int(entry.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return 0


def _parent(entry: Path) -> int:
    return int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def processor(pid: int) -> float:
    """Seconds of processor time of a process and of those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(f) for f in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def warm(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [b for b in run["batches"] if b["rows"]][WARM:]


def measure(case: Case, repeat: int, timeout: float) -> dict[str, Any]:
    load = os.getloadavg()
    rows_of(case.workload, small=False)
    runs: dict[str, list[dict[str, Any]]] = {"plain": [], "gpuwin": []}
    for _ in range(repeat):
        for side, results in runs.items():
            results.append(in_process_of(__file__, ["--side", side, "--case", json.dumps(asdict(case))], timeout))
            if "batches" not in results[-1]:
                raise RuntimeError(f"{case.name}, {side}: not done within {timeout:.0f} s; see --batches and --timeout")
            print(f"  {case.name}, {side}: {figures(results[-1:])}", flush=True)
    out: dict[str, Any] = {side: figures(results) for side, results in runs.items()}
    share = {k: round(out["gpuwin"][k] / out["plain"][k], 2) for k in ("trigger_ms", "add_batch_ms", "cpu_ms")}
    shape = {"rows": case.rows, "partitions": case.partitions or "200", "batches": len(warm(runs["plain"][0]))}
    return {**shape, "repeat": repeat, **out, "share": share, "target": case.target, "load_before": load}


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the warm batches of some runs in ms, and the median of each run."""
    medians = [statistics.median(b["trigger_ms"] for b in warm(run)) for run in runs]
    batches = [b for run in runs for b in warm(run)]
    return {
        "trigger_ms": round(statistics.median(b["trigger_ms"] for b in batches), 1),
        "add_batch_ms": round(statistics.median(b["ms"] for b in batches), 1),
        "cpu_ms": round(statistics.median(b["cpu_ms"] for b in batches), 1),
        "runs": [round(m, 1) for m in medians],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one run of one side")
    parser.add_argument("--batches", type=int, help="instead of the case's own number")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--side", choices=["plain", "gpuwin"], help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print("RESULT " + json.dumps(one_side(args.side, Case(**json.loads(args.case)))))
        return
    found = {}
    for case in CASES:
        if args.only in case.name:
            case = replace(case, batches=args.batches or case.batches)
            found[case.name] = measure(case, args.repeat, args.timeout)
            print(f"{case.name}: {found[case.name]['share']} (at most {case.target})", flush=True)
    if not args.no_save:
        path = RESULTS / "spark_partitions.json"
        known = json.loads(path.read_text())["cases"] if path.exists() else {}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        path.write_text(json.dumps({"machine": machine(), "at": now, "cases": {**known, **found}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
