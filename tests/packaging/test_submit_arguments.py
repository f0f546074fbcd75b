"""PYSPARK_SUBMIT_ARGS wins over a builder; what gpuwin needs is added to what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from brief_java import brief_options

from gpuwin_spark import SparkSetupError
from gpuwin_spark.submit_arguments import appended, listed

pytestmark = pytest.mark.long

LISTS = {"spark.jars": "g.jar", "spark.plugins": "G"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pyspark-shell", "pyspark-shell"),
        ("--jars a.jar pyspark-shell", "--jars a.jar,g.jar pyspark-shell"),
        ("--jars=a.jar,b.jar pyspark-shell", "--jars=a.jar,b.jar,g.jar pyspark-shell"),
        ("--jars a.jar,g.jar pyspark-shell", "--jars a.jar,g.jar pyspark-shell"),
        ("--conf spark.jars=a.jar pyspark-shell", "--conf spark.jars=a.jar,g.jar pyspark-shell"),
        ("--conf=spark.jars=a.jar pyspark-shell", "--conf=spark.jars=a.jar,g.jar pyspark-shell"),
        ("-c spark.plugins=P pyspark-shell", "-c spark.plugins=P,G pyspark-shell"),
        ("--packages x:y:1 --name 'two  words' pyspark-shell", "--packages x:y:1 --name 'two  words' pyspark-shell"),
        ("--jars 'a b.jar' pyspark-shell", "--jars 'a b.jar,g.jar' pyspark-shell"),
    ],
)
def test_lists_are_added_to(before: str, after: str) -> None:
    assert appended(before, LISTS) == after
    assert appended(after, LISTS) == after


def test_what_they_say_is_read() -> None:
    arguments = "--jars a.jar,b.jar --conf=spark.plugins=P,Q --name x pyspark-shell"
    assert listed(arguments, "spark.jars") == ["a.jar", "b.jar"]
    assert listed(arguments, "spark.plugins") == ["P", "Q"]
    assert listed("pyspark-shell", "spark.jars") == []


def test_quotes_that_do_not_close() -> None:
    with pytest.raises(SparkSetupError, match=r"PYSPARK_SUBMIT_ARGS.*quotes"):
        appended("--name 'x pyspark-shell", LISTS)


def test_the_plugin_is_loaded_beside_other_jars(tmp_path: Path) -> None:
    other = tmp_path / "other.jar"
    other.write_bytes(b"PK\x05\x06" + bytes(18))  # an empty archive
    script = (
        "import json; from pyspark.sql import SparkSession; import gpuwin as gw\n"
        "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "spark = gw.spark.configure(builder, device='cpu').getOrCreate()\n"
        "frame = spark.readStream.format('rate').load().groupBy('value').count()\n"
        "print(json.dumps([spark.conf.get('spark.jars'), gw.spark.explain(frame)]))\n"
    )
    settings = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"--jars {other} pyspark-shell",
        "JAVA_TOOL_OPTIONS": brief_options(),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False, env=settings
    )
    assert done.returncode == 0, done.stderr
    jars, explained = json.loads(done.stdout.splitlines()[-1])
    assert Path(jars.split(",")[0]).name == "other.jar"
    assert len(jars.split(",")) == 2
    assert "stateful operators on gpuwin" in explained
