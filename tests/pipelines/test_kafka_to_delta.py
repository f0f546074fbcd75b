"""The example of docs/pipelines.md, examples/kafka_to_delta.py, run as a user runs it, where Delta fits the Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from brief_java import brief_options
from pipelines_harness.broker import Broker
from pipelines_harness.delta import delta_jars, tables_in
from pipelines_harness.events import MINUTE, START, Event, events
from pipelines_harness.maven import Module, Unreachable
from pipelines_harness.topics import Record, Topics

pytestmark = pytest.mark.pipelines

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def submit_arguments(modules: list[Module]) -> str:
    """What brings the connector and Delta, as PYSPARK_SUBMIT_ARGS has it."""
    try:
        delta = delta_jars()
    except Unreachable as e:
        pytest.skip(str(e))
    return f"--jars {','.join(map(str, [*modules[0].jars, *delta]))} pyspark-shell"


def click(e: Event) -> Record:
    """The row as the example wants it."""
    row = json.loads(e.json)
    spent = f"{abs(e.value)}.25"
    value = json.dumps({"user": e.key, "at": row["ts"], "spent": float(spent)}).encode()
    return Record(value, key=(e.key or "").encode())


def ran(submit_arguments: str, broker: Broker, topic: str, folder: Path, mode: str, *, enabled: bool) -> str:
    """Runs the example to the end of the topic; returns what it printed."""
    switch = f"--conf spark.gpuwin.enabled={str(enabled).lower()} "
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": switch + submit_arguments,
        "JAVA_TOOL_OPTIONS": brief_options(),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    command = [sys.executable, str(ROOT / "examples" / "kafka_to_delta.py"), "--to-the-end", "--mode", mode]
    where = ["--broker", broker.address, "--topic", topic, "--folder", str(folder)]
    done = subprocess.run([*command, *where], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def rows_in(table: Path) -> list[str]:
    return sorted(str(row) for part in tables_in(table) for row in part.to_pylist())


@pytest.mark.parametrize("mode", ["append", pytest.param("update", marks=pytest.mark.sweep)])
def test_the_example(mode: str, submit_arguments: str, broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """On gpuwin in two runs, the second of which goes on where the first was; on plain Spark in one."""
    topic = topics.create(2)
    rows = [Event(e.key, START + i * MINUTE, e.value) for i, e in enumerate(events(300, late=False))]
    topics.send(topic, map(click, rows[:200]))
    said = ran(submit_arguments, broker, topic, tmp_path / "device", mode, enabled=True)
    assert "1 of 1 stateful operators on gpuwin" in said
    first = rows_in(tmp_path / "device" / "table")
    topics.send(topic, map(click, rows[200:]))
    ran(submit_arguments, broker, topic, tmp_path / "device", mode, enabled=True)
    ran(submit_arguments, broker, topic, tmp_path / "plain", mode, enabled=False)
    wanted, found = rows_in(tmp_path / "plain" / "table"), rows_in(tmp_path / "device" / "table")
    assert 0 < len(first) < len(found)
    assert found == wanted
