"""Whole queries over a Kafka topic, plain Spark against gpuwin: one broker, the same topic, in turns, a fresh JVM each.

    python benchmarks/pipelines/kafka_throughput.py                           # everything, once
    python benchmarks/pipelines/kafka_throughput.py --only sliding --repeat 3
    python benchmarks/pipelines/kafka_throughput.py --sink kafka --rows 200000 --no-save

The rows are those of benchmarks/spark_queries.py, as JSON, in four partitions; a batch has as many as a file has there.
A query's time is from `start()` to the end of `awaitTermination()` with `Trigger.AvailableNow`, after one run over a
small topic in the same process, whose result must be the same on both sides. It goes to the noop sink, or back to the
broker as JSON. The broker runs on this machine, and takes its share of it on both sides alike.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "pipelines")]

from pipelines_harness.broker import Broker  # noqa: E402
from pipelines_harness.maven import KAFKA, broker_jars, spark_module  # noqa: E402
from spark_queries import (  # noqa: E402
    CONF,
    WORKLOADS,
    Workload,
    aggregated,
    check,
    in_process_of,
    in_turns,
    memory,
    row_schema,
    rows_of,
    run_query,
    save,
    start,
    summary,
)

NAMES = ("sliding", "sliding_more_rows", "sessions")
PARTITIONS = 4
SINKS = ("noop", "kafka")


def topic_of(w: Workload, *, small: bool) -> str:
    return f"{w.name}-{'small' if small else 'rows'}"


# Processes of their own, since each has another JVM


def session(side: str, conf: dict[str, str]) -> Any:
    jars = spark_module("spark-sql-kafka-0-10").jars
    return start(side, {**conf, "spark.jars": ",".join(map(str, jars))})


def fill(w: Workload, address: str) -> dict[str, Any]:
    """Writes the rows of a workload into its topics, file by file, so that partitions are in order of event time."""
    from pyspark.sql import functions as F

    spark = session("plain", {})
    jvm: Any = spark._jvm
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", address)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    new = jvm.java.util.ArrayList()
    for name in (topic_of(w, small=True), topic_of(w, small=False), f"{w.name}-out"):
        new.add(jvm.org.apache.kafka.clients.admin.NewTopic(name, PARTITIONS, 1))
    admin.createTopics(new).all().get()
    admin.close()
    for small in (True, False):
        for file in sorted(rows_of(w, small=small).glob("part-*.parquet")):
            rows = spark.read.parquet(str(file)).withColumn("partition", F.expr(f"int(key % {PARTITIONS})"))
            rows = rows.select("partition", F.to_json(F.struct("key", "ts", "value")).alias("value"))
            sink = rows.write.format("kafka").option("kafka.bootstrap.servers", address)
            sink.option("topic", topic_of(w, small=small)).save()
    return {"seconds": None}


def query(spark: Any, w: Workload, address: str, *, small: bool) -> Any:
    """The workload over its topic."""
    from pyspark.sql import functions as F

    rows = max(1, w.rows_per_file // 20) if small else w.rows_per_file  # as many as rows_of puts into a file
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    source = source.option("subscribe", topic_of(w, small=small)).option("startingOffsets", "earliest")
    records = source.option("maxOffsetsPerTrigger", rows).load()
    parsed = records.select(F.from_json(F.col("value").cast("string"), row_schema(w)).alias("row")).select("row.*")
    return aggregated(parsed, w)


def one_side(side: str, w: Workload, address: str, sink: str) -> dict[str, Any]:
    from pyspark.sql import functions as F

    spark = session(side, w.conf)
    total = check(spark, w, side, query(spark, w, address, small=True))
    frame, options = query(spark, w, address, small=False), {}
    if sink == "kafka":
        frame = frame.select(F.to_json(F.struct("*")).alias("value"))
        options = {"kafka.bootstrap.servers": address, "topic": f"{w.name}-out"}
    measured = run_query(frame, side, sink, **options)
    return {**measured, "check": total, "memory": memory(spark), "conf": {**CONF, **w.conf}}


# Both sides


def measure(w: Workload, repeat: int, timeout: float, sink: str) -> dict[str, Any]:
    """Plain and gpuwin in turns, `repeat` times, over one broker."""
    for small in (True, False):
        rows_of(w, small=small)
    workload = json.dumps(asdict(w))
    with (
        tempfile.TemporaryDirectory(prefix="gpuwin-kafka-") as folder,
        Broker(broker_jars(), Path(folder)) as broker,
    ):
        asked = ["--workload", workload, "--address", broker.address, "--sink", sink]
        in_process_of(__file__, ["--side", "fill", *asked], 1800)
        load = os.getloadavg()[0]
        sides = in_turns(w, __file__, asked, repeat, timeout)
    connector = spark_module("spark-sql-kafka-0-10").version
    about = {"sink": sink, "broker": KAFKA, "connector": connector, "partitions": PARTITIONS}
    return summary({"workload": asdict(w), **about, "load_before": load, "runs": sides})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="may be repeated")
    parser.add_argument("--rows", type=int, help="rows in all, instead of the workload's own number")
    parser.add_argument("--sink", choices=SINKS, default="noop")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one side (default: %(default)s)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--side", choices=["fill", "plain", "gpuwin"], help=argparse.SUPPRESS)
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        w = Workload(**json.loads(args.workload))
        done = fill(w, args.address) if args.side == "fill" else one_side(args.side, w, args.address, args.sink)
        print("RESULT " + json.dumps(done, default=str))
        return
    for w in WORKLOADS:
        if w.name not in (args.only or NAMES):
            continue
        changed = replace(w, rows_per_file=max(1, args.rows // w.files)) if args.rows else w
        result = measure(changed, args.repeat, args.timeout, args.sink)
        print(f"{w.name}: best {result['best']}, median {result['median']}", flush=True)
        if not args.no_save:
            print(f"saved in {save('kafka_throughput', f'{w.name}_{args.sink}', result)}", flush=True)


if __name__ == "__main__":
    main()
