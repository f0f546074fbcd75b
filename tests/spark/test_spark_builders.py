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
    start_plain_session,
    start_session,
    write,
)

import gpuwin as gw

pytestmark = pytest.mark.long

CASE = Case("sliding", "append", "string", "counts", trigger="available", partitions="2")
PLUGIN = "io.gpuwin.GpuWindowPlugin"


def _one_after_another(folder: Path, stream: Stream) -> list[tuple[str, Recording]]:
    """The plugins and the same query of three sessions of one process: configured, not, and configured again."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "pyspark-shell"

    def done(spark: SparkSession, name: str) -> tuple[str, Recording]:
        try:
            return plugins(spark), run(spark, CASE.query, stream, CASE.how, folder / name, enabled=True)
        finally:
            spark.stop()

    first = done(start_session(folder, conf={"spark.gpuwin.enabled": "true"}), "first")
    return [first, done(start_plain_session(folder), "second"), done(start_session(folder), "third")]


def plugins(spark: SparkSession) -> str:
    return spark.sparkContext.getConf().get("spark.plugins") or ""


def test_the_plugin_ends_with_its_session(tmp_path: Path) -> None:
    stream = write(StreamSpec(seed=8, batches=3, empty=None), tmp_path / "stream")
    (with_it, first), (without, second), (again, third) = isolated(_one_after_another, tmp_path, stream)
    assert (with_it, without, again) == (PLUGIN, "", PLUGIN)
    assert_equal(second, first)
    assert_equal(second, third)


def _plugins_of_both(folder: Path) -> tuple[str, str]:
    """Of two sessions of one process, of which only the first is configured."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf spark.plugins={PLUGIN} pyspark-shell"
    found = []
    for start in (start_session, start_plain_session):
        spark = start(folder)
        found.append(plugins(spark))
        spark.stop()
    return found[0], found[1]


def test_a_plugin_that_the_whole_process_was_given_stays(tmp_path: Path) -> None:
    assert isolated(_plugins_of_both, tmp_path) == (PLUGIN, PLUGIN)


def test_what_a_configured_builder_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is on a builder that comes after."""
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    configured = gw.spark.configure(SparkSession.builder.master("local[2]"))
    assert configured._options["spark.plugins"] == PLUGIN
    assert not SparkSession.builder._options
    explained = gw.spark.configure(SparkSession.builder.config("spark.sql.extendedExplainProviders", "com.example.A"))
    providers = explained._options["spark.sql.extendedExplainProviders"]
    assert providers == "org.apache.spark.sql.gpuwin.GpuWindowExplain,com.example.A"


def _classes_beside(folder: Path, others: dict[str, str]) -> dict[str, str | None]:
    """The classes of each list of an application that was given others, of which `configure` knows nothing."""
    spark = start_session(folder, late=others)
    try:
        return {key: spark.sparkContext.getConf().get(key) for key in others}
    finally:
        spark.stop()


def test_gpuwin_plans_before_the_extensions_of_others(tmp_path: Path) -> None:
    """Of what an accelerator has done to the middle of an aggregation nothing could be offloaded any more."""
    own = "org.apache.spark.sql.gpuwin."
    others = {
        "spark.sql.extensions": "com.example.Extensions, com.example.More",
        "spark.sql.extendedExplainProviders": "com.example.Explain",
    }
    assert isolated(_classes_beside, tmp_path, others) == {
        "spark.sql.extensions": f"{own}GpuWindowExtensions,com.example.Extensions,com.example.More",
        "spark.sql.extendedExplainProviders": f"{own}GpuWindowExplain,com.example.Explain",
    }
