"""State that moves, killed: adopting, rescaling, giving back and looking end by a kill -9, and the sink is right.

`pytest -m sweep tests/spark/test_spark_moves_killed.py`; `--sweep-seed` and `--sweep-cases` say which kills.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import test_spark_adopt as adopt
import test_spark_rescale as rescale
from pyspark.sql import SparkSession
from spark_harness import (
    SPARK,
    Case,
    Query,
    Run,
    SessionCase,
    Stream,
    StreamSpec,
    await_until,
    digests,
    run,
    start_session,
    write,
)

from gpuwin_spark.give_back_state import give_back_state
from gpuwin_spark.rescale_state import rescale_state

COMMAND = "from gpuwin.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
PARTITIONS = 3
SLIDING = Case("sliding", "append", "string", "strings", trigger="processing", partitions="3", sink="parquet")
SESSIONS = SessionCase("fixed", "append", "string", "strings", trigger="processing", partitions="3", sink="parquet")
CASES: dict[str, tuple[Query, Run]] = {
    "sliding": (SLIDING.query, SLIDING.how),
    "tumbling": ((t := replace(SLIDING, window="tumbling", provider="rocksdb")).query, t.how),
    "sessions": (SESSIONS.query, replace(SESSIONS, provider="rocksdb_changelog").how),
    "stacked": (rescale.stacked, SLIDING.how),
    "distinct": (rescale.distinct, replace(SLIDING, provider="rocksdb").how),
}
#: Steps of each move, and of the first batch after an adoption.
STEPS = {
    "adopt": ["written_partition.{p}", "adopted_state.0", "before_request.{v}", "after_reply.{v}",
              "between_segment_and_commit.{v}", "after_commit.{v}"],
    "rescale": ["written_partition.{p}", "rescaled_state.0"],
    "give back": ["written_partition.{p}", "placed_state.{v}", "given_state.{v}"],
    "show": ["some seconds"],
}  # fmt: skip
#: Steps of a rescaling where the query has operators of Spark's own.
BESIDE_SPARKS = ["written_partition.{p}", "rescaled_state.0", "ready_rescaling.2", "placed_rescaling.2"]


@dataclass(frozen=True)
class Kill:
    """A move of a query's state, and the step after which the process is killed, by how many seconds."""

    case: str
    move: str
    step: str
    delay: float


def kill(seed: int, number: int) -> Kill:
    """The `number`-th kill with this seed."""
    rng = random.Random(f"kills/{seed}/{number}")
    move = list(STEPS)[number % len(STEPS)]
    delay = rng.choice([0.0, 0.0, rng.random() * 0.1, rng.random()])
    case = rng.choice(list(CASES))
    steps = BESIDE_SPARKS if move == "rescale" and case == "distinct" and SPARK >= (4, 2) else STEPS[move]
    return Kill(case, move, rng.choice(steps), delay)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write(StreamSpec(seed=8, batches=4, empty=None), tmp_path_factory.mktemp("killed") / "stream")


@pytest.fixture(scope="module")
def wanted(spark: SparkSession, stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The sink of one undisturbed run of plain Spark, by case."""
    sinks = {}
    for name, (query, how) in CASES.items():
        folder = tmp_path_factory.mktemp(name)
        assert run(spark, query, stream, how, folder, enabled=False).error is None
        sinks[name] = sink(spark, folder)
        assert sinks[name]
    return sinks


def sink(spark: SparkSession, folder: Path) -> list[str]:
    """The rows of the files that the sink's log names."""
    return sorted(str(row) for row in spark.read.parquet(str(folder / "out")).collect())


def _adopted(folder: Path, case: str, stream: Stream) -> None:
    query, how = CASES[case]
    # One batch with rows: of two, the second could take the place of the batch without rows between them.
    run(start_session(folder / "session"), query, stream.head(3), adopt.adopting(how), folder / "query", enabled=True)


def process_of(kill: Kill, folder: Path, stream: Stream) -> subprocess.Popen[bytes] | multiprocessing.Process:
    checkpoint = str(folder / "query" / "checkpoint")
    if kill.move == "adopt":
        made = multiprocessing.get_context("spawn").Process(target=_adopted, args=(folder, kill.case, stream))
        made.start()
        return made
    options = {"rescale": ["--partitions", "2"], "give back": [], "show": []}[kill.move]
    command = [sys.executable, "-c", COMMAND, "state", kill.move.replace(" ", "-"), checkpoint, *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def is_alive(process: subprocess.Popen[bytes] | multiprocessing.Process) -> bool:
    return process.poll() is None if isinstance(process, subprocess.Popen) else process.is_alive()


@pytest.mark.sweep
def test_killed_at_random(
    number: int,
    spark: SparkSession,
    stream: Stream,
    wanted: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    seed = request.config.getoption("--sweep-seed")
    what = kill(seed, number)
    rng = random.Random(f"killed/{seed}/{number}")
    folder, points = tmp_path / "query", tmp_path / "points"
    query, how = CASES[what.case]
    files = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    if files:  # what the plugin sets, and ends an interrupted rescaling with
        how = replace(how, conf={**how.conf, "spark.sql.streaming.checkpointFileManagerClass": files})
    begun = run(spark, query, stream.head(2), how, folder, enabled=what.move != "adopt")
    assert begun.error is None
    version = max(int(p.name) for p in (folder / "checkpoint/commits").glob("[0-9]*")) + 1
    points.mkdir()
    step = what.step.format(p=rng.randrange(2 if what.move == "rescale" else PARTITIONS), v=version)
    (points / f"{step}.armed").touch()
    monkeypatch.setenv("GPUWIN_FAILPOINTS", str(points))
    before = digests(folder / "checkpoint")
    process = process_of(what, tmp_path, stream)
    monkeypatch.delenv("GPUWIN_FAILPOINTS")
    if what.move == "show":
        time.sleep(2 + 6 * rng.random())
        os.killpg(process.pid or 0, signal.SIGKILL)
        assert digests(folder / "checkpoint") == before
    else:
        hit = points / f"{step}.hit"
        await_until(lambda: hit.exists() or not is_alive(process), step)
        assert hit.exists(), f"{step} was not reached"
        jvm = int(hit.read_text())
        if what.delay:
            hit.unlink()
            time.sleep(what.delay)
        with contextlib.suppress(ProcessLookupError):  # it may have ended by then
            os.kill(jvm, signal.SIGKILL)
        process.kill()
    process.wait() if isinstance(process, subprocess.Popen) else process.join()

    stores = folder / "checkpoint/state/_gpuwin_stores"
    if rng.random() < 0.5 and not stores.exists():  # the move, made again
        if what.move == "give back":
            give_back_state(spark, str(folder / "checkpoint"))
        elif what.move == "rescale":
            rescale_state(spark, str(folder / "checkpoint"), 2)
    rest = run(spark, query, stream, adopt.adopting(how) if what.move == "adopt" else how, folder, enabled=True)
    assert rest.error is None, (what, rest.error)
    found = sink(spark, folder)
    lost, added = (Counter(a) - Counter(b) for a, b in ((wanted[what.case], found), (found, wanted[what.case])))
    assert not lost + added, f"--sweep-seed {seed}, {number}: {what}, {step}: lost {lost}, added {added}"
