"""The highest steady rate of a topic at which a query keeps up, and its latency at half that rate, on both sides.

    python benchmarks/pipelines/kafka_pace.py
    python benchmarks/pipelines/kafka_pace.py --only sessions --no-save

One broker, Kafka's own producer (`ProducerPerformance`), and the query are on this machine, and share it alike on both
sides. A value is JSON with one of 10,000 keys; its event time is the record's timestamp. Windows are of a minute every
second, so that a row lies in sixty of them, as with an hour every minute. Sessions have a gap of five seconds; each of
the 10,000 keys is a seat whose visitor changes every `VISIT` seconds, not all at once, since at these rates a key that
never pauses has one session that never ends.

The rate is raised by a quarter every `STEP` seconds. A query keeps up with a rate if at the end of its step no more
rows wait than come in `BEHIND` seconds. Then half of the highest such rate flows for a while into the same query, and
the latency is that of the results of this time: from the moment at which a window, or session, could close (its end,
and the delay of the watermark) to the timestamp of its result in the sink's topic.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "pipelines")]

from kafka_throughput import PARTITIONS, make_topics, session  # noqa: E402
from pipelines_harness.broker import Broker  # noqa: E402
from pipelines_harness.maven import KAFKA, broker_jars, kafka_tools_jars  # noqa: E402
from spark_queries import in_process_of, save  # noqa: E402

from gpuwin_spark.java import find_java  # noqa: E402

SIDES = ("plain", "gpuwin")
QUERIES = ("sliding", "sessions")
KEYS, DELAY = 10_000, 2  # DELAY in seconds
VISIT = 20  # seconds
FIRST, GROWTH, STEP, BEHIND = 10_000, 1.25, 15.0, 6.0
REACHED = 0.97  # of a rate, by the producer
WARM, STEADY = 40.0, 60.0  # seconds before the first step, so that windows close; and of the measurement of latency


def payloads(folder: Path) -> Path:
    """A file of values that the producer draws from."""
    rng = np.random.default_rng(1)
    file = folder / "values"
    rows = zip(rng.integers(0, KEYS, 50_000).tolist(), rng.random(50_000).round(6).tolist(), strict=True)
    file.write_text("\n".join(json.dumps({"key": key, "value": value}) for key, value in rows))
    return file


class Flow:
    """A producer that writes at a rate."""

    def __init__(self, address: str, values: Path, rate: float, seconds: float) -> None:
        jars = ":".join(map(str, kafka_tools_jars()))
        java = [str(find_java().executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars]
        asked = ["--topic", "in", "--num-records", str(int(rate * seconds)), "--throughput", str(int(rate))]
        asked += ["--payload-file", str(values), "--bootstrap-server", address, "--command-property", "linger.ms=5"]
        main = "org.apache.kafka.tools.ProducerPerformance"
        self._process = subprocess.Popen([*java, main, *asked], stdout=subprocess.PIPE, text=True)

    def written(self) -> tuple[int, float]:
        """Waits for its end, and says how many records it wrote, and how many a second."""
        said = self._process.communicate()[0].splitlines()
        if self._process.returncode:
            raise RuntimeError(f"the producer ended with {self._process.returncode}: {said}")
        sent, reached = re.match(r"(\d+) records sent, ([\d.,]+) records/sec", said[-1]).groups()  # type: ignore[union-attr]
        return int(sent), float(reached.replace(",", "."))


def started(spark: Any, address: str, folder: Path, query: str) -> Any:
    """The query from one topic to the other."""
    from pyspark.sql import functions as F

    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", "in")
    value = F.from_json(F.col("value").cast("string"), "key long, value double")
    rows = source.load().select("timestamp", value.alias("row")).select("timestamp", "row.*")
    window = F.window("timestamp", "60 seconds", "1 second")
    if query == "sessions":
        visit = F.expr(f"key + {KEYS} * ((unix_seconds(timestamp) + key) div {VISIT})")
        rows, window = rows.withColumn("key", visit), F.session_window("timestamp", "5 seconds")
    grouped = rows.withWatermark("timestamp", f"{DELAY} seconds").groupBy("key", window.alias("window"))
    results = grouped.agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    sink = results.select(
        F.to_json(F.struct(F.unix_millis("window.end").alias("end"), "key", "n", "total")).alias("value")
    )
    writer = sink.writeStream.format("kafka").option("kafka.bootstrap.servers", address).option("topic", "out")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


class Reading:
    """Rows that a query has taken so far."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self._batches: dict[int, int] = {}

    def rows(self) -> int:
        if self._query.exception() is not None:
            raise RuntimeError(str(self._query.exception()))
        self._batches |= {p["batchId"]: p["numInputRows"] for p in self._query.recentProgress}
        return sum(self._batches.values())


def one_side(side: str, address: str, name: str) -> dict[str, Any]:
    """Raises the rate until the query falls behind, and measures the latency at half the rate before."""
    spark = session(side, {"spark.sql.streaming.numRecentProgressUpdates": "100000"})
    with tempfile.TemporaryDirectory(prefix="gpuwin-pace-") as at:
        folder = Path(at)
        values = payloads(folder)
        query = started(spark, address, folder, name)
        reading, wrote, rate, best, steps = Reading(query), 0, float(FIRST), 0.0, []
        wrote += Flow(address, values, FIRST, WARM).written()[0]
        while True:
            sent, reached = Flow(address, values, rate, STEP).written()
            wrote += sent
            behind = (wrote - reading.rows()) / rate
            steps.append({"rate": round(rate), "reached": round(reached), "seconds_behind": round(behind, 1)})
            if behind > BEHIND or reached < REACHED * rate:
                break
            best, rate = rate, rate * GROWTH
        if not best:
            raise RuntimeError(f"the {side} query does not keep up with {FIRST:,} rows/s: lower FIRST")
        while reading.rows() < wrote:  # what is left of the rate that was too much
            time.sleep(0.5)
        began = time.time() * 1e3
        sent, steady = Flow(address, values, best / 2, STEADY).written()
        wrote += sent
        ended = time.time() * 1e3
        while reading.rows() < wrote:
            time.sleep(0.5)
        query.stop()
        operators = {o.operatorName for p in query.recentProgress for o in p.stateOperators}
        if (operators == {"gpuwin"}) != (side == "gpuwin"):
            raise RuntimeError(f"the {side} run used {operators}")
        found = latency(spark, address, began, ended)
        return {"rows_per_second": round(best), "steps": steps, "steady": round(steady), **found}


def latency(spark: Any, address: str, began: float, ended: float) -> dict[str, float]:
    """Milliseconds from when a window could close to its result, of windows that could do so in this time."""
    from pyspark.sql import functions as F

    source = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", "out").load()
    end = F.from_json(F.col("value").cast("string"), "end long")["end"]
    due = source.select((end + DELAY * 1000).alias("due"), F.unix_millis("timestamp").alias("came"))
    of = due.where((F.col("due") > began + 5_000) & (F.col("due") < ended - 5_000)).select(
        (F.col("came") - F.col("due")).alias("ms")
    )
    found = of.agg(F.expr("percentile(ms, array(0.5, 0.99))").alias("at"), F.count("*").alias("n")).collect()[0]
    return {"results": found["n"], "p50_ms": found["at"][0], "p99_ms": found["at"][1]}


def measure(query: str) -> dict[str, Any]:
    sides = {}
    for side in SIDES:
        with (
            tempfile.TemporaryDirectory(prefix="gpuwin-kafka-") as folder,
            Broker(broker_jars(), Path(folder)) as broker,
        ):
            asked = ["--address", broker.address, "--only", query, "--side"]
            in_process_of(__file__, [*asked, "topics"], 300)
            load = os.getloadavg()[0]
            sides[side] = {**in_process_of(__file__, [*asked, side], 1200), "load_before": round(load, 2)}
            print(f"{query}, {side}: {sides[side]}", flush=True)
            if "timeout" in sides[side]:
                raise RuntimeError(f"the {side} side was not done in {sides[side]['timeout']} s; nothing is saved")
    ratio = round(sides["gpuwin"]["rows_per_second"] / sides["plain"]["rows_per_second"], 2)
    return {"broker": KAFKA, "keys": KEYS, "partitions": PARTITIONS, "ratio": ratio, **sides}


def topics(address: str) -> dict[str, Any]:
    """Makes both topics."""
    make_topics(session("plain", {}), address, ("in", "out"))
    return {"made": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=QUERIES, help="one of the queries")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--side", choices=["topics", *SIDES], help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        done = topics(args.address) if args.side == "topics" else one_side(args.side, args.address, args.only)
        print("RESULT " + json.dumps(done))
        return
    for query in [args.only] if args.only else QUERIES:
        result = measure(query)
        if not args.no_save:
            print(f"saved in {save('kafka_pace', query, result)}", flush=True)


if __name__ == "__main__":
    main()
