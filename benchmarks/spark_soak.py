"""Steadiness of a query that runs for long: 2,000 micro-batches over 24 simulated hours, windows expiring.

    python benchmarks/spark_soak.py
    python benchmarks/spark_soak.py --batches 400 --provider rocksdb

Each batch has as many rows, of the same keys, and is a day divided by the number of batches later. After each batch are
noted its time, the resident sizes of Spark's JVM and of the device service, what is alive on the JVM's heap (every 25
batches, after a collection: its resident size only says how far the heap has spread), and the size of the checkpoint.
Compared are the first and last tenth of the batches after `--warm`, by medians (of sizes on disk: see `deciles`):
while the first windows fill, compilers work and Spark gathers the versions of state that it keeps, nothing is flat.

Batches begin at a pace: Spark keeps versions of state for a time, so a query whose batches become faster has more of
them on disk. The source is Spark's `rate-micro-batch`, which has no log of its own, as that of a file source grows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from spark_queries import ROCKSDB, START_US, machine, save, start

DAY_MS = 24 * 3_600_000


def resident_mib(pid: int) -> float:
    """Resident size of a process now, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def size_mib(folder: Path) -> float:
    """Size of the files below a folder that others write to, in MiB."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(base, name)).st_size
            except FileNotFoundError:
                continue
    return total / 2**20


def soak(args: argparse.Namespace) -> dict[str, Any]:
    """Measures of each batch of the stream, which is run."""
    from pyspark.sql import functions as F

    conf = {
        "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.driver.memory": "1g",
        "spark.gpuwin.service.timeout": "120",
        "spark.sql.streaming.numRecentProgressUpdates": "50",
    }
    if args.provider == "rocksdb":
        conf["spark.sql.streaming.stateStore.providerClass"] = ROCKSDB
    spark = start("gpuwin", conf)
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    root = Path(tempfile.mkdtemp(prefix="gpuwin-soak-"))
    checkpoint = root / "checkpoint"
    step_ms = DAY_MS // args.batches
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", args.rows)
    source = source.option("startTimestamp", START_US // 1000).option("advanceMillisPerBatch", step_ms)
    spread = F.expr(f"timestamp + make_dt_interval(0, 0, 0, value * 7919 % {2 * step_ms} / 1000)")
    frame = source.load().select((F.col("value") % args.keys).alias("key"), spread.alias("ts"), "value")
    window = F.window("ts", "1 hour", "10 minutes")
    windows = (
        frame.withWatermark("ts", "5 minutes").groupBy("key", window).agg(F.sum("value"), F.count("*"), F.max("value"))
    )
    service, heap, seen = 0, 0.0, -1
    samples: list[dict[str, float]] = []
    began = time.monotonic()
    writer = windows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime=f"{args.pace} milliseconds").start()
    while len(samples) < args.batches:
        if query.exception() is not None:
            raise RuntimeError(f"the query failed: {query.exception()}")
        for progress in [json.loads(p.json()) for p in query._jsq.recentProgress()]:
            if progress["batchId"] <= seen or not progress["numInputRows"]:
                continue
            seen = progress["batchId"]
            operator = progress["stateOperators"][0]
            if operator["operatorName"] != "gpuwin":
                raise RuntimeError("the query was not offloaded")
            service = service or _service_of(jvm)
            if len(samples) % 25 == 0:
                heap = _alive_mib(spark._jvm)
            samples.append(
                {
                    "batch_ms": progress["durationMs"]["triggerExecution"],
                    "add_batch_ms": progress["durationMs"]["addBatch"],
                    "state_rows": operator["numRowsTotal"],
                    "driver_mib": resident_mib(jvm),
                    "driver_alive_mib": heap,
                    "service_mib": resident_mib(service),
                    "state_mib": size_mib(checkpoint / "state"),
                    "checkpoint_mib": size_mib(checkpoint),
                }
            )
            if len(samples) % 100 == 0:
                print(len(samples), round(time.monotonic() - began), json.dumps(samples[-1]), flush=True)
        time.sleep(0.1)
    query.stop()
    spark.stop()
    shutil.rmtree(root, ignore_errors=True)
    return {"samples": samples, "seconds": round(time.monotonic() - began)}


def _alive_mib(jvm: Any) -> float:
    """Size of what is alive on the heap of the JVM, in MiB."""
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 2**20


def _service_of(jvm: int) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == jvm and b"gpuwin_spark.service" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
    raise RuntimeError("the JVM has no device service")


def deciles(samples: list[dict[str, float]]) -> list[dict[str, float]]:
    """The median of each measure in each tenth of the batches; of sizes on disk the lowest, since Spark clears old
    versions every ten seconds, and they gather meanwhile.
    """
    of = {"state_mib": min, "checkpoint_mib": min}
    cuts = np.linspace(0, len(samples), 11).astype(int)
    tenths = [samples[a:b] for a, b in itertools.pairwise(cuts)]
    return [{k: round(of.get(k, statistics.median)([s[k] for s in tenth]), 3) for k in tenth[0]} for tenth in tenths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=2000, help="rows of one batch")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--warm", type=int, default=200, help="batches that are not compared")
    parser.add_argument("--pace", type=int, default=150, help="milliseconds from one batch to the next, if it is done")
    parser.add_argument("--provider", choices=["hdfs", "rocksdb"], default="hdfs")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    if args.warm + 10 > args.batches:
        parser.error(f"--batches must be {args.warm + 10} or more: the first {args.warm} are not compared")
    ran = soak(args)
    tenths = deciles(ran["samples"][args.warm :])
    result = {
        "shape": {k: getattr(args, k) for k in ("batches", "rows", "keys", "warm", "pace", "provider")},
        "seconds": ran["seconds"],
        "last_to_first": {k: round(tenths[-1][k] / tenths[0][k], 3) for k in tenths[0]},
        "target": 1.2,
        "deciles": tenths,
        "machine": machine(),
    }
    print(json.dumps(result, indent=1))
    if not args.no_save:
        save("spark_soak", args.provider, result)


if __name__ == "__main__":
    main()
