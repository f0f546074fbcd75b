"""The Python of the executors: one that has no gpuwin is named when a session is configured, and by the doctor."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import gpuwin as gw
from gpuwin import doctor
from gpuwin.cli import main
from gpuwin_spark.interpreter import why_not


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    why_not.cache_clear()


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python without site-packages, in which nothing of gpuwin can be imported."""
    return script(tmp_path / "bare", f'exec "{sys.executable}" -S -E "$@"')


def test_a_python_that_will_do(tmp_path: Path) -> None:
    assert why_not(sys.executable) is None
    assert why_not(script(tmp_path / "other", f'exec "{sys.executable}" "$@"')) is None


def test_a_python_that_will_not_do(tmp_path: Path, bare: str) -> None:
    assert why_not(str(tmp_path / "nowhere")) == "there is no such program"
    assert "gpuwin_spark" in str(why_not(bare))
    assert "numba" in str(why_not(bare))
    assert "it is Python 3.9, and 3.11 is needed" in str(why_not(script(tmp_path / "old", "echo 3 9; echo")))
    assert "(no libraries)" in str(why_not(script(tmp_path / "broken", "echo no libraries >&2; exit 3")))


def test_it_is_asked_once(tmp_path: Path) -> None:
    python = script(tmp_path / "counted", f"echo asked >> {tmp_path}/log; echo 3 11; echo")
    assert why_not(python) is why_not(python) is None
    assert (tmp_path / "log").read_text() == "asked\n"


@pytest.mark.parametrize("key", ["spark.gpuwin.python", "spark.pyspark.python", "PYSPARK_PYTHON"])
def test_configure_refuses_a_python_without_gpuwin(key: str, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = SparkSession.builder.master("local[2]")
    if key == "PYSPARK_PYTHON":
        monkeypatch.setenv(key, bare)
    else:
        builder = builder.config(key, bare)
    with pytest.raises(gw.spark.SparkSetupError) as refused:
        gw.spark.configure(builder)
    for words in (f"{key}={bare}", "gpuwin_spark", f"{bare} -m pip install gpuwin", "spark.gpuwin.python"):
        assert words in str(refused.value)


def test_what_the_session_says_comes_before_the_environment(
    bare: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", bare)
    with caplog.at_level(logging.WARNING, "gpuwin"):
        gw.spark.configure(SparkSession.builder.master("local[2]").config("spark.gpuwin.python", sys.executable))
    assert not any("PYSPARK_PYTHON" in said for said in caplog.messages)


def test_configure_warns_where_executors_are_elsewhere(
    bare: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The path may lead to another Python there."""
    monkeypatch.setenv("PYSPARK_PYTHON", bare)
    with caplog.at_level(logging.WARNING, "gpuwin"):
        gw.spark.configure(SparkSession.builder.master("spark://elsewhere:7077"))
    (said,) = caplog.messages
    assert f"PYSPARK_PYTHON={bare}" in said
    assert "executors on others may have another one" in said


def test_the_doctor_says_it(bare: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", bare)
    assert main(["doctor", "--json"]) == 1
    (found,) = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["name"] == "executors' Python"]
    assert found["status"] == "broken"
    assert f"PYSPARK_PYTHON={bare}; it has no gpuwin_spark" in found["found"]
    assert found["mend"] == f"{bare} -m pip install gpuwin"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (good,) = [f for f in doctor.examine() if f.name == "executors' Python"]
    assert good.status == "ok"


def test_the_doctor_starts_the_service_where_the_temporary_folder_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 30)))
    (tmp_path / ("long" * 30)).mkdir()
    (found,) = [f for f in doctor.examine() if f.name == "service"]
    assert found.status == "ok", found
