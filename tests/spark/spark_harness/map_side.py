"""Runs with their map side in the JVM or on the device service, and what a plan says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import gpuwin as gw

from .record import Query, Recording, Run

DEVICE: Final = {"spark.gpuwin.mapside": "device"}
JVM: Final = {"spark.gpuwin.mapside": "jvm"}


def on(side: dict[str, str], how: Run) -> Run:
    """The run with its map side there."""
    return replace(how, conf={**how.conf, **side})


def assert_below(recording: Recording, side: dict[str, str] = DEVICE) -> None:
    """Fails unless the last plan of the run has its map side there."""
    assert ("DeviceCells" in recording.plan) == (side is DEVICE), recording.plan


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
