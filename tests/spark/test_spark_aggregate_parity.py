"""Every aggregate of the table that keeps a cell against the functions of Spark that the table says are the same:
nulls on either side of a pair, NaN, infinities, constants, and samples too small."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from spark_harness import HAS_CORR_OF_CONSTANT, frame_of

import gpuwin as gw
from gpuwin.planning import aggregates as table

pytestmark = pytest.mark.long

NAN, INF = math.nan, math.inf
#: Pairs (y, x) by name.
SAMPLES: dict[str, list[tuple[float | None, float | None]]] = {
    "nothing": [(None, None)],
    "halves": [(1.0, None), (None, 2.0)],
    "a pair and halves": [(1.0, None), (3.0, 2.0), (None, 2.0)],
    "one": [(3.0, 2.0)],
    "same x": [(1.0, 2.0), (3.0, 2.0)],
    "same y": [(2.0, 1.0), (2.0, 5.0)],
    "same": [(2.0, 1.0), (2.0, 1.0)],
    "NaN": [(1.0, NAN), (2.0, 3.0)],
    "one NaN": [(NAN, 1.0)],
    "infinite x": [(1.0, INF), (2.0, 3.0)],
    "infinite y, same x": [(INF, 2.0), (2.0, 2.0)],
    "one infinite y": [(INF, 1.0)],
    "one infinite x": [(1.0, INF)],
    "infinite y": [(INF, 1.0), (-INF, 2.0)],
    "line": [(float(2 * k + 1), float(k)) for k in range(9)],
}
#: These skip rows whose value is null, and keep the first of equals; Spark's do neither.
BY_ORDER = ("min_by", "max_by")
FIRSTS = ("first", "first_value", "last", "last_value", "any_value")
LEFT_OUT = () if HAS_CORR_OF_CONSTANT else ("corr",)


def rows() -> pa.Table:
    rng = np.random.default_rng(11)
    drawn = zip(rng.normal(1e3, 1, 60).tolist(), rng.normal(size=60).tolist(), strict=True)
    samples = {**SAMPLES, "drawn": [(None if k % 7 == 0 else y, x) for k, (y, x) in enumerate(drawn)]}
    flat = [(name, *pair) for name, pairs in samples.items() for pair in pairs]
    n = len(flat)
    return pa.table(
        {
            "sample": [name for name, _, _ in flat],
            "time": pa.array(range(n), pa.timestamp("us")),
            "y": pa.array([y for _, y, _ in flat], pa.float64()),
            "x": pa.array([x for _, _, x in flat], pa.float64()),
            "whole": pa.array(rng.integers(-99, 99, n), pa.int32(), mask=rng.random(n) < 0.3),
            "flag": pa.array(rng.random(n) < 0.5, mask=rng.random(n) < 0.3),
        }
    )


def both() -> Iterator[tuple[str, Any, str]]:
    """(name, the aggregate, Spark's expression) for each function of Spark in the table."""
    columns = {table.BOOLEANS: "flag", table.INTEGERS: "whole"}
    for record in table.AGGREGATES.values():
        if not isinstance(record, table.CellRecord) or record.name in BY_ORDER:
            continue
        pair = ("y", "x") if len(record.takes) == 2 else (columns.get(record.takes[0], "y"),)
        for function in [name for one in record.spark for name in one.functions if name not in LEFT_OUT]:
            of = {"ddof": 0} if function.endswith("_pop") and record.name in ("var", "std") else {}
            yield (
                function,
                getattr(gw, record.name)(*pair, **of),
                f"{function}({', '.join(pair)}{', true' if function in FIRSTS else ''})",
            )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    return bool(a == b) and (a is None) == (b is None)


def test_the_engine_gives_what_spark_gives(spark: SparkSession) -> None:
    given, functions = rows(), list(both())
    views = gw.WindowedAggregation(
        window=gw.GlobalWindow(), keys=["sample"], time="time", aggregates={name: a for name, a, _ in functions}
    )
    found = {row["sample"]: row for row in gw.aggregate(given, views).to_pylist()}
    frame_of(spark, given.drop_columns(["time"])).coalesce(1).createOrReplaceTempView("parity")
    said = spark.sql(
        f"SELECT sample, {', '.join(f'{sql} AS `{name}`' for name, _, sql in functions)} FROM parity GROUP BY sample"
    ).collect()
    assert len(said) == len(found) == len(SAMPLES) + 1
    assert len(functions) > 35
    different = [
        (row["sample"], name, found[row["sample"]][name], row[name])
        for row in said
        for name, _, _ in functions
        if not same(found[row["sample"]][name], row[name])
    ]
    assert not different
