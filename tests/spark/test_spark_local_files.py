"""Files of a checkpoint on a local disk: those that Spark makes, without a process for each."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_harness import FAST, PROVIDERS, SPARK, isolated
from spark_harness.session import BASE_CONF

import gpuwin as gw
from gpuwin_spark.explain import plugin_object

pytestmark = pytest.mark.long

PROGRAMS = ("chmod", "readlink")

Found = dict[str, tuple[list[str], dict[str, str]]]
"""Of each side the programs that were started for files of its checkpoint, and these files with permissions."""


def noting(folder: Path) -> Path:
    """A folder of programs that write down how they were called, before they do what they are for."""
    folder.mkdir()
    for name in PROGRAMS:
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $@" >> {folder}/calls\nexec /bin/{name} "$@"\n')
        program.chmod(0o755)
    return folder


def one_file(spark: SparkSession, folder: Path, *, enabled: bool, conf: Mapping[str, str]) -> None:
    """A windowed query over one file, with a batch of rows and one without, whose checkpoint is in the folder."""
    session = spark.newSession()
    session.conf.set("spark.gpuwin.enabled", str(enabled).lower())
    for key, value in conf.items():
        session.conf.set(key, value)
    rows = session.range(20).select(F.timestamp_seconds(F.col("id") * 7).alias("ts"))
    rows.coalesce(1).write.parquet(str(folder / "rows"))
    files = session.readStream.schema("ts timestamp").parquet(str(folder / "rows"))
    counts = files.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds")).count()
    writer = counts.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress is not None
    (operator,) = query.lastProgress["stateOperators"]
    assert (operator["operatorName"] == "gpuwin") == enabled
    assert {p.name for p in (folder / "checkpoint/state/0").glob("*_gpuwin*")} == ({"_gpuwin"} if enabled else set())


def run_both(folder: Path) -> Found:
    """Runs the query on both sides, in each way to see to files."""
    os.umask(0o022)
    programs = noting(folder / "bin")
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for key, value in BASE_CONF.items():
        builder = builder.config(key, value)
    spark = gw.spark.configure(builder, device="cpu").getOrCreate()
    found = {}
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    confs = {"": {}, " renaming": {manager: FAST[manager]}, " rocksdb": PROVIDERS["rocksdb"]}
    for side in (f"{who}{how}" for how in confs for who in ("plain", "gpuwin")):
        (folder / side).mkdir()
        one_file(spark, folder / side, enabled="gpuwin" in side, conf=confs[side.removeprefix(side.split()[0])])
        checkpoint = folder / side / "checkpoint"
        calls = [c for c in (programs / "calls").read_text().splitlines() if str(checkpoint) in c]
        # The names of stores' files, without the name of our own store, are those of Spark's.
        modes = {
            str(p.relative_to(checkpoint)).replace("/gpuwin/", "/"): stat.filemode(p.stat().st_mode)
            for p in checkpoint.rglob("*")
            if p.is_file() and "gpuwin" not in p.name
        }
        found[side] = calls, modes
    spark.stop()
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    found: Found = isolated(run_both, tmp_path_factory.mktemp("files"))
    return found


def test_text_that_is_replaced_has_not_the_checksum_of_another(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop puts the new one in its place after the text; a process that is killed between leaves the old one."""
    assert spark._jvm is not None
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    path = spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path / "text"))
    files, text = path.getFileSystem(conf), plugin_object("CheckpointText")
    out = files.create(path)
    out.write(b"one")
    out.close()
    assert (tmp_path / ".text.crc").exists(), "as an earlier gpuwin, or Spark, wrote it"
    text.write(path, "two", conf)
    assert [p.name for p in tmp_path.iterdir()] == ["text"]
    assert text.read(files.open(path)) == "two"


@pytest.mark.sweep
def test_a_checkpoint_on_a_local_disk_starts_no_processes(found: Found) -> None:
    plain, gpuwin = found["plain"], found["gpuwin"]
    assert {call.split()[0] for call in plain[0]} >= {"chmod"}, "of Spark's own stores it does"
    # Before 4.2 the plugin sees to its stores alone, and Spark to the schema and the metadata beside them.
    own = [c for c in gpuwin[0] if SPARK >= (4, 2) or re.search(r"/state/\d+/\d+/gpuwin", c)]
    assert not [c for c in own if not c.endswith("/checkpoint")], "Spark itself makes that folder"
    names = [{name for name in modes if "/state/" not in f"/{name}"} for _, modes in (plain, gpuwin)]
    assert names[0] == names[1]
    assert any(name.endswith(".crc") for name in names[0])
    assert set(gpuwin[1].values()) == set(plain[1].values()) == {"-rw-r--r--"}


def test_stores_of_a_manager_that_renames_start_no_processes(found: Found) -> None:
    """Where Spark's own is set, ours, which is one, makes the files of our stores."""
    calls, modes = found["gpuwin renaming"]
    assert [c for c in found["plain renaming"][0] if ".delta" in c], "of Spark's own it does"
    assert not [c for c in calls if ".delta" in c]
    assert {n for n in modes if n.startswith("state/")} == {n for n in found["gpuwin"][1] if n.startswith("state/")}


def test_stores_of_rocksdb_start_no_processes(found: Found) -> None:
    """Its files are copied into the checkpoint by the file system, and not by the class that the others are made by."""
    calls, modes = found["gpuwin rocksdb"]
    assert [c for c in found["plain rocksdb"][0] if ".sst" in c], "of Spark's own it does"
    assert not [c for c in calls if "/state/" in c and "/gpuwin/" in c]
    assert {name.rpartition(".")[2] for name in modes if name.startswith("state/")} >= {"sst", "zip", "crc"}
    assert {mode for name, mode in modes.items() if name.startswith("state/")} == {"-rw-r--r--"}
