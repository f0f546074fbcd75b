"""Structs, arrays and maps as values, and structs and arrays as keys, give the same as on Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    SPARK_SESSIONS,
    Both,
    Run,
    StateMoves,
    Stream,
    assert_below,
    write_tables,
)

SCHEMA = (
    "key string, ts timestamp, n long, small tinyint, v double, f float, text string, bytes binary, "
    "price decimal(9,2), wide decimal(38,3), flag boolean, list array<int>, words array<string>, "
    "map map<string,int>, day date"
)
START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
#: Of equal structs Spark keeps any, so each has a number of its own at its end.
RESULTS = {
    "newest": "max(struct(ts, text, n))",
    "oldest": "min(struct(ts, text, n))",
    "by_double": "max(named_struct('a, b', v, 'c+', f, '<`>', n))",
    "by_doubles": "min(struct(v, f, text, n))",
    "by_text": "max(struct(text, bytes, n))",
    "by_bytes": "min(struct(bytes, text, n))",
    "by_numbers": "max(struct(small, price, wide, flag, day, n))",
    "by_wide": "min(struct(wide, price, small, flag, day, n))",
    "by_list": "max(struct(list, words, n))",
    "by_words": "min(struct(words, struct(list, day), n))",
    "list": "max(list)",
    "words": "min(words)",
    "nested": "max(struct(array(struct(v, n), null) AS parts))",
    "known": "max(struct(ts, null, n)) FILTER (WHERE flag)",
    "row": "max_by(struct(text, list, map), n)",
    "early": "min_by(map, n)",
    "first": "first(struct(map, words))",
    "last": "last(words, true)",
    "any": "any_value(list)",
    "count": "count(*)",
}

#: By orderings of more than 64 bits, which sessions leave to Spark; many are equal, and then the last one counts.
WIDE = {
    "by_struct": "max_by(struct(text, n), struct(small, wide, text))",
    "by_decimal": "min_by(text, wide)",
    "list_by_bytes": "max_by(list, bytes)",
    "by_list_of_text": "min_by(n, words)",
    "number_by_text": "max_by(price, text) FILTER (WHERE flag)",
}

#: Results that are neither structs nor arrays nor maps.
PLAIN = ("count(*)", WIDE["by_decimal"], WIDE["by_list_of_text"], WIDE["number_by_text"])


def rows(draw: np.random.Generator, batch: int) -> pa.Table:
    """Sixty rows of three keys; values of few kinds, so that many are equal in their first fields."""
    n = 60

    def some(values: list[Any], type_: pa.DataType | None = None) -> pa.Array:
        at = draw.integers(0, len(values), n)
        return pa.array([values[i] for i in at], type_)

    seconds = 20 * batch + draw.integers(0, 60, n)
    columns = {
        "key": some(["a", "b", None]),
        "ts": pa.array([START + dt.timedelta(seconds=int(s)) for s in seconds], pa.timestamp("us", "UTC")),
        "n": pa.array(1000 * batch + np.arange(n)),
        "small": some([-128, -1, 0, 127, None], pa.int8()),
        "v": some([-0.0, 0.0, float("nan"), float("inf"), float("-inf"), -1e300, 5e-324, None]),
        "f": some([-0.0, 0.0, float("nan"), -1.5, 1e-45, None], pa.float32()),
        "text": some(["", "\0", "a", "a\0b", "a\1", "ä", "z", "\U0001f600", None]),
        "bytes": some([b"", b"\0", b"\0\0", b"\0\xff", b"\xff", b"\1", None]),
        "price": some([Decimal("-0.01"), Decimal("1.00"), Decimal("-9999999.99"), None], pa.decimal128(9, 2)),
        "wide": some([Decimal("-1"), Decimal("9" * 35 + ".999"), Decimal("-" + "9" * 35), None], pa.decimal128(38, 3)),
        "flag": some([True, False, None]),
        "list": some([[], [1], [1, None], [1, -1], [-(2**31), 5], None], pa.list_(pa.int32())),
        "words": some([[], [""], ["", ""], ["\0"], [None], ["a", "b"], None], pa.list_(pa.string())),
        "map": some([[], [("a", 1)], [("a", None), ("b", 2)], None], pa.map_(pa.string(), pa.int32())),
        "day": some([dt.date(1960, 1, 1), dt.date(2024, 5, 1), None]),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    draw = np.random.default_rng(5)
    return write_tables([[rows(draw, batch)] for batch in range(5)], tmp_path_factory.mktemp("nested") / "stream")


def shown(expression: str) -> Column:
    """A result as text; rows that have floats within are hard to compare."""
    return F.expr(expression if expression in PLAIN else f"to_json({expression}, map('ignoreNullFields', 'false'))")


def aggregated(
    frame: DataFrame, window: Column, result: Callable[[str], Column] = shown, key: Column | None = None
) -> DataFrame:
    marked = frame.withWatermark("ts", "20 seconds")
    grouped = marked.groupBy("key" if key is None else key, window.alias("window"))
    results = RESULTS if "session" in str(window) else {**RESULTS, **WIDE}
    return grouped.agg(*(result(e).alias(n) for n, e in results.items()))


def sliding() -> Column:
    return F.window("ts", "20 seconds", "10 seconds")


def how(mode: str, map_side: str, restart: int = 2, **conf: str) -> Run:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.gpuwin.mapside": map_side}
    return Run(mode, "processing", conf={**settings, **conf}, restart_after=frozenset({restart}))


@pytest.mark.parametrize(
    ("mode", "map_side"), [("append", "device"), pytest.param("update", "jvm", marks=pytest.mark.long)]
)
def test_windows(mode: str, map_side: str, both: Both, stream: Stream) -> None:
    _, found = both(lambda _, frame: aggregated(frame, sliding()), stream, how(mode, map_side), schema=SCHEMA)
    if map_side == "device":
        assert_below(found)


@pytest.mark.parametrize(
    ("mode", "map_side", "gap"),
    [("append", "device", "3 seconds"), pytest.param("complete", "jvm", "9 seconds", marks=pytest.mark.sweep)],
)
def test_sessions(mode: str, map_side: str, gap: str, both: Both, stream: Stream) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, F.session_window("ts", gap))

    _, found = both(
        query, stream, how(mode, map_side), schema=SCHEMA, spark_operators=SPARK_SESSIONS, late=mode == "append"
    )
    if map_side == "device":
        assert_below(found)


@pytest.mark.long
def test_state_is_shown_rescaled_given_back_and_adopted(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return aggregated(frame, sliding(), F.expr, F.struct("key", F.struct("flag"), F.array("day")).alias("key"))

    def look(state: DataFrame) -> None:
        assert state.schema["newest"].dataType.simpleString() == "struct<ts:timestamp,text:string,n:bigint>"
        assert {type(row["by_double"]["<`>"]) for row in state.collect()} == {int}
        key = "struct<key:string,col2:struct<flag:boolean>,col3:array<date>>"
        assert state.schema["key"].dataType.simpleString() == key
        assert {row.key.col2.flag for row in state.collect()} == {True, False, None}

    StateMoves(spark, query, stream, how("append", "jvm"), tmp_path, SCHEMA).assert_equal(look)
