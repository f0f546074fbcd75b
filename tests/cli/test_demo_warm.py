"""Kernels that are compiled before the demo times anything: all that the flights need, so that no batch waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpuwin.demo import flights
from gpuwin.demo.command import DemoOptions
from gpuwin.demo.queries import QUERIES, DemoQuery
from gpuwin.demo.warm import run_cells

pytestmark = pytest.mark.long

MICROSECOND = timedelta(microseconds=1)


def cells(query: DemoQuery, batches: list[pa.Table]) -> Iterator[tuple[int, list[Any]]]:
    """The watermark and the columns of cells of each batch, as Spark's own partial aggregation would bring them."""
    slide, delay = query.slide // MICROSECOND, query.watermark_delay // MICROSECOND
    newest = 0
    for batch in batches:
        times = batch["scheduled"].cast(pa.int64())
        pane = pc.multiply(pc.divide(times, slide), slide)
        table = batch.append_column("pane", pane).append_column("minutes", batch["delay"].cast(pa.float64()))
        sums = [("delay", "count"), ("minutes", "sum"), ("scheduled", "count")]
        grouped = table.group_by([*query.keys, "pane"]).aggregate(sums)
        names = [*query.keys, "pane", "scheduled_count", "minutes_sum", "delay_count", "delay_count"]
        yield newest - delay, [grouped[n].combine_chunks() for n in names]
        newest = max(newest, pc.max(times).as_py())


def run_the_flights() -> None:
    """The small batches that the demo begins with, and some that follow, through both queries."""
    batches = flights.cut(flights.load_flights(flights.find_flights()), DemoOptions().batches)[:7]
    for query in QUERIES.values():
        run_cells(query, cells(query, batches))


def test_every_kernel_that_the_flights_need_is_compiled_beforehand(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "gpuwin.demo.warm", next(iter(QUERIES))], check=True, env=environment)
    before = {p.name for p in tmp_path.rglob("*.nbc")}
    subprocess.run([sys.executable, __file__], check=True, env=environment)
    after = {p.name for p in tmp_path.rglob("*.nbc")}
    assert len(before) > 20
    assert after - before == set()


if __name__ == "__main__":
    run_the_flights()
