"""Clicks from a Kafka topic, counted per user in sliding windows, into a Delta table: docs/pipelines.md, step by step.

    export PYSPARK_SUBMIT_ARGS="--packages \\
    org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,io.delta:delta-spark_4.2_2.13:4.4.0 pyspark-shell"
    python examples/kafka_to_delta.py --broker localhost:9092 --topic clicks --fill 1000000      # clicks to try it with
    python examples/kafka_to_delta.py --broker localhost:9092 --topic clicks --folder /data/clicks

A value of the topic is one click as JSON: {"user": "ada", "at": "2026-01-01T12:00:00Z", "spent": 9.5}. Nothing of the
query is gpuwin's but the one call of `configure`. In append mode each window is a row of the table, once, when it has
closed; in update mode it is there from its first click on, and is replaced while it changes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import gpuwin as gw

CLICK = "user string, at timestamp, spent decimal(10,2)"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("clicks")
    for key, value in {**DELTA, "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}.items():
        builder = builder.config(key, value)
    return gw.spark.configure(builder).getOrCreate()


def fill(spark: SparkSession, broker: str, topic: str, count: int) -> None:
    """Writes clicks of a thousand users into the topic, in order of time, over six hours of 2026-01-01."""
    rows = (
        spark.range(count)
        .coalesce(1)
        .select(
            F.concat(F.lit("user "), F.col("id") * 7919 % 1000).alias("user"),
            F.timestamp_seconds(1_767_225_600 + F.col("id") * 21_600 / count).alias("at"),
            (F.col("id") % 100 / 4).alias("spent"),
        )
    )
    sink = rows.select(F.to_json(F.struct("*")).alias("value")).write.format("kafka")
    sink.option("kafka.bootstrap.servers", broker).option("topic", topic).save()


def clicks(spark: SparkSession, broker: str, topic: str) -> DataFrame:
    """The rows of the topic from its beginning. A value that is no JSON has no time, and is in no window."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
    source = source.option("kafka.max.poll.records", "20000")  # docs/pipelines.md says why
    records = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "1000000").load()
    return records.select(F.from_json(F.col("value").cast("string"), CLICK).alias("click")).select("click.*")


def last_hour(rows: DataFrame) -> DataFrame:
    """Clicks and spending of each user in the last hour, every minute."""
    windows = rows.withWatermark("at", "1 minute").groupBy("user", F.window("at", "1 hour", "1 minute"))
    results = windows.agg(F.count("*").alias("clicks"), F.sum("spent").alias("spent"))
    return results.select(
        "user", F.col("window.start").alias("start"), F.col("window.end").alias("end"), "clicks", "spent"
    )


def replace_in(table: Path) -> object:
    """A function for foreachBatch: rows take the place of those of the same user and window.

    A batch that is done twice, as after a crash, leaves what it leaves when it is done once.
    """

    def merge(batch: DataFrame, _: int) -> None:
        spark = batch.sparkSession
        spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` ({batch.schema.toDDL()}) USING delta")
        batch.createOrReplaceTempView("changes")
        spark.sql(
            f"MERGE INTO delta.`{table}` AS t USING changes AS c "
            "ON t.user <=> c.user AND t.start = c.start AND t.end = c.end "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return merge


def start(results: DataFrame, folder: Path, mode: str, to_the_end: bool) -> StreamingQuery:
    """The query into the table `folder`/table. Delta knows the batches of append mode, and takes each of them once."""
    writer = results.writeStream.outputMode(mode).option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(availableNow=True) if to_the_end else writer.trigger(processingTime="10 seconds")
    table = folder / "table"
    if mode == "append":
        return writer.format("delta").start(str(table))
    return writer.foreachBatch(replace_in(table)).start()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="localhost:9092")
    parser.add_argument("--topic", default="clicks")
    parser.add_argument("--folder", type=Path, default=Path("clicks"), help="for the table and the checkpoint")
    parser.add_argument("--fill", type=int, metavar="N", help="only write N clicks into the topic")
    parser.add_argument("--mode", choices=["append", "update"], default="append")
    parser.add_argument("--to-the-end", action="store_true", help="read what is there now, and end")
    options = parser.parse_args(arguments)
    spark = session()
    if options.fill:
        fill(spark, options.broker, options.topic, options.fill)
        return
    folder = options.folder.resolve()
    results = last_hour(clicks(spark, options.broker, options.topic))
    query = start(results, folder, options.mode, options.to_the_end)
    query.awaitTermination()
    print(gw.spark.explain(query))
    spark.read.format("delta").load(str(folder / "table")).orderBy(F.desc("end"), "user").show(5, truncate=False)


if __name__ == "__main__":
    main()
