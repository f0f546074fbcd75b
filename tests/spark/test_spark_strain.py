"""More than there is room for: more partitions than cores by far, and many queries on one service.

`pytest -m sweep tests/spark/test_spark_strain.py`
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_harness import Both, Case, StreamSpec, assert_equal, run, write

pytestmark = pytest.mark.sweep


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
