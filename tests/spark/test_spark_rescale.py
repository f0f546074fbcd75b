"""Rescaling: the state of a stopped query for another number of partitions, against an undisturbed plain Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    PROVIDERS,
    SPARK,
    SPARK_SESSIONS,
    Case,
    Query,
    Run,
    SessionCase,
    Stream,
    StreamSpec,
    arrow_of,
    assert_equal,
    differences,
    digests,
    run,
    write,
)

import gpuwin as gw
from gpuwin.cli import main
from gpuwin_spark.checkpoint_repair import repair
from gpuwin_spark.explain import checked, plugin_object
from gpuwin_spark.give_back_state import give_back_state
from gpuwin_spark.rescale_state import rescale_state
from gpuwin_spark.state_claim import claimed

pytestmark = pytest.mark.long

STORES = "_gpuwin_stores"
CLAIM = "_gpuwin_claim"
CASE = Case("sliding", "append", "string", "integers", trigger="processing", partitions="2")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=8, batches=4, empty=None), tmp_path_factory.mktemp("rescale") / "stream")


@pytest.fixture(scope="module")
def begun(spark: SparkSession, stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a query on gpuwin after two batches, not to be changed."""
    folder = tmp_path_factory.mktemp("begun")
    assert run(spark, CASE.query, stream.head(2), CASE.how, folder, enabled=True).error is None
    return folder / "checkpoint"


def stores(checkpoint: Path) -> list[tuple[str, int]]:
    """Names and numbers of the state stores that took the place of the first ones."""
    file = checkpoint / "state" / STORES
    return [(s["name"], s["partitions"]) for s in json.loads(file.read_text())["stores"]] if file.exists() else []


def partitions(plan: str) -> set[int]:
    """Numbers of partitions of the shuffles in a plan."""
    return {int(n) for n in re.findall(r"hashpartitioning\(.*?, (\d+)\)", plan)}


def distinct(_: SparkSession, frame: DataFrame) -> DataFrame:
    """An operator of Spark's above one of gpuwin's, which relies on Spark's partitions."""
    totals = frame.withWatermark("ts", "10 seconds").groupBy("str", F.window("ts", "1 minute", "20 seconds"))
    return totals.agg(F.sum("int").alias("total")).dropDuplicates(["str", "window", "total"])


def stacked(_: SparkSession, frame: DataFrame) -> DataFrame:
    """Two operators of gpuwin's; the upper one, without a key, has a window of several panes."""
    minutes = (
        frame.withWatermark("ts", "10 seconds")
        .groupBy("str", F.window("ts", "20 seconds"))
        .agg(F.count("*").alias("n"))
    )
    window = F.window(F.window_time("window"), "1 minute", "20 seconds")
    return minutes.groupBy(window).agg(F.sum("n").alias("n"))


def some_sliding(_: SparkSession, frame: DataFrame) -> DataFrame:
    """Some of the sliding windows of a row."""
    rows = frame.withWatermark("ts", "10 seconds").withColumn("w", F.window("ts", "1 minute", "25 seconds"))
    return rows.where("second(w.start) < 45").groupBy("w").agg(F.count("*").alias("n"), F.sum("int").alias("s"))


def ordered(_: SparkSession, frame: DataFrame) -> DataFrame:
    """Aggregates that depend on the order of batches."""
    return (
        frame.withWatermark("ts", "10 seconds")
        .groupBy("str", F.window("ts", "2 minutes", "30 seconds"))
        .agg(F.min_by("id", "id").alias("least"), F.stddev("short").alias("s"), F.sum("dec10").alias("d"))
    )


SESSIONS = SessionCase("fixed", "append", "string", "integers", trigger="processing", partitions="2")

CASES = [
    pytest.param(CASE.query, CASE.how, (3, 1), (), id="sliding"),
    pytest.param(CASE.query, replace(CASE, provider="rocksdb").how, (5, 2), (), id="rocksdb", marks=pytest.mark.sweep),
    pytest.param(
        (c := Case("tumbling", "update", "none", "counts", trigger="processing", partitions="2")).query,
        replace(c, provider="rocksdb_changelog").how,
        (3, 4),
        (),
        id="tumbling_without_key_on_a_changelog",
    ),
    pytest.param(
        (d := Case("dense", "update", "three", "decimals", trigger="processing", partitions="3")).query,
        d.how,
        (1, 3),
        (),
        id="dense_with_three_keys",
        marks=pytest.mark.sweep,
    ),
    pytest.param(
        (e := Case("sliding", "complete", "double", "strings", trigger="processing", partitions="3")).query,
        e.how,
        (2, 7),
        (),
        id="complete_by_doubles",
        marks=pytest.mark.sweep,
    ),
    pytest.param(
        (f := Case("uneven", "append", "none", "floats", trigger="processing", partitions="2")).query,
        f.how,
        (3, 1),
        (),
        id="sliding_without_key",
        marks=pytest.mark.sweep,
    ),
    pytest.param(SESSIONS.query, SESSIONS.how, (3, 1), (), id="sessions"),
    pytest.param(
        replace(SESSIONS, key="dec38", local_merge="true").query,
        replace(SESSIONS, key="dec38", local_merge="true", provider="rocksdb_changelog").how,
        (1, 4),
        (),
        id="sessions_merged_below",
        marks=pytest.mark.sweep,
    ),
    pytest.param(distinct, CASE.how, (3, 1), ("dedupe",), id="below_one_of_spark", marks=pytest.mark.sweep),
    pytest.param(stacked, CASE.how, (3, 1), ("gpuwin",), id="stacked"),
    pytest.param(some_sliding, CASE.how, (3, 1), (), id="some_sliding"),
    pytest.param(ordered, CASE.how, (4, 1), (), id="moments_and_least_by", marks=pytest.mark.sweep),
]


@pytest.mark.parametrize(("query", "how", "numbers", "others"), CASES)
def test_query_goes_on_with_other_partitions(
    query: Query,
    how: Run,
    numbers: tuple[int, int],
    others: tuple[str, ...],
    spark: SparkSession,
    stream: Stream,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Rescaled twice, with batches between; as one undisturbed run of plain Spark."""
    plain = run(spark, query, stream, how, tmp_path / "plain", enabled=False)
    done = run(spark, query, stream.head(2), how, tmp_path / "query", enabled=True)
    checkpoint = tmp_path / "query" / "checkpoint"
    for batches, number in zip((3, 4), numbers, strict=True):
        before = shown(spark, checkpoint)
        rescale_state(spark, str(checkpoint), number)
        assert shown(spark, checkpoint) == before, "the same state"
        rest = run(spark, query, stream.head(batches), how, tmp_path / "query", enabled=True)
        assert rest.error is None, rest.error
        assert number in partitions(rest.plan), rest.plan
        done.batches += rest.batches
        done.plan = rest.plan
    assert [n for _, n in stores(checkpoint)] == list(numbers)
    sessions = "sessions" in request.node.name
    sparks = SPARK_SESSIONS if sessions else ("stateStoreSave",)
    own = tuple("stateStoreSave" if o == "gpuwin" else o for o in others)
    assert_equal(plain, done, late=None, operators=(*others, "gpuwin"), spark_operators=(*own, *sparks))


# With operators of Spark's own

whole = pytest.mark.skipif(SPARK < (4, 2), reason="Spark before 4.2 cannot change the number of its own operators")
ROCKSDB = replace(CASE, provider="rocksdb")


def deduplicated(_: SparkSession, frame: DataFrame) -> DataFrame:
    """One of Spark's below one of gpuwin's."""
    once = frame.withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["str", "int"])
    return once.groupBy("str", F.window("ts", "1 minute", "20 seconds")).agg(F.count("*").alias("n"))


def joined(_: SparkSession, frame: DataFrame) -> DataFrame:
    """One of Spark's with four state stores a partition."""
    left = frame.withWatermark("ts", "10 seconds").select("str", "ts", "int", "id")
    right = left.select(*(F.col(c).alias(f"r_{c}") for c in left.columns))
    pairs = left.join(right, F.expr("str = r_str AND id = r_id AND r_ts BETWEEN ts AND ts + INTERVAL 20 SECONDS"))
    return pairs.groupBy("str", F.window("ts", "1 minute", "20 seconds")).agg(F.sum("r_int").alias("total"))


@whole
@pytest.mark.parametrize(
    ("query", "how", "numbers", "own"),
    [
        pytest.param(distinct, ROCKSDB.how, (5, 1), "dedupe", id="distinct"),
        pytest.param(
            deduplicated,
            replace(ROCKSDB, provider="rocksdb_changelog").how,
            (1, 3),
            "dedupeWithinWatermark",
            id="deduplicated",
            marks=pytest.mark.sweep,
        ),
        pytest.param(joined, ROCKSDB.how, (3, 4), "symmetricHashJoin", id="joined", marks=pytest.mark.sweep),
    ],
)
def test_operators_of_spark_change_their_number_too(
    query: Query, how: Run, numbers: tuple[int, int], own: str, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Rescaled twice, with batches between; as one undisturbed run of plain Spark."""
    plain = run(spark, query, stream, how, tmp_path / "plain", enabled=False)
    done = run(spark, query, stream.head(2), how, tmp_path / "query", enabled=True)
    checkpoint = tmp_path / "query" / "checkpoint"
    for batches, number in zip((3, 4), numbers, strict=True):
        before = shown(spark, checkpoint)
        said = rescale_state(spark, str(checkpoint), number)
        assert f"Spark's own: {2 if number == numbers[0] else numbers[0]} -> {number} partitions" in said
        assert shown(spark, checkpoint) == before, "the same state"
        assert not (checkpoint / "_gpuwin_rescaled").exists()
        rest = run(spark, query, stream.head(batches), how, tmp_path / "query", enabled=True)
        assert rest.error is None, rest.error
        assert partitions(rest.plan) == {number}, rest.plan
        done.batches += rest.batches
        done.plan = rest.plan
    assert {o for b in done.batches for o in b.operators} == {own, "gpuwin"}
    assert differences(plain, done) == []


def test_operators_of_spark_that_keep_their_number(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    assert run(spark, distinct, stream.head(2), CASE.how, tmp_path, enabled=True).error is None
    said = rescale_state(spark, str(tmp_path / "checkpoint"), 3)
    assert re.search(r"operator \d: 2 -> 3 partitions, \d+ cells, version 4", said)
    assert re.search(r"operator \d, Spark's own, has 2 partitions as before: Spark .* change it", said)


@whole
@pytest.mark.sweep
def test_unfinished_batch_of_a_query_with_operators_of_spark(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """It is done again, with the new number."""
    folder = tmp_path / "query"
    assert run(spark, distinct, stream.head(2), ROCKSDB.how, folder, enabled=True).error is None
    for log in ("3", ".3.crc"):
        (folder / "checkpoint/commits" / log).unlink(missing_ok=True)
    refused(spark, folder / "checkpoint", 3, "Batch 3", "If it runs, stop it", "--stopped")
    rescale_state(spark, str(folder / "checkpoint"), 3, stopped=True)
    plain = run(spark, distinct, stream, ROCKSDB.how, tmp_path / "plain", enabled=False)
    rest = run(spark, distinct, stream, ROCKSDB.how, folder, enabled=True)
    assert partitions(rest.plan) == {3}
    plain.batches = [b for b in plain.batches if b.id >= 3]
    assert differences(plain, rest) == []


@whole
def test_file_sink_of_a_query_with_operators_of_spark(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Its log wants every batch: after Spark's `repartition` nothing reads it any more."""
    how = replace(ROCKSDB.how, sink="parquet")
    assert run(spark, distinct, stream.head(2), how, tmp_path / "query", enabled=True).error is None
    rescale_state(spark, str(tmp_path / "query" / "checkpoint"), 3)
    assert run(spark, distinct, stream, how, tmp_path / "query", enabled=True).error is None
    assert run(spark, distinct, stream, how, tmp_path / "plain", enabled=False).error is None
    rows = [sorted(map(str, spark.read.parquet(str(tmp_path / f / "out")).collect())) for f in ("plain", "query")]
    assert rows[0] == rows[1]
    assert rows[0]


def shown(spark: SparkSession, checkpoint: Path) -> list[str]:
    """The cells of every operator of gpuwin; the order of their segments is a matter of partitions."""
    rows = []
    for operator in sorted(p.parent.name for p in (checkpoint / "state").glob("*/_gpuwin")):
        table = arrow_of(gw.spark.read_state(spark, str(checkpoint), operator=int(operator)))
        rows += [f"{operator} {row}" for row in table.to_pylist()]
    return sorted(rows)


def test_command(begun: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """And versions before, which stay where they were."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(begun, checkpoint)
    old = arrow_of(gw.spark.read_state(spark, str(checkpoint), version=2)).num_rows
    assert main(["state", "rescale", str(checkpoint), "--partitions", "5"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"operator 0: 2 -> 5 partitions, \d+ cells, version 4", said)
    assert "Start the query" in said
    before, after = digests(begun), digests(checkpoint)
    assert before.items() <= after.items(), "nothing that was there is touched"
    assert all("/gpuwin-1/" in name or STORES in name for name in after.keys() - before.keys())
    assert len(list((checkpoint / "state/0").glob("*/gpuwin-1/4.snapshot"))) == 5
    assert main(["state", "show", str(checkpoint)]) == 0
    assert "5 partitions" in capsys.readouterr().out
    assert old > 0
    assert arrow_of(gw.spark.read_state(spark, str(checkpoint), version=2)).num_rows == old


@pytest.mark.skipif(SPARK < (4, 0), reason="Spark 3.5 has no sources that read state")
def test_source_state_metadata(spark: SparkSession, begun: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(begun, checkpoint)
    rescale_state(spark, str(checkpoint), 3)
    source = spark.read.format("state-metadata").load(str(checkpoint))
    assert [tuple(r) for r in source.select("operatorName", "numPartitions").collect()] == [("gpuwin", 3)]


def test_operator_whose_state_is_empty(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """As that of the lower of two operators once its windows are closed. Spark plans no rows as no partitions."""

    def none(session: SparkSession, frame: DataFrame) -> DataFrame:
        return CASE.query(session, frame.where("id < 0"))

    assert run(spark, none, stream.head(2), CASE.how, tmp_path, enabled=True).error is None
    assert "operator 0: 2 -> 1 partitions, 0 cells" in rescale_state(spark, str(tmp_path / "checkpoint"), 1)
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=True)
    assert rest.error is None
    assert partitions(rest.plan) == {1}
    assert any(batch.rows for batch in rest.batches)


# Refused, and nothing changed


def refused(spark: SparkSession, checkpoint: Path, number: int, *words: str, stopped: bool = False) -> None:
    before = digests(checkpoint)
    with pytest.raises(gw.spark.CheckpointError) as said:
        rescale_state(spark, str(checkpoint), number, stopped=stopped)
    for word in words:
        assert word in str(said.value)
    assert digests(checkpoint) == before


def test_what_is_no_checkpoint_of_gpuwin(spark: SparkSession, begun: Path, stream: Stream, tmp_path: Path) -> None:
    refused(spark, tmp_path / "nowhere", 3, "There is no folder")
    (tmp_path / "empty").mkdir()
    refused(spark, tmp_path / "empty", 3, "is no checkpoint of a streaming query")
    assert run(spark, CASE.query, stream.head(1), CASE.how, tmp_path / "plain", enabled=False).error is None
    refused(spark, tmp_path / "plain" / "checkpoint", 3, "was written by Spark without gpuwin")
    refused(spark, begun, 2, "has 2 partitions already")
    refused(spark, begun, 0, "1 to 100,000 partitions")


def test_damaged_log(spark: SparkSession, begun: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(begun, checkpoint)
    for delta in (checkpoint / "state/0/1/gpuwin").iterdir():
        delta.unlink()
    refused(spark, checkpoint, 3, "partition 1", "cannot be read")


def test_batch_that_is_not_committed(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """A query that runs, or one that was killed in a batch, which is done again."""
    folder = tmp_path / "query"
    assert run(spark, CASE.query, stream.head(2), CASE.how, folder, enabled=True).error is None
    checkpoint = folder / "checkpoint"
    for log in ("3", ".3.crc"):
        (checkpoint / "commits" / log).unlink(missing_ok=True)
    refused(spark, checkpoint, 3, "Batch 3", "If it runs, stop it", "--stopped")
    rescale_state(spark, str(checkpoint), 3, stopped=True)
    plain = run(spark, CASE.query, stream, CASE.how, tmp_path / "plain", enabled=False)
    rest = run(spark, CASE.query, stream, CASE.how, folder, enabled=True)
    assert rest.error is None
    assert 3 in partitions(rest.plan)
    again = {b.id for b in rest.batches}
    assert min(again) == 3
    plain.batches = [b for b in plain.batches if b.id in again]
    assert_equal(plain, rest, late=None)


@pytest.mark.sweep
def test_files_with_ids(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    how = replace(CASE.how, conf={**CASE.how.conf, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
                                  **PROVIDERS["rocksdb_changelog"]})  # fmt: skip
    done = run(spark, CASE.query, stream.head(1), how, tmp_path, enabled=True)
    assert done.error is None
    commit = (tmp_path / "checkpoint/commits").glob("[0-9]*")
    if not any("stateUniqueIds" in p.read_text() for p in commit):
        pytest.skip("this Spark keeps no ids")
    refused(spark, tmp_path / "checkpoint", 3, "checkpointFormatVersion=2")


def test_specified_aggregation(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Its log has no cells."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        spec = gw.WindowedAggregation(
            window=gw.TumblingWindow("1 minute"), time="ts", keys=["str"], aggregates={"n": gw.count()}
        )
        return gw.spark.aggregate(frame.withWatermark("ts", "10 seconds"), spec)

    assert run(spark, query, stream.head(1), CASE.how, tmp_path, enabled=True).error is None
    refused(spark, tmp_path / "checkpoint", 3, "cannot be rescaled", "gw.spark.aggregate")


def test_query_that_runs_meanwhile_stops_before_its_next_batch(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """It would go on with state stores that are no longer in use."""
    checkpoint = tmp_path / "query" / "checkpoint"

    def rescaled(batch: int, query: object) -> None:
        if batch == 2 and query is not None:
            rescale_state(spark, str(checkpoint), 3)

    done = run(spark, CASE.query, stream, CASE.how, tmp_path / "query", enabled=True, before_batch=rescaled)
    assert done.error is not None
    assert "was rescaled while this query ran" in done.error.message
    plain = run(spark, CASE.query, stream, CASE.how, tmp_path / "plain", enabled=False)
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path / "query", enabled=True)
    rest.batches = done.batches + rest.batches
    assert_equal(plain, rest, late=None)


@whole
@pytest.mark.sweep
@pytest.mark.parametrize("runs", [True, False], ids=["runs", "waits"])
def test_query_that_runs_meanwhile_with_operators_of_spark(
    runs: bool, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Its offsets have the old number, with which Spark starts no query; the command puts that right."""
    folder = tmp_path / "query"
    before = run(spark, distinct, stream.head(2), ROCKSDB.how, folder, enabled=True)

    def rescaled(batch: int, _: object) -> None:
        if batch == 3:
            rescale_state(spark, str(folder / "checkpoint"), 3)

    # Where it finds the third batch done already, it has planned none by then.
    begun = stream.head(2) if runs else stream.head(3)
    first = run(spark, distinct, begun, ROCKSDB.how, folder, enabled=True)
    stopped = run(spark, distinct, stream, ROCKSDB.how, folder, enabled=True, before_batch=rescaled)
    assert stopped.error is not None
    assert "--partitions 3 --stopped" in stopped.error.message
    hurt = run(spark, distinct, stream, ROCKSDB.how, folder, enabled=True)
    assert hurt.error is not None
    assert "STREAMING_UNFINISHED_REPARTITION_DETECTED" in hurt.error.message
    refused(spark, folder / "checkpoint", 3, "--stopped")
    assert "is done again in 3" in rescale_state(spark, str(folder / "checkpoint"), 3, stopped=True)
    rest = run(spark, distinct, stream, ROCKSDB.how, folder, enabled=True)
    assert partitions(rest.plan) == {3}
    plain = run(spark, distinct, stream, ROCKSDB.how, tmp_path / "plain", enabled=False)
    rest.batches = before.batches + first.batches + stopped.batches + rest.batches
    assert differences(plain, rest) == []


# Taken back

UPDATES = replace(CASE, mode="update", idle_batch="off")


def take_back(folder: Path, stream: Stream, batch: int) -> None:
    """Removes the entries of the last batch from the logs of a checkpoint, and its files from the source."""
    for log in ("commits", "offsets", "sources/0"):
        for name in (str(batch), f".{batch}.crc"):
            (folder / "checkpoint" / log / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "source" / stream.batches[batch][0].stem)


@pytest.mark.parametrize("again", [False, True], ids=["started", "rescaled_again"])
def test_batch_that_is_taken_back(again: bool, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """The state of the rescaling had that batch; nothing of it comes back, and nothing of the next one is lost."""
    folder, checkpoint = tmp_path / "query", tmp_path / "query" / "checkpoint"
    one, _, three, four = stream.batches
    done = run(spark, UPDATES.query, stream.head(2), UPDATES.how, folder, enabled=True)
    rescale_state(spark, str(checkpoint), 3)
    take_back(folder, stream, 1)
    if again:
        rescale_state(spark, str(checkpoint), 5)
        assert [n for _, n in stores(checkpoint)] == [3, 5]
    others = Stream((one, three, four))
    plain = run(spark, UPDATES.query, others, UPDATES.how, tmp_path / "plain", enabled=False)
    for batches, number in ((2, 5 if again else 2), (3, 4)):
        if number == 4:
            assert stores(checkpoint) == ([("gpuwin-2", 5)] if again else [])
            rescale_state(spark, str(checkpoint), 4)
        rest = run(spark, UPDATES.query, others.head(batches), UPDATES.how, folder, enabled=True)
        assert rest.error is None, rest.error
        assert number in partitions(rest.plan)
        done.batches[batches - 1 :] = rest.batches
        done.plan = rest.plan
    assert_equal(plain, done, late=None)


def test_batch_that_is_taken_back_in_part(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Spark would do the batch before, which is committed; the stores of the rescaling stay in use."""
    folder, checkpoint = tmp_path / "query", tmp_path / "query" / "checkpoint"
    assert run(spark, UPDATES.query, stream.head(2), UPDATES.how, folder, enabled=True).error is None
    rescale_state(spark, str(checkpoint), 3)
    for log in ("offsets", "commits"):
        for name in ("1", ".1.crc"):
            (checkpoint / log / name).unlink(missing_ok=True)
    shutil.copy2(checkpoint / "commits/0", checkpoint / "commits/1")
    stopped = run(spark, UPDATES.query, stream, UPDATES.how, folder, enabled=True)
    assert stopped.error is not None
    assert "commits/0" in stopped.error.message
    assert stores(checkpoint) == [("gpuwin-1", 3)]


@whole
@pytest.mark.sweep
def test_batch_that_is_taken_back_with_operators_of_spark(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """With a log of changes Spark would read the snapshot that the rescaling made, in the place of the new changes."""
    case = replace(UPDATES, provider="rocksdb_changelog", mode="append")
    folder, checkpoint = tmp_path / "query", tmp_path / "query" / "checkpoint"
    one, _, three, four = stream.batches
    done = run(spark, deduplicated, stream.head(2), case.how, folder, enabled=True)
    rescale_state(spark, str(checkpoint), 3)
    take_back(folder, stream, 1)
    others = Stream((one, three, three, four))
    stopped = run(spark, deduplicated, others.head(2), case.how, folder, enabled=True)
    assert stopped.error is not None
    assert "<version>.zip of versions above 1" in stopped.error.message
    assert stores(checkpoint) == [("gpuwin-1", 3)]
    sparks = [p for p in (checkpoint / "state").glob("*/[0-9]*/2.zip") if not (p.parents[1] / "_gpuwin").exists()]
    assert len(sparks) == 3
    for file in sparks:
        file.unlink()
    for batches in (2, 3):
        rest = run(spark, deduplicated, Stream((one, three, four)).head(batches), case.how, folder, enabled=True)
        assert rest.error is None, rest.error
        assert partitions(rest.plan) == {2}
        done.batches[batches - 1 :] = rest.batches
        done.plan = rest.plan
    plain = run(spark, deduplicated, Stream((one, three, four)), case.how, tmp_path / "plain", enabled=False)
    assert differences(plain, done) == []


# Two commands at once


def test_command_that_begins_while_another_works(
    spark: SparkSession, begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Path(shutil.copytree(begun, tmp_path / "checkpoint"))
    command, hold = held_at("rescaled_state.0", checkpoint, tmp_path / "points", monkeypatch)
    there = digests(checkpoint)
    by = r"claimed by gpuwin state rescale, process \d+ on .*Nothing was changed"
    with pytest.raises(gw.spark.CheckpointError, match=by):
        rescale_state(spark, str(checkpoint), 5)
    with pytest.raises(gw.spark.CheckpointError, match=by):
        give_back_state(spark, str(checkpoint))
    with pytest.raises(gw.spark.CheckpointError, match=by):
        repair(str(checkpoint))
    assert digests(checkpoint) == there
    hold.unlink()
    assert command.wait(timeout=120) == 0
    assert stores(checkpoint) == [("gpuwin-1", 3)]
    assert not (checkpoint / CLAIM).exists()
    by_repair = r"claimed by gpuwin state repair, process \d+ on .*Nothing was changed"
    with claimed(checkpoint, "gpuwin state repair"), pytest.raises(gw.spark.CheckpointError, match=by_repair):
        rescale_state(spark, str(checkpoint), 5)
    assert not (checkpoint / CLAIM).exists()
    rescale_state(spark, str(checkpoint), 5)
    assert stores(checkpoint) == [("gpuwin-1", 3), ("gpuwin-2", 5)]


def test_command_that_begins_while_state_is_given_back(spark: SparkSession, begun: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(begun, tmp_path / "checkpoint"))
    giving = checked(plugin_object("GivingBack").begin(spark._jsparkSession, str(checkpoint), False)).giving()
    for _ in range(2):  # a claim of this process is not lost by looking at it
        with pytest.raises(gw.spark.CheckpointError, match="claimed by another command of this process"):
            rescale_state(spark, str(checkpoint), 5)
    said = subprocess.run([sys.executable, "-c", COMMAND, "state", "rescale", str(checkpoint), "--partitions", "5"],
                          capture_output=True, text=True)  # fmt: skip
    assert "claimed by gpuwin state give-back, process" in said.stderr
    giving.close()
    assert digests(checkpoint) == digests(begun)
    rescale_state(spark, str(checkpoint), 5)
    assert stores(checkpoint) == [("gpuwin-1", 5)]


def test_state_that_is_moved_right_before_the_switch(
    spark: SparkSession, begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the file system cannot tell that a file is there already, or its claim was removed."""
    checkpoint = Path(shutil.copytree(begun, tmp_path / "checkpoint"))
    command, hold = held_at("rescaled_state.0", checkpoint, tmp_path / "points", monkeypatch)
    (checkpoint / CLAIM).unlink()
    rescale_state(spark, str(checkpoint), 5)
    hold.unlink()
    assert command.wait(timeout=120) != 0
    assert "has moved the state" in (tmp_path / "points/said").read_text()
    assert stores(checkpoint) == [("gpuwin-1", 5)]


def test_claim_without_locks(spark: SparkSession, begun: Path, tmp_path: Path) -> None:
    """A file that is made where there is none, as in a file system that is on no local disk."""
    checkpoint = Path(shutil.copytree(begun, tmp_path / "checkpoint"))
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    conf.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
    conf.set("fs.file.impl.disable.cache", "true")
    claims = plugin_object("StateClaim")
    claim = claims.take(str(checkpoint), "one", conf, False)
    assert re.match(r"one, process \d+ on .+, since \d{4}-", (checkpoint / CLAIM).read_text())
    for by, renews in ("two", True), ("one", False):
        with pytest.raises(Exception, match=r"(?s)claimed by one, process .*nothing works there, remove file:"):
            claims.take(str(checkpoint), by, conf, renews)
    claims.take(str(checkpoint), "one", conf, True).close()  # of a query that was killed
    assert not (checkpoint / CLAIM).exists()
    claim.close()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv, of util-linux, is not on this machine")
def test_claim_that_a_killed_command_of_another_user_left(begun: Path, tmp_path: Path) -> None:
    """This one may not write the file, and so cannot lock it: it says what to do."""
    checkpoint = Path(shutil.copytree(begun, tmp_path / "checkpoint"))
    (checkpoint / CLAIM).write_text("gpuwin state rescale, process 1 on x, since never")
    (checkpoint / CLAIM).chmod(0o444)
    as_user = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []  # root may write any file
    for arguments in ["rescale", str(checkpoint), "--partitions", "3"], ["repair", str(checkpoint)]:
        command = [*as_user, sys.executable, "-c", COMMAND, "state", *arguments]
        said = subprocess.run(command, capture_output=True, text=True).stderr
        assert "claimed by gpuwin state rescale, process 1 on x, since never" in said
        assert f"nothing works there, remove {checkpoint / CLAIM} first." in said
    (checkpoint / CLAIM).unlink()
    assert digests(checkpoint) == digests(begun)


@whole
def test_rest_of_a_rescaling_that_cannot_be_done(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """The error says that the state is rescaled, and what is left to do; the same command does that."""
    assert run(spark, distinct, stream.head(2), ROCKSDB.how, tmp_path, enabled=True).error is None
    checkpoint = tmp_path / "checkpoint"
    hindrance = checkpoint / "state/0/2"
    hindrance.write_text("in the place of a folder")
    words = r"is rescaled to 3 partitions, and not all of its state is in its place: .*state/0/2.* Mend that; then"
    with pytest.raises(gw.spark.CheckpointError, match=words) as said:
        rescale_state(spark, str(checkpoint), 3)
    assert "nothing was changed" not in str(said.value)
    hindrance.unlink()
    assert "It is done" in rescale_state(spark, str(checkpoint), 3)


# Killed


COMMAND = "from gpuwin.cli import main; import sys; sys.exit(main(sys.argv[1:]))"


def held_at(
    point: str, checkpoint: Path, points: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[subprocess.Popen[bytes], Path]:
    """The command, for 3 partitions, held at a step, and the file that holds it there, with the id of its JVM."""
    points.mkdir()
    (points / f"{point}.armed").touch()
    monkeypatch.setenv("GPUWIN_FAILPOINTS", str(points))
    command = [sys.executable, "-c", COMMAND, "state", "rescale", str(checkpoint), "--partitions", "3"]
    with (points / "said").open("w") as said:
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=said)
    hit = points / f"{point}.hit"
    until = time.monotonic() + 120
    while not hit.exists() and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.05)
    return process, hit


def kill_at(point: str, checkpoint: Path, points: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the command, for 3 partitions, at a step."""
    process, hit = held_at(point, checkpoint, points, monkeypatch)
    subprocess.run(["kill", "-9", hit.read_text()], check=True)
    process.kill()
    process.wait()


def test_query_that_starts_right_before_the_switch(
    spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is in the old state stores, and they stay in use."""
    folder = tmp_path / "query"
    done = run(spark, CASE.query, stream.head(2), CASE.how, folder, enabled=True)
    command, hold = held_at("rescaled_state.0", folder / "checkpoint", tmp_path / "points", monkeypatch)
    meanwhile = run(spark, CASE.query, stream.head(3), CASE.how, folder, enabled=True)
    hold.unlink()
    assert command.wait(timeout=120) != 0
    assert "has begun or committed a batch meanwhile" in (tmp_path / "points/said").read_text()
    rest = run(spark, CASE.query, stream, CASE.how, folder, enabled=True)
    plain = run(spark, CASE.query, stream, CASE.how, tmp_path / "plain", enabled=False)
    rest.batches = done.batches + meanwhile.batches + rest.batches
    assert_equal(plain, rest, late=None)


@pytest.mark.parametrize("point", [pytest.param("written_partition.1", marks=pytest.mark.sweep), "rescaled_state.0"])
def test_killed(
    point: str, spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old state is in use until the new one is whole; what was left is no hindrance."""
    folder = tmp_path / "query"
    assert run(spark, CASE.query, stream.head(2), CASE.how, folder, enabled=True).error is None
    checkpoint = folder / "checkpoint"
    before = digests(checkpoint)
    kill_at(point, checkpoint, tmp_path / "points", monkeypatch)
    assert stores(checkpoint) == []
    assert before.items() <= digests(checkpoint).items()
    shutil.copytree(folder, tmp_path / "left")

    plain = run(spark, CASE.query, stream, CASE.how, tmp_path / "plain", enabled=False)
    plain.batches = [b for b in plain.batches if b.id > 3]
    for number in (2, 3):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "left", folder)
        if number == 3:
            rescale_state(spark, str(checkpoint), 3)
        rest = run(spark, CASE.query, stream, CASE.how, folder, enabled=True)
        assert number in partitions(rest.plan)
        assert_equal(plain, rest, late=None)


@dataclass(frozen=True)
class Resumed:
    """A query, or a command, after a kill: how many partitions the query has then.

    Attributes:
        guarded: whether the query has the class of files that the plugin sets. Without it, its first start fails.
        again: whether the command is run again first.
    """

    point: str
    partitions: int
    guarded: bool = True
    again: bool = False

    def __str__(self) -> str:
        return f"{self.point}-{'again' if self.again else 'guarded' if self.guarded else 'unguarded'}"


@pytest.mark.sweep
@whole
@pytest.mark.parametrize(
    "after",
    [
        pytest.param(Resumed("rescaled_state.0", 2), marks=pytest.mark.sweep),
        pytest.param(Resumed("rescaled_state.0", 3, again=True), marks=pytest.mark.sweep),
        Resumed("ready_rescaling.3", 3),
        pytest.param(Resumed("ready_rescaling.3", 3, again=True), marks=pytest.mark.sweep),
        pytest.param(Resumed("ready_rescaling.3", 3, guarded=False), marks=pytest.mark.sweep),
        pytest.param(Resumed("placed_rescaling.3", 3), marks=pytest.mark.sweep),
        pytest.param(Resumed("placed_rescaling.3", 3, again=True), marks=pytest.mark.sweep),
        pytest.param(Resumed("placed_rescaling.3", 3, guarded=False), marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_killed_with_operators_of_spark(
    after: Resumed, spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query has its old number in all operators, or its new one."""
    folder = tmp_path / "query"
    checkpoint = folder / "checkpoint"
    files = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert files is not None
    conf = ROCKSDB.how.conf | ({"spark.sql.streaming.checkpointFileManagerClass": files} if after.guarded else {})
    how = replace(ROCKSDB.how, conf=conf)
    assert run(spark, distinct, stream.head(2), how, folder, enabled=True).error is None
    kill_at(after.point, checkpoint, tmp_path / "points", monkeypatch)
    if "rescaled" not in after.point:
        with pytest.raises(gw.spark.CheckpointError, match="gpuwin state rescale"):
            repair(str(checkpoint))
    if after.again:
        said = rescale_state(spark, str(checkpoint), 3)
        assert ("had begun. It is done" in said) == ("rescaled" not in after.point)
    if not after.guarded:
        ended = run(spark, distinct, stream, how, folder, enabled=True)
        assert ended.error is not None
        assert "Start the query again" in ended.error.message
        assert not ended.batches
    plain = run(spark, distinct, stream, how, tmp_path / "plain", enabled=False)
    rest = run(spark, distinct, stream, how, folder, enabled=True)
    assert partitions(rest.plan) == {after.partitions}
    assert not (checkpoint / "_gpuwin_rescaled/_ready").exists()
    plain.batches = [b for b in plain.batches if b.id > 3]
    assert differences(plain, rest) == []


@whole
@pytest.mark.sweep
@pytest.mark.parametrize("point", ["ready_rescaling.3", "placed_file.2", "placed_rescaling.3"])
def test_killed_and_then_given_back(
    point: str, spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be given back is rescaled to the end first: nothing is left that would be put over it later."""
    folder = tmp_path / "query"
    checkpoint = folder / "checkpoint"
    assert run(spark, distinct, stream.head(2), ROCKSDB.how, folder, enabled=True).error is None
    kill_at(point, checkpoint, tmp_path / "points", monkeypatch)
    give_back_state(spark, str(checkpoint))
    plain = run(spark, distinct, stream, ROCKSDB.how, tmp_path / "plain", enabled=False)
    rest = run(spark, distinct, stream, ROCKSDB.how, folder, enabled=False)
    assert partitions(rest.plan) == {3}
    plain.batches = [b for b in plain.batches if b.id > 3]
    assert differences(plain, rest) == []
