"""A builder that was not configured has no plugin, whatever the builders of the process before it had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_harness import (
    Case,
    Recording,
    Stream,
    StreamSpec,
    assert_equal,
    isolated,
    run,
    session,
    start_session,
    write,
)

import gpuwin as gw

CASE = Case("sliding", "append", "string", "counts", trigger="available", partitions="2")


def _one_after_another(folder: str, stream: Stream) -> list[Recording]:
    """The same query in three sessions of one process: configured, not configured, and configured again."""

    def done(spark: SparkSession, name: str) -> Recording:
        try:
            return run(spark, CASE.query, stream, CASE.how, Path(folder) / name, enabled=True)
        finally:
            spark.stop()

    first = done(start_session(Path(folder), conf={"spark.gpuwin.enabled": "true"}), "first")
    builder = SparkSession.builder.master("local[2]")
    for key, value in session.BASE_CONF.items():
        builder = builder.config(key, value)
    return [first, done(builder.getOrCreate(), "second"), done(start_session(Path(folder)), "third")]


def test_the_plugin_ends_with_its_session(tmp_path: Path) -> None:
    stream = write(StreamSpec(seed=8, batches=3, empty=None), tmp_path / "stream")
    first, second, third = isolated(_one_after_another, str(tmp_path), stream)
    assert_equal(second, first)
    assert_equal(second, third)


def _plugins_of_the_second(folder: str, before: str) -> tuple[str, str]:
    """The plugins of two sessions of one process, of which only the first is configured."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = before
    found = []
    for spark in (start_session(Path(folder)), None):
        spark = spark or SparkSession.builder.master("local[1]").getOrCreate()
        found.append(spark.sparkContext.getConf().get("spark.plugins") or "")
        spark.stop()
    return found[0], found[1]


@pytest.mark.parametrize("named", [False, True])
def test_a_plugin_that_the_whole_process_was_given_stays(named: bool, tmp_path: Path) -> None:
    plugin = "io.gpuwin.GpuWindowPlugin"
    arguments = f"--conf spark.plugins={plugin} pyspark-shell" if named else "pyspark-shell"
    first, second = isolated(_plugins_of_the_second, str(tmp_path), arguments)
    assert first == plugin
    assert second == (plugin if named else "")


def test_what_a_configured_builder_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is on a builder that comes after."""
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    configured = gw.spark.configure(SparkSession.builder.master("local[2]"))
    assert configured._options["spark.plugins"] == "io.gpuwin.GpuWindowPlugin"
    assert not SparkSession.builder._options
