"""Where a query fails on Spark, it fails on gpuwin, in the same batch and with the same error; and only there."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import Both, Query, Run, write_tables

SCHEMA = "key string, ts timestamp, big long, small int, dec decimal(28,10), money decimal(10,2), text string"
TYPES = pa.schema(
    [
        ("key", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("big", pa.int64()),
        ("small", pa.int32()),
        ("dec", pa.decimal128(28, 10)),
        ("money", pa.decimal128(10, 2)),
        ("text", pa.string()),
    ]
)
START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
MOST = 2**63 - 1
LARGEST = Decimal("9" * 18)


def rows(*values: tuple[str, float, int | None, Decimal | None]) -> pa.Table:
    """Rows of (key, seconds, big, dec); the other columns follow from these."""
    records = [
        {
            "key": key,
            "ts": START + dt.timedelta(seconds=seconds),
            "big": big,
            "small": n,
            "dec": dec,
            "money": Decimal(n),
            "text": str(n),
        }
        for n, (key, seconds, big, dec) in enumerate(values)
    ]
    return pa.Table.from_pylist(records, schema=TYPES)


#: Key a overflows upwards and b downwards, but only when the second batch meets the state of the first. Key c comes to
#: the very limit. Later batches let the windows close.
ACROSS_BATCHES = [
    [rows(("a", 1, MOST, LARGEST), ("b", 1, -MOST - 1, -LARGEST), ("c", 1, MOST - 1, LARGEST - 1), ("d", 1, 7, None))],
    [rows(("a", 25, 1, LARGEST), ("b", 31, -1, -LARGEST), ("c", 2, 1, Decimal(1)), ("d", 2, None, None))],
    [rows(("d", 200, 5, Decimal(5)))],
    [rows(("d", 400, 5, Decimal(5)))],
]
#: The overflow is between the partial sums of two tasks of one batch.
ACROSS_TASKS = [
    [rows(("a", 1, 5, Decimal(5))), rows(("b", 2, 5, Decimal(5)))],
    [rows(("a", 3, MOST, LARGEST), ("b", 3, 1, None)), rows(("a", 4, 20, LARGEST))],
    [rows(("d", 400, 5, Decimal(5)))],
]
#: No window overflows, though all of them together would.
NOWHERE = [
    [rows(("a", 1, MOST, LARGEST), ("a", 70, 3, Decimal(3)))],
    [rows(("a", 62, MOST - 3, LARGEST - 3), ("a", 130, MOST, LARGEST))],
    [rows(("d", 400, 5, Decimal(5)))],
]
STREAMS = {"across_batches": ACROSS_BATCHES, "across_tasks": ACROSS_TASKS}


def query(*aggregates: str, slide: str | None = None, having: str | None = None) -> Query:
    def build(_: SparkSession, frame: DataFrame) -> DataFrame:
        window = F.window("ts", "1 minute", slide) if slide else F.window("ts", "1 minute")
        result = frame.withWatermark("ts", "5 seconds").groupBy("key", window)
        summed = result.agg(*(F.expr(a).alias(f"c{i}") for i, a in enumerate(aggregates)))
        return summed.where(having) if having else summed

    return build


def how(ansi: bool, mode: str = "append", **conf: str) -> Run:
    settings = {"spark.sql.ansi.enabled": str(ansi).lower(), "spark.sql.shuffle.partitions": "2", **conf}
    return Run(mode, "processing", conf=settings)


@pytest.mark.parametrize("slide", [None, "20 seconds"], ids=["tumbling", "sliding"])
@pytest.mark.parametrize("stream", STREAMS)
def test_overflow_raises_what_spark_raises(stream: str, slide: str | None, both: Both, tmp_path: Path) -> None:
    files = write_tables(STREAMS[stream], tmp_path / "stream")
    plain, _ = both(query("sum(big)", "count(*)", slide=slide), files, how(True), schema=SCHEMA, fails=True)
    assert plain.error is not None
    assert plain.error.condition == "ARITHMETIC_OVERFLOW"
    assert len(plain.batches) >= 1, "the first batch of the stream is innocent"


@pytest.mark.parametrize(
    ("mode", "before"), [("update", "collect_list(text)"), ("complete", "approx_count_distinct(text)")]
)
def test_overflow_of_a_sum_behind_other_buffers(mode: str, before: str, both: Both, tmp_path: Path) -> None:
    files = write_tables(ACROSS_BATCHES, tmp_path / "stream")
    plain, _ = both(query(before, "sum(big)", "max(text)"), files, how(True, mode), schema=SCHEMA, fails=True)
    assert plain.error is not None
    assert plain.error.condition == "ARITHMETIC_OVERFLOW"


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("stream", STREAMS)
def test_without_ansi_longs_wrap_and_decimals_have_room(stream: str, mode: str, both: Both, tmp_path: Path) -> None:
    files = write_tables(STREAMS[stream], tmp_path / "stream")
    functions = ["sum(big)", "sum(dec)", "avg(dec)", "avg(big)", "count(dec)", "sum(money)", "max(dec)"]
    plain, _ = both(query(*functions, slide="20 seconds"), files, how(False, mode), schema=SCHEMA, late=None)
    assert max(d for d in plain.column("c1") if isinstance(d, Decimal)) > LARGEST
    assert any(isinstance(v, int) and v < 0 for v in plain.column("c0")), "a long sum wrapped"


def test_sums_at_the_limit_do_not_raise(both: Both, tmp_path: Path) -> None:
    files = write_tables(NOWHERE, tmp_path / "stream")
    plain, _ = both(query("sum(big)", "sum(dec)"), files, how(True), schema=SCHEMA, late=None)
    assert MOST in plain.column("c0")


@pytest.mark.parametrize(
    ("aggregate", "having", "condition"),
    [
        ("sum(1 / (small - 1))", None, "DIVIDE_BY_ZERO"),
        ("sum(cast(concat('x', text) as int))", None, "CAST_INVALID_INPUT"),
        ("sum(small) / (count(*) - 1)", None, "DIVIDE_BY_ZERO"),
        ("count(*)", "1 / (c0 - 1) > 0", "DIVIDE_BY_ZERO"),
    ],
    ids=["input", "cast", "result", "having"],
)
def test_errors_of_expressions(aggregate: str, having: str | None, condition: str, both: Both, tmp_path: Path) -> None:
    files = write_tables(NOWHERE, tmp_path / "stream")
    plain, _ = both(query(aggregate, having=having), files, how(True), schema=SCHEMA, fails=True)
    assert plain.error is not None
    assert plain.error.condition == condition


def test_query_that_spark_refuses(both: Both, tmp_path: Path) -> None:
    """Analysis is Spark's, before gpuwin sees a plan."""
    files = write_tables(NOWHERE, tmp_path / "stream")

    def unmarked(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.groupBy("key", F.window("ts", "1 minute")).count()

    plain, device = both(unmarked, files, how(True), check=False, schema=SCHEMA)
    assert plain.error is not None
    assert "watermark" in plain.error.message
    assert plain.error == device.error
