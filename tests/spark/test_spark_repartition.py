"""Spark's tools for state, on a checkpoint of gpuwin: refused in words; and the repair of one that was hurt."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    FAST,
    SPARK,
    Both,
    Case,
    Recording,
    Stream,
    StreamSpec,
    assert_equal,
    digests,
    isolated,
    run,
    start_plain_session,
    start_session,
    write,
)

from gpuwin.cli import main

pytestmark = pytest.mark.long

CASE = Case("sliding", "append", "string", "integers", trigger="processing", partitions="2")
ROCKSDB = replace(CASE, provider="rocksdb_changelog")
HURT = "STREAMING_UNFINISHED_REPARTITION_DETECTED"
FILES = "spark.sql.streaming.checkpointFileManagerClass"
repartitions = pytest.mark.skipif(SPARK < (4, 2), reason="Spark before 4.2 cannot repartition a checkpoint")
reads_state = pytest.mark.skipif(SPARK < (4, 0), reason="Spark 3.5 has no sources that read state")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=8, batches=4, empty=None), tmp_path_factory.mktemp("repartition") / "stream")


@pytest.fixture(scope="module")
def begun(spark: SparkSession, stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a query on gpuwin after two batches, not to be changed."""
    folder = tmp_path_factory.mktemp("begun")
    first = run(spark, CASE.query, stream.head(2), CASE.how, folder, enabled=True)
    assert first.error is None
    return folder


# Refused


@repartitions
def test_repartition_is_refused_before_anything_is_written(spark: SparkSession, begun: Path) -> None:
    checkpoint = begun / "checkpoint"
    before = digests(checkpoint)
    with pytest.raises(PySparkException) as refused:
        spark.newSession()._streamingCheckpointManager.repartition(str(checkpoint), 4)
    for word in (
        "written by gpuwin",
        "operator 0",
        "Nothing was changed",
        "gpuwin state rescale",
        "gpuwin state repair",
    ):
        assert word in str(refused.value)
    assert digests(checkpoint) == before


def _first_act(folder: str, checkpoint: str) -> str:
    spark = start_session(Path(folder))
    try:
        spark._streamingCheckpointManager.repartition(checkpoint, 4)
    except PySparkException as e:
        return str(e)
    finally:
        spark.stop()
    return "it was done"


@repartitions
def test_repartition_as_the_first_act_of_an_application(begun: Path, tmp_path: Path) -> None:
    """Such as that of a script for maintenance, which plans nothing before."""
    checkpoint = begun / "checkpoint"
    before = digests(checkpoint)
    assert "written by gpuwin" in isolated(_first_act, str(tmp_path), str(checkpoint))
    assert digests(checkpoint) == before


@repartitions
def test_query_with_the_class_of_files_that_refuses(spark: SparkSession, both: Both, stream: Stream) -> None:
    """What the plugin sets for every session, and the tests replace by a faster one. It hands all on to Spark's own."""
    default = spark.conf.get(FILES)
    assert default == "org.apache.spark.sql.gpuwin.GuardedCheckpointFiles"
    both(CASE.query, stream, replace(CASE.how, conf={**CASE.how.conf, FILES: default}))


@repartitions
def test_repartition_of_sparks_own_state(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """It is Spark's, and the query goes on with other partitions."""
    how = replace(ROCKSDB.how, trigger="available")
    first = run(spark, ROCKSDB.query, stream.head(2), how, tmp_path / "plain", enabled=False)
    spark._streamingCheckpointManager.repartition(str(tmp_path / "plain" / "checkpoint"), 3)
    rest = run(spark, ROCKSDB.query, stream, how, tmp_path / "plain", enabled=False)
    assert first.error is None
    assert rest.error is None
    assert any(b.rows for b in rest.batches)
    assert {p.name for p in (tmp_path / "plain" / "checkpoint" / "state" / "0").iterdir()} >= {"0", "1", "2"}


@reads_state
def test_source_statestore_names_gpuwin(spark: SparkSession, begun: Path) -> None:
    with pytest.raises(PySparkException, match=r"operator 0 .*was written by gpuwin"):
        spark.read.format("statestore").load(str(begun / "checkpoint"))


@reads_state
def test_source_state_metadata_names_gpuwin(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """And leaves the other operators their names."""

    def query(_: SparkSession, frame: DataFrame) -> DataFrame:
        return summed(frame.withWatermark("ts", "10 seconds").dropDuplicates(["id", "ts"]))

    done = run(spark, query, stream.head(2), CASE.how, tmp_path, enabled=True)
    assert done.error is None
    source = spark.read.format("state-metadata").load(str(tmp_path / "checkpoint"))
    names = {r.operatorId: r.operatorName for r in source.select("operatorId", "operatorName").collect()}
    assert names == {0: "gpuwin", 1: "dedupe"}
    assert [r.operatorId for r in source.where(F.col("operatorName") == "gpuwin").collect()] == [0]
    assert {r._numColsPrefixKey for r in source.select("_numColsPrefixKey").collect()} == {0}


# Hurt, and repaired


def _without_plugin(folder: Path, checkpoint: str) -> str:
    """What a repartition says in an application that knows nothing of gpuwin."""
    spark = start_plain_session(folder)
    try:
        spark._streamingCheckpointManager.repartition(checkpoint, 4)
    except Exception as e:
        return str(e)
    finally:
        spark.stop()
    return "it was done"


def past_the_guard(spark: SparkSession, checkpoint: Path, exactly_once: bool = True) -> str:
    """What a repartition says that the plugin did not keep from beginning."""
    other = spark.newSession()._jsparkSession
    other.conf().set(FILES, FAST[FILES])  # another class than the plugin's
    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        other.streamingCheckpointManager().repartition(str(checkpoint), 4, exactly_once)
    return str(failed.value)


def distinct(_: SparkSession, frame: DataFrame) -> DataFrame:
    """Two operators, and the one that a repartition comes to first is Spark's."""
    return summed(frame.withWatermark("ts", "10 seconds")).dropDuplicates(["str", "window", "total"])


def summed(frame: DataFrame) -> DataFrame:
    return frame.groupBy("str", F.window("ts", "1 minute", "20 seconds")).agg(F.sum("int").alias("total"))


Query = Callable[[SparkSession, DataFrame], DataFrame]


@repartitions
@pytest.mark.parametrize(
    ("case", "query", "plugin"),
    [
        pytest.param(CASE, CASE.query, True, id="hdfs"),
        pytest.param(ROCKSDB, ROCKSDB.query, False, id="rocksdb_without_plugin", marks=pytest.mark.sweep),
        pytest.param(ROCKSDB, distinct, True, id="after_one_of_spark"),
    ],
)
def test_query_goes_on_after_a_repair(
    case: Case,
    query: Query,
    plugin: bool,
    spark: SparkSession,
    stream: Stream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = run(spark, query, stream, case.how, tmp_path / "plain", enabled=False)
    first = run(spark, query, stream.head(2), case.how, tmp_path / "query", enabled=True)
    checkpoint = tmp_path / "query" / "checkpoint"
    before = digests(checkpoint)
    if plugin:
        said = past_the_guard(spark, checkpoint)
        assert case.provider == "hdfs" or f"run: gpuwin state repair file://{checkpoint}" in said
    else:
        assert "it was done" not in isolated(_without_plugin, tmp_path, str(checkpoint))
    hurt = digests(checkpoint)
    assert before.keys() < hurt.keys()
    refused = run(spark, query, stream, case.how, tmp_path / "query", enabled=True)
    assert refused.error is not None
    assert HURT in refused.error.message
    assert not refused.batches

    assert main(["state", "repair", str(checkpoint)]) == 0
    shown = capsys.readouterr().out
    aside = checkpoint / "gpuwin-repair-4"
    assert str(aside) in shown
    assert "2 partitions" in shown
    repaired = digests(checkpoint)
    kept = {name: digest for name, digest in repaired.items() if not name.startswith(aside.name)}
    assert kept.items() >= before.items()
    assert all("/SSTs/" in name or "_metadata" in name for name in kept.keys() - before.keys()), "nothing of a version"
    assert {str(Path(aside.name) / name) for name in ("offsets/4",)} <= repaired.keys()

    rest = run(spark, query, stream, case.how, tmp_path / "query", enabled=True)
    assert_goes_on(plain, first, rest, query is distinct)


def assert_goes_on(plain: Recording, first: Recording, rest: Recording, with_spark: bool) -> None:
    rest.batches = first.batches + rest.batches
    others = ("dedupe",) if with_spark else ()
    assert_equal(plain, rest, late=None, operators=(*others, "gpuwin"), spark_operators=(*others, "stateStoreSave"))


@repartitions
def test_repair_after_a_repartition_that_skipped_a_batch(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """One that may do so commits the batch that the query had begun, as an empty one."""
    plain = run(spark, CASE.query, stream, CASE.how, tmp_path / "plain", enabled=False)
    first = run(spark, CASE.query, stream.head(2), CASE.how, tmp_path / "query", enabled=True)
    checkpoint = tmp_path / "query" / "checkpoint"
    for log in ("3", ".3.crc"):  # the last batch ran, and was not committed
        (checkpoint / "commits" / log).unlink()
    before = digests(checkpoint)
    past_the_guard(spark, checkpoint, exactly_once=False)
    assert (checkpoint / "commits" / "3").exists()
    assert main(["state", "repair", str(checkpoint)]) == 0
    shutil.rmtree(checkpoint / "gpuwin-repair-4")
    again = {name for name in before if name.startswith("state/0/") and "4.delta" in name}
    assert digests(checkpoint).items() == {n: d for n, d in before.items() if n not in again}.items()
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path / "query", enabled=True)
    first.batches = [b for b in first.batches if b.id < 3]
    assert_goes_on(plain, first, rest, with_spark=False)
