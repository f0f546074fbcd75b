"""Event times of a batch, as Spark's progress reports them: those of plain Spark, where generated code notes them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import DEVICE, JVM, SPARK_SESSIONS, Query, Run, Stream, assert_equal, last_plan, run, write_tables

START = dt.datetime(1969, 12, 31, 23, 59, 58, 999_999)
SCHEMA = "key long, ts timestamp"


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Times around 1970, of which milliseconds are rounded down; nulls, which Spark counts as 1970; an empty batch."""
    times = [START + dt.timedelta(milliseconds=731 * i, microseconds=i * i) if i % 7 else None for i in range(90)]
    batches = [times[:40], [], times[40:]]
    return write_tables([[_table(batch)] for batch in batches], tmp_path_factory.mktemp("event-times") / "stream")


def _table(times: list[dt.datetime | None]) -> pa.Table:
    keys = pa.array([i % 3 for i in range(len(times))], pa.int64())
    return pa.table({"key": keys, "ts": pa.array(times, pa.timestamp("us", "UTC"))})


def by_window(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "3 seconds").groupBy("key", F.window("ts", "10 seconds")).count()


def by_session(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "3 seconds").groupBy("key", F.session_window("ts", "2 seconds")).count()


def by_window_of_two_sources(_: SparkSession, frame: DataFrame) -> DataFrame:
    """A watermark below each side of a union, and a filter above it."""
    marked = frame.withWatermark("ts", "3 seconds")
    other = frame.where("key = 1").withWatermark("ts", "30 seconds")
    return marked.union(other).where("key < 2").groupBy("key", F.window("ts", "10 seconds", "5 seconds")).count()


CASES = {
    "windows, device": (by_window, DEVICE, True),
    "windows, jvm": (by_window, JVM, True),
    "windows, no generated code": (by_window, DEVICE, False),
    "sessions, device": (by_session, DEVICE, True),
    "sessions, jvm": (by_session, JVM, True),
    "two watermarks": (by_window_of_two_sources, DEVICE, True),
}


@pytest.mark.parametrize(("query", "side", "codegen"), CASES.values(), ids=CASES)
def test_event_times_are_those_of_spark(
    query: Query, side: dict[str, str], codegen: bool, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    generated = {"spark.sql.codegen.wholeStage": str(codegen).lower()}
    how = Run("append", "processing", conf={**side, **generated})
    seen: dict[str, list[Any]] = {"plain": [], "gpuwin": []}
    plans: list[str] = []

    def ran(where: str, enabled: bool) -> Any:
        def look(_: int, active: StreamingQuery | None) -> None:
            if active is not None:
                seen[where] = [(p["batchId"], p["eventTime"]) for p in active.recentProgress]
                plans.append(last_plan(active).toString())

        # The event times of the last batch are seen before one that is empty.
        to_end = Stream([*stream.batches, stream.batches[1]])
        return run(spark, query, to_end, how, tmp_path / where, enabled=enabled, before_batch=look, schema=SCHEMA)

    sparks = SPARK_SESSIONS if query is by_session else ("stateStoreSave",)
    assert_equal(ran("plain", False), ran("gpuwin", True), late=None, spark_operators=sparks)
    assert seen["gpuwin"] == seen["plain"]
    assert sum("avg" in times for _, times in seen["plain"]) >= 2
    compiled = [line for line in plans[-1].splitlines() if "EventTimeWatermark" in line]
    assert compiled
    assert all(("*(" in line) == codegen for line in compiled), plans[-1]
