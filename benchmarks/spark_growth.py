"""Cost of a micro-batch beside little and much state: the same batches, with little and with 30 times more state.

    python benchmarks/spark_growth.py
    python benchmarks/spark_growth.py --cells 20000 --repeat 3

A query first takes in rows of windows that stay open and are not touched again: `cells` of them, or 30 times as many.
Then come batches of new windows, the same rows in both cases. Compared are the median time of those batches, and the
bytes that they add to the checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from spark_queries import ROCKSDB, START_US, in_process_of, memory, save, start

HOUR_US = 3_600_000_000
KEYS = 20_000


def write_rows(folder: Path, cells: int, batches: int, rows: int) -> int:
    """Files of old windows, one row a cell, and then the files of the measured batches. Returns how many are old."""
    rng = np.random.default_rng(7)
    old = max(1, cells // KEYS)
    for i in range(old + batches):
        if i < old:
            key, time_us = np.arange(KEYS), np.full(KEYS, START_US - (old - i) * HOUR_US)
        else:
            key, time_us = rng.integers(0, KEYS, rows), START_US + HOUR_US + rng.integers(0, HOUR_US // 2, rows)
        table = pa.table(
            {"key": key, "ts": pa.array(time_us, pa.timestamp("us", "UTC")), "value": rng.random(key.size)}
        )
        path = folder / f"part-{i:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_000_000_000 + i, 1_000_000_000 + i))
    return old


def one_run(cells: int, batches: int, rows: int, provider: str, mode: str) -> dict[str, Any]:
    from pyspark.sql import functions as F

    conf = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB} if provider == "rocksdb" else {}
    # Snapshots of the whole store are maintenance, and no batch waits for them; here they would only blur the sizes.
    spark = start("gpuwin", {**conf, "spark.sql.streaming.stateStore.maintenanceInterval": "1h"})
    root = Path(tempfile.mkdtemp(prefix="gpuwin-growth-"))
    source, staged, checkpoint = root / "source", root / "staged", root / "checkpoint"
    source.mkdir()
    staged.mkdir()
    old = write_rows(staged, cells, batches, rows)
    files = sorted(staged.iterdir())
    frame = spark.readStream.schema("key long, ts timestamp, value double").option("maxFilesPerTrigger", 1)
    window = F.window("ts", "1 hour")
    aggregated = (
        frame.parquet(str(source))
        .withWatermark("ts", "3650 days")
        .groupBy("key", window)
        .agg(F.sum("value"), F.count("*"), F.max("value"))
    )
    started = (
        aggregated.writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(checkpoint)).start()
    )
    written = []
    for i, f in enumerate(files):
        f.rename(source / f.name)
        if i >= old - 1:
            started.processAllAvailable()
            written.append(_bytes(checkpoint / "state"))
    progress = [p for p in (json.loads(p.json()) for p in started._jsq.recentProgress()) if p["numInputRows"]]
    started.stop()
    measured = progress[-batches:]
    result = {
        "state_rows": measured[-1]["stateOperators"][0]["numRowsTotal"],
        "operator": measured[-1]["stateOperators"][0]["operatorName"],
        "batch_ms": [p["durationMs"]["addBatch"] for p in measured],
        "batch_bytes": [b - a for a, b in itertools.pairwise(written)],
        "memory": memory(spark),
    }
    spark.stop()
    shutil.rmtree(root, ignore_errors=True)
    return result


def _bytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200_000, help="cells of untouched state in the smaller run")
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rows", type=int, default=50_000, help="rows of a measured batch")
    parser.add_argument("--provider", choices=["hdfs", "rocksdb"], default="hdfs")
    parser.add_argument("--mode", choices=["append", "update"], default="update")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print("RESULT " + json.dumps(one_run(**json.loads(args.run))))
        return
    shape = {"batches": args.batches, "rows": args.rows, "provider": args.provider, "mode": args.mode}
    sizes = {"small": args.cells, "large": args.cells * args.times}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sizes}
    for _ in range(args.repeat):
        for name, cells in sizes.items():
            runs[name].append(in_process_of(__file__, ["--run", json.dumps({"cells": cells, **shape})], args.timeout))
    for name, results in runs.items():
        if any(r["operator"] != "gpuwin" for r in results):
            raise RuntimeError(f"the {name} run was not offloaded")
    # The first batches still compile.
    ms = {n: min(statistics.median(r["batch_ms"][4:]) for r in results) for n, results in runs.items()}
    size = {n: statistics.median(results[0]["batch_bytes"]) for n, results in runs.items()}
    result = {
        "shape": {**shape, **sizes},
        "median_batch_ms": ms,
        "time_ratio": round(ms["large"] / ms["small"], 3),
        "target": 1.3,
        "median_batch_bytes": size,
        "bytes_ratio": round(size["large"] / max(1, size["small"]), 3),
        "runs": runs,
    }
    print(json.dumps({k: v for k, v in result.items() if k != "runs"}, indent=1))
    if not args.no_save:
        save("spark_growth", f"{args.provider}-{args.mode}", result)


if __name__ == "__main__":
    main()
