"""The demo on a few of the flights, with the page that it leaves; and a side that fails or takes too long."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brief_java import brief_options
from chromium import show, sizes

from gpuwin.demo.runs import run_side
from gpuwin.demo.side import SideSpec

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def brief_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """JVMs that live for seconds do without the optimising compiler and the parallel collector."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", brief_options())


CONF = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}


#: The demo as a user runs it; and with plain Spark stopped as soon as it has begun with the week, whose plan, with
#: 2,016 copies of each row, takes it a minute here.
PATIENT = ("-m", "gpuwin.cli", "demo")
HASTY = (
    "-c",
    """
import sys
from gpuwin.cli import main
from gpuwin.demo import command
command.PLAIN_LIMITS["per_carrier_and_origin"] = 1.0
sys.exit(main(["demo", *sys.argv[1:]]))
""",
)


@dataclass(frozen=True)
class Ran:
    """A run of the demo, and the folder that was its own."""

    done: subprocess.CompletedProcess[str]
    folder: Path


@pytest.fixture(
    scope="module", params=[HASTY, pytest.param(PATIENT, marks=pytest.mark.sweep)], ids=["hasty", "patient"]
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "tmp").mkdir()
    own = {"JAVA_TOOL_OPTIONS": brief_options(), "TMPDIR": str(folder / "tmp"), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *request.param, "--device", "cpu", "--limit-rows", "2000", "--batches", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **own}, cwd=folder)
    return Ran(done, folder)


def test_the_demo_ends_with_equal_rows_and_leaves_a_page_alone(ran: Ran) -> None:
    assert ran.done.returncode == 0, ran.done.stdout + ran.done.stderr
    shown = ran.done.stdout
    assert "2,000 flights" in shown
    table = [line for line in shown.splitlines() if line.startswith(("6 h every 20 min", "7 d every 5 min"))]
    week, hours = table
    assert re.search(r"  yes, to (Spark's|a recomputation without Spark)", week)
    assert hours.endswith("  yes, to Spark's"), "the rows of one query at least are compared in whole"
    assert shown.index("1 of 2: 7 d every 5 min") < shown.index("2 of 2: 6 h every 20 min")
    assert re.search(r"gpuwin: +GpuWindow.*sliding 7 d every 5 min", shown)
    assert "The busiest day, " in shown
    assert "\r" not in shown, "where there is no terminal, nothing is rewritten"
    assert len(re.findall(r"^  (?:plain Spark|gpuwin     )  .* batches .* rows .* s(?:  stopped)?$", shown, re.M)) == 4
    assert f"The pictures: {ran.folder / 'demo.html'}" in shown
    assert [p.name for p in (ran.folder / "tmp").iterdir() if p.name.startswith("gpuwin-demo-")] == []


def test_the_page_of_the_demo_shows_in_a_browser(ran: Ran, tmp_path: Path) -> None:
    shown = show(ran.folder / "demo.html", tmp_path)
    assert shown.console == ()
    assert len(sizes(shown.dom)) == 7
    assert min(min(size) for size in sizes(shown.dom)) > 150
    assert 'data-outside="yes"' not in shown.dom
    assert "GpuWindow [carrier, origin]" in shown.dom
    assert shown.near((0x00, 0x67, 0xA8)) > 500, "gpuwin's colour"
    assert shown.near((0xB4, 0x53, 0x09)) > 500, "plain Spark's colour"


def specification(folder: Path, query: str, device: str | None) -> SideSpec:
    (folder / "in").mkdir()
    return SideSpec(
        query=query,
        schema="scheduled timestamp",
        source=str(folder / "in"),
        sink=None,
        checkpoint=str(folder / "checkpoint"),
        device=device,
        conf={**CONF, "spark.sql.warehouse.dir": str(folder / "warehouse")},
    )


def test_a_side_that_fails_says_why(tmp_path: Path) -> None:
    spec = specification(tmp_path, "gpuwin.demo.queries:no_such_query", None)
    outcome = run_side(spec, tmp_path / "log")
    assert outcome.status == "failed"
    assert "no_such_query" in outcome.message
    assert "Traceback" in (tmp_path / "log").read_text()


def test_a_side_that_dies_says_what_it_said_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly_query.py").write_text(
        "import os, sys\ndef die(rows):\n    print('no more', file=sys.stderr, flush=True)\n    os._exit(9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    outcome = run_side(specification(tmp_path, "deadly_query:die", None), tmp_path / "log")
    assert outcome.status == "failed"
    assert "the process ended by itself" in outcome.message
    assert "no more" in outcome.message


def test_a_side_that_takes_too_long_is_ended_with_its_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_query.py").write_text(
        "def wait(rows):\n    return rows.selectExpr(\"reflect('java.lang.Thread', 'sleep', 600000L)\")\n"
    )
    spec = specification(tmp_path, "slow_query:wait", None)
    pq.write_table(pa.table({"scheduled": pa.array([0], pa.timestamp("us", "UTC"))}), tmp_path / "in" / "a.parquet")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    outcome = run_side(spec, tmp_path / "log", limit=5.0)
    assert outcome.status == "stopped", (outcome.message, (tmp_path / "log").read_text()[-3000:])
    assert 5.0 <= outcome.seconds < 60.0
    assert outcome.batches == ()
    left = [p for p in processes() if str(tmp_path) in p]
    assert left == []


def processes() -> list[str]:
    """The command lines of all other processes."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return found
