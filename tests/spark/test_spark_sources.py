"""Where rows come from and go to: file formats, the socket and rate sources, SQL and DataFrame, each trigger.

Text and CSV on every run; the others by `pytest tests/spark/test_spark_sources.py -m sweep`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import FAST, Stream, StreamSpec, row_differences, rows_of, stamp, write

Rows = list[tuple[object, ...]]
Read = Callable[[SparkSession], DataFrame]
Feed = Callable[[StreamingQuery], None]

SCHEMA = "k short, ts timestamp, v long, s string"
NAMES = {False: {"stateStoreSave"}, True: {"gpuwin"}}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=6, batches=3, rows=60, empty=None), tmp_path_factory.mktemp("sources") / "stream")


def aggregated(frame: DataFrame) -> DataFrame:
    grouped = frame.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", "1 minute", "20 seconds"))
    return grouped.agg(F.count("*").alias("n"), F.sum("v").alias("sum_v"), F.max("s").alias("max_s"))


def aggregated_in_sql(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("stream")
    session = frame.sparkSession
    session.sql(
        "CREATE OR REPLACE TEMP VIEW marked AS SELECT k, ts, v, s FROM stream WATERMARK ts DELAY OF INTERVAL 10 SECONDS"
    )
    return session.sql(
        "SELECT k, window(ts, '1 minute', '20 seconds') AS window, count(*) AS n, sum(v) AS sum_v, max(s) AS max_s "
        "FROM marked GROUP BY k, window(ts, '1 minute', '20 seconds')"
    )


def ran(
    spark: SparkSession,
    read: Read,
    folder: Path,
    enabled: bool,
    trigger: dict[str, Any],
    feed: Feed | None = None,
    query: Callable[[DataFrame], DataFrame] = aggregated,
) -> tuple[Rows, list[str]]:
    """The rows of the sink and the watermarks of the batches that ran."""
    session = spark.newSession()
    for key, value in {**FAST, "spark.sql.shuffle.partitions": "2", "spark.gpuwin.enabled": str(enabled)}.items():
        session.conf.set(key, value)
    seen: Rows = []

    def see(frame: DataFrame, _: int) -> None:
        seen.extend(rows_of(frame))

    writer = query(read(session)).writeStream.foreachBatch(see).option("checkpointLocation", str(folder / str(enabled)))
    started = writer.trigger(**trigger).start()
    if feed is None:
        started.awaitTermination()
    else:
        feed(started)
        started.stop()
    progress = [p for p in started.recentProgress if "addBatch" in p["durationMs"]]
    assert {o["operatorName"] for p in progress for o in p["stateOperators"]} == NAMES[enabled]
    return seen, [p["eventTime"]["watermark"] for p in progress]


def files(spark: SparkSession, stream: Stream, form: str, folder: Path) -> Read:
    """The stream in another format, a file for each of its batches."""
    for i, path in enumerate(stream.files):
        rows = spark.read.parquet(str(path)).selectExpr(
            "short k", "ts", "long v", "coalesce(nullif(str, ''), 'none') s"
        )
        rows = rows.selectExpr("to_json(struct(*)) value") if form == "text" else rows
        rows.coalesce(1).write.format(form).save(str(folder / f"{i}"))
        for written in (folder / f"{i}").glob("part-*"):
            stamp(written, i)

    def read(session: SparkSession) -> DataFrame:
        reader = session.readStream.format(form).option("maxFilesPerTrigger", 1)
        if form != "text":
            return reader.schema(SCHEMA).load(str(folder / "*"))
        return reader.load(str(folder / "*")).select(F.from_json("value", SCHEMA).alias("row")).select("row.*")

    return read


def check(plain: tuple[Rows, list[str]], device: tuple[Rows, list[str]]) -> None:
    assert len(plain[0]) > 20
    assert list(row_differences(plain[0], device[0])) == []
    assert plain[1] == device[1]


def both_from_files(
    spark: SparkSession, stream: Stream, form: str, folder: Path, trigger: dict[str, Any], **query: Any
) -> None:
    read = files(spark, stream, form, folder / "in")
    feed = None if "processingTime" not in trigger else StreamingQuery.processAllAvailable
    plain, device = (ran(spark, read, folder, e, trigger, feed, **query) for e in (False, True))
    check(plain, device)


@pytest.mark.parametrize("form", ["csv", "text"])
def test_files_of_text(form: str, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Lines of CSV, and lines of JSON that the query reads itself."""
    both_from_files(spark, stream, form, tmp_path, {"availableNow": True})


@pytest.mark.sweep
@pytest.mark.parametrize("trigger", ["availableNow", "processingTime"])
@pytest.mark.parametrize("form", ["json", "csv", "orc", "parquet", "text"])
def test_formats(form: str, trigger: str, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    how = {"availableNow": True} if trigger == "availableNow" else {"processingTime": "0 seconds"}
    both_from_files(spark, stream, form, tmp_path, how)


@pytest.mark.sweep
def test_watermark_in_sql(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """SQL text alone, the watermark included."""
    both_from_files(spark, stream, "json", tmp_path, {"availableNow": True}, query=aggregated_in_sql)


@contextmanager
def lines(stream: Stream) -> Iterator[tuple[int, Feed]]:
    """A server that writes the rows of the stream as text, a batch at a time, when it is told to."""
    server = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connections.append(server.accept()[0])
            except OSError:
                return

    def await_rows(query: StreamingQuery, rows: int) -> None:
        deadline = time.monotonic() + 60
        while sum(p["numInputRows"] for p in query.recentProgress) < rows:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        query.processAllAvailable()

    def feed(query: StreamingQuery) -> None:
        deadline = time.monotonic() + 60
        while not connections:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        sent = 0
        for path in stream.files:
            table = pq.read_table(path, columns=["short", "ts"])
            times = table["ts"].cast("int64").to_pylist()
            rows = [f"{k},{t},x{t}" for k, t in zip(table["short"].to_pylist(), times, strict=True) if t is not None]
            connections[-1].sendall("".join(f"{row}\n" for row in rows).encode())
            sent += len(rows)
            await_rows(query, sent)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], feed
    finally:
        for c in connections:
            c.close()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


@pytest.mark.sweep
def test_socket(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    sides = []
    for enabled in (False, True):
        with lines(stream) as (port, feed):

            def read(session: SparkSession, port: int = port) -> DataFrame:
                text = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
                cut = text.select(F.split("value", ",").alias("c"))
                columns = "try_cast(c[0] AS short) k", "timestamp_micros(cast(c[1] AS long)) ts", "1L v", "c[2] s"
                return cut.selectExpr(*columns)

            sides.append(ran(spark, read, tmp_path, enabled, {"processingTime": "0 seconds"}, feed))
    # How many lines a batch takes is chance, so only the rows are compared, which no line is late for.
    assert len(sides[0][0]) > 20
    assert list(row_differences(sides[0][0], sides[1][0])) == []


def await_batch(number: int) -> Feed:
    def feed(query: StreamingQuery) -> None:
        deadline = time.monotonic() + 60
        while not query.recentProgress or query.recentProgress[-1]["batchId"] < number:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    return feed


@pytest.mark.sweep
def test_rate_per_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The rate source that says how many rows a batch has; each side runs on until it is stopped."""

    def read(session: SparkSession) -> DataFrame:
        source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 500)
        timed = source.option("startTimestamp", "1700000000000").option("advanceMillisPerBatch", "7000")
        return timed.load().selectExpr(
            "cast(value % 7 AS short) k", "timestamp ts", "value v", "cast(value AS string) s"
        )

    plain, device = (
        ran(spark, read, tmp_path, e, {"processingTime": "0 seconds"}, await_batch(14)) for e in (False, True)
    )
    common = min(len(plain[1]), len(device[1]))
    assert plain[1][:common] == device[1][:common]
    last = min(max(row[3] for row in side[0]) for side in (plain, device))  # type: ignore[type-var]
    first, second = ([r for r in side[0] if r[3] <= last] for side in (plain, device))  # type: ignore[operator]
    assert len(first) > 7
    assert list(row_differences(first, second)) == []


@pytest.mark.sweep
def test_rate_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    """The rate source counts as time passes, so a window's rows are numbers without a gap."""

    def seconds(frame: DataFrame) -> DataFrame:
        counted = frame.withWatermark("timestamp", "0 seconds").groupBy(F.window("timestamp", "1 second"))
        return counted.agg(F.count("*").alias("n"), F.min("value").alias("low"), F.max("value").alias("high"))

    def read(session: SparkSession) -> DataFrame:
        return session.readStream.format("rate").option("rowsPerSecond", 100).load()

    rows, _ = ran(spark, read, tmp_path, True, {"processingTime": "500 milliseconds"}, await_batch(8), seconds)
    assert len(rows) > 1
    assert all(high - low + 1 == n > 0 for *_, n, low, high in rows)  # type: ignore[operator]
