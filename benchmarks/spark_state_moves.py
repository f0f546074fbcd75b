"""State that moves: a million open windows of plain Spark adopted, rescaled from 2 to 8 partitions, and given back.

    python benchmarks/spark_state_moves.py               # both stores, both kinds of windows, three times each
    python benchmarks/spark_state_moves.py --windows 100000 --repeat 1 --no-save

Sums and counts by a long key, update mode, `local[2]`: tumbling windows of a minute, and windows of ten minutes every
minute, ten of a row. Plain Spark fills the state in one batch. The cost of adoption is the time by which the first
batch on gpuwin (100 rows) is longer than the second; those of rescaling and giving back are the times of
`gw.spark.rescale_state` and `gw.spark.give_back_state`, in a session that has done all of it before with a tenth of the
windows. Memory is the largest resident set of the JVM so far.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_queries import RESULTS, machine, start

import gpuwin as gw

MINUTE = 60_000_000
PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


#: Size and slide of the windows, and how many there are of a key and a row.
WINDOWS = {"tumbling": ("1 minute", "1 minute", 10, 1), "sliding": ("10 minutes", "1 minute", 10, 10)}


def write_rows(path: Path, kind: str, windows: int, rows: int) -> None:
    """Rows that make so many windows, or some of these rows again."""
    of_key, of_row = WINDOWS[kind][2:]
    at = np.arange(rows) % (windows // of_row)
    minute, key = (at % of_key, at // of_key) if of_row == 1 else (np.zeros_like(at), at)
    columns = {"ts": pa.array(minute * MINUTE, pa.timestamp("us", "UTC")), "k": key, "v": at}
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path)


def query(rows: DataFrame, kind: str) -> DataFrame:
    return (
        rows.withWatermark("ts", "1 day")
        .groupBy("k", F.window("ts", *WINDOWS[kind][:2]))
        .agg(F.sum("v").alias("total"), F.count("*").alias("n"))
    )


def run(spark: SparkSession, folder: Path, kind: str) -> list[int]:
    """Milliseconds of each batch with rows."""
    rows = spark.readStream.schema("ts timestamp, k long, v long").option("maxFilesPerTrigger", 1)
    out = query(rows.parquet(str(folder / "in")), kind).writeStream.format("noop").outputMode("update")
    done = out.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    done.awaitTermination()
    operators = {o["operatorName"] for p in done.recentProgress for o in p["stateOperators"]}
    wanted = "gpuwin" if spark.conf.get("spark.gpuwin.enabled") == "true" else "stateStoreSave"
    assert operators == {wanted}, operators
    return [p["durationMs"]["triggerExecution"] for p in done.recentProgress if p["numInputRows"]]


def once(spark: SparkSession, provider: str, kind: str, windows: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="gpuwin-moves-"))
    try:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        spark.conf.set("spark.gpuwin.adopt", "true")
        write_rows(folder / "in" / "0.parquet", kind, windows, windows // WINDOWS[kind][3])
        spark.conf.set("spark.gpuwin.enabled", "false")
        run(spark, folder, kind)
        for n in (1, 2):
            write_rows(folder / "in" / f"{n}.parquet", kind, windows, 100)
        spark.conf.set("spark.gpuwin.enabled", "true")
        first, second = run(spark, folder, kind)
        adopted = (first - second) / 1e3
        began = time.perf_counter()
        said = gw.spark.rescale_state(spark, str(folder / "checkpoint"), 8)
        rescaled = time.perf_counter() - began
        assert f" {windows + 200} cells" in said or f" {windows} cells" in said, said
        began = time.perf_counter()
        said = gw.spark.give_back_state(spark, str(folder / "checkpoint"))
        given = time.perf_counter() - began
        assert f" {windows} windows are Spark's" in said, said
        return {
            "adopt_s": round(adopted, 2),
            "adopt_windows_per_s": round(windows / adopted),
            "rescale_s": round(rescaled, 2),
            "rescale_cells_per_s": round(windows / rescaled),
            "give_back_s": round(given, 2),
            "give_back_windows_per_s": round(windows / given),
            "jvm_peak_mib": peak(spark),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def peak(spark: SparkSession) -> int:
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")]
    return int(line.split()[1]) >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=sorted(PROVIDERS), help="one state store provider")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    load = os.getloadavg()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # giving back merges in Python
    spark = start("gpuwin", {})
    found: dict[str, Any] = {}
    for provider, kind in itertools.product([args.only] if args.only else PROVIDERS, WINDOWS):
        once(spark, provider, kind, args.windows // 10)  # class loading, kernels
        runs = [once(spark, provider, kind, args.windows) for _ in range(args.repeat)]
        for figures in runs:
            print(f"{provider}, {kind}: {figures}", flush=True)
        medians = {key: sorted(r[key] for r in runs)[len(runs) // 2] for key in runs[0]}
        found.setdefault(provider, {})[kind] = medians
        print(f"{provider}, {kind}, medians: {medians}", flush=True)
    spark.stop()
    if not args.no_save:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        results = {"machine": machine(), "at": now, "windows": args.windows, "repeat": args.repeat,
                   "load_before": load, "medians": found}  # fmt: skip
        (RESULTS / "spark_state_moves.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
