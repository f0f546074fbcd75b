"""A restart of a query with much state: the time to its first batch, plain Spark against gpuwin.

    python benchmarks/spark_restart.py                       # all shapes, both state stores, twice
    python benchmarks/spark_restart.py --only tumbling --provider rocksdb --repeat 1 --no-save

A query takes in rows until so many groups are open, in twenty batches, and stops. In a new process, after a small query
of the same kind has compiled what there is to compile, it is started again with one file of 1,000 rows. Measured is the
time from `start()` to the end of that batch. Each side fills its own checkpoint; windows stay open throughout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from spark_queries import ROCKSDB, START_US, in_process_of, memory, save, start

BATCHES = 20
MINUTE_US = 60_000_000

#: How many groups of plain Spark's state a row makes.
SHAPES = {
    "tumbling": 1,
    "tumbling, strings": 1,
    "sliding": 10,
    "sessions": 1,
}


def write_rows(folder: Path, name: str, keys: np.ndarray, nth: int) -> None:
    """A file with a row of each of these keys."""
    table = pa.table(
        {
            "key": pa.array(np.char.add("customer-", keys.astype(str)) if "strings" in name else keys),
            "ts": pa.array(np.full(keys.size, START_US), pa.timestamp("us", "UTC")),
            "value": np.random.default_rng(nth).random(keys.size),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{nth:04d}.parquet"
    pq.write_table(table, path)
    os.utime(path, (1_000_000_000 + nth, 1_000_000_000 + nth))


def run(spark: Any, name: str, folder: Path) -> dict[str, Any]:
    """Runs the query over the files that it has not seen, and times it."""
    from pyspark.sql import functions as F

    key = "string" if "strings" in name else "long"
    rows = spark.readStream.schema(f"key {key}, ts timestamp, value double").option("maxFilesPerTrigger", 1)
    frame = rows.parquet(str(folder / "source")).withWatermark("ts", "1 day")
    window = {"sliding": F.window("ts", "10 minutes", "1 minute"), "sessions": F.session_window("ts", "30 minutes")}
    grouped = frame.groupBy("key", window.get(name, F.window("ts", "1 hour")))
    out = grouped.agg(F.sum("value"), F.count("*"), F.max("value")).writeStream.outputMode("append").format("noop")
    began = time.perf_counter()
    done = out.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    done.awaitTermination()
    seconds = time.perf_counter() - began
    batches = [p for p in (json.loads(p.json()) for p in done._jsq.recentProgress()) if p["numInputRows"]]
    return {
        "seconds": round(seconds, 3),
        "batches": len(batches),
        "batch_ms": batches[-1]["durationMs"]["triggerExecution"],
        "operator": batches[-1]["stateOperators"][0]["operatorName"],
        "state_rows": batches[-1]["stateOperators"][0]["numRowsTotal"],
    }


def fill(side: str, name: str, provider: str, folder: str, groups: int) -> dict[str, Any]:
    """The query from its beginning to a state of so many groups."""
    place = Path(folder)
    keys = np.random.default_rng(7).permutation(groups // SHAPES[name])
    for i, part in enumerate(np.array_split(keys, BATCHES)):
        write_rows(place / "source", name, part, i)
    spark = session(side, provider)
    result = run(spark, name, place)
    assert result["batches"] == BATCHES, result
    spark.stop()
    return result


def restart(side: str, name: str, provider: str, folder: str, groups: int) -> dict[str, Any]:
    """The query once more, after a small one has warmed the process."""
    place, small = Path(folder), Path(tempfile.mkdtemp(prefix="gpuwin-restart-"))
    spark = session(side, provider)
    for nth in range(2):
        write_rows(small / "source", name, np.arange(1_000), nth)
        warm = run(spark, name, small)
    write_rows(place / "source", name, np.arange(1_000), BATCHES)
    result = run(spark, name, place)
    assert result["batches"] == 1, result
    assert result["operator"] == warm["operator"] == ("gpuwin" if side == "gpuwin" else warm["operator"]), result
    result |= {"small_seconds": warm["seconds"], "memory": memory(spark)}
    spark.stop()
    shutil.rmtree(small)
    return result


def session(side: str, provider: str) -> Any:
    return start(side, {"spark.sql.streaming.stateStore.providerClass": ROCKSDB} if provider == "rocksdb" else {})


def measure(name: str, provider: str, groups: int, repeat: int, timeout: float) -> dict[str, Any]:
    """Both sides, in turns; each is filled once, and restarted from copies of what was filled."""
    root = Path(tempfile.mkdtemp(prefix="gpuwin-restarts-"))
    result: dict[str, Any] = {"shape": name, "provider": provider, "groups": groups}
    shape = {"name": name, "provider": provider, "groups": groups}
    load = os.getloadavg()[0]
    try:
        for side in ("plain", "gpuwin"):
            asked = {"side": side, **shape, "folder": str(root / side)}
            result[side] = {"fill": in_process_of(__file__, ["--call", "fill", json.dumps(asked)], timeout)}
            result[side]["state_bytes"] = sum(f.stat().st_size for f in (root / side / "checkpoint").rglob("*"))
            result[side]["restarts"] = []
        for _ in range(repeat):
            for side in ("plain", "gpuwin"):
                copy = root / "copy"
                # At the same place, since a query finds its files by their paths.
                shutil.copytree(root / side, copy)
                os.rename(root / side, root / "kept")
                os.rename(copy, root / side)
                asked = {"side": side, **shape, "folder": str(root / side)}
                done = in_process_of(__file__, ["--call", "restart", json.dumps(asked)], timeout)
                result[side]["restarts"].append(done)
                shutil.rmtree(root / side)
                os.rename(root / "kept", root / side)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for side in ("plain", "gpuwin"):
        result[side] = summary(result[side])
    if result["plain"]["best"] and result["gpuwin"]["best"]:
        result["ratio"] = round(result["plain"]["best"] / result["gpuwin"]["best"], 2)
    return result | {"load_before": round(load, 1), "repeat": repeat}


def summary(side: dict[str, Any]) -> dict[str, Any]:
    """What is kept of the runs of one side; `best` is None where one was not done in time."""
    restarts = side.pop("restarts")
    seconds = [r["seconds"] for r in restarts]
    return {
        "fill_seconds": side["fill"]["seconds"],
        "state_bytes": side["state_bytes"],
        "seconds": seconds,
        "best": None if None in seconds else min(seconds),
        "memory": restarts[-1].get("memory"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SHAPES))
    parser.add_argument("--provider", choices=["hdfs", "rocksdb"])
    parser.add_argument("--groups", type=int, default=2_000_000, help="groups of plain Spark's state")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--call", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.call:
        call = {"fill": fill, "restart": restart}[args.call[0]]
        print("RESULT " + json.dumps(call(**json.loads(args.call[1]))))
        return
    for provider in [args.provider] if args.provider else ["hdfs", "rocksdb"]:
        for name in [args.only] if args.only else SHAPES:
            result = measure(name, provider, args.groups, args.repeat, args.timeout)
            print(json.dumps(result, indent=1), flush=True)
            if not args.no_save:
                save("spark_restart", f"{name}, {provider}", result)


if __name__ == "__main__":
    main()
