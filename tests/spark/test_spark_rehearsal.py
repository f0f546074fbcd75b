"""The pages of production, followed: a running query is moved to gpuwin, rescaled, looked at, and rolled back.

Each step is a process of its own, as an operator has it, with the commands of docs/checkpoints.md and moving_state.md.

`pytest -m sweep tests/spark/test_spark_rehearsal.py`
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from spark_harness import StreamSpec, write

COMMAND = "from gpuwin.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
DOCS = Path(__file__).parents[2] / "docs"
TEXT = "".join((DOCS / page).read_text() for page in ("checkpoints.md", "moving_state.md"))

JOB = """
import os, sys
from pyspark.sql import SparkSession, functions as F

folder, stream, plugin, parts, *settings = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "3")
builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
if plugin == "plugin":
    import gpuwin as gw

    builder = gw.spark.configure(builder, device="cpu")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
os.makedirs(folder + "/source", exist_ok=True)
files = sorted(os.listdir(stream))
for part in parts.split(","):
    first, end = map(int, part.split(":"))
    for file in files[first:end]:
        os.link(f"{stream}/{file}", f"{folder}/source/{file}")
    rows = spark.readStream.schema("ts timestamp, str string, int int").option("maxFilesPerTrigger", "1")
    windows = (
        rows.parquet(folder + "/source").withWatermark("ts", "10 seconds")
        .groupBy("str", F.window("ts", "2 minutes", "30 seconds"))
        .agg(F.count("*").alias("n"), F.sum("int").alias("total"), F.max("int").alias("most"))
    )
    query = (
        windows.writeStream.format("parquet").trigger(availableNow=True)
        .option("checkpointLocation", folder + "/checkpoint").start(folder + "/sink")
    )
    query.awaitTermination()
    print("offloaded" if query.lastProgress and "gpuwinCellsIn" in str(query.lastProgress) else "left to Spark")
spark.stop()
"""


def command_in(section: str, **words: str) -> list[str]:
    """The first command in a section of the page, with what stands in capitals replaced."""
    text = TEXT.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    found = re.search(r"```bash\n(gpuwin state [^\[\n]*)", text)
    assert found is not None, f"the section {section} has no command"
    return [words.get(word, word) for word in shlex.split(found[1])]


def setting_in(section: str) -> str:
    """The setting in a code block of a section of the page."""
    text = TEXT.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    found = re.search(r"```\n(spark\.[^\n]+)\n```", text)
    assert found is not None
    return found[1]


def ran(command: list[str]) -> str:
    program = [sys.executable, "-c", COMMAND, *command[1:]] if command[0] == "gpuwin" else command
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows_in(sink: Path) -> list[str]:
    """The rows of the files that the sink's log names."""
    return sorted(str(row) for file in sink.glob("*.parquet") for row in pq.read_table(file).to_pylist())


@pytest.mark.sweep
def test_the_page_followed(tmp_path: Path) -> None:
    files = write(StreamSpec(seed=23, batches=6, empty=None), tmp_path / "stream").files
    assert [file.name for file in files] == sorted(os.listdir(tmp_path / "stream"))
    job = tmp_path / "job.py"
    job.write_text(JOB)

    def part(folder: Path, plugin: str, parts: str, *settings: str) -> set[str]:
        command = [sys.executable, str(job), str(folder), str(tmp_path / "stream"), plugin, parts, *settings]
        return set(ran(command).split("\n")) & {"offloaded", "left to Spark"}

    moved, checkpoint = tmp_path / "moved", str(tmp_path / "moved" / "checkpoint")
    assert part(moved, "none", "0:2") == {"left to Spark"}
    said = ran(command_in("Adopt a running query", CHECKPOINT=checkpoint))
    assert "operator 0: can be adopted: windows by str" in said
    assert part(moved, "plugin", "2:3", setting_in("Adopt a running query")) == {"offloaded"}
    said = ran(command_in("Rescale", CHECKPOINT=checkpoint, N="2"))
    assert "operator 0: 3 -> 2 partitions" in said
    assert part(moved, "plugin", "3:4") == {"offloaded"}
    said = ran(command_in("Look at the state", CHECKPOINT=checkpoint))
    assert "sliding 2 min every 30 s" in said
    said = ran(command_in("Roll back", CHECKPOINT=checkpoint))
    assert "windows are Spark's" in said
    assert part(moved, "none", "4:5") == {"left to Spark"}
    assert part(moved, "plugin", "5:6", setting_in("Adopt a running query")) == {"offloaded"}

    whole = tmp_path / "whole"
    assert part(whole, "none", "0:2,2:3,3:4,4:5,5:6") == {"left to Spark"}
    rows = rows_in(whole / "sink")
    assert rows
    assert rows_in(moved / "sink") == rows
