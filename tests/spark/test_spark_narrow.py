"""Cells of large batches, whose integers take few bytes in the shuffle, in the log and in what is emitted.

Batches of other tests are too small for it. Here the log shows that it was done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
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
    run,
    write_tables,
)

import gpuwin as gw

ROWS = 12_000
BATCHES = 3
SCHEMA = "ts timestamp, key long, small short, tiny byte, far long, name string, value double"


def batch(number: int) -> pa.Table:
    """Rows of three minutes, almost all of them cells of their own."""
    rng = np.random.default_rng(number)
    far = rng.integers(-(1 << 62), 1 << 62, ROWS)
    far[:2] = -(1 << 63), (1 << 63) - 1
    second = 1_700_000_000 + number * 120 + rng.integers(0, 180, ROWS)
    return pa.table(
        {
            "ts": pa.array(second * 1_000_000, pa.timestamp("us", "UTC")),
            "key": rng.integers(10**12, 10**12 + 10**6, ROWS),
            "small": pa.array(rng.integers(-300, 300, ROWS), pa.int16()),
            "tiny": pa.array(rng.integers(-128, 128, ROWS), pa.int8(), mask=rng.random(ROWS) < 0.1),
            "far": far,
            "name": [f"name {n}" for n in rng.integers(0, 99, ROWS)],
            "value": rng.random(ROWS),
        }
    )


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write_tables([[batch(n)] for n in range(BATCHES)], tmp_path_factory.mktemp("stream"))


AGGREGATES = {
    "n": "count(*)",
    "total": "sum(small)",
    "most": "max(far)",
    "least": "min(tiny)",
    "bits": "bit_or(small)",
    "mean": "avg(value)",
    "first": "first(key)",
}


def windows(size: str, slide: str | None = None) -> Query:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        grouped = frame.withWatermark("ts", "30 seconds").groupBy("key", F.window("ts", size, slide), "small")
        return grouped.agg(*(F.expr(e).alias(n) for n, e in AGGREGATES.items()))

    return query


def sessions(_: SparkSession, frame: DataFrame) -> DataFrame:
    grouped = frame.withWatermark("ts", "30 seconds").groupBy("key", F.session_window("ts", "20 seconds"), "small")
    return grouped.agg(*(F.expr(e).alias(n) for n, e in AGGREGATES.items() if n != "first"))


def recorded(spark: SparkSession, query: Query, stream: Stream, how: Run, folder: Path) -> tuple[Recording, float]:
    """The run, and how many bytes a cell took in its log."""
    said: list[dict[str, int]] = []

    def look(_: int, active: StreamingQuery | None) -> None:
        if active is not None:
            said.extend(p["stateOperators"][0]["customMetrics"] for p in active.recentProgress if p["numInputRows"])

    device = run(spark, query, stream, how, folder, enabled=True, schema=SCHEMA, before_batch=look)
    return device, sum(m["gpuwinLogBytesWritten"] for m in said) / sum(m["gpuwinCellsIn"] for m in said)


GRID = ("stateStoreSave",)
#: A query, its output mode, Spark's operator, and the most bytes that a cell may take in the log: as they are,
#: its columns take 78, and of sessions 69.
QUERIES = {
    "tumbling": (windows("1 minute"), "append", GRID, 45),
    "sliding": (windows("2 minutes", "1 minute"), "update", GRID, 45),
    "sessions": (sessions, "append", SPARK_SESSIONS, 45),
}


@pytest.mark.parametrize(
    ("query", "mode", "operators", "most"),
    [pytest.param(*of, id=n, marks=pytest.mark.long if n == "sliding" else ()) for n, of in QUERIES.items()],
)
def test_rows_are_sparks(
    query: Query, mode: str, operators: Sequence[str], most: int, stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    how = Run(mode, "processing", conf=DEVICE)
    plain = run(spark, query, stream, how, tmp_path / "plain", enabled=False, schema=SCHEMA)
    device, bytes_of_cell = recorded(spark, query, stream, how, tmp_path / "device")
    assert_below(device)
    assert_equal(plain, device, late=None, spark_operators=operators)
    assert bytes_of_cell < most


@pytest.mark.parametrize("kind", ["tumbling", "sessions"])
def test_a_state_is_read_from_the_log(kind: str, both: Both, stream: Stream) -> None:
    """By the service, in each start, and by Spark."""
    query, mode, operators, _ = QUERIES[kind]
    both(query, stream, Run(mode, "once", conf=DEVICE), late=None, schema=SCHEMA, spark_operators=operators)


@pytest.mark.long
def test_a_state_is_shown(stream: Stream, spark: SparkSession, tmp_path: Path) -> None:
    how = Run("complete", "available", conf=DEVICE)
    run(spark, windows("1 minute"), stream, how, tmp_path, enabled=True, schema=SCHEMA)
    state = gw.spark.read_state(spark, str(tmp_path / "checkpoint"))
    sums = {"n": "sum(n)", "total": "sum(total)", "most": "max(most)", "least": "min(least)", "bits": "bit_or(bits)"}
    found = state.groupBy("small", (F.col("key") % 7).alias("rest")).agg(*(F.expr(e).alias(n) for n, e in sums.items()))
    rows = spark.read.schema(SCHEMA).parquet(str(tmp_path / "source" / "*"))
    wanted = rows.groupBy("small", (F.col("key") % 7).alias("rest")).agg(
        *(F.expr(AGGREGATES[n]).alias(n) for n in sums)
    )
    expected = Counter(wanted.collect())
    assert len(expected) > 1000
    assert Counter(found.collect()) == expected
