"""Functions of sessions that depend on the order of rows, and those written as code, give the same as on Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    DEVICE,
    JVM,
    KEYS,
    SPARK_SESSIONS,
    Both,
    Run,
    SessionCase,
    Stream,
    assert_below,
    write,
    write_tables,
)
from test_spark_aggregates import SETS


@dataclass(frozen=True)
class Aggregation:
    """A case of the differential suite with sessions and a set of aggregates."""

    aggregates: str
    case: SessionCase

    def query(self, _: SparkSession, frame: DataFrame) -> DataFrame:
        keys = [F.expr(e).alias(n) for n, e in KEYS[self.case.key].items()]
        results = [F.expr(e).alias(n) for n, e in SETS[self.aggregates].items()]
        marked = frame.withWatermark("ts", self.case.watermark)
        return marked.groupBy(*keys, self.case.window_column()).agg(*results)


CASES = [
    Aggregation("first", SessionCase(key="short", mode="complete", map_side="device")),
    Aggregation("max_by", SessionCase(key="short", trigger="processing", provider="rocksdb", map_side="device")),
    Aggregation("distinct", SessionCase(key="boolean", window="by_row", trigger="processing", restart="yes")),
]
#: With `pytest -m sweep`.
MORE = [
    Aggregation("first_known", SessionCase(key="boolean", trigger="processing", restart="yes", codegen="on")),
    Aggregation("min_by", SessionCase(key="boolean", local_merge="true")),
    Aggregation("bitmaps", SessionCase(key="boolean", local_merge="true")),
    Aggregation("bitmaps", SessionCase(key="short", trigger="processing", restart="yes")),
    Aggregation("distinct", SessionCase(key="short", local_merge="true")),
]


@pytest.mark.parametrize(
    "asked",
    [*CASES, *(pytest.param(asked, marks=pytest.mark.sweep) for asked in MORE)],
    ids=lambda asked: f"{asked.aggregates}-{asked.case}",
)
def test_same_as_spark(asked: Aggregation, both: Both, tmp_path: Path) -> None:
    case = asked.case
    stream = write(case.stream, tmp_path / "stream")
    _, found = both(asked.query, stream, case.how, late=case.late, spark_operators=SPARK_SESSIONS)
    if case.map_side == "device":
        assert_below(found)


# Rows of few times, of which many are the same, and late ones that lie within an open session, or before it

SCHEMA = "key string, ts timestamp, n long, v double, text string"
START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
CHOSEN = {
    "f": "first(n)", "l": "last(n)", "ft": "first(text)", "lt": "last(text)", "fk": "first(n, true)",
    "lk": "last(text, true)", "at_last": "max_by(text, ts)", "at_first": "min_by(n, ts)", "largest": "max_by(n, v)",
    "smallest": "min_by(text, v)", "if": "last(n) FILTER (WHERE v > 1)", "both": "first(n) + last(n)",
}  # fmt: skip
WITH_CODE = {**CHOSEN, "about": "approx_count_distinct(n)", "sum": "sum(n)"}


def rows(draw: np.random.Generator, batch: int) -> pa.Table:
    """Forty rows of three keys, within half a minute that moves on by eight seconds a batch."""
    n = 40
    seconds = 8 * batch + draw.integers(0, 30, n)
    values = draw.integers(0, 3, n).astype(float)
    numbers = 100 * batch + np.arange(n)
    return pa.table(
        {
            "key": pa.array([f"key {k}" for k in draw.integers(0, 3, n)]),
            "ts": pa.array([START + dt.timedelta(seconds=int(s)) for s in seconds], pa.timestamp("us", "UTC")),
            "n": pa.array(numbers, mask=draw.random(n) < 0.2),
            "v": pa.array(np.where(values == 0, [-0.0, 0.0] * (n // 2), np.where(values == 2, np.nan, 1.0))),
            "text": pa.array([f"text {i}" for i in numbers], mask=draw.random(n) < 0.2),
        }
    )


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    draw = np.random.default_rng(5)
    return write_tables([[rows(draw, batch)] for batch in range(6)], tmp_path_factory.mktemp("crowded") / "stream")


def chosen(results: Mapping[str, str], frame: DataFrame) -> DataFrame:
    marked = frame.withWatermark("ts", "16 seconds")
    return marked.groupBy("key", F.session_window("ts", "2 seconds")).agg(
        *(F.expr(e).alias(n) for n, e in results.items())
    )


def how(mode: str, conf: Mapping[str, str]) -> Run:
    settings = {"spark.sql.shuffle.partitions": "2", **conf}
    return Run(mode, "processing", conf=settings, restart_after=frozenset({2}))


HANDED_ON = {"spark.gpuwin.sessions.held": "3"}  # tasks hand on what they have put together every few sessions


@pytest.mark.parametrize(
    ("mode", "side"),
    [("append", DEVICE), ("append", {**JVM, **HANDED_ON}), pytest.param("complete", JVM, marks=pytest.mark.long)],
    ids=["device", "handed_on", "complete"],
)
def test_rows_of_one_time(mode: str, side: dict[str, str], both: Both, crowded: Stream) -> None:
    both(
        lambda _, frame: chosen(CHOSEN, frame), crowded, how(mode, side), schema=SCHEMA,
        late=mode == "append", spark_operators=SPARK_SESSIONS,
    )  # fmt: skip


@pytest.mark.long
def test_rows_of_one_time_beside_code(both: Both, crowded: Stream) -> None:
    """Spark's own partial aggregate stays below the shuffle."""
    both(
        lambda _, frame: chosen(WITH_CODE, frame), crowded, how("append", {}), schema=SCHEMA,
        spark_operators=SPARK_SESSIONS,
    )  # fmt: skip
