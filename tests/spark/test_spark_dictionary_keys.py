"""Keys of strings that a Parquet file has in a dictionary: their partition, and their place in what is sent, are found
once for each string of the dictionary. Rows are plain Spark's, however the files have their strings.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import (
    DEVICE,
    SPARK_SESSIONS,
    Both,
    Query,
    Recording,
    Run,
    Stream,
    assert_below,
    assert_equal,
    last_plan,
    map_side_metric,
    run,
)
from spark_harness.streams import stamp

ROWS = 6_000
LONG = "x" * 90
SCHEMA = "ts timestamp, key string, other string, number long"
#: The last plan of a run is one of a batch with rows.
CONF = {**DEVICE, "spark.sql.streaming.noDataMicroBatches.enabled": "false"}

#: How a file has its strings, by the options of its writer.
FILES: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "a dictionary for each thousand rows": {"row_group_size": 1_000},
    "no dictionary": {"use_dictionary": False},
    # The writer gives its dictionary up at so many bytes, and goes on with the strings themselves.
    "dictionary, then strings": {"dictionary_pagesize_limit": 4_000, "data_page_size": 2_000, "write_batch_size": 64},
    "no nulls": {},
}


def table(seed: int, batch: int, *, nulls: bool = True) -> pa.Table:
    rng = np.random.default_rng([seed, batch])
    drawn = rng.integers(0, 400, ROWS)
    missing = (rng.random(ROWS) < 0.05) & nulls
    second = 1_700_000_000 + 60 * batch + rng.integers(0, 150, ROWS)
    # The order of the strings in the dictionary is that of their first rows: another one in each file.
    return pa.table(
        {
            "ts": pa.array(second * 1_000_000, pa.timestamp("us", "UTC")),
            "key": pa.array([f"{LONG}{k}" if k else "" for k in drawn.tolist()], mask=missing),
            "other": pa.array([f"o{k % 3}" for k in drawn.tolist()]),
            "number": rng.integers(-1000, 1000, ROWS),
        }
    )


def written(folder: Path, options: list[dict[str, Any]], *, nulls: bool = True) -> Stream:
    """Three micro-batches, each with a file of every one of the options."""
    folder.mkdir(parents=True)
    batches = []
    for batch in range(3):
        paths = []
        for i, of in enumerate(options):
            path = folder / f"{batch}-{i}.parquet"
            pq.write_table(table(i, batch, nulls=nulls), path, **of)
            stamp(path, 100 * batch + i)
            paths.append(path)
        batches.append(tuple(paths))
    return Stream(tuple(batches))


def windows(frame: DataFrame, key: str = "key") -> DataFrame:
    grouped = frame.withWatermark("ts", "20 seconds").groupBy(key, F.window("ts", "1 minute"))
    return grouped.agg(F.count("*").alias("n"), F.sum("number").alias("s"))


def tumbling(_: SparkSession, frame: DataFrame) -> DataFrame:
    return windows(frame)


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_rows_are_sparks_however_a_file_has_its_strings(name: str, both: Both, tmp_path: Path) -> None:
    stream = written(tmp_path / "stream", [FILES[name]], nulls=name != "no nulls")
    conf = {**CONF, "spark.sql.parquet.columnarReaderBatchSize": "100"}
    _, device = both(tumbling, stream, Run("update", conf=conf), schema=SCHEMA, late=None)
    assert_coded(device)


@pytest.mark.parametrize("most", ["65535", "1"])
def test_files_of_all_kinds_in_one_task(most: str, both: Both, tmp_path: Path) -> None:
    """With chunks of a few rows; and where Spark finds its generated code too long, too."""
    stream = written(tmp_path / "stream", list(FILES.values()))
    small = {"spark.gpuwin.chunk.bytes": "8192", "spark.gpuwin.mapside.bytes": "65536"}
    conf = {**CONF, **small, "spark.sql.codegen.hugeMethodLimit": most, "spark.sql.files.maxPartitionBytes": "1g"}
    _, device = both(tumbling, stream, Run("append", conf=conf), schema=SCHEMA, late=None)
    assert_coded(device)


def sent_bytes(spark: SparkSession, stream: Stream, folder: Path) -> list[int]:
    """Bytes of rows that the map side sent in each batch but the last."""
    seen: list[int] = []

    def look(_: int, query: StreamingQuery | None) -> None:
        if query is not None:
            seen.append(map_side_metric(query, "gpuwinBytesToDevice"))

    how = Run("update", "processing", conf=CONF)
    found = run(spark, tumbling, stream, how, folder / "device", enabled=True, schema=SCHEMA, before_batch=look)
    plain = run(spark, tumbling, stream, how, folder / "plain", enabled=False, schema=SCHEMA)
    assert_equal(plain, found, late=None)
    return seen


def test_a_string_is_sent_once_for_all_rows_of_a_chunk(spark: SparkSession, tmp_path: Path) -> None:
    coded = sent_bytes(spark, written(tmp_path / "a", [{}]), tmp_path / "coded")
    alone = sent_bytes(spark, written(tmp_path / "b", [FILES["no dictionary"]]), tmp_path / "alone")
    assert min(alone) > len(LONG) * ROWS * 0.9
    assert max(coded) < 400 * 2 * len(LONG) + 40 * ROWS


def renamed(_: SparkSession, frame: DataFrame) -> DataFrame:
    return windows(frame.withColumnRenamed("key", "k").where("number % 7 <> 0"), "k")


def filtered_by_key(_: SparkSession, frame: DataFrame) -> DataFrame:
    return windows(frame.where("key like '%7'"))


def of_columns_that_are_not_read(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "20 seconds").groupBy("key", F.window("ts", "2 minutes", "30 seconds")).count()


def sessions(_: SparkSession, frame: DataFrame) -> DataFrame:
    """Late rows of sessions are dropped below the shuffle."""
    grouped = frame.withWatermark("ts", "1 second").groupBy("key", F.session_window("ts", "2 seconds"))
    return grouped.agg(F.count("*").alias("n"), F.min("number").alias("least"))


def most_of_keys(_: SparkSession, frame: DataFrame) -> DataFrame:
    grouped = frame.withWatermark("ts", "20 seconds").groupBy("key", F.window("ts", "1 minute"))
    return grouped.agg(F.max("key").alias("most"), F.count("*").alias("n"))


LONG_QUERIES = [renamed, filtered_by_key, of_columns_that_are_not_read, most_of_keys]


@pytest.mark.parametrize("query", [*(pytest.param(q, marks=pytest.mark.long) for q in LONG_QUERIES), sessions])
def test_queries_between(query: Query, both: Both, tmp_path: Path) -> None:
    stream = written(tmp_path / "stream", [{}, FILES["no dictionary"]])
    operators = {"spark_operators": SPARK_SESSIONS} if query is sessions else {}
    how = Run("append", conf=CONF)
    _, device = both(query, stream, how, schema=SCHEMA, late=query is sessions or None, **operators)
    assert_coded(device)


@pytest.mark.long
def test_vectors_outside_the_heap_and_files_without_the_column(both: Both, tmp_path: Path) -> None:
    stream = written(tmp_path / "stream", [{}, {"row_group_size": 500}])
    for paths in stream.batches:
        pq.write_table(pq.read_table(paths[0]).drop_columns("key"), paths[0])
        stamp(paths[0], int(paths[0].name[0]) * 100)
    conf = {**CONF, "spark.sql.columnVector.offheap.enabled": "true", "spark.sql.files.maxPartitionBytes": "1g"}
    _, device = both(tumbling, stream, Run("update", conf=conf), schema=SCHEMA, late=None)
    assert_coded(device)


def test_the_partitions_of_a_table_are_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """Their strings are in no file."""
    for name in ("one", "two", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / "rows" / f"key={name}"
        folder.mkdir(parents=True)
        pq.write_table(table(len(name), 0).drop_columns("key"), folder / "part.parquet")
    found = []
    for enabled in ("false", "true"):
        session = spark.newSession()
        session.conf.set("spark.gpuwin.enabled", enabled)
        session.conf.set("spark.sql.shuffle.partitions", "2")
        frame = session.readStream.schema(SCHEMA).parquet(str(tmp_path / "rows"))
        writer = tumbling(session, frame).writeStream.format("memory").queryName(f"partitions_{enabled}")
        query = writer.outputMode("complete").trigger(availableNow=True).start()
        query.awaitTermination()
        found.append(sorted(session.table(f"partitions_{enabled}").collect(), key=str))
        assert ("DictionaryIds" in last_plan(query).toString()) == (enabled == "true")
    assert found[0]
    assert found[0] == found[1]


@pytest.mark.long
def test_two_queries_at_once(spark: SparkSession, tmp_path: Path) -> None:
    stream = written(tmp_path / "stream", [{}, FILES["a dictionary for each thousand rows"]])

    def side(name: str) -> Recording:
        enabled = name != "plain"
        return run(spark, tumbling, stream, Run("update", conf=CONF), tmp_path / name, enabled=enabled, schema=SCHEMA)

    with ThreadPoolExecutor(3) as pool:
        plain, *others = pool.map(side, ("plain", "one", "two"))
    for device in others:
        assert_equal(plain, device, late=None)
        assert_coded(device)


def two_keys(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.groupBy("key", "other", F.window("ts", "1 minute")).count()


def key_as_value(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.groupBy("key", F.window("ts", "1 minute")).agg(F.first("key").alias("f"))


def computed(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.upper("key").alias("key"), F.window("ts", "1 minute")).count()


@pytest.mark.parametrize("query", [two_keys, pytest.param(key_as_value, marks=pytest.mark.long), computed])
def test_keys_that_are_sent_as_they_are(query: Query, both: Both, tmp_path: Path) -> None:
    """Those whose partition is of other columns too, that are values, or that are no column of the file."""
    _, device = both(query, written(tmp_path / "stream", [{}]), Run("update", conf=CONF), schema=SCHEMA, late=None)
    assert_below(device)
    assert "DictionaryIds" not in device.plan


def assert_coded(device: Recording) -> None:
    assert_below(device)
    assert "DictionaryIds" in device.plan, device.plan
