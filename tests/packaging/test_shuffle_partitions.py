"""Shuffle partitions far above the cores: `gw.spark.configure` says so, and changes nothing."""

from __future__ import annotations

import logging
import sys

import pytest
from pyspark.sql import SparkSession

import gpuwin as gw
from gpuwin_spark.shuffle_partitions import advice, cores_here, cores_of
from gpuwin_spark.submit_arguments import setting

KEY = "spark.sql.shuffle.partitions"


def test_what_is_far_above() -> None:
    assert advice("8", 2) is None
    assert advice("200", 50) is None
    assert advice("auto", 2) is None  # Spark says what is wrong with it
    said = advice("9", 2)
    assert said is not None
    assert f"{KEY} is 9 on 2 cores" in said
    assert "commits 9 state stores" in said
    assert "Set it to 2 before the first start" in said
    assert "is 200, Spark's default, on 1 core:" in str(advice("", 1))


def test_cores_of_a_master() -> None:
    assert cores_of("local") == 1
    assert cores_of("local[3]") == 3
    assert cores_of("local[ 3 , 2 ]") == 3
    assert cores_of("local[*]") == cores_here()
    assert cores_of("local[*,4]") == cores_here()
    assert cores_of("spark://host:7077") is None
    assert cores_of("yarn") is None


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("pyspark-shell", ""),
        (f"--conf {KEY}=5 pyspark-shell", "5"),
        (f"-c {KEY}=5 --conf={KEY}=6 pyspark-shell", "6"),
        ("--master local[3] pyspark-shell", ""),
    ],
)
def test_settings_of_submit_arguments(arguments: str, value: str) -> None:
    assert setting(arguments, KEY) == value
    assert setting("--master local[3] x", "spark.master", "--master") == "local[3]"
    assert setting("--master=local[4] x", "spark.master", "--master") == "local[4]"


@pytest.mark.parametrize(
    ("master", "conf", "arguments", "said"),
    [
        ("local[2]", {}, "", "is 200, Spark's default, on 2 cores"),
        ("local[2]", {KEY: "100"}, "", "is 100 on 2 cores"),
        ("local[2]", {KEY: 2}, "", ""),
        ("local[2]", {}, f"--conf {KEY}=8 pyspark-shell", ""),
        ("local[2]", {KEY: "2"}, f"--conf {KEY}=300 pyspark-shell", "is 300 on 2 cores"),
        ("local[99]", {}, "", ""),
        ("spark://host:7077", {}, "", ""),
    ],
)
def test_configure_says_so(
    master: str,
    conf: dict[str, str],
    arguments: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Another test of this process may have a JVM.
    monkeypatch.setattr(sys.modules["gpuwin_spark.configure"], "_add_to_running_jvm", lambda jar: None)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    builder = SparkSession.Builder().master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    with caplog.at_level(logging.WARNING, logger="gpuwin"):
        gw.spark.configure(builder, device="cpu")
    messages = [r.getMessage() for r in caplog.records if KEY in r.getMessage()]
    assert len(messages) == bool(said)
    assert all(said in m for m in messages)
    assert builder._options.get(KEY) == (str(conf[KEY]) if conf else None)
