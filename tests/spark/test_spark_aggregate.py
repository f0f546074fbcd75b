"""`gw.spark.aggregate` on a static DataFrame gives the rows of `gw.aggregate` on the same table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_harness import arrow_of, frame_of

import gpuwin as gw


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng, n = np.random.default_rng(4), 300
    return pa.table(
        {
            "ts": pa.array(1_700_000_000_000_000 + np.sort(rng.integers(0, 600, n)) * 1_000_000).view(
                pa.timestamp("us", "UTC")
            ),
            "k": pa.array(rng.choice(["a", "b", None], n)),
            "v": pa.array(rng.integers(-50, 50, n).astype(float), mask=rng.random(n) < 0.1),
            "cents": pa.array(rng.integers(0, 10**6, n)).cast(pa.decimal128(21, 2)),
            "unused": [{"nested": 1}] * n,
            "k.`1": pa.array(rng.choice(["a", "b", None], n)),
            "place": pa.array(rng.integers(-50, 50, n)),
        }
    )


COMMON: dict[str, Any] = {"keys": ["k"], "time": "ts"}
SPECIFICATIONS = {
    "sliding": gw.WindowedAggregation(
        window=gw.SlidingWindow("2 minutes", "1 minute"),
        aggregates={
            "n": gw.count(),
            "total": gw.sum("v"),
            "cents": gw.sum("cents"),
            "median": gw.median("v"),
            "kinds": gw.histogram("v"),
            "values": gw.collect_set("v"),
        },
        **COMMON,
    ),
    "sessions": gw.WindowedAggregation(
        window=gw.SessionWindow("4 seconds"), aggregates={"n": gw.count(), "first": gw.first("v")}, **COMMON
    ),
    "triggers": gw.WindowedAggregation(
        window=gw.TumblingWindow("2 minutes"),
        aggregates={"n": gw.count(), "total": gw.sum("v")},
        emit=gw.Trigger(early=gw.EveryRows(7)),
        accumulation="retracting",
        **COMMON,
    ),
    "cumulative": gw.WindowedAggregation(
        window=gw.CumulativeWindow("5 minutes", "1 minute"),
        aggregates={"most": gw.max("v"), "first.of`": gw.first("place")},
        keys=["k.`1"],
        time="ts",
    ),
    "weeks of a time zone": gw.WindowedAggregation(
        window=gw.CalendarWindow("1 week", "Asia/Kathmandu"),
        aggregates={"n": gw.count(), "most": gw.max("v")},
        **COMMON,
    ),
    "a watermark per key": gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"),
        aggregates={"n": gw.count(), "in order": gw.collect_list("v"), "last": gw.last("v")},
        semantics=gw.Semantics.BYTEWAX,
        **COMMON,
    ),
    "no keys": gw.WindowedAggregation(
        window=gw.TumblingWindow("1 minute"),
        keys=[],
        time="ts",
        aggregates={"n": gw.count(), "total": gw.sum("v")},
        semantics=gw.Semantics.FLINK,
    ),
}


def in_order(rows: pa.Table) -> list[str]:
    """Sets and maps have no order of their own."""
    free = ("kinds", "values")
    plain = [
        {name: sorted(value, key=str) if name in free else value for name, value in row.items()}
        for row in rows.to_pylist()
    ]
    return sorted(map(str, plain))


#: With `pytest -m sweep`: what others cover in part.
LONGER = ("triggers", "no keys")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.sweep) if n in LONGER else n for n in SPECIFICATIONS]
)
def test_same_rows_as_on_arrow(name: str, spark: SparkSession, table: pa.Table) -> None:
    spec = SPECIFICATIONS[name]
    found = gw.spark.aggregate(frame_of(spark, table), spec)  # of several partitions, which are then shuffled
    assert frame_of(spark, table).rdd.getNumPartitions() > 1
    expected = gw.aggregate(table, spec)
    rows = arrow_of(found)
    assert rows.schema.names == expected.schema.names
    assert found.schema["window_start"].dataType.simpleString() == "timestamp"
    assert in_order(rows.cast(expected.schema)) == in_order(expected)


def test_a_user_s_accumulation_travels(spark: SparkSession, table: pa.Table) -> None:
    def largest_gap(low: float, high: float, x: float) -> tuple[float, float]:
        return min(low, x), max(high, x)

    spread = gw.accumulation(
        state={"low": float("inf"), "high": float("-inf")},
        add=largest_gap,
        merge=lambda a, b, c, d: (min(a, c), max(b, d)),
        result=lambda low, high: high - low,
    )
    spec = gw.WindowedAggregation(window=gw.TumblingWindow("1 minute"), aggregates={"spread": spread("v")}, **COMMON)
    found = arrow_of(gw.spark.aggregate(frame_of(spark, table), spec))
    assert in_order(found.cast(gw.aggregate(table, spec).schema)) == in_order(gw.aggregate(table, spec))


def test_wrong_use(spark: SparkSession, table: pa.Table) -> None:
    frame = frame_of(spark, table)
    with pytest.raises(gw.SpecificationError, match=r"takes a gw\.WindowedAggregation, not a str"):
        gw.spark.aggregate(frame, "views")  # type: ignore[arg-type]
    with pytest.raises(gw.SpecificationError, match=r"not a Deduplicate: write df\.dropDuplicates\(keys\)"):
        gw.spark.aggregate(frame, gw.Deduplicate(["k"]))  # type: ignore[arg-type]
    with pytest.raises(gw.SpecificationError, match=r"not a HashJoin: write df\.join\(other"):
        gw.spark.aggregate(frame, gw.HashJoin(["k"]))  # type: ignore[arg-type]
    with pytest.raises(gw.SchemaError, match="no column 'v' in the input"):
        gw.spark.aggregate(frame.drop("v"), SPECIFICATIONS["sliding"])
    with pytest.raises(gw.SchemaError, match="v interval"):
        gw.spark.aggregate(frame.withColumn("v", F.expr("make_ym_interval(0, 1)")), SPECIFICATIONS["sliding"])
    with pytest.raises(gw.SchemaError, match="no column 'v' in the input; it has ts, k, V, cents"):
        gw.spark.aggregate(frame.withColumnRenamed("v", "V"), SPECIFICATIONS["sliding"])
