"""The service is killed, or tasks fail: the query ends with the right rows, or says so and is right when resumed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import BooleanType
from spark_harness import (
    Case,
    Recording,
    Stream,
    StreamSpec,
    assert_equal,
    assert_placed,
    await_until,
    differences,
    isolated,
    jvm_pid,
    kill,
    run,
    service,
    services,
    start_session,
    write,
)

STREAM = StreamSpec(seed=11, batches=5, rows=80, empty=None)


@pytest.mark.parametrize("mode", ["append", "update"])
def test_service_killed_in_the_middle_of_a_batch(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    """The service is stopped, so that it has taken a batch and cannot answer, and then killed."""
    case = Case("sliding", mode, "string", "decimals", trigger="processing", partitions="2")
    stream = write(STREAM, tmp_path / "stream")
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    killed: list[int] = []

    def strike(pid: int, query: StreamingQuery) -> None:
        last = query.lastProgress["batchId"] if query.lastProgress else -1
        await_until(lambda: query.status["isTriggerActive"], "the batch to begin")
        time.sleep(0.7)  # now a task waits for the stopped service
        assert (query.lastProgress["batchId"] if query.lastProgress else -1) == last, "the batch must not have ended"
        kill(pid)
        killed.append(pid)

    threads: list[threading.Thread] = []

    def before(batch: int, query: StreamingQuery | None) -> None:
        if batch in (1, 3) and query is not None:
            pid = service(spark)
            os.kill(pid, signal.SIGSTOP)
            threads.append(threading.Thread(target=strike, args=(pid, query)))
            threads[-1].start()

    device = resumed(spark, case, stream, tmp_path / "device", before)
    for thread in threads:
        thread.join()
    assert len(set(killed)) == 2, "the service was killed twice, and started again between"
    assert_same_in_the_end(plain, device)


@pytest.mark.parametrize("seed", [1, 2])
def test_service_killed_at_random(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    case = Case(
        "uneven", "append", "two", "integers", trigger="processing", partitions="2", provider="rocksdb_changelog"
    )
    stream = write(STREAM, tmp_path / "stream")
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    rng, over, killed = random.Random(seed), threading.Event(), []

    def strike() -> None:
        while not over.wait(rng.uniform(0.05, 1.2)):
            for pid in services(jvm_pid(spark)):
                kill(pid)
                killed.append(pid)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        device = resumed(spark, case, stream, tmp_path / "device")
    finally:
        over.set()
        thread.join()
    assert killed, "the service was never killed"
    assert_same_in_the_end(plain, device)


def resumed(spark: SparkSession, case: Case, stream: Stream, folder: Path, before: object = None) -> Recording:
    """Runs the query and, as often as it fails with an error that names the service, starts it again."""
    whole = Recording()
    for _ in range(12):
        part = run(spark, case.query, stream, case.how, folder, enabled=True, before_batch=before)  # type: ignore[arg-type]
        whole.batches += part.batches
        whole.schema, whole.columns, whole.plan, whole.plan_schema = (
            part.schema,
            part.columns,
            part.plan,
            part.plan_schema,
        )
        if part.error is None:
            return whole
        assert "gpuwin device service" in part.error.message, part.error
        before = None
    raise AssertionError(f"the query failed each time it was started: {part.error}")


def assert_same_in_the_end(plain: Recording, device: Recording) -> None:
    """The same rows batch by batch, however many starts it took; a batch that was repeated counts the last time."""
    last = {b.id: b for b in device.batches}
    device.batches = [last[i] for i in sorted(last)]
    assert_equal(plain, device)


# Tasks that fail once. Spark retries them only with a master of local[threads, attempts], so this has a JVM of its own.


def _fails_once(column: Column, state: Path) -> Column:
    """True for every row; the first time that a task of a partition comes here, it fails, once a batch."""
    folder = str(state)

    def check(value: object) -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            (Path(folder) / f"{context.stageId()}-{context.partitionId()}").touch()
            raise RuntimeError("planted failure of a first attempt")
        return True

    return F.udf(check, BooleanType())(column)


def _with_retries(folder: str, where: str, mode: str, provider: str) -> tuple[Recording, Recording, int]:
    spark = start_session(Path(folder), "local[2, 4]")
    try:
        case = Case("sliding", mode, "string", "integers", provider=provider, trigger="processing", partitions="2")
        stream = write(STREAM, Path(folder) / "stream")
        failures = Path(folder) / "failures"
        failures.mkdir()

        def query(session: SparkSession, frame: DataFrame) -> DataFrame:
            if where == "input":
                return case.query(session, frame.where(_fails_once(F.col("id"), failures)))
            return case.query(session, frame).where(_fails_once(F.col("sum_int"), failures))

        plain = run(spark, case.query, stream, case.how, Path(folder) / "plain", enabled=False)
        device = run(spark, query, stream, case.how, Path(folder) / "device", enabled=True)
        return plain, device, len(list(failures.iterdir()))
    finally:
        spark.stop()


@pytest.mark.parametrize(
    ("where", "mode", "provider"),
    [("result", "update", "hdfs"), ("result", "append", "rocksdb_changelog"), ("input", "append", "hdfs")],
)
def test_task_that_fails_is_repeated(where: str, mode: str, provider: str, tmp_path: Path) -> None:
    plain, device, failures = isolated(_with_retries, str(tmp_path), where, mode, provider)
    assert failures >= 4, "tasks failed in several batches"
    # The plans differ by the planted filter, so only what came out is compared.
    device.plan_schema = plain.plan_schema
    assert differences(plain, device) == []
    assert_placed(device, ["gpuwin"])
    assert any(b.rows for b in plain.batches)


def test_other_applications_do_not_meet(tmp_path: Path) -> None:
    """The service ends with its JVM, even when that is killed."""
    pid, jvm = isolated(_start_and_kill, str(tmp_path))
    await_until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of service {pid} after its JVM {jvm} was killed")


def _start_and_kill(folder: str) -> tuple[int, int]:
    spark = start_session(Path(folder))
    pid, jvm = service(spark), jvm_pid(spark)
    kill(jvm)
    return pid, jvm
