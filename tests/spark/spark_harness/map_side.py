"""Runs with their map side in the JVM or on the device service, and what a plan says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import gpuwin as gw

from .case import Case
from .planted_failures import fails_once
from .processes import service, socket_of
from .record import Query, Recording, Run, run
from .session import start_session
from .session_case import SessionCase
from .streams import Stream, StreamSpec, write

DEVICE: Final = {"spark.gpuwin.mapside": "device"}
JVM: Final = {"spark.gpuwin.mapside": "jvm"}


def on(side: dict[str, str], how: Run) -> Run:
    """The run with its map side there."""
    return replace(how, conf={**how.conf, **side})


def assert_below(recording: Recording, side: dict[str, str] = DEVICE) -> None:
    """Fails unless the last plan of the run has its map side there."""
    assert ("DeviceCells" in recording.plan) == (side is DEVICE), recording.plan


def run_switching(spark: SparkSession, case: Case | SessionCase, stream: Stream, folder: Path) -> Recording:
    """The stream with a start for each of its six batches, whose map side is not always that of the start before."""
    found: Recording | None = None
    for upto, side in enumerate([JVM, DEVICE, DEVICE, JVM, DEVICE, JVM], 1):
        how = on(side, replace(case.how, trigger="once"))
        last = run(spark, case.query, Stream(stream.batches[upto - 1 : upto]), how, folder, enabled=True)
        assert_below(last, side)
        if found is not None:
            last.batches = found.batches + last.batches
        found = last
    assert found is not None
    return found


def run_with_failures(
    folder: Path, case: Case | SessionCase, spec: StreamSpec
) -> tuple[Recording, Recording, Recording, int, list[str]]:
    """An application of its own, whose shuffle is encrypted: the query on plain Spark, with its map side in the JVM,
    and on the service, where the first attempt of each map task fails. Then how many failed, and the files in the
    service's folder.
    """
    spark = start_session(folder, "local[2, 4]", {"spark.io.encryption.enabled": "true"})
    stream = write(spec, folder / "stream")
    failures = folder / "failures"
    failures.mkdir()

    def fails(session: SparkSession, frame: DataFrame) -> DataFrame:
        return case.query(session, frame.where(fails_once(F.col("id"), failures)))

    plain = run(spark, case.query, stream, case.how, folder / "plain", enabled=False)
    jvm = run(spark, case.query, stream, on(JVM, case.how), folder / "jvm", enabled=True)
    device = run(spark, fails, stream, on(DEVICE, case.how), folder / "device", enabled=True)
    left = sorted(path.name for path in socket_of(service(spark)).parent.iterdir())
    spark.stop()
    return plain, jvm, device, len(list(failures.iterdir())), left


def last_plan(query: StreamingQuery) -> Any:
    """The physical plan of the last batch that was planned, an object of the JVM."""
    return query._jsq.streamingQuery().lastExecution().executedPlan()  # type: ignore[attr-defined]


def map_side_metric(query: StreamingQuery, name: str) -> int:
    """The metric of the map side in the last batch that was planned."""
    (cells,) = _nodes(last_plan(query), "DeviceCells")
    return int(cells.metrics().apply(name).value())


def _nodes(plan: Any, name: str) -> Iterator[Any]:
    if plan.nodeName() == name:
        yield plan
    children = plan.children()
    for i in range(children.size()):
        yield from _nodes(children.apply(i), name)


def explained(spark: SparkSession, query: Query, side: str) -> str:
    """What `gw.spark.explain` says of a query whose setting is this one."""
    session = spark.newSession()
    session.conf.set("spark.gpuwin.mapside", side)
    rate = session.readStream.format("rate").load()
    frame = rate.selectExpr("timestamp AS ts", "value % 2 = 0 AS bool", "cast(value AS int) AS int")
    return gw.spark.explain(query(session, frame))
