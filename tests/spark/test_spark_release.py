"""What a query leaves behind when it has ended: nothing. `pytest -m sweep` of this file runs hundreds of them."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import await_until, children, jvm_pid, service, service_with
from test_spark_aggregate_stream import SPECIFICATIONS, Job, append, in_order, on_arrow

import gpuwin as gw

SPEC = SPECIFICATIONS["changes of a sliding window"]


def plugin(spark: SparkSession, name: str) -> Any:
    assert spark._jvm is not None
    return getattr(spark._jvm.org.apache.spark.sql.gpuwin, name)


def states_held(spark: SparkSession) -> int:
    """How many states the service holds, once it was told which stores are not loaded any more."""
    states = plugin(spark, "ResidentStates")
    states.release()
    return int(states.size())


def left_over(spark: SparkSession) -> int:
    """States of queries that other tests broke off in a batch, after three rounds of Spark's maintenance: a task that
    reports its store after the query has ended keeps it loaded, and the state with it.
    """
    end = time.monotonic() + 6
    while states_held(spark) and time.monotonic() < end:
        time.sleep(0.1)
    return states_held(spark)


def test_states_of_a_query_that_ended_are_let_go(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    before = left_over(spark)
    with job.running(SPEC) as query:
        job.feed(query, 0)
        assert states_held(spark) >= 2
        job.feed(query, 1)
        assert query.lastProgress is not None
        rows = next(p for p in reversed(query.recentProgress) if p["numInputRows"])
        assert rows["stateOperators"][0]["customMetrics"]["gpuwinResidentHits"] == 2, (
            "a query that runs keeps its states"
        )
    unloaded = "Spark to unload the stores of the query, and the service its states"
    await_until(lambda: states_held(spark) <= before, unloaded)
    expected = on_arrow(SPEC, 0, 1, 2)
    with job.running(SPEC) as query:
        job.feed(query, 2)
    assert in_order(job.rows(expected)) == in_order(expected)


def test_a_service_that_is_awaited_by_a_task_that_is_killed_does_not_stay(spark: SparkSession, tmp_path: Path) -> None:
    """The query is stopped while its tasks wait for the start of a service, which takes its time."""
    job = Job(spark, tmp_path)
    slow = tmp_path / "slow-python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o700)
    with job.running(SPEC) as query:
        job.feed(query, 0)
        with service_with(spark, {"spark.gpuwin.python": str(slow)}):
            append(job.source, 1)
            await_until(lambda: bool(children(jvm_pid(spark), "sleep")), "a service that does not come up")
            query.stop()
            await_until(lambda: not children(jvm_pid(spark), "sleep"), "its end")
    expected = on_arrow(SPEC, 0, 1)
    with job.running(SPEC) as query:
        query.processAllAvailable()
    assert in_order(job.rows(expected)) == in_order(expected)


def test_code_is_distributed_once(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    spec = SPECIFICATIONS["sessions that fire early and late"]
    gw.spark.aggregate(job.frame(), spec)
    files = spark.sparkContext.listFiles
    gw.spark.aggregate(job.frame(), spec)
    assert spark.sparkContext.listFiles == files
    assert any("gpuwin-accumulations-" in file for file in files)


@pytest.mark.long
def test_the_code_of_a_query_is_compiled_once(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of a batch, such as its watermark, is written into the code that Spark generates for it: a class compiled
    for each batch would fill the JVM's memory for code, which many queries share."""
    assert spark._jvm is not None
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    job = Job(spark, tmp_path)
    session = F.session_window("ts", "20 seconds")
    frames = [
        gw.spark.aggregate(job.frame(), SPEC),
        grouped(job.frame()),
        job.frame().withWatermark("ts", "10 seconds").groupBy("`k.``1`", session).count(),
    ]
    queries = [
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(n))).start()
        for n, frame in enumerate(frames)
    ]
    counts = []
    for number in range(5):
        append(job.source, number)
        for query in queries:
            query.processAllAvailable()
        counts.append(int(compiled.getCount()))
    for query in queries:
        assert {o["operatorName"] for p in query.recentProgress for o in p["stateOperators"]} == {"gpuwin"}
        query.stop()
    assert counts[2:] == [counts[2]] * 3, counts


class Usage:
    """Threads, open files and memory of the driver's JVM, which is the executor as well, and of its service."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark._jvm is not None
        spark._jvm.System.gc()
        self.jvm, self.service = jvm_pid(spark), service(spark)
        self.files = {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in (self.jvm, self.service)}
        names = [str(thread.getName()) for thread in spark._jvm.java.lang.Thread.getAllStackTraces().keySet()]
        self.threads = {
            "of gpuwin": sum(name.startswith("gpuwin") for name in names),
            "of the service": len(os.listdir(f"/proc/{self.service}/task")),
        }
        fields = (Path("/proc") / str(self.service) / "statm").read_text().split()
        self.memory = (int(fields[1]) - int(fields[2])) * 4096
        heap = spark._jvm.java.lang.Runtime.getRuntime()
        self.heap = int(heap.totalMemory()) - int(heap.freeMemory())

    def __str__(self) -> str:
        return f"{self.files} {self.threads} service {self.memory >> 20} MB, heap {self.heap >> 20} MB"


def grouped(frame: DataFrame) -> DataFrame:
    window = F.window("ts", "2 minutes", "30 seconds")
    return frame.withWatermark("ts", "10 seconds").groupBy("`k.``1`", window).agg(F.sum("v").alias("v"))


def started(job: Job, number: int, checkpoint: Path) -> StreamingQuery:
    """Every other query is Spark's own."""
    frame = gw.spark.aggregate(job.frame(), SPEC) if number % 2 else grouped(job.frame())
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("anew", [False, True], ids=["from its checkpoint", "from none"])
def test_a_query_that_is_started_a_hundred_times(spark: SparkSession, tmp_path: Path, anew: bool) -> None:
    job = Job(spark, tmp_path)
    append(job.source, 0)
    usage = []
    for n in range(100):
        checkpoint = tmp_path / f"checkpoint-{n if anew else n % 2}"
        query = started(job, n, checkpoint)
        if not anew:
            append(job.source, n + 1)
        query.processAllAvailable()
        query.stop()
        if anew:
            shutil.rmtree(checkpoint)
        if n % 10 == 9:
            await_until(lambda: states_held(spark) == 0, "the states of queries that ended to be let go")
            usage.append(Usage(spark))
            print(n, usage[-1], flush=True)
    early, late = usage[2], usage[-1]
    assert late.service == early.service, "the service did not die"
    assert all(late.files[pid] <= early.files[pid] + 10 for pid in early.files), (early, late)
    assert late.threads["of gpuwin"] <= 4, late
    assert late.threads["of the service"] <= early.threads["of the service"] + 2, (early, late)
    assert late.memory < early.memory + (48 << 20), (str(early), str(late))


@pytest.mark.sweep
@pytest.mark.timeout(1800)
def test_fifty_queries_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Each with rows of its own, and each is right."""
    jobs = []
    for n in range(50):
        folder = tmp_path / str(n)
        folder.mkdir()
        jobs.append(Job(spark, folder))
    queries = [
        gw.spark.aggregate(job.frame(), SPEC)
        .writeStream.format("parquet")
        .option("path", str(job.folder / "sink"))
        .option("checkpointLocation", str(job.folder / "checkpoint"))
        .start()
        for job in jobs
    ]
    began = time.monotonic()
    errors: list[str] = []

    def play(n: int) -> None:
        try:
            jobs[n].feed(queries[n], n, n + 1, n + 2)
        except Exception as e:
            errors.append(str(e))

    threads = [threading.Thread(target=play, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{time.monotonic() - began:.0f} s", Usage(spark), flush=True)
    assert states_held(spark) == 100
    for query in queries:
        query.stop()
    assert not errors, errors[0]
    for n, job in enumerate(jobs):
        expected = on_arrow(SPEC, n, n + 1, n + 2)
        assert in_order(job.rows(expected)) == in_order(expected), n
    await_until(lambda: states_held(spark) == 0, "the states to be let go")
    print(Usage(spark), flush=True)
