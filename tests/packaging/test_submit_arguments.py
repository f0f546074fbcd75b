"""PYSPARK_SUBMIT_ARGS wins over a builder; what gpuwin needs is added to what it says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from brief_java import brief_options

from gpuwin_spark import SparkSetupError
from gpuwin_spark.installed_spark import find_spark
from gpuwin_spark.jar import build_jar
from gpuwin_spark.java import find_java
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


OTHER = """
package other
class Plugin extends org.apache.spark.api.plugin.SparkPlugin {
  override def driverPlugin(): org.apache.spark.api.plugin.DriverPlugin = null
  override def executorPlugin(): org.apache.spark.api.plugin.ExecutorPlugin = null
}
"""
SCRIPT = """
import json; from pyspark.sql import SparkSession; import gpuwin as gw
builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')
spark = gw.spark.configure(builder, device='cpu').getOrCreate()
frame = spark.readStream.format('rate').load().groupBy('value').count()
conf = spark.sparkContext.getConf()
said = [conf.get(key) for key in ('spark.jars', 'spark.plugins', 'spark.gpuwin.python')]
print(json.dumps([*said, gw.spark.explain(frame)]))
"""


@pytest.mark.parametrize("how", ["variable", "submit"])
def test_the_plugin_is_loaded_beside_other_jars(how: str, tmp_path: Path) -> None:
    spark = find_spark()
    (tmp_path / "scala").mkdir()
    (tmp_path / "scala" / "Plugin.scala").write_text(OTHER)
    other = tmp_path / "other.jar"
    build_jar(spark, find_java(), tmp_path / "scala", other)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = ["--jars", str(other), "--conf", "spark.plugins=other.Plugin"]
    # A session of Spark that this process had named the Python of its executors.
    settings = {k: v for k, v in os.environ.items() if k != "PYSPARK_PYTHON"} | {"JAVA_TOOL_OPTIONS": brief_options()}
    if how == "submit":
        named = ["--conf", f"spark.pyspark.python={sys.executable}"]
        command = [str(spark.jars.parent / "bin" / "spark-submit"), *arguments, *named, str(script)]
        settings |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    else:
        command = [sys.executable, str(script)]
        settings["PYSPARK_SUBMIT_ARGS"] = shlex.join([*arguments, "pyspark-shell"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=settings)
    assert done.returncode == 0, done.stderr
    jars, plugins, python, explained = json.loads(done.stdout.splitlines()[-1])
    assert Path(jars.split(",")[0]).name == "other.jar"
    assert len(jars.split(",")) == 2
    assert plugins == "other.Plugin,io.gpuwin.GpuWindowPlugin"
    assert python == (None if how == "submit" else sys.executable)
    assert "stateful operators on gpuwin" in explained
