"""The map side of a window alone: as it is today, in Spark's JVM, and on the service.

    python benchmarks/map_side/measure.py --json out.json

Today: scan, aggregation by (key, pane) or merging of sessions, rows for the shuffle. On the service: columns copied to
shared memory, kernels, one Arrow payload a partition for the shuffle. Both read the same Parquet files, a file a job,
in one JVM: windows of a minute in turns, sessions after a streaming query, since only such a one plans `ProtoSessions`.
The first jobs of each warm up. Processor time is of the map stage's tasks, as Spark counts it, and of the service.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from spark_map_side import map_stages  # noqa: E402
from spark_queries import CONF, Workload, in_process_of, machine, query, rows_of, run_query  # noqa: E402

from gpuwin_spark.installed_spark import find_spark  # noqa: E402
from gpuwin_spark.java import find_java, prepare_environment  # noqa: E402

PARTITIONS = 2
WARM = 8


def compiled(folder: Path) -> Path:
    """A jar-less folder with the classes of MapSide.scala."""
    java, jars = find_java().executable, find_spark().jars
    command = [str(java), "-Xss8m", "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp", "-nowarn"]
    subprocess.run([*command, "-d", str(folder), str(HERE / "MapSide.scala")], check=True)
    return folder


@dataclass(frozen=True)
class Case:
    """`rows` of a job; `gap` of sessions in microseconds, 0 for windows of a minute."""

    keys: int
    rows: int
    gap: int = 0


CASES = [Case(10_000, 500_000), Case(1_000_000, 500_000), Case(10_000, 1_000_000, 30_000_000)]


def measure(case: Case, files: int) -> dict[str, Any]:
    """Figures of one case; in a process of its own, since a JVM lives as long as its Python."""
    from pyspark.sql import SparkSession

    import gpuwin as gw

    prepare_environment()
    source = rows_of(Workload("map", 60, 60, files, case.rows, case.keys, 6 * 3600, 1.0), small=False)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        folder = Path(name)
        builder = SparkSession.builder.master("local[2]")
        for key, value in {**CONF, **conf_of(folder)}.items():
            builder = builder.config(key, value)
        socket = f"{shared}/s"
        command = [sys.executable, str(HERE / "service.py"), socket, str(PARTITIONS), str(case.gap)]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            spark = gw.spark.configure(builder, device="cpu").getOrCreate()
            spark.sparkContext.setLogLevel("ERROR")
            sides = run_both(spark, case, source, socket, shared)
            spark.stop()
        finally:
            service.terminate()
        assert service.stdout is not None
        answers = [[float(x) for x in line.split()] for line in service.stdout]
        log = next(p for p in (folder / "events").rglob("*") if p.is_file() and p.stat().st_size > 1000)
        stages = map_stages(log)
    assert len(stages) == len(sides), (len(stages), len(sides))
    assert len(answers) == files, len(answers)
    return figures(case, stages, sides, answers)


def conf_of(folder: Path) -> dict[str, str]:
    (folder / "events").mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.eventLog.compress": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.files.minPartitionNum": "1",  # one task a file, as of a micro-batch
        "spark.driver.extraClassPath": str(compiled(folder)),
    }


def run_both(spark: Any, case: Case, source: Path, socket: str, shared: str) -> list[str]:
    """Runs the jobs; returns which side each of them was."""
    from pyspark.sql import functions as F

    run = spark._jvm.org.apache.spark.sql.gpuwin.benchmarks.MapSide.run
    sides: list[str] = []
    files = sorted(source.glob("*.parquet"))
    if case.gap:
        w = Workload("map", case.gap // 1_000_000, 0, len(files), case.rows, case.keys, 6 * 3600, 1.0)
        batches = run_query(query(spark, w, source), "gpuwin", "noop")["batches"]
        sides += ["today" for b in batches if b["rows"]]
    for file in files:
        rows = spark.read.schema("key long, ts timestamp, value double").parquet(str(file))
        if not case.gap:
            pane = F.expr("unix_micros(ts) div 60000000").alias("pane")
            counted = rows.groupBy("key", pane).agg(F.count("*"), F.sum("value"))
            counted.write.format("noop").mode("overwrite").save()
            sides.append("today")
        run(rows._jdf.queryExecution(), socket, shared, PARTITIONS, case.rows)
        sides.append("service")
    return sides


def figures(case: Case, stages: list[dict[str, float]], sides: list[str], answers: list[list[float]]) -> dict[str, Any]:
    """Medians of the jobs after the first `WARM` of each side."""
    out: dict[str, Any] = {}
    for side in ("today", "service"):
        own = [s for s, name in zip(stages, sides, strict=True) if name == side][WARM:]
        out[side] = {k: round(statistics.median(s[k] for s in own), 1) for k in own[0]}
    out["service"]["kernels_cpu_ms"] = round(1e3 * statistics.median(a[0] for a in answers[WARM:]), 1)
    out["service"]["kernels_ms"] = round(1e3 * statistics.median(a[1] for a in answers[WARM:]), 1)
    cpu = out["service"]["cpu_ms"] + out["service"]["kernels_cpu_ms"]
    out["ratio_cpu"] = round(out["today"]["cpu_ms"] / cpu, 2)
    out["ratio_wall"] = round(out["today"]["ms"] / out["service"]["ms"], 2)
    window = f"sessions, gap {case.gap // 1_000_000} s" if case.gap else "1 min"
    return {"window": window, "keys": case.keys, "rows": case.rows, "jobs": len(answers) - WARM, **out}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=28)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print("RESULT " + json.dumps(measure(CASES[args.case], args.files)))
        return
    load = os.getloadavg()
    own = ["--files", str(args.files), "--case"]
    found = [in_process_of(__file__, [*own, str(number)], 300.0) for number in range(len(CASES))]
    text = json.dumps({"machine": machine(), "load_before": load, "cases": found}, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
