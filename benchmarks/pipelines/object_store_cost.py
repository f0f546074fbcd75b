"""What a batch costs with its checkpoint in an S3 bucket: milliseconds and requests, plain Spark beside gpuwin.

    python benchmarks/pipelines/object_store_cost.py                      # both providers; disk, 0 and 20 ms a request
    python benchmarks/pipelines/object_store_cost.py --settings           # settings that may help, at 20 ms
    python benchmarks/pipelines/object_store_cost.py --only rocksdb --latency 5 --no-save

The query is a sliding window over small files, a batch each, on two partitions into the noop sink, in one JVM for each
side, after the same query with its checkpoint on the disk. The store is moto on this machine, behind a proxy that
counts requests and holds each up for so long; 0 ms is the store's own time, which is about 5 ms. Milliseconds are the
median of the batches' triggers from the third batch on, requests the mean of the same batches, by the log of commits;
what Spark does in the background (removing old files) is among them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / name) for name in ("benchmarks", "tests", "tests/spark", "tests/pipelines")]

from pipelines_harness.maven import hadoop_cloud_jar, s3a_jars  # noqa: E402
from pipelines_harness.object_store import ABORTABLE, MANAGER, OURS, RENAMING, ObjectStore  # noqa: E402
from pipelines_harness.s3_proxy import Request, S3Proxy  # noqa: E402
from pipelines_harness.s3_server import Bucket, S3Server  # noqa: E402
from spark_queries import ROCKSDB, Workload, in_process_of, query, rows_of, save, start  # noqa: E402

WORKLOAD = Workload("object_store", 3600, 300, 14, 2_000, 200, 7 * 3600, 1.0)
FIRST = 2
#: What the plugin sets where the user sets nothing; plain Spark takes `RENAMING` then.
GUARD = "org.apache.spark.sql.gpuwin.GuardedCheckpointFiles"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PROVIDERS: dict[str, dict[str, str]] = {
    "hdfs": {},
    "rocksdb": {"spark.sql.streaming.stateStore.providerClass": ROCKSDB, CHANGELOG: "false"},
    "rocksdb changelog": {"spark.sql.streaming.stateStore.providerClass": ROCKSDB, CHANGELOG: "true"},
}


@dataclass(frozen=True)
class Variant:
    """One way to run the query. `latency` in milliseconds a request, nothing for a checkpoint on the disk.

    conf: settings of Spark; s3a: of S3A, without their prefix.
    """

    provider: str
    latency: float | None
    name: str = ""
    conf: dict[str, str] = field(default_factory=dict)
    s3a: dict[str, str] = field(default_factory=dict)

    def runs_on(self, side: str) -> bool:
        """Whether a side knows its settings."""
        return side == "gpuwin" or "gpuwin" not in json.dumps(self.conf)

    @property
    def where(self) -> str:
        return "disk" if self.latency is None else f"s3a, {self.latency:g} ms"


#: Settings that may help, each by itself, and what helped together.
SETTINGS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "Spark's default manager": ({MANAGER: RENAMING}, {}),
    "Spark's manager for object stores": ({MANAGER: ABORTABLE}, {}),
    "gpuwin's manager": ({MANAGER: OURS}, {}),
    "S3A's performance flags": ({}, {"performance.flags": "create,mkdir,delete"}),
    "minBatchesToRetain 10": ({"spark.sql.streaming.minBatchesToRetain": "10"}, {}),
    "log purge in the batch": ({"spark.sql.streaming.asyncLogPurge.enabled": "false"}, {}),
    "maxSegments 4": ({"spark.gpuwin.log.maxSegments": "4"}, {}),
    "maxSegments 96": ({"spark.gpuwin.log.maxSegments": "96"}, {}),
}


def variants(providers: list[str], latencies: list[float], *, settings: bool) -> list[Variant]:
    """All that is measured, in order."""
    if settings:
        return [Variant(p, max(latencies), name, *of) for p in providers for name, of in SETTINGS.items()]
    return [Variant(p, latency) for p in providers for latency in (None, *latencies)]


def per_batch(requests: list[Request], batches: int) -> dict[str, float]:
    """Requests of each kind in a batch: from the commit of batch `FIRST` - 1 to that of the last one."""

    def committed(batch: int) -> int:
        key = f"checkpoint/commits/{batch}"
        return max(i for i, r in enumerate(requests) if r.key == key and r.kind in ("PUT", "COPY"))

    counted = Counter(r.kind for r in requests[committed(FIRST - 1) + 1 : committed(batches - 1) + 1])
    return {kind: round(n / (batches - FIRST), 1) for kind, n in sorted(counted.items())}


def one_side(side: str, asked: list[Variant]) -> dict[str, Any]:
    """Every variant on one side, in this process."""
    jars = [*s3a_jars(), hadoop_cloud_jar()]
    spark = start(side, {"spark.jars": ",".join(map(str, jars))})
    results = []
    with tempfile.TemporaryDirectory(prefix="gpuwin-s3-") as folder, S3Server(Path(folder)) as server:
        numbers = itertools.count()
        _ = measured(spark, side, Variant(asked[0].provider, None), server, Path(folder), next(numbers))
        for variant in filter(lambda v: v.runs_on(side), asked):
            done = measured(spark, side, variant, server, Path(folder), next(numbers))
            print(f"{side}, {variant.provider}, {variant.where} {variant.name}: {done}", file=sys.stderr, flush=True)
            results.append({**asdict(variant), **done})
    return {"runs": results}


def measured(spark: Any, side: str, variant: Variant, server: S3Server, folder: Path, number: int) -> dict[str, Any]:
    """One run of the query, on a checkpoint of its own."""
    with S3Proxy(server.address) as proxy:
        store = ObjectStore(Bucket(server, f"run-{number}"), proxy)
        proxy.delay = (variant.latency or 0) / 1000
        session = spark.newSession()
        manager = {} if variant.latency is None else {MANAGER: GUARD if side == "gpuwin" else RENAMING}
        given = {**PROVIDERS[variant.provider], **store.settings(variant.s3a), **manager, **variant.conf}
        for key, value in given.items():
            if value:
                session.conf.set(key, value)
        frame = query(session, WORKLOAD, rows_of(WORKLOAD, small=False))
        where = str(folder / f"checkpoint-{number}") if variant.latency is None else store.checkpoint
        writer = frame.writeStream.format("noop").option("checkpointLocation", where).trigger(availableNow=True)
        started = writer.start()
        started.awaitTermination()
        requests = list(proxy.requests)
    progress = [json.loads(p.json()) for p in started._jsq.recentProgress()]
    ran = [p for p in progress if "addBatch" in p["durationMs"]]
    operators = {o["operatorName"] for p in ran for o in p["stateOperators"]}
    if operators != {"gpuwin" if side == "gpuwin" else "stateStoreSave"}:
        raise RuntimeError(f"the {side} run used {operators}")
    milliseconds = [p["durationMs"]["triggerExecution"] for p in ran[FIRST:]]
    counted = {} if variant.latency is None else per_batch(requests, len(ran))
    return {
        "batches": len(ran),
        "ms": statistics.median(milliseconds),
        "requests": round(sum(counted.values()), 1),
        "by_kind": counted,
    }


def table(asked: list[Variant], results: dict[str, list[dict[str, Any]]]) -> str:
    """Both sides beside each other, in Markdown."""
    lines = ["| store | checkpoint | plain, ms | gpuwin, ms | plain, requests | gpuwin, requests |", "|---" * 6 + "|"]
    for variant in asked:
        runs = [next((r for r in results[side] if {**r, **asdict(variant)} == r), None) for side in ("plain", "gpuwin")]
        times = " | ".join(f"{run['ms']:.0f}" if run else "" for run in runs)
        counts = " | ".join(f"{run['requests']:.0f}" if run and run["by_kind"] else "" for run in runs)
        what = f"{variant.where}{', ' if variant.name else ''}{variant.name}"
        lines.append(f"| {variant.provider} | {what} | {times} | {counts} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PROVIDERS, help="may be repeated")
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 20.0], help="milliseconds of a request")
    parser.add_argument("--settings", action="store_true", help="settings that may help, at the largest latency")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--side", choices=["plain", "gpuwin"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    asked = variants(args.only or list(PROVIDERS), args.latency, settings=args.settings)
    if args.side:
        print("RESULT " + json.dumps(one_side(args.side, asked)))
        return
    rows_of(WORKLOAD, small=False)
    load = os.getloadavg()[0]
    results = {}
    for side in ("plain", "gpuwin"):
        results[side] = in_process_of(__file__, ["--side", side, *sys.argv[1:]], 3600)["runs"]
    print(f"load before: {load:.1f}\n\n{table(asked, results)}")
    if not args.no_save:
        name = "settings" if args.settings else "matrix"
        result = {"workload": asdict(WORKLOAD), "load_before": load, "runs": results}
        print(f"saved in {save('object_store_cost', name, result)}")


if __name__ == "__main__":
    main()
