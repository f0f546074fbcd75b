"""Back to plain Spark, step by step as docs/moving_state.md has it: what both queries emitted is what one would have.

`pytest -m sweep tests/spark/test_spark_roll_back.py`
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import MINUTE, Case, Stream, StreamSpec, assert_placed, in_sink, row_differences, run, write

STREAM = StreamSpec(seed=41, batches=9, rows=80, empty=None)
STOPPED_AFTER = 6
SIZE = 2 * MINUTE


def _has_rows_from(path: Path, microseconds: int) -> bool:
    newest = pc.max(pq.read_table(path, columns=["ts"])["ts"].cast(pa.int64())).as_py()
    return newest is not None and newest >= microseconds


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["append", "update"])
def test_back_to_plain_spark(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    case = Case("sliding", mode, "string", "integers", trigger="processing", partitions="2")
    stream = write(STREAM, tmp_path / "stream")
    before = run(spark, case.query, Stream(stream.batches[:STOPPED_AFTER]), case.how, tmp_path / "device", enabled=True)
    assert_placed(before, ["gpuwin"])
    noted = before.batches[-1].watermark
    assert noted is not None
    first = int(dt.datetime.fromisoformat(noted).timestamp() * 1e6) - SIZE
    needed = next(i for i, files in enumerate(stream.batches) if any(_has_rows_from(f, first) for f in files))
    assert 0 < needed < STOPPED_AFTER, "some files are left out, and some are read again"

    def filtered(session: SparkSession, frame: DataFrame) -> DataFrame:
        return case.query(session, frame).where(F.col("window.end") > F.lit(noted).cast("timestamp"))

    # Without the plugin there is no switch to set; off, it leaves the query to Spark all the same.
    rest = Stream(stream.batches[needed:])
    after = run(spark, filtered, rest, case.how, tmp_path / "back", enabled=False)
    assert after.error is None
    assert_placed(after, ["stateStoreSave"])
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    wanted, found = in_sink(mode, plain), in_sink(mode, before, after)
    assert wanted
    assert after.all_rows()
    assert not list(row_differences(wanted, found, plain.columns))
