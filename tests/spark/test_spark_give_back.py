"""Giving back: the state of a stopped query in Spark's own format, and the query goes on without the plugin."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    PROVIDERS,
    Case,
    Recording,
    Run,
    Stream,
    StreamSpec,
    assert_placed,
    await_until,
    differences,
    digests,
    run,
    start_plain_session,
    write,
)

import gpuwin as gw
from gpuwin.cli import main
from gpuwin_spark.give_back_state import give_back_state
from gpuwin_spark.rescale_state import rescale_state

pytestmark = pytest.mark.long

CASE = Case("sliding", "append", "string", "integers", trigger="processing", partitions="3")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=8, batches=4, empty=None), tmp_path_factory.mktemp("give_back") / "stream")


@pytest.fixture(scope="module")
def plain(spark: SparkSession, stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """One undisturbed run of plain Spark."""
    return run(spark, CASE.query, stream, CASE.how, tmp_path_factory.mktemp("plain"), enabled=False)


def assert_same(plain: Recording, *parts: Recording) -> None:
    """The parts, one after the other, did what the whole did; the last of them is new."""
    for part in parts:
        assert part.error is None, part.error
    together = replace(parts[-1], batches=[b for part in parts for b in part.batches])
    assert differences(plain, together) == []
    assert sum(len(b.rows) for b in parts[-1].batches), "vacuous: nothing came out at the end"


# Without the plugin


def _plainly(folder: Path, stream: Stream, answer: Connection[Recording, None]) -> None:
    spark = start_plain_session(folder / "session")
    answer.send(run(spark, CASE.query, stream, CASE.how, folder / "query", enabled=False))


def test_command_and_a_spark_without_the_plugin(
    spark: SparkSession, stream: Stream, plain: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Begun on gpuwin, rescaled, given back by the command: a Spark that has no plugin goes on."""
    first = run(spark, CASE.query, stream.head(2), CASE.how, tmp_path / "query", enabled=True)
    assert_placed(first, ("gpuwin",))
    checkpoint = tmp_path / "query" / "checkpoint"
    assert main(["state", "rescale", str(checkpoint), "--partitions", "2"]) == 0
    capsys.readouterr()
    assert main(["state", "give-back", str(checkpoint)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"operator 0: \d+ windows are Spark's, version 4, 3 partitions", said)
    assert "without the plugin" in said
    assert not list(checkpoint.rglob("_gpuwin"))
    assert not (checkpoint / "README-gpuwin.txt").exists()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_plainly, args=(tmp_path, stream, sender))
    process.start()
    sender.close()
    rest = receiver.recv()
    process.join()
    assert_placed(rest, ("stateStoreSave",))
    assert_same(plain, first, rest)


# Refused, and nothing changed


def refused(spark: SparkSession, checkpoint: Path, *words: str, stopped: bool = False) -> None:
    before = digests(checkpoint)
    with pytest.raises(gw.spark.CheckpointError) as said:
        give_back_state(spark, str(checkpoint), stopped=stopped)
    for word in words:
        assert word in str(said.value)
    assert digests(checkpoint) == before


def test_what_is_no_checkpoint_of_gpuwin(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    refused(spark, tmp_path / "nowhere", "There is no folder")
    (tmp_path / "empty").mkdir()
    refused(spark, tmp_path / "empty", "is no checkpoint of a streaming query")
    assert run(spark, CASE.query, stream.head(1), CASE.how, tmp_path / "plain", enabled=False).error is None
    refused(spark, tmp_path / "plain" / "checkpoint", "was written by Spark without gpuwin")


def test_given_back_already(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert run(spark, CASE.query, stream.head(1), CASE.how, tmp_path, enabled=True).error is None
    give_back_state(spark, str(checkpoint))
    refused(spark, checkpoint, "was written by Spark without gpuwin")
    with pytest.raises(gw.spark.CheckpointError, match="was written by Spark without gpuwin"):
        rescale_state(spark, str(checkpoint), 2)


def test_files_that_cannot_be_removed(spark: SparkSession, stream: Stream, plain: Recording, tmp_path: Path) -> None:
    """They are void by then, and the error says that the state is given back."""
    first = run(spark, CASE.query, stream.head(2), CASE.how, tmp_path, enabled=True)
    page = tmp_path / "checkpoint/README-gpuwin.txt"
    page.unlink()
    (page / "full").mkdir(parents=True)
    with pytest.raises(gw.spark.CheckpointError, match=r"windows are Spark's(?s:.*)not all removed: .*README") as said:
        give_back_state(spark, str(tmp_path / "checkpoint"))
    assert "nothing was changed" not in str(said.value)
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=False)
    assert_placed(rest, ("stateStoreSave",))
    assert_same(plain, first, rest)


def test_damaged_log(spark: SparkSession, stream: Stream, plain: Recording, tmp_path: Path) -> None:
    """The other partitions were written by then; gpuwin goes on from a copy of the damaged file."""
    first = run(spark, CASE.query, stream.head(2), CASE.how, tmp_path, enabled=True)
    assert first.error is None
    (delta,) = (tmp_path / "checkpoint/state/0/1/gpuwin").glob("4.delta")
    kept = delta.read_bytes()
    delta.unlink()
    refused(spark, tmp_path / "checkpoint", "partition 1", "cannot be read")
    delta.write_bytes(kept)
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=True)
    assert_placed(rest, ("gpuwin",))
    assert_same(plain, first, rest)


def test_batch_that_is_not_committed(spark: SparkSession, stream: Stream, plain: Recording, tmp_path: Path) -> None:
    """A query that runs, or one that was killed in a batch, which Spark does again."""
    assert run(spark, CASE.query, stream.head(2), CASE.how, tmp_path, enabled=True).error is None
    checkpoint = tmp_path / "checkpoint"
    for log in ("3", ".3.crc"):
        (checkpoint / "commits" / log).unlink(missing_ok=True)
    refused(spark, checkpoint, "Batch 3", "If it runs, stop it", "--stopped")
    give_back_state(spark, str(checkpoint), stopped=True)
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=True)
    assert_placed(rest, ("stateStoreSave",))
    again = {b.id for b in rest.batches}
    assert min(again) == 3
    assert_same(replace(plain, batches=[b for b in plain.batches if b.id in again]), rest)


def test_executors_whose_python_lacks_gpuwin(
    spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails in Python is said by its last line, and nothing is left of what was written aside."""
    assert run(spark, CASE.query, stream.head(1), CASE.how, tmp_path, enabled=True).error is None

    def broken(*_: object, **__: object) -> object:
        def merge(batches: object) -> object:
            raise ModuleNotFoundError("No module named 'gpuwin_spark'")

        return merge

    monkeypatch.setattr("gpuwin_spark.merged_cells.merging", broken)
    refused(spark, tmp_path / "checkpoint", "No module named 'gpuwin_spark'", "executors must have gpuwin")


@pytest.mark.sweep
def test_files_with_ids(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    ids = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2", **PROVIDERS["rocksdb_changelog"]}
    how = replace(CASE.how, conf={**CASE.how.conf, **ids})
    assert run(spark, CASE.query, stream.head(1), how, tmp_path, enabled=True).error is None
    if not any("stateUniqueIds" in p.read_text() for p in (tmp_path / "checkpoint/commits").glob("[0-9]*")):
        pytest.skip("this Spark keeps no ids")
    refused(spark, tmp_path / "checkpoint", "checkpointFormatVersion=2")


def test_specified_aggregation(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Spark has no operator for it."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        spec = gw.WindowedAggregation(
            window=gw.TumblingWindow("1 minute"), time="ts", keys=["str"], aggregates={"n": gw.count()}
        )
        return gw.spark.aggregate(frame.withWatermark("ts", "10 seconds"), spec)

    assert run(spark, query, stream.head(1), CASE.how, tmp_path, enabled=True).error is None
    refused(spark, tmp_path / "checkpoint", "cannot be given back", "gw.spark.aggregate")


def test_state_of_an_earlier_gpuwin(spark: SparkSession, stream: Stream, plain: Recording, tmp_path: Path) -> None:
    """Its file did not say where the window stands among the keys; a start of the query adds that."""
    first = run(spark, CASE.query, stream.head(1), CASE.how, tmp_path, enabled=True)
    mark = tmp_path / "checkpoint/state/0/_gpuwin"
    text = mark.read_text()
    mark.write_text(re.sub(r',"windowAt":\d+', "", text))
    assert mark.read_text() != text
    (mark.parent / "._gpuwin.crc").unlink(missing_ok=True)
    refused(spark, tmp_path / "checkpoint", "did not note where the window stands", "Start the query once")
    second = run(spark, CASE.query, stream.head(2), CASE.how, tmp_path, enabled=True)
    assert second.error is None, second.error
    assert mark.read_text() == text
    give_back_state(spark, str(tmp_path / "checkpoint"))
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=True)
    assert_placed(rest, ("stateStoreSave",))
    assert_same(plain, first, second, rest)


def test_query_that_runs_meanwhile_stops_before_its_next_batch(
    spark: SparkSession, stream: Stream, plain: Recording, tmp_path: Path
) -> None:
    """It would go on with a state that is no longer the query's."""
    checkpoint = tmp_path / "checkpoint"

    def given(batch: int, query: object) -> None:
        if batch == 2 and query is not None:
            give_back_state(spark, str(checkpoint))

    done = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=True, before_batch=given)
    assert done.error is not None
    assert "was given back to Spark while this query ran" in done.error.message
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path, enabled=True)
    assert_placed(rest, ("stateStoreSave",))
    assert_same(plain, replace(done, error=None), rest)


# Killed


def stacked(_: SparkSession, frame: DataFrame) -> DataFrame:
    """Two windowed aggregations, the upper one of sliding windows."""
    rows = frame.withWatermark("ts", "10 seconds")
    minutes = rows.groupBy("str", F.window("ts", "20 seconds")).agg(F.count("*").alias("n"))
    window = F.window(F.window_time("window"), "1 minute", "20 seconds")
    return minutes.groupBy(window).agg(F.sum("n").alias("n"))


def first_batch(spark: SparkSession, stream: Stream, folder: Path) -> tuple[Run, Recording]:
    """A query with one batch, which is where both sides' first version of the state can be there."""
    how = replace(CASE, mode="update", idle_batch="off").how
    first = run(spark, CASE.query, stream.head(1), how, folder, enabled=True)
    assert first.error is None, first.error
    return how, first


def assert_still_gpuwins(
    how: Run, first: Recording, spark: SparkSession, stream: Stream, folder: Path, left: Path
) -> None:
    """The query goes on with gpuwin, from what the folder `left` was; and the command can be run again on it."""
    plain = run(spark, CASE.query, stream.head(2), how, folder.with_name("plain"), enabled=False)
    rest = run(spark, CASE.query, stream.head(2), how, folder, enabled=True)
    assert_placed(rest, ("gpuwin",))
    assert_same(plain, first, rest)
    shutil.rmtree(folder)
    shutil.copytree(left, folder)
    give_back_state(spark, str(folder / "checkpoint"))
    rest = run(spark, CASE.query, stream.head(2), how, folder, enabled=False)
    assert_placed(rest, ("stateStoreSave",))
    assert_same(plain, first, rest)


def test_first_batch_whose_giving_back_fails(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """One partition is where Spark looks, later than gpuwin's, and the others are not."""
    folder = tmp_path / "query"
    how, first = first_batch(spark, stream, folder)
    hindrance = folder / "checkpoint/state/0/1/1.snapshot"
    (hindrance / "full").mkdir(parents=True)
    with pytest.raises(gw.spark.CheckpointError, match="nothing was changed"):
        give_back_state(spark, str(folder / "checkpoint"))
    assert (folder / "checkpoint/state/0/0/1.snapshot").exists()
    shutil.rmtree(hindrance)
    shutil.copytree(folder, tmp_path / "left")
    assert_still_gpuwins(how, first, spark, stream, folder, tmp_path / "left")


COMMAND = "from gpuwin.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
POINTS = [
    pytest.param("written_partition.1", "gpuwin", marks=pytest.mark.sweep),
    pytest.param("placed_state.4", "gpuwin"),
    pytest.param("given_state.4", "stateStoreSave", marks=pytest.mark.sweep),
]


def kill_at(point: str, checkpoint: Path, points: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the command at a step."""
    points.mkdir()
    (points / f"{point}.armed").touch()
    monkeypatch.setenv("GPUWIN_FAILPOINTS", str(points))
    process = subprocess.Popen([sys.executable, "-c", COMMAND, "state", "give-back", str(checkpoint)])
    hit = points / f"{point}.hit"
    await_until(lambda: hit.exists() or process.poll() is not None, point)
    os.kill(int(hit.read_text()), signal.SIGKILL)
    process.wait()
    monkeypatch.delenv("GPUWIN_FAILPOINTS")


@pytest.mark.sweep
def test_first_batch_whose_giving_back_is_killed(
    spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All partitions are where Spark looks, later than gpuwin's."""
    folder = tmp_path / "query"
    how, first = first_batch(spark, stream, folder)
    kill_at("placed_state.1", folder / "checkpoint", tmp_path / "points", monkeypatch)
    shutil.copytree(folder, tmp_path / "left")
    assert_still_gpuwins(how, first, spark, stream, folder, tmp_path / "left")


@pytest.mark.parametrize(("point", "goes_on"), POINTS)
def test_killed(
    point: str, goes_on: str, spark: SparkSession, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is gpuwin's until it is Spark's, of both operators; then Spark's, whatever was left lying about."""
    folder, points = tmp_path / "query", tmp_path / "points"
    how = Run("append", "processing", "foreach", CASE.how.conf)
    whole = run(spark, stacked, stream, how, tmp_path / "plain", enabled=False)
    first = run(spark, stacked, stream.head(2), how, folder, enabled=True)
    assert first.error is None, first.error
    checkpoint = folder / "checkpoint"
    kill_at(point, checkpoint, points, monkeypatch)
    shutil.copytree(folder, tmp_path / "left")

    rest = run(spark, stacked, stream, how, folder, enabled=True)
    assert_placed(rest, (goes_on, goes_on))
    assert_same(whole, first, rest)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "left", folder)
    if goes_on == "gpuwin":  # the command, run again
        give_back_state(spark, str(checkpoint))
        rest = run(spark, stacked, stream, how, folder, enabled=True)
        assert_placed(rest, ("stateStoreSave", "stateStoreSave"))
    else:
        adopting = replace(how, conf={**how.conf, "spark.gpuwin.adopt": "true"})
        rest = run(spark, stacked, stream, adopting, folder, enabled=True)
        assert_placed(rest, ("gpuwin", "gpuwin"))
    assert_same(whole, first, rest)
