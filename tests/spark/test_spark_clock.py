"""The clock of the machine jumps by hours, forwards and backwards: nothing is lost, nothing comes twice or early.

Here what moves is the time of micro-batches, and the clock of the service. `pytest -m sweep` of this file, which needs
a C compiler, moves the system clock of all processes of an application.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    PROVIDERS,
    SPARK_SESSIONS,
    Case,
    Query,
    Recording,
    Run,
    SessionCase,
    StreamSpec,
    TriggerClock,
    assert_equal,
    isolated,
    run,
    service,
    service_with,
    start_session,
    write,
)
from test_spark_aggregate_stream import SPECIFICATIONS, Job, append, batch, in_order, on_arrow

import gpuwin as gw

HOUR = 3_600_000
#: Ahead of every machine that runs this, so that time does not pass for queries but here.
BASE = 4_000_000_000_000
#: What the clock shows when a batch begins, in hours from the first.
JUMPS = (0, 30, -3, 40)
STREAM = StreamSpec(seed=5, batches=len(JUMPS), rows=60, empty=None)

_ANOTHER_DAY_AT_EACH_LOOK = """
import random, time
real, chance = time.time_ns, random.Random(1)
def jumping():
    return real() + chance.randint(-10**6, 10**6) * 10**9
time.time_ns = jumping
time.time = lambda: jumping() / 1e9
"""

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec *);
static long offset(void) {  /* three hours ahead, right, and three behind, for a second and a half each */
  struct timespec t;
  real(CLOCK_MONOTONIC, &t);
  return ((t.tv_sec * 1000 + t.tv_nsec / 1000000) / 1500 % 3 - 1) * 3 * 3600;
}
int clock_gettime(clockid_t id, struct timespec *t) {
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, t);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) t->tv_sec += offset();
  return result;
}
int gettimeofday(struct timeval *restrict v, void *restrict zone) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  v->tv_sec = t.tv_sec, v->tv_usec = t.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *at) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (at) *at = t.tv_sec;
  return t.tv_sec;
}
"""


@pytest.fixture
def lost_in_time(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[], int]]:
    """The next device service has a system clock that shows another day at each look. Gives its process id."""

    def running() -> int:
        pid = service(spark)
        assert str(tmp_path).encode() in (Path("/proc") / str(pid) / "environ").read_bytes()
        return pid

    (tmp_path / "sitecustomize.py").write_text(_ANOTHER_DAY_AT_EACH_LOOK)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    with service_with(spark, {"spark.gpuwin.python": str(python)}):
        yield running


def of_windows(_: SparkSession, frame: DataFrame) -> DataFrame:
    """Spark has the time of the batch for `current_timestamp`."""
    frame = frame.withWatermark("ts", "10 seconds").withColumn("now", F.current_timestamp())
    return frame.groupBy(F.window("ts", "2 minutes", "30 seconds"), "short").agg(
        F.count("*").alias("n"), F.min("now").alias("min_now"), F.max("now").alias("max_now")
    )


def of_sessions(_: SparkSession, frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "10 seconds").groupBy(F.session_window("ts", "20 seconds"), "bool").count()


@dataclass(frozen=True)
class Sort:
    """What `assert_equal` asks of a query. Only windows are asked for the time of their batches."""

    query: Query
    provider: str
    operators: tuple[str, ...]


SORTS = [
    Sort(of_windows, "hdfs", ("stateStoreSave",)),
    pytest.param(Sort(of_windows, "rocksdb_changelog", ("stateStoreSave",)), marks=pytest.mark.sweep),
    pytest.param(Sort(of_sessions, "hdfs", SPARK_SESSIONS), marks=pytest.mark.sweep),
    pytest.param(Sort(of_sessions, "rocksdb_changelog", SPARK_SESSIONS), marks=pytest.mark.sweep),
]


@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: f"{sort.query.__name__}-{sort.provider}")
def test_queries_of_spark(sort: Sort, spark: SparkSession, tmp_path: Path) -> None:
    stream = write(STREAM, tmp_path / "stream")

    def side(enabled: bool) -> Recording:
        """A run of which each batch begins at an hour of its own."""
        clock = TriggerClock(spark, BASE)
        how = Run(trigger="processing", sink="parquet", conf=PROVIDERS[sort.provider], clock=clock)

        def jump(number: int, _: object) -> None:
            clock.set(BASE + JUMPS[number] * HOUR)

        at = tmp_path / ("device" if enabled else "plain")
        return run(spark, sort.query, stream, how, at, enabled=enabled, before_batch=jump)

    with ThreadPoolExecutor(2) as pool:
        plain, device = pool.map(side, (False, True))
    assert_equal(plain, device, spark_operators=sort.operators)
    if sort.query is of_windows:
        times = {(t - BASE * 1000) // (HOUR * 1000) for t in device.column("max_now") if isinstance(t, int)}
        assert len(times) > 2
        assert times <= set(JUMPS), "each batch has had a time of its own"


@pytest.fixture
def clocked() -> dict[str, gw.WindowedAggregation]:
    """Specifications that look at the clock of the machine."""
    keyed: dict[str, Any] = {"keys": ["k.`1"], "aggregates": {"n": gw.count(), "v": gw.sum("v")}}
    return {
        "windows of arrival": gw.WindowedAggregation(
            window=gw.TumblingWindow("1 hour"), watermark=gw.SystemClock(), **keyed
        ),
        "a watermark that goes on": gw.WindowedAggregation(
            window=gw.SlidingWindow("2 minutes", "1 minute"), time="ts", watermark=gw.EventClock("3 minutes"), **keyed
        ),
        "now and then": gw.WindowedAggregation(
            window=gw.TumblingWindow("10 minutes"),
            time="ts",
            watermark=gw.BoundedOutOfOrderness("10 minutes"),
            emit=gw.Trigger(early=gw.Every("20 hours")),
            accumulation="retracting",
            **keyed,
        ),
    }


def test_specifications(
    spark: SparkSession, clocked: dict[str, gw.WindowedAggregation], tmp_path: Path, lost_in_time: Callable[[], int]
) -> None:
    """The operator takes each batch at the time that Spark gave it, and time never goes back."""
    clock = TriggerClock(spark, BASE)
    now = BASE
    jobs, queries, operators, emitted, pids = [], [], [], [], set()
    for name, spec in clocked.items():
        folder = tmp_path / name
        folder.mkdir()
        job = Job(spark, folder)
        frame = gw.spark.aggregate(job.frame(), spec)
        jobs.append(job)
        queries.append(clock.start(frame, "append", folder / "sink", folder / "checkpoint"))
        operators.append(spec.start(device="cpu", clock=lambda: now * 1000))
    try:
        for number, hours in enumerate(JUMPS):
            now = BASE + hours * HOUR
            clock.set(now)
            emitted.append([operator.process(batch(number)) for operator in operators])
            for job in jobs:
                append(job.source, number)
            for query in queries:
                query.processAllAvailable()
            pids.add(lost_in_time())
    finally:
        for query in queries:
            query.stop()
    assert len(pids) == 1, "the service was neither lost nor killed"
    for job, *tables in zip(jobs, *emitted, strict=True):
        expected = pa.concat_tables(tables)
        assert len(expected) >= 8, job.folder.name
        assert in_order(job.rows(expected)) == in_order(expected), job.folder.name


def under_a_clock_that_jumps(shim: str, folder: Path) -> None:
    """In a process of its own, whose children have the shim."""
    os.environ["LD_PRELOAD"] = shim
    # Spark takes an executor for lost whose last sign of life is, by the system clock, as old as this.
    spark = start_session(folder, conf={"spark.network.timeout": "24h", "spark.gpuwin.service.timeout": "20"})
    assert spark._jvm is not None
    seen = []
    stream = write(StreamSpec(seed=5, batches=12, rows=60, empty=3), folder / "stream")
    spec = SPECIFICATIONS["sessions that fire early and late"]
    job = Job(spark, folder)
    with job.running(spec) as query:
        for number in range(12):
            job.feed(query, number)
            seen.append(spark._jvm.System.currentTimeMillis() / HOUR - time.time() * 1000 / HOUR)
            time.sleep(0.5)
        restarts = {p["stateOperators"][0]["customMetrics"]["gpuwinServiceRestarts"] for p in query.recentProgress}
    assert restarts == {0}
    expected = on_arrow(spec, *range(12))
    assert len(expected) > 10
    assert in_order(job.rows(expected)) == in_order(expected)
    with ThreadPoolExecutor(4) as pool:
        for case, operators in (
            (Case("sliding", "append", "string", "integers", trigger="processing"), ("stateStoreSave",)),
            (SessionCase(trigger="processing"), SPARK_SESSIONS),
        ):
            plain, device = pool.map(
                lambda enabled, case=case: run(
                    spark, case.query, stream, case.how, folder / f"{type(case).__name__}-{enabled}", enabled=enabled
                ),
                (False, True),
            )
            assert_equal(plain, device, spark_operators=operators)
    assert {round(hours) for hours in seen} == {-3, 0, 3}, seen
    pid = service(spark)
    assert shim.encode() in (Path("/proc") / str(pid) / "maps").read_bytes()
    spark.stop()


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_clock_of_all_processes(tmp_path: Path) -> None:
    source, shim = tmp_path / "jump.c", tmp_path / "jump.so"
    source.write_text(_SHIM)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    isolated(under_a_clock_that_jumps, str(shim), tmp_path)
