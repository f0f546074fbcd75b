"""What topics hold and where windows go: JSON and Avro, keys, headers and tombstones; each window, each sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pipelines_harness.events import SPARK_OPERATORS, WINDOWS, events, from_json, over_json, records, windowed
from pipelines_harness.sides import Pipeline, both
from pipelines_harness.topics import Record, Topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from spark_harness import Run, new_session

pytestmark = pytest.mark.pipelines

#: The rows of the events, as Avro has them.
AVRO = """{"type": "record", "name": "Event", "fields": [
  {"name": "k", "type": ["null", "string"]},
  {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
  {"name": "v", "type": "long"}]}"""


def sent(topics: Topics, **how: Any) -> str:
    """A new topic with the rows as JSON, in three partitions."""
    topic = topics.create()
    topics.send(topic, records(events(), **how))
    return topic


@pytest.mark.parametrize("kind", WINDOWS)
def test_json(kind: str, pipeline: Pipeline, topics: Topics) -> None:
    expected = {"spark_operators": SPARK_OPERATORS[kind]}
    done = pipeline.compare(over_json(kind), expected=expected, subscribe=sent(topics))
    assert [b.input_rows for b in done.batches if b.input_rows] == [102] * 3, "maxOffsetsPerTrigger"


@pytest.mark.parametrize("kind", WINDOWS)
def test_avro(kind: str, spark: SparkSession, pipeline: Pipeline, topics: Topics) -> None:
    """As serializers of a schema registry write it: a byte of zero, four bytes that name the schema, and the row."""
    topic = topics.create()
    rows = [(e.key, e.time / 1000, e.value, i % 3) for i, e in enumerate(events())]
    frame = spark.createDataFrame(rows, "k string, seconds double, v long, partition int").coalesce(1)
    row = F.struct("k", F.timestamp_seconds("seconds").alias("ts"), "v")
    value = F.concat(F.unhex(F.lit("0000000007")), to_avro(row, AVRO))
    sink = frame.select(value.alias("value"), "partition").write.format("kafka")
    sink.option("kafka.bootstrap.servers", pipeline.address).option("topic", topic).save()
    assert topics.ends(topic) == [102, 102, 102]

    def query(_: SparkSession, source: DataFrame) -> DataFrame:
        body = F.expr("substring(value, 6, length(value) - 5)")
        return windowed(source.select(from_avro(body, AVRO).alias("row")).select("row.*"), kind)

    pipeline.compare(query, expected={"spark_operators": SPARK_OPERATORS[kind]}, subscribe=topic)


def test_keys_and_headers(pipeline: Pipeline, topics: Topics) -> None:
    """Grouped by a header and by the record's key, with nulls in both, in windows over the record's own timestamp."""
    topic = topics.create()
    some = [(), (("country", b"NO"),), (("trace", b"\x00\xff"), ("country", b"IS")), (("country", None),)]
    made = [
        Record(e.json, None if e.key is None else e.key.encode(), i % 3, e.time, some[i % len(some)])
        for i, e in enumerate(events())
    ]
    topics.send(topic, made)

    def query(_: SparkSession, source: DataFrame) -> DataFrame:
        country = F.expr("string(get(filter(headers, h -> h.key = 'country'), 0).value)")
        columns = (country.alias("k_country"), F.col("key").cast("string").alias("k"))
        rows = source.select(*columns, F.col("timestamp").alias("ts"), F.length("value").cast("long").alias("v"))
        return windowed(rows, "sliding", "k_country", "k")

    done = pipeline.compare(query, expected={}, subscribe=topic, includeHeaders="true")
    assert set(done.column("k_country")) == {None, "NO", "IS"}
    assert {None, "", "ada"} <= set(done.column("k"))


def test_tombstones_and_values_that_are_no_json(pipeline: Pipeline, topics: Topics) -> None:
    """By the record's timestamp they are rows of a window; by a time in the value they have none, and are left out."""
    topic = topics.create(cleanup_policy="compact")
    nothing = [None, b"", b"{", b'{"k": 7}', b"\xff\xfe"]
    made = [Record(nothing[i % 5] if i % 4 == 0 else e.json, b"%d" % i, i % 3, e.time) for i, e in enumerate(events())]
    topics.send(topic, made)

    def by_record(_: SparkSession, source: DataFrame) -> DataFrame:
        rows = from_json(source, "timestamp", "value").withWatermark("timestamp", "10 seconds")
        counts = F.count("*").alias("n"), F.count("value").alias("values"), F.count("k").alias("rows")
        return rows.groupBy(F.window("timestamp", "2 minutes", "30 seconds")).agg(*counts)

    done = pipeline.compare(by_record, expected={}, subscribe=topic)
    assert sum(done.column("n")) > sum(done.column("values")) > sum(done.column("rows"))  # type: ignore[arg-type]
    pipeline.compare(over_json(), expected={}, subscribe=topic, name="by_value")


@pytest.mark.parametrize(("mode", "sink"), [("append", "parquet"), ("complete", "memory"), ("update", "foreach")])
def test_tables(mode: str, sink: str, pipeline: Pipeline, topics: Topics) -> None:
    late = mode != "complete"
    pipeline.compare(over_json(), Run(mode, sink=sink), expected={"late": late}, subscribe=sent(topics))


def test_kafka_to_kafka(spark: SparkSession, pipeline: Pipeline, topics: Topics, tmp_path: Path) -> None:
    source = sent(topics)
    outs = {enabled: topics.create(name="out") for enabled in (False, True)}

    def side(enabled: bool) -> set[str]:
        session = new_session(spark, {}, enabled=enabled)
        rows = windowed(from_json(pipeline.source(session, subscribe=source)))
        writer = rows.select(F.col("k").alias("key"), F.to_json(F.struct("*")).alias("value")).writeStream
        writer = writer.format("kafka").option("kafka.bootstrap.servers", pipeline.address)
        writer = writer.option("topic", outs[enabled]).option("checkpointLocation", str(tmp_path / str(enabled)))
        query = writer.outputMode("update").trigger(availableNow=True).start()
        query.awaitTermination()
        return {o["operatorName"] for p in query.recentProgress for o in p["stateOperators"]}

    assert both(side) == ({"stateStoreSave"}, {"gpuwin"})

    def written(enabled: bool) -> list[tuple[str | None, str]]:
        read = spark.read.format("kafka").option("kafka.bootstrap.servers", pipeline.address)
        rows = read.option("subscribe", outs[enabled]).load().selectExpr("string(key)", "string(value)").collect()
        return sorted(((r[0], r[1]) for r in rows), key=str)

    plain, device = written(False), written(True)
    assert len(plain) > 100
    assert plain == device
