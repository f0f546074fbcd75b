"""Whole queries over a Kafka topic, plain Spark against gpuwin: one broker, the same topic, in turns, a fresh JVM each.

    python benchmarks/pipelines/kafka_throughput.py                           # everything, once
    python benchmarks/pipelines/kafka_throughput.py --only sliding --repeat 3
    python benchmarks/pipelines/kafka_throughput.py --sink kafka --rows 200000 --no-save
    python benchmarks/pipelines/kafka_throughput.py --payload avro
    python benchmarks/pipelines/kafka_throughput.py --poll-records 500  # Kafka's own default, and so Spark's

The rows are those of benchmarks/spark_queries.py, as JSON or Avro, in four partitions; a batch has as many as a file
has there. A query's time is from `start()` to the end of `awaitTermination()` with `Trigger.AvailableNow`, after one
run over a small topic in the same process, whose result must be the same on both sides. It goes to the noop sink, or
back to the broker as JSON. The broker runs on this machine, and takes its share of it on both sides alike. So does
reading the topic: how long Spark takes to read and parse it, and nothing else, is measured beside them.

`--poll-records` is the source's option `kafka.max.poll.records`, on both sides alike. With Kafka's default Spark asks
the broker for the topic's offsets twice per 500 rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
POLL_RECORDS = 20_000
SINKS = ("noop", "kafka")
PAYLOADS = ("json", "avro")


@dataclass(frozen=True)
class Pipeline:
    """How rows come from the broker, and where results go: `SINKS` and `PAYLOADS`."""

    sink: str
    payload: str
    poll_records: int

    @property
    def label(self) -> str:
        most = "" if self.poll_records == POLL_RECORDS else f"_poll_{self.poll_records}"
        return f"{self.payload}_{self.sink}{most}"


def topic_of(w: Workload, *, small: bool) -> str:
    return f"{w.name}-{'small' if small else 'rows'}"


# Processes of their own, since each has another JVM


def session(side: str, conf: dict[str, str]) -> Any:
    jars = [jar for name in ("spark-sql-kafka-0-10", "spark-avro") for jar in spark_module(name).jars]
    return start(side, {**conf, "spark.jars": ",".join(map(str, jars))})


def make_topics(spark: Any, address: str, names: Sequence[str]) -> None:
    """Makes topics of `PARTITIONS` partitions."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", address)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    new = jvm.java.util.ArrayList()
    for name in names:
        new.add(jvm.org.apache.kafka.clients.admin.NewTopic(name, PARTITIONS, 1))
    admin.createTopics(new).all().get()
    admin.close()


def avro_schema(w: Workload) -> str:
    """The columns of a row, as Avro."""
    kinds = {"key": w.key, "ts": {"type": "long", "logicalType": "timestamp-micros"}, "value": "double"}
    return json.dumps({"type": "record", "name": "row", "fields": [{"name": n, "type": t} for n, t in kinds.items()]})


def fill(w: Workload, address: str, pipeline: Pipeline) -> dict[str, Any]:
    """Writes the rows of a workload into its topics, file by file, so that partitions are in order of event time."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import to_avro

    spark = session("plain", {})
    make_topics(spark, address, (topic_of(w, small=True), topic_of(w, small=False), f"{w.name}-out"))
    for small in (True, False):
        for file in sorted(rows_of(w, small=small).glob("part-*.parquet")):
            rows = spark.read.parquet(str(file)).withColumn("partition", F.expr(f"int(key % {PARTITIONS})"))
            row = F.struct("key", "ts", "value")
            value = F.to_json(row) if pipeline.payload == "json" else to_avro(row, avro_schema(w))
            rows = rows.select("partition", value.alias("value"))
            sink = rows.write.format("kafka").option("kafka.bootstrap.servers", address)
            sink.option("topic", topic_of(w, small=small)).save()
    return {"seconds": None}


def rows_in(spark: Any, w: Workload, address: str, pipeline: Pipeline, *, small: bool) -> Any:
    """The rows of a topic, parsed."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    rows = max(1, w.rows_per_file // 20) if small else w.rows_per_file  # as many as rows_of puts into a file
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    source = source.option("subscribe", topic_of(w, small=small)).option("startingOffsets", "earliest")
    source = source.option("kafka.max.poll.records", pipeline.poll_records)
    records = source.option("maxOffsetsPerTrigger", rows).load()
    value = F.col("value")
    row = from_json(value, w) if pipeline.payload == "json" else from_avro(value, avro_schema(w))
    return records.select(row.alias("row")).select("row.*")


def from_json(value: Any, w: Workload) -> Any:
    from pyspark.sql import functions as F

    return F.from_json(value.cast("string"), row_schema(w))


def read(w: Workload, address: str, pipeline: Pipeline) -> dict[str, Any]:
    """Reads and parses the topic, after the small one, and throws the rows away."""
    spark, took = session("plain", w.conf), 0.0
    for small in (True, False):
        rows = rows_in(spark, w, address, pipeline, small=small)
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
            began = time.perf_counter()
            writer.trigger(availableNow=True).start().awaitTermination()
            took = time.perf_counter() - began
    return {"seconds": round(took, 3)}


def one_side(side: str, w: Workload, address: str, pipeline: Pipeline) -> dict[str, Any]:
    from pyspark.sql import functions as F

    spark = session(side, w.conf)
    total = check(spark, w, side, aggregated(rows_in(spark, w, address, pipeline, small=True), w))
    frame, options = aggregated(rows_in(spark, w, address, pipeline, small=False), w), {}
    if pipeline.sink == "kafka":
        frame = frame.select(F.to_json(F.struct("*")).alias("value"))
        options = {"kafka.bootstrap.servers": address, "topic": f"{w.name}-out"}
    measured = run_query(frame, side, pipeline.sink, **options)
    return {**measured, "check": total, "memory": memory(spark), "conf": {**CONF, **w.conf}}


# Both sides


def measure(w: Workload, repeat: int, timeout: float, pipeline: Pipeline) -> dict[str, Any]:
    """Plain and gpuwin in turns, `repeat` times, over one broker."""
    for small in (True, False):
        rows_of(w, small=small)
    workload = json.dumps(asdict(w))
    with (
        tempfile.TemporaryDirectory(prefix="gpuwin-kafka-") as folder,
        Broker(broker_jars(), Path(folder)) as broker,
    ):
        asked = ["--workload", workload, "--address", broker.address]
        asked += ["--sink", pipeline.sink, "--payload", pipeline.payload, "--poll-records", str(pipeline.poll_records)]
        in_process_of(__file__, ["--side", "fill", *asked], 1800)
        load = os.getloadavg()[0]
        sides = in_turns(w.name, __file__, asked, repeat, timeout)
        reading = in_process_of(__file__, ["--side", "read", *asked], timeout)["seconds"]
        print(f"  {w.name} reading alone: {reading} s", flush=True)
    connector = spark_module("spark-sql-kafka-0-10").version
    about = {**asdict(pipeline), "broker": KAFKA, "connector": connector, "partitions": PARTITIONS}
    about["reading_seconds"] = reading
    return summary({"workload": asdict(w), **about, "load_before": load, "runs": sides})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=NAMES, help="may be repeated")
    parser.add_argument("--rows", type=int, help="rows in all, instead of the workload's own number")
    parser.add_argument("--sink", choices=SINKS, default="noop")
    parser.add_argument("--payload", choices=PAYLOADS, default="json")
    parser.add_argument("--poll-records", type=int, default=POLL_RECORDS, help="per poll (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one side (default: %(default)s)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--side", choices=["fill", "read", "plain", "gpuwin"], help=argparse.SUPPRESS)
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    args = parser.parse_args()
    pipeline = Pipeline(args.sink, args.payload, args.poll_records)
    if args.side:
        w = Workload(**json.loads(args.workload))
        of = (w, args.address, pipeline)
        if args.side in ("fill", "read"):
            done = fill(*of) if args.side == "fill" else read(*of)
        else:
            done = one_side(args.side, *of)
        print("RESULT " + json.dumps(done, default=str))
        return
    for w in WORKLOADS:
        if w.name not in (args.only or NAMES):
            continue
        changed = replace(w, rows_per_file=max(1, args.rows // w.files)) if args.rows else w
        result = measure(changed, args.repeat, args.timeout, pipeline)
        print(f"{w.name}: best {result['best']}, median {result['median']}", flush=True)
        if not args.no_save:
            print(f"saved in {save('kafka_throughput', f'{w.name}_{pipeline.label}', result)}", flush=True)


if __name__ == "__main__":
    main()
