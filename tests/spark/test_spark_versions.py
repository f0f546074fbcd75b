"""Queries on gpuwin that go on from one checkpoint under one version of Spark after another, to the newest and back.

`pytest -m sweep tests/spark/test_spark_versions.py`, where `.ci/other-sparks` has made environments of other versions.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from spark_harness import Case, Recording, SessionCase, StreamSpec, assert_equal, run, start_session, write

ROOT = Path(__file__).parents[2]
PYTHONS = [*sorted(ROOT.glob(".venv-spark-*/bin/python")), *ROOT.glob(".venv/bin/python")]
CASES = {
    "windows": Case("sliding", "append", "string", "integers", trigger="processing", partitions="2"),
    "windows_rocksdb": Case(
        "uneven", "update", "two", "moments_mixed", trigger="processing", partitions="2", provider="rocksdb_changelog"
    ),
    "sessions": SessionCase("long", "append", "string", "strings", trigger="processing", partitions="2"),
    "lists": Case("sliding", "append", "string", "lists", trigger="processing", partitions="2"),
}

#: What each query did, and the names that this Spark has for its own operators.
Done = dict[str, tuple[Recording, tuple[str, ...]]]


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.skipif(len(PYTHONS) < 2, reason="needs environments of several versions of Spark, see .ci/other-sparks")
def test_checkpoint_goes_from_spark_to_spark(tmp_path: Path) -> None:
    """A batch under each. Rows, watermarks and late rows are those of plain Spark that did it all."""
    order = [*PYTHONS, *reversed(PYTHONS)]
    parts = [under(python, tmp_path, number, True) for number, python in enumerate(order, 1)]
    plain = under(order[-1], tmp_path, len(order), False)
    for name in CASES:
        together, _ = parts[-1][name]
        together.batches = [batch for part in parts for batch in part[name][0].batches]
        alone, operators = plain[name]
        assert_equal(alone, together, spark_operators=operators)


def under(python: Path, folder: Path, batches: int, enabled: bool) -> Done:
    """What each query did, up to so many batches of its stream, under the Spark of this Python."""
    path = [p for p in sys.path if Path(p).is_relative_to(ROOT / "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    subprocess.run([python, __file__, folder, str(batches), str(enabled)], check=True, env=environment)
    done: Done = pickle.loads((folder / f"{batches}-{enabled}").read_bytes())
    assert {name: recording.error for name, (recording, _) in done.items()} == dict.fromkeys(CASES), python
    return done


def play(folder: Path, batches: int, enabled: bool) -> None:
    """Does the batches that are left under the Spark of this process, and leaves the recordings in a file."""
    spark = start_session(folder)
    stream = write(StreamSpec(seed=5, batches=batches, rows=60, empty=None), folder / f"stream-{batches}")
    side = folder / ("device" if enabled else "plain")
    done: Done = {
        n: (run(spark, c.query, stream, c.how, side / n, enabled=enabled), c.spark_operators) for n, c in CASES.items()
    }
    (folder / f"{batches}-{enabled}").write_bytes(pickle.dumps(done))
    spark.stop()


if __name__ == "__main__":
    play(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True")
