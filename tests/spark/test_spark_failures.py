"""The service is killed, or tasks fail: the query ends with the right rows, or says so and is right when resumed."""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import (
    Case,
    Recording,
    ServiceKills,
    SessionCase,
    Stream,
    StreamSpec,
    assert_equal,
    assert_placed,
    await_until,
    differences,
    fails_once,
    is_ready,
    isolated,
    jvm_pid,
    kill,
    run,
    service,
    services,
    socket_of,
    start_session,
    write,
)

STREAM = StreamSpec(seed=11, batches=5, rows=80, empty=None)


IN_THE_MIDDLE = [
    Case("sliding", "append", "string", "decimals", trigger="processing", partitions="2"),
    pytest.param(
        Case("sliding", "update", "string", "decimals", trigger="processing", partitions="2"), marks=pytest.mark.sweep
    ),
    pytest.param(
        SessionCase("long", "append", "string", "decimals", trigger="processing", partitions="2"),
        marks=pytest.mark.sweep,
    ),
]


@pytest.mark.parametrize("case", IN_THE_MIDDLE, ids=str)
def test_service_killed_in_the_middle_of_a_batch(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    """The service is stopped, so that a batch has begun and cannot end, and then killed. Twice; the query goes on."""
    stream = write(STREAM, tmp_path / "stream")
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    kills = ServiceKills(spark)
    device = run(
        spark, case.query, stream, case.how, tmp_path / "device", enabled=True, before_batch=kills.before_batch
    )
    kills.join()
    assert_equal(plain, device, spark_operators=case.spark_operators)
    assert len(kills.killed) == 2, "the service was killed twice in mid batch, and started again between"


@pytest.mark.long
def test_service_that_does_not_answer_in_time(spark: SparkSession, tmp_path: Path) -> None:
    """The query fails with the key that sets the limit, and the service that hangs is killed; then all is right."""
    case = Case("sliding", "update", "string", "integers", trigger="processing", partitions="2")
    stream = write(replace(STREAM, batches=3), tmp_path / "stream")
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    begun = run(spark, case.query, Stream(stream.batches[:2]), case.how, tmp_path / "device", enabled=True)
    hangs = service(spark)
    os.kill(hangs, signal.SIGSTOP)
    hasty = replace(case.how, conf={**case.how.conf, "spark.gpuwin.service.timeout": "1"})
    slow = run(spark, case.query, stream, hasty, tmp_path / "device", enabled=True)
    assert slow.error is not None
    assert "did not answer within 1 s" in slow.error.message
    assert "spark.gpuwin.service.timeout" in slow.error.message
    assert not slow.batches
    await_until(lambda: not is_ready(hangs), "the end of the service that hangs")
    rest = run(spark, case.query, stream, case.how, tmp_path / "device", enabled=True)
    rest.batches = begun.batches + rest.batches
    assert_equal(plain, rest)


AT_RANDOM = [
    pytest.param(
        Case("uneven", "append", "two", "integers", trigger="processing", partitions="2", provider="rocksdb_changelog"),
        marks=pytest.mark.sweep,
    ),
    SessionCase("by_row", "append", "two", "integers", trigger="processing", partitions="2", provider="hdfs"),
]


@pytest.mark.long
@pytest.mark.parametrize("case", AT_RANDOM, ids=str)
def test_service_killed_at_random(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    """Each service that comes up is killed at a random moment of its work, six times."""
    stream = write(STREAM, tmp_path / "stream")
    plain = run(spark, case.query, stream, case.how, tmp_path / "plain", enabled=False)
    rng, over, killed = random.Random(1), threading.Event(), []

    def strike() -> None:
        while len(killed) < 6 and not over.wait(0.02):
            for pid in filter(is_ready, services(jvm_pid(spark))):
                over.wait(rng.uniform(0.0, 0.8))
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
    assert_equal(plain, device, spark_operators=case.spark_operators)


def resumed(spark: SparkSession, case: Case, stream: Stream, folder: Path) -> Recording:
    """Runs the query and, as often as it fails with an error that names the service, starts it again.

    Returns all batches in their order; of one that was done more than once, the last.
    """
    batches = {}
    for _ in range(12):
        part = run(spark, case.query, stream, case.how, folder, enabled=True)
        batches |= {b.id: b for b in part.batches}
        if part.error is None:
            part.batches = [batches[i] for i in sorted(batches)]
            return part
        assert "gpuwin device service" in part.error.message, part.error
        assert "restart the query" in part.error.message, part.error
    raise AssertionError(f"the query failed each time it was started: {part.error}")


# Tasks that fail once. Spark retries them only with a master of local[threads, attempts], so this has a JVM of its own.


RETRIED = [("update", "hdfs"), ("append", "rocksdb_changelog")]


@dataclass(frozen=True)
class Retried:
    """What came of each of `RETRIED` on plain Spark and on gpuwin, with the number of failures; then the service of a
    JVM that was killed, and the folder of its socket."""

    done: list[tuple[Recording, Recording, int]]
    service: int
    private: Path


def _with_retries(folder: Path) -> Retried:
    spark = start_session(folder, "local[2, 4]")
    stream = write(replace(STREAM, batches=4), folder / "stream")
    done = [_one_with_retries(spark, stream, folder / str(i), *r) for i, r in enumerate(RETRIED)]
    ended = Retried(done, service(spark), socket_of(service(spark)).parent)
    kill(jvm_pid(spark))
    return ended


@pytest.fixture(scope="module")
def retried(tmp_path_factory: pytest.TempPathFactory) -> Retried:
    """An application of its own, which is killed in the end."""
    return isolated(_with_retries, tmp_path_factory.mktemp("retried"))


def _one_with_retries(
    spark: SparkSession, stream: Stream, folder: Path, mode: str, provider: str
) -> tuple[Recording, Recording, int]:
    case = Case("sliding", mode, "string", "integers", provider=provider, trigger="processing", partitions="2")
    failures = folder / "failures"
    failures.mkdir(parents=True)

    def fails(session: SparkSession, frame: DataFrame) -> DataFrame:
        return case.query(session, frame).where(fails_once(F.col("sum_int"), failures))

    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(run, spark, case.query, stream, case.how, folder / "plain", enabled=False)
        device = pool.submit(run, spark, fails, stream, case.how, folder / "device", enabled=True)
        return plain.result(), device.result(), len(list(failures.iterdir()))


@pytest.mark.sweep
def test_tasks_that_fail_are_repeated(retried: Retried) -> None:
    """The first attempt of each task fails while it hands on its results, so the batch is merged a second time."""
    for (mode, provider), (plain, device, failures) in zip(RETRIED, retried.done, strict=True):
        what = f"{mode}, {provider}"
        assert failures >= 4, f"{what}: tasks failed in several batches"
        # The plans differ by the planted filter, so only what came out is compared.
        device.plan_schema = plain.plan_schema
        assert differences(plain, device) == [], what
        assert_placed(device, ["gpuwin"])
        assert any(b.rows for b in plain.batches), what


@pytest.mark.long
def test_other_applications_do_not_meet(retried: Retried) -> None:
    """The service ends with its JVM, even when that is killed, and leaves nothing behind."""
    await_until(lambda: not Path(f"/proc/{retried.service}").exists(), "the end of the service of a killed JVM")
    assert retried.private.name.startswith("gpuwin-")
    assert not retried.private.exists()
