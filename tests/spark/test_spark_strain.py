"""More than there is room for: a service without memory, and more partitions than cores by far.

`pytest -m sweep tests/spark/test_spark_strain.py`
"""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import Both
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import Case, Run, Stream, StreamSpec, assert_equal, run, service, write, write_tables

pytestmark = pytest.mark.sweep

START = 1_700_000_040_000_000
SCHEMA = "key long, ts timestamp"


def _rows(count: int, minute: int) -> pa.Table:
    """Rows of one minute; each key once, but every thousandth twice."""
    key = np.arange(count, dtype=np.int64)
    key = np.concatenate([key, key[::1000]])
    ts = pa.array(START + minute * 60_000_000 + key % 60_000_000, pa.timestamp("us", "UTC"))
    return pa.table({"key": key, "ts": ts})


def _doubled(_: SparkSession, frame: DataFrame) -> DataFrame:
    counted = frame.withWatermark("ts", "1 second").groupBy("key", F.window("ts", "1 minute")).count()
    return counted.where("count > 1")


def test_service_without_memory(spark: SparkSession, tmp_path: Path) -> None:
    """The query fails with the advice, and goes on when there is memory, in the same service."""
    tables = [[_rows(10, 0)], [_rows(1_500_000, 1)], [_rows(1000, 2)], [_rows(1, 60)]]
    stream = write_tables(tables, tmp_path / "stream")
    how = Run(
        "append",
        "processing",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.gpuwin.chunk.bytes": "268435456",
            "spark.gpuwin.chunk.rows": "1000000",
        },
    )
    begun = run(spark, _doubled, Stream(stream.batches[:1]), how, tmp_path / "device", enabled=True, schema=SCHEMA)
    pid = service(spark)
    resource.prlimit(pid, resource.RLIMIT_AS, (_address_space(pid), resource.RLIM_INFINITY))
    short = run(spark, _doubled, stream, how, tmp_path / "device", enabled=True, schema=SCHEMA)
    assert short.error is not None
    assert "The gpuwin device service is out of memory" in short.error.message
    assert "spark.executor.memoryOverhead" in short.error.message
    resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    rest = run(spark, _doubled, stream, how, tmp_path / "device", enabled=True, schema=SCHEMA)
    rest.batches = begun.batches + short.batches + rest.batches
    plain = run(spark, _doubled, stream, how, tmp_path / "plain", enabled=False, schema=SCHEMA)
    assert_equal(plain, rest, late=None)
    assert service(spark) == pid, "the service that ran out of memory goes on"


def _address_space(pid: int) -> int:
    return int((Path("/proc") / str(pid) / "statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb_changelog"])
def test_many_partitions(provider: str, both: Both, tmp_path: Path) -> None:
    """200 partitions on 2 cores, most of them empty."""
    case = Case("sliding", "append", "long", "integers", trigger="processing", partitions="200", provider=provider)
    both(case.query, write(StreamSpec(seed=15, batches=3), tmp_path / "stream"), case.how)


def test_queries_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Eight queries on one service, of four kinds, all begun at once."""
    from concurrent.futures import ThreadPoolExecutor

    modes = ["append", "update", "complete", "append"]
    windows = ["sliding", "uneven", "tumbling", "dense"]
    cases = [
        Case(w, m, "string", "decimals", trigger="processing", partitions="2")
        for w, m in zip(windows, modes, strict=True)
    ] * 2
    streams = [write(StreamSpec(seed=30 + i, batches=3), tmp_path / f"stream{i}") for i in range(len(cases))]

    def side(number: int, enabled: bool) -> object:
        case = cases[number]
        return run(spark, case.query, streams[number], case.how, tmp_path / f"{enabled}-{number}", enabled=enabled)

    with ThreadPoolExecutor(len(cases)) as pool:
        device = list(pool.map(lambda n: side(n, True), range(len(cases))))
    for number, case in enumerate(cases):
        assert_equal(side(number, False), device[number], late=case.late)  # type: ignore[arg-type]
