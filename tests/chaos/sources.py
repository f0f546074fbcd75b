"""Sources of the queries: a folder of files, and a Kafka topic on a broker that can be killed.

A source is used on both sides: the harness writes it and asks how far a query has come, and the driver reads it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_harness import isolated

from . import stream
from .stream import SCHEMA, InputRow, Rows

if TYPE_CHECKING:
    from pipelines_harness.broker import Broker
    from pyspark.sql import DataFrame, SparkSession


class Source(Protocol):
    """Where the rows of a query come from, one file of them a micro-batch."""

    def jars(self) -> tuple[Path, ...]:
        """What the driver needs beside gpuwin's jar. Raises `pipelines_harness.maven.Unreachable`."""

    def write(self, data: Rows, folder: Path) -> None:
        """Makes ready what needs no process."""

    def serving(self, data: Rows, folder: Path) -> AbstractContextManager[Broker | None]:
        """The time in which the query can read; with the process that serves the rows, if there is one."""

    def read(self, spark: SparkSession, folder: Path) -> DataFrame:
        """The stream, in the driver."""

    def rows_before(self, data: Rows, offset: Mapping[str, Any]) -> int:
        """How many rows lie before an offset, as Spark's log of offsets has it."""


class Files:
    """A folder of Parquet files."""

    def jars(self) -> tuple[Path, ...]:
        return ()

    def write(self, data: Rows, folder: Path) -> None:
        stream.write(data, folder / "source")

    def serving(self, data: Rows, folder: Path) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def read(self, spark: SparkSession, folder: Path) -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "source"))

    def rows_before(self, data: Rows, offset: Mapping[str, Any]) -> int:
        return sum(map(len, data.files[: offset["logOffset"] + 1]))


class Topic:
    """A topic of one partition, with JSON, on a broker of its own. A batch is as many records as a file has rows.

    One partition, since specifications with triggers go by the order in which rows come.
    """

    def jars(self) -> tuple[Path, ...]:
        from pipelines_harness.maven import spark_module

        return spark_module("spark-sql-kafka-0-10").jars

    def write(self, data: Rows, folder: Path) -> None:
        pass

    @contextlib.contextmanager
    def serving(self, data: Rows, folder: Path) -> Iterator[Broker]:
        from pipelines_harness.broker import Broker
        from pipelines_harness.maven import broker_jars

        with Broker(broker_jars(), folder / "broker") as broker:
            topic = isolated(_fill, broker.address, self.jars(), data, folder / "filling")
            known = {"address": broker.address, "topic": topic, "batch": len(data.files[0])}
            (folder / "topic.json").write_text(json.dumps(known))
            yield broker

    def read(self, spark: SparkSession, folder: Path) -> DataFrame:
        from pyspark.sql import functions as F

        known = json.loads((folder / "topic.json").read_text())
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", known["address"])
        reader = reader.option("subscribe", known["topic"]).option("startingOffsets", "earliest")
        records = reader.option("maxOffsetsPerTrigger", known["batch"]).load()
        return records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")

    def rows_before(self, data: Rows, offset: Mapping[str, Any]) -> int:
        (partitions,) = offset.values()
        return int(partitions["0"])


def _fill(address: str, jars: tuple[Path, ...], data: Rows, folder: Path) -> str:
    """Makes a topic with all rows, in a process of its own, and returns its name."""
    from pipelines_harness.topics import Record, Topics
    from spark_harness import end_jvm, start_session

    spark = start_session(folder, "local[1]", {"spark.jars": ",".join(map(str, jars))})
    with Topics(spark, address) as topics:
        topic = topics.create(1)
        topics.send(topic, [Record(as_json(row), partition=0) for file in data.files for row in file])
    end_jvm(spark)
    return topic


def as_json(row: InputRow) -> bytes:
    """A row as a record of the topic has it."""
    key, seconds, value = row
    at = dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({"key": key, "ts": at, "value": value}).encode()


SOURCES: Final[dict[str, Source]] = {"files": Files(), "kafka": Topic()}
