"""``gpuwin warm``: kernels are compiled before a stream needs them, and kept where the next process finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwin import warm
from gpuwin.cli import main
from gpuwin.demo.runs import Outcome
from gpuwin_spark.errors import SparkSetupError

#: A stream in another process, of other rows than those that kernels were compiled with.
STREAM = """
import numpy as np, pyarrow as pa, gpuwin as gw
random = np.random.default_rng(77)
def rows(k, n):
    ts = pa.array(np.sort(random.integers(k * 10**9, (k + 1) * 10**9, n))).view(pa.timestamp("us"))
    name = pa.array([f"user {k}" for k in random.integers(0, n // 3, n).tolist()])
    return pa.table({"ts": ts, "user": random.integers(0, 900, n), "name": name, "price": random.random(n)})
aggregates = {"n": gw.count(), "sum": gw.sum("price"), "mean": gw.mean("price"), "min": gw.min("price"),
              "max": gw.max("price")}
for window in (gw.TumblingWindow("1 minute"), gw.SlidingWindow("1 hour", "1 minute"), gw.SessionWindow("5 seconds")):
    for keys in (["user"], ["name"]):
        spec = gw.WindowedAggregation(window=window, keys=keys, time="ts", aggregates=aggregates,
                                      watermark=gw.BoundedOutOfOrderness("1 second"))
        batches = [rows(0, 900), rows(1, 50_000), rows(2, 9_000), rows(3, 150_000)]
        assert sum(t.num_rows for t in gw.run(spec, batches, device="cpu"))
"""


@pytest.mark.sweep
def test_a_stream_after_it_compiles_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "a"), "GPUWIN_CACHE_DIR": str(tmp_path / "b")}
    command = [sys.executable, "-m", "gpuwin.cli", "warm", "--device", "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Kernels for cpu, of the engine and of the plugin, are in ")
    compiled = {p.name for p in tmp_path.rglob("*.nbc")}
    assert len(compiled) > 100
    assert [name for name in compiled if name.startswith("registers.raise_by_hashes-")]
    subprocess.run([sys.executable, "-c", STREAM], env=environment, check=True)
    assert {p.name for p in tmp_path.rglob("*.nbc")} == compiled


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_BATCHES", ((50, 9), (20, 9)))


@pytest.mark.long
@pytest.mark.usefixtures("few_rows")
def test_without_spark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> None:
        raise SparkSetupError("pyspark is not installed in this Python")

    monkeypatch.setattr(warm, "find_spark", missing)
    assert main(["warm", "--device", "cpu"]) == 0
    assert "of the engine (not of the plugin: pyspark is not installed in this Python)" in capsys.readouterr().out


@pytest.mark.usefixtures("few_rows")
def test_a_query_that_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(warm, "run_side", lambda *_: Outcome("failed", 0.0, (), message="no space left"))
    assert main(["warm", "--device", "cpu"]) == 1
    assert "the query that compiles the plugin's kernels failed: no space left" in capsys.readouterr().err
    monkeypatch.setattr(warm, "run_side", lambda *_: Outcome("finished", 1.0, (), explanation="0 of 6 operators"))
    assert main(["warm", "--device", "cpu"]) == 1
    assert "0 of 6 operators" in capsys.readouterr().err


def test_a_folder_that_goes_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warm, "cache_folder", lambda: tmp_path / "gpuwin-kernels-1")
    assert main(["warm"]) == 1
    assert "Set NUMBA_CACHE_DIR and GPUWIN_CACHE_DIR" in capsys.readouterr().err
