"""Nexmark's windowed queries on Spark, plain Spark against gpuwin: the same files, in turns, a fresh JVM each.

    python benchmarks/nexmark/measure.py                      # all queries, once
    python benchmarks/nexmark/measure.py --only q5 --repeat 3
    python benchmarks/nexmark/measure.py --files 4 --events 100000 --no-save

Ten million events, twenty micro-batches. A query's time is from `start()` to the end of `awaitTermination()` with
`Trigger.AvailableNow` and the noop sink, after one small run of the same query in the same process, whose rows must be
the same on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from events import SCHEMAS, events
from queries import QUERIES, Query
from spark_queries import CONF, in_turns, memory, run_query, save, start, summary

FILES, EVENTS = 20, 500_000
SMALL = (4, 200_000)
JOIN = "symmetricHashJoin"


def asked(spark: Any, query: Query, folder: Path) -> Any:
    """The query over the files of a folder, one of each kind of event in a micro-batch."""
    for kind, schema in SCHEMAS.items():
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / kind))
        rows.withWatermark("dateTime", "4 seconds").createOrReplaceTempView(kind)
    for name, text in query.parts.items():
        spark.sql(text).createOrReplaceTempView(name)
    return spark.sql(query.text)


def run(frame: Any, query: Query, side: str, sink: str, **options: str) -> dict[str, Any]:
    return run_query(frame, side, sink, mode=query.mode, beside=(JOIN,) if query.joins else (), **options)


def check(spark: Any, query: Query, side: str) -> dict[str, Any]:
    """The number of result rows of the small stream, and a sum of their hashes."""
    out = tempfile.mkdtemp(prefix="gpuwin-benchmark-out-")
    frame = asked(spark, query, events(*SMALL))
    if query.mode == "append":
        run(frame, query, side, "parquet", path=out)
        rows = spark.read.parquet(out)
    else:  # Spark writes no files of groups that may change
        run(frame, query, side, "memory", queryName="checked")
        rows = spark.table("checked")
    hashes = f"sum(xxhash64({', '.join(rows.columns)}) % 1000003L)"
    found: dict[str, Any] = rows.selectExpr("count(*) AS rows", f"{hashes} AS hashes").collect()[0].asDict()
    shutil.rmtree(out, ignore_errors=True)
    return found


def one_side(side: str, query: Query, folder: Path) -> dict[str, Any]:
    spark = start(side, {})
    found = check(spark, query, side)
    measured = run(asked(spark, query, folder), query, side, "noop")
    return {**measured, "check": found, "memory": memory(spark), "conf": CONF}


def measure(query: Query, files: int, events_per_file: int, repeat: int) -> dict[str, Any]:
    """Plain and gpuwin in turns, `repeat` times."""
    events(*SMALL)
    folder = events(files, events_per_file)
    load = os.getloadavg()[0]
    arguments = ["--query", query.name, "--folder", str(folder)]
    sides = in_turns(query.name, __file__, arguments, repeat, query.most)
    described = {"about": query.about, "mode": query.mode, "files": files, "events_per_file": events_per_file}
    return summary({"query": described, "target": query.target, "load_before": load, "runs": sides})


def main() -> None:
    names = {query.name: query for query in QUERIES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=names, help="may be repeated")
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--events", type=int, default=EVENTS, help="events of a file")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--side", choices=["plain", "gpuwin"], help=argparse.SUPPRESS)
    parser.add_argument("--query", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print("RESULT " + json.dumps(one_side(args.side, names[args.query], args.folder), default=str))
        return
    for name in args.only or names:
        result = measure(names[name], args.files, args.events, args.repeat)
        print(f"{name}: best {result['best']}, median {result['median']} (target {result['target']})", flush=True)
        if not args.no_save:
            save("nexmark", name, result)


if __name__ == "__main__":
    main()
