"""Wrong use: each a message that says what to do. Never wrong rows, never a silent start from nothing."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import (
    AGGREGATES,
    SCHEMA,
    SPARK,
    Both,
    Case,
    Failure,
    Recording,
    SessionCase,
    Stream,
    StreamSpec,
    assert_equal,
    assert_placed,
    differences,
    digests,
    isolated,
    run,
    service_with,
    start_plain_session,
    start_session,
    write,
)

import gpuwin as gw

CASE = Case("sliding", "append", "string", "integers", trigger="processing", partitions="2")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=8, batches=4, empty=None), tmp_path_factory.mktemp("wrong_use") / "stream")


@pytest.fixture(scope="module")
def plain(spark: SparkSession, stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The query on plain Spark."""
    return run(spark, CASE.query, stream, CASE.how, tmp_path_factory.mktemp("plain"), enabled=False)


def head(stream: Stream, batches: int = 2) -> Stream:
    return Stream(stream.batches[:batches])


# Configuration


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("spark.gpuwin.devise", "cpu", ["no configuration key spark.gpuwin.devise", "spark.gpuwin.device"]),
        ("spark.gpuwin.device", "gpu", ["spark.gpuwin.device is 'gpu'", "auto, cuda, cpu"]),
        ("spark.gpuwin.explain", "SOME", ["spark.gpuwin.explain is 'SOME'", "NONE, NOT_ON_DEVICE, ALL"]),
        ("spark.gpuwin.log.maxSegments", "many", ["spark.gpuwin.log.maxSegments is 'many'", "whole number"]),
    ],
)
def test_unknown_conf_fails_the_query(
    key: str, value: str, words: list[str], spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    how = replace(CASE.how, conf={**CASE.how.conf, key: value})
    recording = run(spark, CASE.query, stream, how, tmp_path, enabled=True)
    assert_says(recording.error, words)
    assert recording.batches == []


def test_unknown_conf_of_a_query_that_is_sparks(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    how = replace(CASE.how, conf={**CASE.how.conf, "spark.gpuwin.devise": "cpu"})
    assert run(spark, CASE.query, head(stream, 1), how, tmp_path, enabled=False).error is None


def test_unknown_value_of_the_switch_fails_the_query(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    other = spark.newSession()
    other.conf.set("spark.gpuwin.enabled", "yes")
    frame = CASE.query(other, other.readStream.schema(SCHEMA).parquet(str(stream.files[0].parent)))
    with pytest.raises(
        PySparkException, match=r"spark.gpuwin.enabled is 'yes'.*one of true, false"
    ):  # nothing is begun
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()


def _messages_of_starts(folder: Path, confs: list[dict[str, str]]) -> list[str]:
    messages = []
    for conf in confs:
        try:
            start_session(folder, conf=conf).stop()
            messages.append("it started")
        except Exception as e:
            messages.append(str(e))
    return messages


@pytest.mark.long
def test_wrong_conf_fails_the_application(tmp_path: Path) -> None:
    folder = "spark.gpuwin.socket.folder"
    confs = {"spark.gpuwin.devise": "cpu", "spark.gpuwin.explain": "LOUD", folder: "/" + "x" * 100}
    unknown, wrong, long = isolated(_messages_of_starts, tmp_path, [{key: value} for key, value in confs.items()])
    assert "no configuration key spark.gpuwin.devise" in unknown
    assert "spark.gpuwin.explain is 'LOUD'" in wrong
    assert f"{folder} is '/xxx" in long
    assert "must be an absolute path of at most" in long


def test_unknown_device_in_configure() -> None:
    with pytest.raises(gw.GpuwinError, match="'auto', 'cuda', 'cpu'"):
        gw.spark.configure(SparkSession.builder, device="gpu")  # type: ignore[arg-type]
    with pytest.raises(gw.GpuwinError, match=r"SparkSession\.builder"):
        gw.spark.configure(SparkSession)  # type: ignore[arg-type]


def test_unsupported_version_of_spark(spark: SparkSession) -> None:
    """The plugin looks at the version before it touches a class that may not be there."""
    assert spark._jvm is not None
    support = spark._jvm.org.apache.spark.sql.gpuwin.SparkSupport
    assert support.reasonAgainst(spark.version).isEmpty()
    for version in ("3.4.4", "4.10.0", "4.30.0", "5.0.0"):
        reason = support.reasonAgainst(version).get()
        assert f"this is Spark {version}" in reason
        assert "supports Spark 3.5, 4.0, 4.1, 4.2, 4.3" in reason
    if SPARK == (3, 5):
        assert "is for Spark 3.5.2 and later patches" in support.reasonAgainst("3.5.1-vendor").get()


def test_patch_of_spark_that_lacks_a_class(spark: SparkSession) -> None:
    """Whatever its version says: the plugin looks at its classes, too, before it plans with them."""
    assert spark._jvm is not None
    support = spark._jvm.org.apache.spark.sql.gpuwin.SparkSupport
    assert support.reasonAgainstClasses(spark.version).isEmpty()
    extends_what_is_not_there = "org.apache.logging.log4j.core.async.RingBufferLogEventHandler"
    reason = support.misfit(extends_what_is_not_there).get()
    assert reason.startswith("its class RingBufferLogEventHandler cannot be loaded (java.lang.NoClassDefFoundError")


# Checkpoints


def test_checkpoint_of_plain_spark_stays_with_spark(
    plain: Recording, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    first = run(spark, CASE.query, head(stream), CASE.how, tmp_path / "mixed", enabled=False)
    rest = run(spark, CASE.query, stream, CASE.how, tmp_path / "mixed", enabled=True)
    assert_placed(rest, ["stateStoreSave"])
    rest.batches = first.batches + rest.batches
    assert differences(plain, rest) == []
    assert any(b.rows for b in rest.batches)


CHANGES = {
    "window": replace(CASE, window="tumbling"),
    "offset": replace(CASE, window="uneven"),
    "key": replace(CASE, key="int"),
    "keys": replace(CASE, key="two"),
    "aggregate": replace(CASE, aggregate="floats"),
    "mode": replace(CASE, mode="complete"),
    "sessions": SessionCase(**{**asdict(CASE), "window": "fixed"}),
}


def test_checkpoint_of_another_query(plain: Recording, spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    folder = tmp_path / "query"
    first = run(spark, CASE.query, head(stream), CASE.how, folder, enabled=True)
    before = state_of(folder)
    for change, other in CHANGES.items():
        wrong = run(spark, other.query, head(stream, 3), replace(CASE.how, mode=other.mode), folder, enabled=True)
        assert_says(wrong.error, ["checkpoint"])
        assert not any(b.rows for b in wrong.batches), change
        assert state_of(folder) == before, f"the state must be as it was: {change}"
    # The query that it belongs to goes on as if nothing had been.
    rest = run(spark, CASE.query, stream, CASE.how, folder, enabled=True)
    rest.batches = first.batches + rest.batches
    assert_equal(plain, rest)


def counted(session: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.groupBy("str", CASE.window_column()).agg(F.count("*").alias("n"))


def counted_until_late(session: SparkSession, frame: DataFrame) -> DataFrame:
    return counted(session, frame.withWatermark("ts", "10 seconds"))


def test_a_sliding_query_must_keep_its_watermark(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """A pane outlives the first of its windows. Without a watermark its rows would be counted in that again."""
    folder, how = tmp_path / "query", replace(CASE.how, mode="update")
    whole = run(spark, counted_until_late, stream, how, tmp_path / "plain", enabled=False)
    first = run(spark, counted_until_late, head(stream), how, folder, enabled=True)
    before = state_of(folder)
    wrong = run(spark, counted, head(stream, 3), how, folder, enabled=True)
    assert_says(wrong.error, ["has no watermark", "withWatermark", "new checkpointLocation"])
    assert state_of(folder) == before, "the state must be as it was"
    rest = run(spark, counted_until_late, stream, how, folder, enabled=True)
    rest.batches = first.batches + rest.batches
    assert_equal(whole, rest)


def test_a_query_may_begin_to_have_a_watermark(both: Both, stream: Stream) -> None:
    how = replace(CASE.how, mode="update")
    both(counted, head(stream), how, late=None)
    both(counted_until_late, head(stream, 3), how, late=None)
    both(counted_until_late, stream, how, late=None)


#: Functions, and the other names by which Spark has them.
OTHER_NAMES = {
    "mean(int)": "avg(int)",
    "stddev(int)": "std(int)",
    "variance(int)": "var_samp(int)",
    "first_value(id)": "first(id)",
    "last(id)": "last_value(id)",
    "approx_percentile(int, 0.5)": "percentile_approx(int, 0.5)",
    "size(array_agg(int))": "size(collect_list(int))",
}
if SPARK >= (4, 0):
    OTHER_NAMES["listagg(bin)"] = "string_agg(bin)"


def test_a_query_may_call_its_functions_otherwise(both: Both, stream: Stream) -> None:
    def aggregated(frame: DataFrame, results: Iterable[str]) -> DataFrame:
        grouped = frame.withWatermark("ts", "10 seconds").groupBy("bool", F.window("ts", "1 minute").alias("window"))
        return grouped.agg(*(F.expr(e).alias(f"r{i}") for i, e in enumerate(results)))

    how = replace(CASE.how, trigger="available")
    both(lambda _, frame: aggregated(frame, OTHER_NAMES), head(stream), how, late=None)
    both(lambda _, frame: aggregated(frame, OTHER_NAMES.values()), stream, how, late=None)


def test_a_query_may_call_its_columns_otherwise(both: Both, stream: Stream) -> None:
    """And go on in update mode: the state is the same, for Spark too."""

    def renamed(session: SparkSession, frame: DataFrame) -> DataFrame:
        counted = frame.withWatermark("ts", "10 seconds").withColumnRenamed("str", "NAME")
        grouped = counted.groupBy(F.col("NAME").alias("name"), CASE.window_column())
        return grouped.agg(*(F.expr(e).alias(f"{n}_") for n, e in AGGREGATES[CASE.aggregate].items()))

    how = replace(CASE.how, trigger="available")
    both(CASE.query, head(stream, 1), how, late=None, rows=None)
    both(renamed, head(stream, 3), replace(how, mode="update"), late=None)


def test_checkpoint_of_gpuwin_with_the_switch_off(
    plain: Recording, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    folder = tmp_path / "query"
    first = run(spark, CASE.query, head(stream), CASE.how, folder, enabled=True)
    before = state_of(folder)
    off = run(spark, CASE.query, head(stream, 3), CASE.how, folder, enabled=False)
    assert_says(off.error, ["written by gpuwin", "spark.gpuwin.enabled is false", "checkpointLocation"])
    assert state_of(folder) == before
    rest = run(spark, CASE.query, stream, CASE.how, folder, enabled=True)
    rest.batches = first.batches + rest.batches
    assert_equal(plain, rest)


def test_a_later_batch_that_cannot_be_offloaded_fails(
    plain: Recording, spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    """Spark would start it from nothing; so would a batch whose plan another extension had changed."""
    folder = tmp_path / "query"
    queries: list[StreamingQuery] = []

    def switch_off(batch: int, query: StreamingQuery | None) -> None:
        if batch == 2:
            assert query is not None
            queries.append(query)
            query._jsq.streamingQuery().sparkSessionForStream().conf().set("spark.gpuwin.enabled", "false")

    failed = run(spark, CASE.query, stream, CASE.how, folder, enabled=True, before_batch=switch_off)
    assert_says(failed.error, ["gpuwin's cannot run on gpuwin: spark.gpuwin.enabled is false", "Nothing of this batch"])
    assert {b.operators for b in failed.batches} == {("gpuwin",)}
    assert "cannot run on gpuwin: spark.gpuwin.enabled is false" in gw.spark.explain(queries[0])
    rest = run(spark, CASE.query, stream, CASE.how, folder, enabled=True)
    rest.batches = failed.batches + rest.batches
    assert_equal(plain, rest)


def _without_plugin(folder: Path, stream: Stream) -> Recording:
    spark = start_plain_session(folder)
    try:
        return run(spark, CASE.query, stream, CASE.how, folder, enabled=True)
    finally:
        spark.stop()


@pytest.mark.long
def test_checkpoint_of_gpuwin_without_the_plugin(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Spark must not start from nothing. Nothing of gpuwin's is left to speak then but a page in the checkpoint."""
    first = run(spark, CASE.query, head(stream), CASE.how, tmp_path / "query", enabled=True)
    assert_placed(first, ["gpuwin"])
    before = state_of(tmp_path / "query")
    rest = isolated(_without_plugin, tmp_path / "query", stream)
    assert_says(rest.error, ["CANNOT_LOAD_STATE_STORE" if SPARK >= (4, 0) else ".delta does not exist"])
    assert rest.batches == []
    assert before.items() <= state_of(tmp_path / "query").items()
    page = (tmp_path / "query" / "checkpoint" / "README-gpuwin.txt").read_text()
    assert "io.gpuwin.GpuWindowPlugin" in page


def state_of(folder: Path) -> dict[str, str]:
    """A digest of every file of the state."""
    return digests(folder / "checkpoint" / "state")


# A service that cannot start


def _with_python(folder: Path, stream: Stream, python: str) -> tuple[Recording, Recording]:
    """Named after `configure`, which would refuse it."""
    spark = start_session(folder, late={"spark.gpuwin.python": python})
    try:
        return with_and_without_it(spark, stream, folder)
    finally:
        spark.stop()


def with_and_without_it(spark: SparkSession, stream: Stream, folder: Path) -> tuple[Recording, Recording]:
    """With the switch off the same application does without the service."""
    failed = run(spark, CASE.query, head(stream), CASE.how, folder / "device", enabled=True)
    return failed, run(spark, CASE.query, head(stream), CASE.how, folder / "plain", enabled=False)


@pytest.mark.long
def test_service_whose_python_is_missing(stream: Stream, tmp_path: Path) -> None:
    """From the start of the application."""
    python = str(tmp_path / "missing")
    failed, plain = isolated(_with_python, tmp_path, stream, python)
    assert_only_gpuwin_fails(failed, plain, ["could not start", python, "pip install gpuwin", "gpuwin doctor"])


def test_service_whose_python_has_no_gpuwin(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    python = tmp_path / "python"  # -S leaves site-packages out, so neither gpuwin nor numba can be imported
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    with service_with(spark, {"spark.gpuwin.python": str(python)}):
        failed, plain = with_and_without_it(spark, stream, tmp_path)
    words = ["could not start", str(python), "pip install gpuwin", "gpuwin doctor", "No module named"]
    assert_only_gpuwin_fails(failed, plain, words)


def test_service_whose_python_is_wrapped_and_greets(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """As a wrapper that loads modules, or a site's own files, may do on standard output."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho Welcome.\necho "2 modules loaded"\nexec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    with service_with(spark, {"spark.gpuwin.python": str(python)}):
        on_gpuwin, plain = with_and_without_it(spark, stream, tmp_path)
    assert_equal(plain, on_gpuwin, late=None)


def assert_only_gpuwin_fails(failed: Recording, plain: Recording, words: list[str]) -> None:
    assert_says(failed.error, words)
    assert failed.batches == []
    assert plain.error is None
    assert any(b.rows for b in plain.batches)


def assert_says(error: Failure | None, words: list[str]) -> None:
    assert error is not None, "the query must fail"
    for word in words:
        assert word in error.message, f"{word!r} should be in: {error.message}"
