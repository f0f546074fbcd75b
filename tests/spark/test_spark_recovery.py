"""A query that is stopped and resumed, or whose last batch is repeated, gives what it gives when nothing happens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import (
    PROVIDERS,
    SECOND,
    Case,
    Recording,
    Run,
    SessionCase,
    Stream,
    StreamSpec,
    assert_equal,
    assert_placed,
    differences,
    kill,
    row_differences,
    run,
    service,
    write,
    write_tables,
)

STREAM = StreamSpec(seed=5, batches=6, rows=60, empty=3)
#: Many small segments, compacted often, cells in chunks of a few: every path of the state log in six batches.
SMALL_LOG = {"spark.gpuwin.log.maxSegments": "2", "spark.gpuwin.chunk.rows": "7"}

CASES = [
    Case("uneven", "append", "string", "moments_mixed", trigger="processing", partitions="2"),
    Case("sliding", "update", "dec38", "strings", trigger="processing", provider="rocksdb"),
    pytest.param(
        Case("tumbling_earlier", "complete", "two", "decimals", trigger="processing", provider="rocksdb_changelog"),
        marks=pytest.mark.sweep,
    ),
    pytest.param(
        Case("sliding_later", "append", "none", "floats", trigger="processing", provider="hdfs_snapshots"),
        marks=pytest.mark.sweep,
    ),
    pytest.param(
        SessionCase("long", "append", "string", "strings", trigger="processing", partitions="2", provider="rocksdb"),
        marks=pytest.mark.long,
    ),
    SessionCase("by_row", "complete", "dec38", "decimals", trigger="processing"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_resumed_equals_uninterrupted(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    stream = write(STREAM, tmp_path / "stream")
    smooth = replace(case.how, conf={**case.how.conf, **SMALL_LOG})
    broken = replace(smooth, restart_after=frozenset({0, 1, 2, 4}))

    def side(name: str) -> Recording:
        how = broken if name == "resumed" else smooth
        return run(spark, case.query, stream, how, tmp_path / name, enabled=name != "plain")

    with ThreadPoolExecutor(3) as pool:
        plain, device, resumed = pool.map(side, ("plain", "device", "resumed"))
    assert_equal(plain, device, late=case.late, spark_operators=case.spark_operators)
    assert differences(plain, resumed) == []
    assert_placed(resumed, ["gpuwin"])


NOT_RESIDENT = [
    pytest.param(
        Case("uneven_earlier", "append", "two", "strings", trigger="processing", partitions="2"),
        marks=pytest.mark.sweep,
    ),
    pytest.param(
        Case(
            "uneven_earlier",
            "append",
            "two",
            "strings",
            trigger="processing",
            partitions="2",
            provider="rocksdb_changelog",
        ),
        marks=pytest.mark.sweep,
    ),
    pytest.param(
        SessionCase(
            "by_row", "append", "two", "strings", trigger="processing", partitions="2", provider="hdfs_snapshots"
        ),
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize("case", NOT_RESIDENT, ids=str)
def test_state_that_is_not_resident_is_read_from_the_store(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    """The service is killed before each batch, so every batch starts from the state log."""
    stream = write(STREAM, tmp_path / "stream")
    how = replace(case.how, conf={**case.how.conf, **SMALL_LOG}, restart_after=frozenset({1, 3}))
    plain = run(spark, case.query, stream, how, tmp_path / "plain", enabled=False)

    def forget(batch: int, query: StreamingQuery | None) -> None:
        kill(service(spark))

    device = run(spark, case.query, stream, how, tmp_path / "device", enabled=True, before_batch=forget)
    assert_equal(plain, device, spark_operators=case.spark_operators)


REPEATED = [
    Case("sliding", "append", "string", "integers", trigger="processing", partitions="2"),
    pytest.param(
        Case("sliding", "update", "string", "integers", trigger="processing", partitions="2", provider="rocksdb"),
        marks=pytest.mark.long,
    ),
    pytest.param(
        SessionCase("fixed", "append", "string", "integers", trigger="processing", partitions="2", provider="rocksdb"),
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize("case", REPEATED, ids=str)
def test_batch_without_commit_is_repeated(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    """The driver died between the commit of the state and the commit of the batch: the batch is done again."""
    stream = write(STREAM, tmp_path / "stream")
    first, rest = Stream(stream.batches[:3]), Stream(stream.batches)

    def side(enabled: bool) -> tuple[Recording, Recording]:
        folder = tmp_path / ("device" if enabled else "plain")
        before = run(spark, case.query, first, case.how, folder, enabled=enabled)
        for commit in commits(folder / "checkpoint")[-2:]:
            commit.unlink()
            commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
        return before, run(spark, case.query, rest, case.how, folder, enabled=enabled)

    with ThreadPoolExecutor(2) as pool:
        plain, device = pool.map(side, (False, True))
    assert_equal(plain[0], device[0], spark_operators=case.spark_operators)
    assert_equal(plain[1], device[1], spark_operators=case.spark_operators)
    assert plain[0].batches[-1].id in [b.id for b in plain[1].batches], "a batch was repeated"


@pytest.mark.long
def test_state_of_a_batch_that_was_done_twice(spark: SparkSession, tmp_path: Path) -> None:
    """RocksDB's changelog keeps the file of the first attempt, and the query goes on with what the second one made.

    That one begins without resident state, so without key a, whose session has closed: it logs c and a, not a and c.
    """
    rows = [[("a", 0), ("b", 0)], [("c", 100)], [("c", 102)], [("c", 105), ("a", 106)], [("c", 110)], [("d", 300)]]
    rows.append([("e", 600)])
    tables = [
        pa.table(
            {
                "key": [key for key, _ in batch],
                "ts": pa.array(
                    [1_700_000_000_000_000 + second * SECOND for _, second in batch], pa.timestamp("us", "UTC")
                ),
            }
        )
        for batch in rows
    ]
    stream = write_tables([[table] for table in tables], tmp_path / "stream")
    conf = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        **PROVIDERS["rocksdb_changelog"],
    }
    how = Run("append", "processing", conf=conf)

    def sessions(_: SparkSession, frame: DataFrame) -> DataFrame:
        return frame.withWatermark("ts", "20 seconds").groupBy("key", F.session_window("ts", "10 seconds")).count()

    def part(batches: int, folder: str, enabled: bool = True) -> Recording:
        some = Stream(stream.batches[:batches])
        return run(spark, sessions, some, how, tmp_path / folder, enabled=enabled, schema="key string, ts timestamp")

    plain = part(len(rows), "plain", enabled=False)
    part(4, "device")
    last = commits(tmp_path / "device" / "checkpoint")[-1]
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    rest = []
    for batches in (5, len(rows)):  # the second time it reads the files of both attempts
        kill(service(spark))
        rest.append(part(batches, "device"))
        assert rest[-1].error is None, rest[-1].error
    wanted = {b.id: b for b in plain.batches}
    for batch in [b for recording in rest for b in recording.batches]:
        assert not list(row_differences(wanted[batch.id].rows or (), batch.rows or (), plain.columns)), batch.id
    assert rest[0].batches[0].id == 3, "the batch was done again"
    assert sum(len(b.rows or ()) for b in rest[1].batches) == 2, "c and a came out of what was read"


def commits(checkpoint: Path) -> list[Path]:
    return sorted((p for p in (checkpoint / "commits").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))


def test_two_queries_do_not_share_state(spark: SparkSession, tmp_path: Path) -> None:
    """The same query twice at the same time, on different rows: state belongs to a checkpoint, and not to a plan."""
    case = Case("sliding", "append", "string", "integers", trigger="processing", partitions="2")
    streams = [write(StreamSpec(seed=s, batches=3), tmp_path / f"stream{s}") for s in (1, 2)]

    def side(number: int) -> Recording:
        enabled, which = divmod(number, 2)
        folder = tmp_path / f"{enabled}-{which}"
        return run(spark, case.query, streams[which], case.how, folder, enabled=bool(enabled))

    with ThreadPoolExecutor(4) as pool:
        a, b, device_a, device_b = pool.map(side, range(4))
    assert_equal(a, device_a)
    assert_equal(b, device_b)
    assert a.all_rows() != b.all_rows()
