"""Whole queries, plain Spark against gpuwin: the same files, the same conf, in turns, a fresh JVM each.

    python benchmarks/spark_queries.py                        # everything, once
    python benchmarks/spark_queries.py --only sliding --repeat 3
    python benchmarks/spark_queries.py --only tumbling --rows 1000000 --keys 1000
    python benchmarks/spark_queries.py --summarize results.json   # a file of before the results were summaries

A query's time is from `start()` to the end of `awaitTermination()` with `Trigger.AvailableNow` and the noop sink, after
one small run of the same query in the same process, whose result is read back and must be the same on both sides. The
best of the repeats counts, and the median is beside it. Workloads that begin with "batch" read such files as one static
DataFrame. Memory is the peak resident size of the JVM and of the device service that is its child.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpuwin_spark.installed_spark import SUPPORTED_SPARK, find_spark

RESULTS = Path(__file__).parent / "results"
START_US = 1_700_000_000_000_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STREAMING = "org.apache.spark.sql.execution.streaming"
_FILES = _STREAMING if find_spark().line == "4.0" else f"{_STREAMING}.checkpointing"

#: The newest Spark has the file that docs/performance.md is made of.
NAME = "spark_queries" if find_spark().line == SUPPORTED_SPARK[-1] else f"spark_queries_{find_spark().line}"

#: Confs of both sides.
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "6g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": f"{_FILES}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


@dataclass(frozen=True)
class Workload:
    """One query over generated rows. Sizes in rows, times in seconds. Without a slide, windows are sessions, and `size`
    is their gap; without a size, there are groups by the key alone. With the aggregates "deduplicated" the first rows
    of each key come out, which is remembered for `size`.

    `target`: what the ratio of plain Spark's time to gpuwin's should be at least.
    """

    name: str
    size: int
    slide: int
    files: int
    rows_per_file: int
    keys: int
    span: int
    target: float
    provider: str = "hdfs"
    aggregates: str = "sum,count"
    most: float = 900.0  # seconds after which a side is given up
    batch: bool = False  # a query of a static DataFrame, into the noop sink
    key: str = "long"  # or "string": twelve bytes each

    @property
    def conf(self) -> dict[str, str]:
        provider = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB} if self.provider == "rocksdb" else {}
        if self.deduplicates:
            return provider | {"spark.gpuwin.deduplicate": "true"}
        return provider | ({} if self.size else {"spark.gpuwin.withoutWindow": "true"})

    @property
    def deduplicates(self) -> bool:
        return self.aggregates == "deduplicated"


HOUR, DAY = 3600, 86_400
WORKLOADS = [
    Workload("sliding", HOUR, 60, 10, 200_000, 10_000, 6 * HOUR, 10.0),
    Workload("sliding_more_rows", HOUR, 60, 10, 1_000_000, 10_000, 6 * HOUR, 15.0),
    Workload("week_every_minute", 7 * DAY, 60, 28, 35_715, 1_000, 14 * DAY, 3.0, most=240.0),
    Workload("tumbling", 60, 60, 20, 500_000, 10_000, 6 * HOUR, 1.0),
    Workload("tumbling_strings", 60, 60, 20, 500_000, 10_000, 6 * HOUR, 2.5, key="string"),
    Workload("sessions", 30, 0, 10, 1_000_000, 10_000, 6 * HOUR, 3.0),
    Workload("sessions_first_and_last", 30, 0, 10, 1_000_000, 10_000, 6 * HOUR, 3.0, aggregates="first,last,count"),
    Workload("sessions_distinct", 30, 0, 10, 1_000_000, 10_000, 6 * HOUR, 1.0, aggregates="distinct,count"),
    Workload("sliding_newest", HOUR, 60, 10, 200_000, 10_000, 6 * HOUR, 5.0, aggregates="newest,count"),
    Workload("tumbling_newest", 60, 60, 20, 500_000, 10_000, 6 * HOUR, 1.0, aggregates="newest,count"),
    Workload("sliding_p95", 600, 60, 10, 100_000, 1_000, 6 * HOUR, 3.0, aggregates="p95,count"),
    Workload("tumbling_p95", 600, 600, 20, 200_000, 1_000, 6 * HOUR, 1.0, aggregates="p95,count"),
    Workload("tumbling_list", 600, 600, 20, 200_000, 1_000, 6 * HOUR, 1.0, aggregates="list,count"),
    Workload("sessions_list", 30, 0, 10, 200_000, 1_000, 6 * HOUR, 1.0, aggregates="list,count"),
    Workload("tumbling_million_keys", 60, 60, 20, 500_000, 1_000_000, 6 * HOUR, 2.5),
    Workload("batch", HOUR, 60, 10, 200_000, 10_000, 6 * HOUR, 1.5, batch=True),
    Workload("batch_p95", HOUR, 60, 10, 50_000, 1_000, 6 * HOUR, 1.0, aggregates="p95,count", batch=True),
    Workload("batch_four_windows_a_row", 60, 15, 10, 200_000, 10_000, 6 * HOUR, 1.0, batch=True),
    Workload("batch_sessions_dense", 30, 0, 10, 200_000, 100, 6 * HOUR, 1.3, batch=True),
    Workload("batch_sessions_sparse", 30, 0, 10, 200_000, 10_000, 6 * HOUR, 1.0, batch=True),
    Workload("tumbling_million_keys_rocksdb", 60, 60, 20, 500_000, 1_000_000, 6 * HOUR, 8.0, "rocksdb"),
    Workload("no_window", 0, 0, 10, 500_000, 1_000_000, 6 * HOUR, 2.0),
    Workload("no_window_rocksdb", 0, 0, 10, 500_000, 1_000_000, 6 * HOUR, 4.0, "rocksdb"),
    Workload("deduplicated", 600, 0, 10, 500_000, 200_000, 6 * HOUR, 1.0, aggregates="deduplicated"),
    Workload("deduplicated_rocksdb", 600, 0, 10, 500_000, 200_000, 6 * HOUR, 3.0, "rocksdb", "deduplicated"),
]

AGGREGATES = {
    "sum": "sum(value)",
    "count": "count(*)",
    "avg": "avg(value)",
    "min": "min(value)",
    "max": "max(value)",
    "stddev": "stddev(value)",
    "first": "first(value)",
    "last": "last(value)",
    "distinct": "approx_count_distinct(value)",
    "p95": "percentile_approx(value, 0.95)",
    "list": "size(collect_list(value))",
    "newest": "max(struct(ts, value)).value",
}


def write_rows(folder: Path, *, files: int, rows: int, keys: int, span: int, seed: int, key: str = "long") -> Path:
    """`files` Parquet files in the order of event time, with up to 5 s of disorder. Written once, then kept."""
    if (folder / "_DONE").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    step = span * 1_000_000 // files
    names = pa.array([f"key-{i:08d}" for i in range(keys)]) if key == "string" else None
    for i in range(files):
        time_us = START_US + np.sort(rng.integers(i * step, (i + 1) * step, rows)) - rng.integers(0, 5_000_000, rows)
        drawn = rng.integers(0, keys, rows)
        table = pa.table(
            {
                "key": names.take(pa.array(drawn)) if names is not None else drawn,
                "ts": pa.array(time_us, pa.timestamp("us", "UTC")),
                "value": rng.random(rows),
            }
        )
        path = folder / f"part-{i:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_000_000_000 + i, 1_000_000_000 + i))  # the file source reads in the order of these
    (folder / "_DONE").touch()
    return folder


def rows_of(w: Workload, *, small: bool) -> Path:
    """The rows of a workload, or the small stream of the same shape that warms up and checks."""
    files, rows = (4, max(1, w.rows_per_file // 20)) if small else (w.files, w.rows_per_file)
    span = w.span // 4 if small else w.span
    kind = "" if w.key == "long" else f"-{w.key}"
    folder = Path(tempfile.gettempdir()) / "gpuwin-benchmarks" / f"{files}x{rows}-{w.keys}-{span}{kind}"
    return write_rows(folder, files=files, rows=rows, keys=w.keys, span=span, seed=files, key=w.key)


# One side, in a process of its own


def start(side: str, conf: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName(f"gpuwin benchmark: {side}")
    for key, value in {**CONF, **conf}.items():
        builder = builder.config(key, value)
    if side == "gpuwin":
        import gpuwin as gw

        builder = gw.spark.configure(builder, device="cpu")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def row_schema(w: Workload) -> str:
    """The columns of a row, as Spark's DDL."""
    return f"key {w.key}, ts timestamp, value double"


def query(spark: Any, w: Workload, source: Path) -> Any:
    reader = spark.read if w.batch else spark.readStream.option("maxFilesPerTrigger", 1)
    return aggregated(reader.schema(row_schema(w)).parquet(str(source)), w)


def aggregated(frame: Any, w: Workload) -> Any:
    """The windows of a workload over rows from anywhere."""
    from pyspark.sql import functions as F

    if w.deduplicates:
        return frame.withWatermark("ts", f"{w.size} seconds").dropDuplicatesWithinWatermark(["key"])
    aggregates = [F.expr(AGGREGATES[a]).alias(f"{a}_") for a in w.aggregates.split(",")]
    if not w.size:
        return frame.groupBy("key").agg(*aggregates)
    size, slide = f"{w.size} seconds", f"{w.slide} seconds"
    window = (F.window("ts", size, slide) if w.slide else F.session_window("ts", size)).alias("window")
    marked = frame.withWatermark("ts", "10 seconds")
    return marked.groupBy("key", window).agg(*aggregates)


def run_query(
    frame: Any,
    side: str,
    sink: str,
    path: str | None = None,
    mode: str = "append",
    beside: Sequence[str] = (),
    **options: str,
) -> dict[str, Any]:
    """Runs to the end and returns seconds, and what the progress says of each batch. Fails if it was not offloaded.

    `beside`: operators that stay with Spark on both sides. `options`: those of the sink.
    """
    checkpoint = tempfile.mkdtemp(prefix="gpuwin-benchmark-")
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer = writer.format(sink).options(**({"path": path} if path else {}), **options)
    began = time.perf_counter()
    started = writer.start()
    started.awaitTermination()
    seconds = time.perf_counter() - began
    progress = [json.loads(p.json()) for p in started._jsq.recentProgress()]
    operators = {o["operatorName"] for p in progress for o in p["stateOperators"]} - {*beside}
    sparks = {"stateStoreSave", "sessionWindowStateStoreSaveExec", "dedupeWithinWatermark", "defaultName"}
    wanted = {"gpuwin"} if side == "gpuwin" else sparks
    if len(operators) != 1 or not operators <= wanted:
        raise RuntimeError(f"the {side} run used {operators}, and should have used one of {wanted}")
    shutil.rmtree(checkpoint, ignore_errors=True)
    return {
        "seconds": round(seconds, 3),
        "batches": [
            {
                "at": p["timestamp"],
                "rows": p["numInputRows"],
                "ms": p["durationMs"].get("addBatch", 0),
                "trigger_ms": p["durationMs"].get("triggerExecution", 0),
                "state_rows": p["stateOperators"][0]["numRowsTotal"],
                "metrics": p["stateOperators"][0]["customMetrics"],
            }
            for p in progress
        ],
    }


def run_batch(frame: Any, side: str, sink: str, path: str | None = None) -> dict[str, Any]:
    """The same of a query of a static DataFrame, whose plan says by what it ran."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    ours = "PaneWindows" in plan or "ProtoSessions" in plan
    if ours != (side == "gpuwin"):
        raise RuntimeError(f"the {side} run was {'' if ours else 'not '}planned by gpuwin")
    began = time.perf_counter()
    frame.write.mode("overwrite").format(sink).save(*([path] if path else []))
    return {"seconds": round(time.perf_counter() - began, 3)}


def check(spark: Any, w: Workload, side: str, small: Any = None) -> dict[str, Any]:
    """Runs the small stream, or another query over the same rows, into Parquet and sums up what came out."""
    from pyspark.sql import functions as F

    out = tempfile.mkdtemp(prefix="gpuwin-benchmark-out-")
    asked = query(spark, w, rows_of(w, small=True)) if small is None else small
    if w.size:
        (run_batch if w.batch else run_query)(asked, side, "parquet", out)
        rows = spark.read.parquet(out)
    else:  # Spark writes no files of groups that may change
        run_query(asked, side, "memory", mode="complete", queryName="check")
        rows = spark.table("check")
    columns = [F.sum(c).alias(c) for c in rows.columns if c.endswith("_")]
    grouping = ["key", "ts"] if w.deduplicates else ["key", "window"] if w.size else ["key"]
    keyed = F.sum(F.xxhash64(*grouping) % 1_000_003).alias("groups")
    total: dict[str, Any] = rows.agg(F.count("*").alias("rows"), keyed, *columns).collect()[0].asDict()
    shutil.rmtree(out, ignore_errors=True)
    return total


def memory(spark: Any) -> dict[str, float]:
    """Peak resident MiB of the JVM and of its device service."""
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    found = {"jvm_mib": _peak_mib(jvm)}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if entry.name.isdigit() else -1
            if parent == jvm and b"gpuwin_spark.service" in (entry / "cmdline").read_bytes():
                found["service_mib"] = _peak_mib(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"/proc/{pid}/status has no VmHWM")


def one_side(side: str, w: Workload) -> dict[str, Any]:
    spark = start(side, w.conf)
    total = check(spark, w, side)
    asked = query(spark, w, rows_of(w, small=False))
    mode = "append" if w.size else "update"
    measured = run_batch(asked, side, "noop") if w.batch else run_query(asked, side, "noop", mode=mode)
    return {**measured, "check": total, "memory": memory(spark), "conf": {**CONF, **w.conf}}


# Both sides


def in_process_of(file: str, arguments: Sequence[str], timeout: float) -> dict[str, Any]:
    """Calls a benchmark in a process of its own and reads the last line of what it prints."""
    command = [sys.executable, file, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            said, complained = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started: a JVM, a producer
            if isinstance(error, subprocess.TimeoutExpired):
                return {"seconds": None, "timeout": timeout}
            raise
    lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not lines:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{complained[-4000:]}")
    read: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return read


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two checks agree: exactly, or to 1e-9 where the value is a double."""
    return a.keys() == b.keys() and all(
        abs(a[k] - b[k]) <= 1e-9 * max(abs(a[k]), abs(b[k])) if isinstance(a[k], float) else a[k] == b[k] for k in a
    )


def measure(w: Workload, repeat: int, timeout: float) -> dict[str, Any]:
    """Plain and gpuwin in turns, `repeat` times."""
    for small in (True, False):
        rows_of(w, small=small)
    load = os.getloadavg()[0]
    sides = in_turns(w.name, __file__, ["--workload", json.dumps(asdict(w))], repeat, timeout)
    return summary({"workload": asdict(w), "target": w.target, "load_before": load, "runs": sides})


def in_turns(
    name: str, file: str, arguments: Sequence[str], repeat: int, timeout: float
) -> dict[str, list[dict[str, Any]]]:
    """What each run of each side of a benchmark says. Fails where the sides disagree, or gpuwin does not finish."""
    sides: dict[str, list[dict[str, Any]]] = {"plain": [], "gpuwin": []}
    for _ in range(repeat):
        for side, results in sides.items():
            results.append(in_process_of(file, ["--side", side, *arguments], timeout))
            print(f"  {name} {side}: {results[-1]['seconds']} s {results[-1].get('memory', '')}", flush=True)
    plain, device = ([r for r in sides[s] if r["seconds"]] for s in ("plain", "gpuwin"))
    if not device:
        raise RuntimeError(f"gpuwin did not finish {name} within {timeout:.0f} s")
    if plain and not same(plain[0]["check"], device[0]["check"]):
        raise RuntimeError(f"{name}: the sides disagree: {plain[0]['check']} and {device[0]['check']}")
    return sides


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """A measurement without its batches: of each side the seconds of each run, how many batches they had and the median
    of these in ms, and the most memory. A summary stays as it is."""
    if "best" in result:
        return result
    sides = {side: [run for run in runs if run["seconds"]] for side, runs in result["runs"].items()}
    kept = {name: value for name, value in result.items() if name not in ("seconds", "ratio", "runs")}
    for name, of in (("best", min), ("median", statistics.median)):
        found = {side: round(of([run["seconds"] for run in runs]), 3) for side, runs in sides.items() if runs}
        kept[name] = {**found, "ratio": round(found["plain"] / found["gpuwin"], 2) if "plain" in found else None}
    kept["runs"] = {side: _summary_of_side(runs, sides[side]) for side, runs in result["runs"].items()}
    kept["check"] = sides["gpuwin"][0]["check"]
    return kept


def _summary_of_side(asked: list[dict[str, Any]], done: list[dict[str, Any]]) -> dict[str, Any]:
    batches = [batch["trigger_ms"] for run in done for batch in run.get("batches", [])]
    return {
        "seconds": [run["seconds"] for run in asked],  # None where the run was given up
        "batches": [len(run["batches"]) for run in done if "batches" in run],
        "median_batch_ms": statistics.median(batches) if batches else None,
        "memory": {
            name: max(run["memory"].get(name, 0.0) for run in done) for name in (done[0]["memory"] if done else ())
        },
    }


def machine() -> dict[str, Any]:
    import pyspark

    versions = {"python": platform.python_version(), "spark": pyspark.__version__}
    # Another load on the machine touches both sides, but not alike: a figure is only worth what this number says.
    return {
        "cpus": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "machine": platform.machine(),
        **versions,
    }


def save(name: str, key: str, result: dict[str, Any]) -> Path:
    """Puts one result into `results/<name>.json`, beside the others that are there."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[key] = {**result, "machine": machine(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    path.write_text(_lines(known))
    return path


def _lines(results: dict[str, Any]) -> str:
    """A JSON object with one result a line."""
    lines = (f" {json.dumps(name)}: {json.dumps(result, default=str)}" for name, result in results.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def summarize(path: Path) -> None:
    """Rewrites a file of measurements as summaries."""
    known = {name: summary(result) for name, result in json.loads(path.read_text()).items()}
    path.write_text(_lines(known))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[w.name for w in WORKLOADS], help="may be repeated")
    parser.add_argument("--rows", type=int, help="rows in all, instead of the workload's own number")
    parser.add_argument("--files", type=int)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--aggregates", help=f"comma-separated, of {', '.join(AGGREGATES)}")
    parser.add_argument("--provider", choices=["hdfs", "rocksdb"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--timeout", type=float, help="seconds for one side, instead of the workload's own limit")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--summarize", type=Path, metavar="FILE", help="measure nothing: leave out the batches in FILE")
    parser.add_argument("--side", choices=["plain", "gpuwin"], help=argparse.SUPPRESS)
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print("RESULT " + json.dumps(one_side(args.side, Workload(**json.loads(args.workload))), default=str))
        return
    if args.summarize:
        summarize(args.summarize)
        return
    changes = {k: getattr(args, k) for k in ("files", "keys", "aggregates", "provider") if getattr(args, k)}
    for w in WORKLOADS:
        if args.only and w.name not in args.only:
            continue
        changed = replace(w, **changes)
        if args.rows:
            changed = replace(changed, rows_per_file=max(1, args.rows // changed.files))
        result = measure(changed, args.repeat, args.timeout or changed.most)
        print(f"{w.name}: best {result['best']}, median {result['median']} (target {w.target})", flush=True)
        if not args.no_save:
            save(NAME, w.name, result)


if __name__ == "__main__":
    main()
