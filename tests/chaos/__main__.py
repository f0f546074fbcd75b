"""Kills processes at random, and writes a report of what the sinks held.

python -m tests.chaos --kills 200 --seed 7 --report benchmarks/results/kills.json
python -m tests.chaos --pipeline kafka-delta --kills 100 --report benchmarks/results/kills-kafka-delta.json

The report has the counts; what each query did lies beside it (kills.runs.json), and is not for the repository. A plan
that lies there as done and right is not done again: a run that was cut short goes on, and what went wrong is repeated
once it is mended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pyspark
from spark_harness import spark_home

from .campaign import CLUSTER, Campaign, Result, counted
from .strikes import PIPELINES, Plan, plans


def main() -> int:
    """Returns 0 where every sink held the oracle's rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", choices=PIPELINES, default="files", help="sources, sinks, and what is killed")
    parser.add_argument("--kills", type=int, default=200, help="in all, shared evenly among the providers")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--providers", nargs="+", default=["hdfs", "rocksdb_changelog"])
    parser.add_argument("--files", type=int, default=12, help="micro-batches of rows in one query")
    parser.add_argument("--jobs", type=int, default=1, help="queries at once")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the folders of queries that went wrong")
    args = parser.parse_args()
    share = len(args.providers)
    each = [
        plans(args.seed, args.kills // share + (n < args.kills % share), provider, args.files, PIPELINES[args.pipeline])
        for n, provider in enumerate(args.providers)
    ]
    # Alternate, so that a run cut short has killed under each of them.
    todo = [plan for turn in itertools.zip_longest(*each) for plan in turn if plan]
    done = _done_before(args.report, todo) if args.report else []
    todo = [plan for plan in todo if plan not in [r.plan for r in done]]
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as root:
        home = spark_home(Path(root))

        def one(plan: Plan) -> None:
            folder = Path(tempfile.mkdtemp(prefix="query-", dir=None if args.keep else root))
            result = Campaign(plan, folder, spark_home=home).run()
            done.append(result)
            if result.right or not args.keep:
                shutil.rmtree(folder, ignore_errors=True)
            words = "right" if result.right else f"WRONG (in {folder})" if args.keep else "WRONG"
            what = f"{plan.query}, {plan.source} to {plan.sink}, {plan.provider}"
            print(f"{what}: {len(result.kills)} kills, {result.rows} rows, {result.seconds} s: {words}", flush=True)
            if args.report:
                _write(args.report, args.seed, args.kills, done)

        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(one, todo))
    print(json.dumps(counted(done), indent=1))
    return 0 if all(r.right for r in done) else 1


def _done_before(report: Path, plans: list[Plan]) -> list[Result]:
    """The results of these plans that lie beside the report, where all was right."""
    beside = _runs_of(report)
    known = json.loads(beside.read_text()) if beside.exists() else []
    runs = {json.dumps(run["plan"], sort_keys=True): run for run in known if run["right"]}
    found = [(plan, runs.get(json.dumps(asdict(plan), sort_keys=True))) for plan in plans]
    return [Result.reported(plan, run) for plan, run in found if run]


def _runs_of(report: Path) -> Path:
    return report.with_suffix(".runs.json")


def _write(report: Path, seed: int, asked: int, done: list[Result]) -> None:
    _runs_of(report).write_text(json.dumps([r.report() for r in done]) + "\n")
    whole = {"seed": seed, "kills_asked": asked, "cluster": CLUSTER, "spark": pyspark.__version__, **counted(done)}
    report.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
