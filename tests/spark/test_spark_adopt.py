"""Adoption: a query that plain Spark began goes on with gpuwin, against a plain Spark that is left alone."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    PROVIDERS,
    Case,
    Query,
    Recording,
    Run,
    SessionCase,
    Stream,
    StreamSpec,
    assert_placed,
    await_until,
    differences,
    digests,
    run,
    start_session,
    write,
)
from test_spark_rescale import some_sliding

from gpuwin.cli import main
from gpuwin_spark.give_back_state import give_back_state
from gpuwin_spark.rescale_state import rescale_state

pytestmark = pytest.mark.long

ADOPT = {"spark.gpuwin.adopt": "true"}
CASE = Case("tumbling", "append", "string", "integers", trigger="processing", partitions="3")
SESSIONS = SessionCase("fixed", "append", "string", "integers", trigger="processing", partitions="3")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=8, batches=6, empty=None), tmp_path_factory.mktemp("adopt") / "stream")


def adopting(how: Run) -> Run:
    return replace(how, conf={**how.conf, **ADOPT})


def assert_same(plain: Recording, *parts: Recording) -> None:
    """The parts, one after the other, did what the whole did: rows, watermarks, late rows, batch for batch."""
    for part in parts:
        assert part.error is None, part.error
    together = replace(parts[-1], batches=[b for part in parts for b in part.batches])
    assert differences(plain, together) == []
    assert sum(len(b.rows) for part in parts[1:] for b in part.batches), "vacuous: nothing came out after the adoption"


def ordered(_: SparkSession, frame: DataFrame, *slide: str) -> DataFrame:
    """Aggregates whose result depends on what came first."""
    return (
        frame.withWatermark("ts", "10 seconds")
        .groupBy("str", F.window("ts", "2 minutes", *slide))
        .agg(
            F.first("id").alias("first"),
            F.last("int", ignorenulls=True).alias("last"),
            F.max_by("id", "short").alias("by"),
            F.approx_count_distinct("long").alias("kinds"),
            F.bitmap_construct_agg(F.bitmap_bit_position("id")).alias("ids"),
            F.stddev("short").alias("spread"),
        )
    )


def ordered_sliding(spark: SparkSession, frame: DataFrame) -> DataFrame:
    return ordered(spark, frame, "25 seconds")


def ordered_sessions(_: SparkSession, frame: DataFrame) -> DataFrame:
    return (
        frame.withWatermark("ts", "10 seconds")
        .groupBy("bool", F.session_window("ts", "10 seconds"))
        .agg(
            F.first("id").alias("first"),
            F.last("str", ignorenulls=True).alias("last"),
            F.max_by("id", "short").alias("by"),
            F.approx_count_distinct("long").alias("kinds"),
        )
    )


def stacked(_: SparkSession, frame: DataFrame) -> DataFrame:
    """Two windowed aggregations, and a deduplication that stays Spark's."""
    rows = frame.withWatermark("ts", "10 seconds").dropDuplicates(["id", "ts"])
    minutes = rows.groupBy("str", F.window("ts", "20 seconds")).agg(F.count("*").alias("n"))
    return minutes.groupBy(F.window(F.window_time("window"), "1 minute")).agg(F.sum("n").alias("n"))


def pivoted(_: SparkSession, frame: DataFrame) -> DataFrame:
    groups = frame.withWatermark("ts", "10 seconds").groupBy("str", F.window("ts", "20 seconds"))
    return groups.pivot("bool", [True, False]).agg(F.count("id").alias("n"), F.sum("dec10").alias("s"))


def instants(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds").groupBy("ts", "bool").agg(F.count("*").alias("n"))


def how(case: Case, **conf: str) -> Run:
    return replace(case.how, conf={**case.how.conf, **conf})


V1 = {"spark.sql.streaming.aggregation.stateFormatVersion": "1"}
UPDATE = replace(CASE, mode="update", aggregate="decimals", provider="rocksdb_changelog", key="three")
COMPLETE = replace(CASE, mode="complete", key="double", aggregate="strings", window="tumbling_later")
NO_KEY = replace(CASE, key="none", aggregate="moments", provider="rocksdb")

SLIDING = replace(CASE, window="sliding")
SLIDING_UPDATE = replace(SLIDING, mode="update", aggregate="strings", provider="rocksdb", key="none")
SLIDING_COMPLETE = replace(SLIDING, mode="complete", key="three", aggregate="integers")

CASES = [
    pytest.param(SLIDING.query, how(SLIDING), ("gpuwin",), id="sliding"),
    pytest.param(
        SLIDING_UPDATE.query, how(SLIDING_UPDATE), ("gpuwin",), id="sliding_in_update_mode", marks=pytest.mark.sweep
    ),
    pytest.param(
        SLIDING_COMPLETE.query, how(SLIDING_COMPLETE), ("gpuwin",), id="sliding_complete", marks=pytest.mark.sweep
    ),
    pytest.param(ordered_sliding, how(CASE), ("gpuwin",), id="sliding_ordered", marks=pytest.mark.sweep),
    pytest.param(some_sliding, how(CASE), ("gpuwin",), id="some_sliding"),
    pytest.param(CASE.query, how(CASE), ("gpuwin",), id="tumbling", marks=pytest.mark.sweep),
    pytest.param(CASE.query, how(CASE, **V1), ("gpuwin",), id="state_format_1", marks=pytest.mark.sweep),
    pytest.param(UPDATE.query, how(UPDATE), ("gpuwin",), id="update_on_a_changelog"),
    pytest.param(COMPLETE.query, how(COMPLETE), ("gpuwin",), id="complete", marks=pytest.mark.sweep),
    pytest.param(NO_KEY.query, how(NO_KEY), ("gpuwin",), id="without_key_on_rocksdb", marks=pytest.mark.sweep),
    pytest.param(SESSIONS.query, how(SESSIONS), ("gpuwin",), id="sessions", marks=pytest.mark.sweep),
    pytest.param(
        (s := replace(SESSIONS, key="dec38", window="by_row", provider="rocksdb")).query,
        how(s),
        ("gpuwin",),
        id="sessions_on_rocksdb",
        marks=pytest.mark.sweep,
    ),
    pytest.param(ordered_sessions, how(SESSIONS), ("gpuwin",), id="sessions_ordered"),
    pytest.param(ordered, how(CASE), ("gpuwin",), id="ordered", marks=pytest.mark.sweep),
    pytest.param(stacked, how(CASE), ("gpuwin", "gpuwin", "dedupe"), id="stacked"),
    pytest.param(pivoted, how(CASE), ("gpuwin", "gpuwin"), id="pivot", marks=pytest.mark.sweep),
    pytest.param(instants, how(CASE), ("gpuwin",), id="instants", marks=pytest.mark.sweep),
]


@pytest.mark.parametrize(("query", "how", "operators"), CASES)
def test_query_goes_on_with_gpuwin(
    query: Query, how: Run, operators: tuple[str, ...], spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Started by Spark, adopted after two batches, rescaled after a third, given back, and adopted again."""
    plain = run(spark, query, stream, how, tmp_path / "plain", enabled=False)
    first = run(spark, query, stream.head(2), how, tmp_path / "query", enabled=False)
    second = run(spark, query, stream.head(3), adopting(how), tmp_path / "query", enabled=True)
    assert second.error is None, second.error
    assert_placed(second, operators)
    rescale_state(spark, str(tmp_path / "query" / "checkpoint"), 2)
    third = run(spark, query, stream.head(4), how, tmp_path / "query", enabled=True)
    assert_placed(third, operators)
    give_back_state(spark, str(tmp_path / "query" / "checkpoint"))
    fourth = run(spark, query, stream.head(5), how, tmp_path / "query", enabled=True)
    assert fourth.batches
    assert not any("gpuwin" in batch.operators for batch in fourth.batches)
    fifth = run(spark, query, stream, adopting(how), tmp_path / "query", enabled=True)
    assert_placed(fifth, operators)
    assert_same(plain, first, second, third, fourth, fifth)


def test_without_the_key_all_stays_with_spark(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    first = run(spark, CASE.query, stream.head(2), CASE.how, tmp_path, enabled=False)
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=True)
    assert first.error is None
    assert_placed(rest, ("stateStoreSave",))


@pytest.mark.sweep
def test_files_with_ids_stay_with_spark(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    ids = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2", **PROVIDERS["rocksdb_changelog"]}
    first = run(spark, CASE.query, stream.head(2), how(CASE, **ids), tmp_path, enabled=False)
    assert first.error is None
    if not any("stateUniqueIds" in p.read_text() for p in (tmp_path / "checkpoint/commits").glob("[0-9]*")):
        pytest.skip("this Spark keeps no ids")
    rest = run(spark, CASE.query, stream, adopting(how(CASE, **ids)), tmp_path, enabled=True)
    assert_placed(rest, ("stateStoreSave",))


def test_damaged_state_of_spark(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """As with Spark alone, the query fails; and the checkpoint is Spark's still."""
    first = run(spark, CASE.query, stream.head(2), CASE.how, tmp_path, enabled=False)
    assert first.error is None
    (delta,) = (tmp_path / "checkpoint/state/0/1").glob("4.delta")
    kept = delta.read_bytes()
    delta.unlink()
    failed = run(spark, CASE.query, stream, adopting(CASE.how), tmp_path, enabled=True)
    assert failed.error is not None
    assert not failed.batches
    assert not list(tmp_path.rglob("_gpuwin"))
    delta.write_bytes(kept)
    rest = run(spark, CASE.query, stream, adopting(CASE.how), tmp_path, enabled=True)
    assert rest.error is None
    assert_placed(rest, ("gpuwin",))


@pytest.mark.parametrize(
    ("batches", "adopts"),
    [(1, True), pytest.param(2, False), pytest.param(2, True, marks=pytest.mark.sweep)],
)
def test_spark_that_went_on_after_a_first_batch_that_failed(
    batches: int, adopts: bool, spark: SparkSession, stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a first batch on gpuwin left, the file of its operator and logs of version 1, is void since Spark, without
    the plugin, did that batch.
    """
    run(spark, CASE.query, stream.head(1), CASE.how, tmp_path / "failed", enabled=True)
    first = run(spark, CASE.query, stream.head(batches), CASE.how, tmp_path / "query", enabled=False)
    left, state = (tmp_path / folder / "checkpoint/state/0" for folder in ("failed", "query"))
    shutil.copy2(left / "_gpuwin", state / "_gpuwin")
    for partition in range(3):
        shutil.copytree(left / f"{partition}/gpuwin", state / f"{partition}/gpuwin")
        for later in (left / f"{partition}/gpuwin").glob("[2-9].*"):
            (state / f"{partition}/gpuwin" / later.name).unlink()
    assert main(["state", "adopt", str(tmp_path / "query/checkpoint")]) == 0
    assert "can be adopted" in capsys.readouterr().out
    how = adopting(CASE.how) if adopts else CASE.how
    rest = run(spark, CASE.query, stream, how, tmp_path / "query", enabled=True)
    assert_placed(rest, ("gpuwin",) if adopts else ("stateStoreSave",))
    assert_same(run(spark, CASE.query, stream, CASE.how, tmp_path / "plain", enabled=False), first, rest)


# The check beforehand


def total(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.groupBy("str").agg(F.count("*").alias("n"))


def by_struct(_: SparkSession, frame: DataFrame) -> DataFrame:
    key = F.struct("str", "bool").alias("key")
    return frame.withWatermark("ts", "10 seconds").groupBy(key, F.window("ts", "1 minute")).agg(F.count("*").alias("n"))


def joined(_: SparkSession, frame: DataFrame) -> DataFrame:
    left = frame.select(F.col("ts"), F.col("str").alias("a")).withWatermark("ts", "10 seconds")
    right = frame.select(F.col("ts").alias("t"), F.col("str").alias("b")).withWatermark("t", "10 seconds")
    return left.join(right, F.expr("a = b and t between ts and ts + interval 5 seconds"))


CHECKS = [
    pytest.param(CASE.query, "append", False, ["can be adopted: windows by "], 0, id="windows"),
    pytest.param(SESSIONS.query, "append", False, ["can be adopted: sessions by str"], 0, id="sessions"),
    pytest.param(
        stacked,
        "append",
        False,
        ["adopted: windows", "adopted: windows by str", "is true: a deduplication by id, ts"],
        0,
        id="several",
    ),
    pytest.param(
        instants, "append", False, ["groups of a time, if that is the event time, by ts, bool"], 0, id="instants"
    ),
    pytest.param(
        total, "complete", False, ["can be adopted: groups without a window, if an aggregation"], 0, id="no_window"
    ),
    pytest.param(by_struct, "append", False, ["can be adopted: windows by _groupingexpression"], 0, id="by_struct"),
    pytest.param(joined, "append", False, ["a join of streams"], 1, id="join"),
    pytest.param(CASE.query, "append", True, ["gpuwin's already (tumbling 1 min by k_str)"], 0, id="ours"),
]


@pytest.mark.parametrize(("query", "mode", "ours", "words", "code"), CHECKS)
def test_check(
    query: Query,
    mode: str,
    ours: bool,
    words: list[str],
    code: int,
    spark: SparkSession,
    stream: Stream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = run(spark, query, stream.head(1), replace(CASE.how, mode=mode), tmp_path, enabled=ours)
    assert done.error is None
    before = digests(tmp_path)
    assert main(["state", "adopt", str(tmp_path / "checkpoint")]) == code
    lines = capsys.readouterr().out.splitlines()
    for number, said in enumerate(words):
        assert lines[number].startswith(f"operator {number}: ")
        assert said in lines[number]
    assert ("spark.gpuwin.adopt=true" in lines[-1]) == (code == 0)
    assert digests(tmp_path) == before


def test_check_of_what_is_no_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    assert main(["state", "adopt", str(tmp_path)]) != 0
    assert "is no checkpoint of a streaming query" in capsys.readouterr().err


# Killed


def _adopt(folder: Path, stream: Stream) -> None:
    spark = start_session(folder / "session")
    run(spark, CASE.query, stream, adopting(CASE.how), folder / "query", enabled=True)


@pytest.mark.parametrize("point", [pytest.param("written_partition.1", marks=pytest.mark.sweep), "adopted_state.0"])
def test_killed(
    point: str, spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is Spark's until gpuwin's is whole: either can go on from what the killed query left."""
    folder, points = tmp_path / "query", tmp_path / "points"
    plain = run(spark, CASE.query, stream, CASE.how, tmp_path / "plain", enabled=False)
    first = run(spark, CASE.query, stream.head(2), CASE.how, folder, enabled=False)
    before = digests(folder / "checkpoint" / "state")
    points.mkdir()
    (points / f"{point}.armed").touch()
    monkeypatch.setenv("GPUWIN_FAILPOINTS", str(points))
    process = multiprocessing.get_context("spawn").Process(target=_adopt, args=(tmp_path, stream))
    process.start()
    hit = points / f"{point}.hit"
    await_until(lambda: hit.exists() or not process.is_alive(), point)
    os.kill(int(hit.read_text()), signal.SIGKILL)
    process.kill()
    process.join()
    monkeypatch.delenv("GPUWIN_FAILPOINTS")
    assert before.items() <= digests(folder / "checkpoint" / "state").items()
    assert not list(folder.rglob("_gpuwin"))
    shutil.copytree(folder, tmp_path / "left")

    for enabled in (False, True):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "left", folder)
        rest = run(spark, CASE.query, stream, adopting(CASE.how), folder, enabled=enabled)
        assert_placed(rest, ("gpuwin",) if enabled else ("stateStoreSave",))
        assert_same(plain, first, rest)
