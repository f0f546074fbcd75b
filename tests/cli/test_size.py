"""`gpuwin size`: counts of a micro-batch against rows that were drawn, the report, and options that contradict."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from gpuwin.cli import main
from gpuwin_spark.size import Load, estimate, measured_costs
from gpuwin_spark.size.log import rewrites

LOAD = Load(rows_per_second=400, keys=2_000, size=600, slide=120, interval=100, delay=10, map_tasks=3, partitions=4)
SESSIONS = replace(LOAD, size=5, slide=None)
ASKED = ["size", "--rows-per-second", "50000", "--keys", "1e6", "--window", "1 hour", "--slide", "1 minute"]


def drawn(load: Load, seconds: float, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Keys and times of rows as a load has them."""
    rng = np.random.default_rng(seed)
    n = rng.poisson(load.rows_per_second * seconds)
    return rng.integers(0, load.keys, n), np.sort(rng.random(n) * seconds)


def pairs(*columns: np.ndarray) -> int:
    """Different rows of these columns of whole numbers."""
    row = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        row = row * (int(column.max()) - int(column.min()) + 1) + column - column.min()
    return len(np.unique(row))


def session_starts(key: np.ndarray, time: np.ndarray, gap: float) -> np.ndarray:
    """Of the rows in order of key and time, whether a session begins with each."""
    order = np.lexsort((time, key))
    key, time = key[order], time[order]
    return np.r_[True, (key[1:] != key[:-1]) | (np.diff(time) > gap)]


@pytest.mark.parametrize(
    "load",
    [LOAD, replace(LOAD, keys=100_000), replace(LOAD, interval=7), replace(LOAD, slide=600), replace(LOAD, slide=250)],
)
def test_cells_of_windows(load: Load) -> None:
    """Expected counts are near those of rows that were drawn, over many micro-batches."""
    batches, counts = 25, load.counts
    warm = load.size + load.delay + load.interval
    key, time = drawn(load, warm + batches * load.interval)
    task = np.random.default_rng(2).integers(0, load.map_tasks, len(key))
    pane = np.floor(time / load.pane).astype(np.int64)
    batch = np.floor((time - warm) / load.interval).astype(np.int64)
    of = batch >= 0
    assert counts.rows == pytest.approx(of.sum() / batches, rel=0.05)
    assert counts.cells == pytest.approx(pairs(batch[of], task[of], key[of], pane[of]) / batches, rel=0.05)
    kept = [(time >= t - warm) & (time < t) for t in warm + np.arange(1, batches) * load.interval]
    assert counts.state_cells == pytest.approx(np.mean([pairs(key[k], pane[k]) for k in kept]), rel=0.05)
    assert counts.state_keys == pytest.approx(np.mean([len(np.unique(key[k])) for k in kept]), rel=0.05)
    whole = (time >= warm) & (time < warm + load.size)
    assert counts.results == pytest.approx(len(np.unique(key[whole])) * load.interval / (load.slide or 1), rel=0.05)


@pytest.mark.parametrize("load", [SESSIONS, replace(SESSIONS, size=30), replace(SESSIONS, interval=3)])
def test_sessions(load: Load) -> None:
    batches, counts = 60, load.counts
    key, time = drawn(load, batches * load.interval)
    task = np.random.default_rng(2).integers(0, load.map_tasks, len(key))
    batch = np.floor(time / load.interval).astype(np.int64)
    alone = session_starts((batch * load.map_tasks + task) * load.keys + key, time, load.size)
    assert counts.cells == pytest.approx(alone.sum() / batches, rel=0.05)
    order, warm = np.lexsort((time, key)), 2 * load.size  # a key's very first row begins a session in any case
    begun = session_starts(key, time, load.size) & (time[order] >= warm)
    ended = batches - warm / load.interval
    assert counts.results == pytest.approx(begun.sum() / ended, rel=0.1)


def test_open_sessions() -> None:
    """Those whose last row is not further back than gap and delay, by the watermark of the batch before."""
    load, end = SESSIONS, 500.0
    key, time = drawn(load, end)
    order = np.lexsort((time, key))
    starts = session_starts(key, time, load.size)
    last = np.append(starts[1:], True)
    kept = time[order][last] + load.size > end - load.interval - load.delay
    assert load.counts.state_cells == pytest.approx(kept.sum(), rel=0.05)


@pytest.mark.parametrize(("live", "least", "most"), [(1, 0, 0), (24, 0, 0), (60, 0.5, 3), (360, 2, 6), (3600, 4, 12)])
def test_rewrites_of_the_log(live: int, least: float, most: float) -> None:
    """None while no more batches live than there may be segments; then they grow as a logarithm does."""
    assert least <= rewrites(live) <= most


def test_more_rows_need_more() -> None:
    costs = measured_costs()
    few, many = (estimate(replace(LOAD, rows_per_second=n), costs, 2) for n in (1e2, 1e5))
    for name in ("state_bytes", "shuffle_bytes", "log_bytes", "jvm_seconds", "service_seconds", "service_memory"):
        assert getattr(few, name) < getattr(many, name), name
    assert few.executors(4) <= many.executors(4)


def test_costs_that_come_with_the_package() -> None:
    costs = asdict(measured_costs())
    assert "measured on" in costs.pop("measured")
    assert all(cost >= 0 for of in costs.values() for cost in of.values())
    assert costs["service_memory"]["services"] > 1 << 26
    assert costs["service_memory"]["state_bytes"] >= 1


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--executors", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a micro-batch of 10 s: 500,000 rows become ")
    assert any(line.startswith("memory of the device service: ") and "2 executors" in line for line in lines)
    assert any(line.startswith("executors of 4 cores, 60% busy: ") for line in lines)
    assert main([*ASKED, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["rows"] == 500_000
    assert found["load"]["map_tasks"] == found["executors_needed"] * 4


def test_a_cluster_that_is_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    many = ["size", "--rows-per-second", "1e7", "--keys", "1e9", "--window", "1 hour", "--slide", "1 minute"]
    assert main([*many, "--executors", "2", "--partitions", "1"]) == 0
    said = capsys.readouterr().out
    assert "2 executors are too few" in said
    assert "1.7 results leave for each row that comes: the sink has more to do than the source" in said
    assert "1 partitions leave 1 executors without a state" in said


def test_blanks_in_the_list_of_aggregates(capsys: pytest.CaptureFixture[str]) -> None:
    for names in ("count,sum", " count, sum "):
        options = ["--rows-per-second", "10", "--keys", "10", "--window", "1 minute", "--aggregates", names]
        assert main(["size", *options]) == 0
    said = capsys.readouterr().out
    assert said[: len(said) // 2] == said[len(said) // 2 :]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gap", "30 seconds", "--slide", "1 minute"], "sessions have no slide"),
        (["--window", "1 minute", "--slide", "1 hour"], "the slide is longer than the window"),
        (["--window", "1 minute", "--aggregates", "median"], "aggregates are some of count, sum"),
        (["--window", "1 minute", "--device", "cuda"], "no kernel was measured on a GPU"),
    ],
)
def test_options_that_contradict(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--rows-per-second", "10", "--keys", "10", *arguments]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--keys", "0", "--window", "1 hour"], "'0' is not a number of 1 or more"),
        (["--keys", "many", "--window", "1 hour"], "'many' is not a number of 1 or more"),
        (["--keys", "1.9", "--window", "1 hour"], "'1.9' is not a whole number"),
        (["--keys", "1e15", "--window", "1 hour"], "'1e15' is not below 1e15"),
        (["--keys", "5", "--window", "1 hour", "--delay=-1 second"], "'-1 second' is negative"),
        (["--keys", "5"], "one of the arguments --window --gap is required"),
        (["--keys", "5", "--window", "1 hour", "--gap", "1 hour"], "not allowed with argument"),
    ],
)
def test_options_that_are_none(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["size", "--rows-per-second", "10", *arguments])
    assert ended.value.code == 1
    assert words in capsys.readouterr().err


def test_a_watermark_without_delay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--delay", "0 seconds"]) == 0
    assert capsys.readouterr().out.startswith("a micro-batch of 10 s")
