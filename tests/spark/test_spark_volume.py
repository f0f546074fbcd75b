"""More rows than fit one chunk, more keys than one growth of the dictionary, windows over months: in few queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import SPARK_SESSIONS, Both, Run, write_tables

pytestmark = pytest.mark.long

SCHEMA = "key long, name string, ts timestamp, value double, amount decimal(18,4)"
START = 1_700_000_000_000_000
SECOND = 1_000_000


def rows(rng: np.random.Generator, n: int, keys: int, first: int, last: int) -> pa.Table:
    """`n` rows of `keys` keys, between two instants in seconds after the start."""
    key = rng.integers(0, keys, n)
    cents = pa.array(rng.integers(-(10**12), 10**12, n)).cast(pa.decimal128(38, 0))
    return pa.table(
        {
            "key": key,
            "name": pa.array([f"name {k % 977} of a length that varies {'x' * (k % 23)}" for k in key.tolist()]),
            "ts": pa.array(START + rng.integers(first * SECOND, last * SECOND, n), pa.timestamp("us", "UTC")),
            "value": rng.normal(100.0, 5.0, n),
            "amount": cents.cast(pa.decimal128(18, 4), safe=False),
        }
    )


@pytest.mark.parametrize("mode", ["append", "update"])
def test_many_keys(mode: str, both: Both, tmp_path: Path) -> None:
    """9,000 groups a batch, in chunks of 1,000; keys come and go, so the dictionary is rebuilt."""
    rng = np.random.default_rng(1)
    batches = [[rows(rng, 12_000, 9_000, 60 * i, 60 * i + 90)] for i in range(4)]
    batches[2][0] = batches[2][0].set_column(0, "key", pa.array(rng.integers(10**9, 10**9 + 9_000, 12_000)))

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return (
            frame.withWatermark("ts", "5 seconds")
            .groupBy("key", F.window("ts", "1 minute"))
            .agg(
                F.sum("value"),
                F.count("*").alias("n"),
                F.min("value").alias("min_value"),
                F.max("name").alias("max_name"),
                F.sum("amount"),
                F.var_samp("value"),
            )
        )

    conf = {"spark.gpuwin.chunk.rows": "1000", "spark.sql.shuffle.partitions": "2"}
    plain, _ = both(query, write_tables(batches, tmp_path / "stream"), Run(mode, conf=conf), schema=SCHEMA, late=None)
    assert len(plain.all_rows()) > 20_000


@pytest.mark.sweep
def test_many_windows(both: Both, tmp_path: Path) -> None:
    """A window of an hour every minute: 60 windows a row on Spark, 60 panes a window on gpuwin."""
    rng = np.random.default_rng(2)
    batches = [[rows(rng, 120, 6, 600 * i, 600 * i + 600)] for i in range(3)]
    batches.append([rows(rng, 2, 6, 4 * 3600, 4 * 3600 + 1)])

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return (
            frame.withWatermark("ts", "30 seconds")
            .groupBy("name", F.window("ts", "1 hour", "1 minute"))
            .agg(F.sum("value"), F.count("*"), F.max("amount").alias("max_amount"), F.avg("amount"), F.stddev("value"))
        )

    run = Run("append", "processing", conf={"spark.sql.shuffle.partitions": "2"})
    plain, _ = both(query, write_tables(batches, tmp_path / "stream"), run, schema=SCHEMA, late=None)
    assert len(plain.all_rows()) > 500


def test_sparse_times(both: Both, tmp_path: Path) -> None:
    """Rows years apart: what a batch costs follows the rows, and not the panes between them."""
    rng = np.random.default_rng(3)
    year = 365 * 86_400
    batches = [[rows(rng, 30, 3, i * 40 * year, i * 40 * year + 120)] for i in range(4)]

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        window = F.window("ts", "10 seconds", "1 second")
        return frame.withWatermark("ts", "1 second").groupBy("key", window).agg(F.count("*"), F.sum("amount"))

    run = Run("append", conf={"spark.sql.shuffle.partitions": "2"})
    both(query, write_tables(batches, tmp_path / "stream"), run, schema=SCHEMA, late=False)


def test_many_sessions(both: Both, tmp_path: Path) -> None:
    """More proto-sessions than a task keeps before the shuffle, of one key and in all; their rows in no order."""
    rng = np.random.default_rng(4)
    many = rows(rng, 20_000, 40, 0, 24_000)
    one = rows(rng, 3_000, 1, 0, 24_000)
    batches = [[pa.concat_tables([many, one])], [rows(rng, 10, 3, 80_000, 80_001)]]

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        session = F.session_window("ts", "4 seconds")
        counted = frame.withWatermark("ts", "1 minute").groupBy("key", session)
        grown = counted.agg(F.count("*").alias("n"), F.max("value").alias("max_value"), F.sum("amount"))
        return grown.where("n > 2 or key = 0")

    run = Run("append", conf={"spark.sql.shuffle.partitions": "2", "spark.gpuwin.sessions.held": "5000"})
    plain, _ = both(
        query,
        write_tables(batches, tmp_path / "stream"),
        run,
        schema=SCHEMA,
        late=None,
        spark_operators=SPARK_SESSIONS,
    )
    assert len(plain.all_rows()) > 1_000
