"""Batch queries, planned by Spark and by gpuwin, in sessions of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

import gpuwin as gw

from .compare import row_differences
from .record import Query, leaves, rows_of
from .streams import SCHEMA

#: What `gw.spark.explain` calls the aggregations by window of a batch query.
SECTION: Final = "aggregations by window in batch queries by panes or proto-sessions"
ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def session_of(spark: SparkSession, conf: dict[str, str]) -> SparkSession:
    """A new session with these settings."""
    session = spark.newSession()
    for key, value in conf.items():
        session.conf.set(key, value)
    return session


def static(session: SparkSession, folder: Path, schema: str = SCHEMA) -> DataFrame:
    """The rows of a stream's files as a static DataFrame."""
    return session.read.schema(schema).parquet(str(folder))


def both_plans(
    spark: SparkSession, folder: Path, query: Query, conf: dict[str, str], schema: str = SCHEMA
) -> tuple[DataFrame, DataFrame]:
    """The query left to Spark, and planned by gpuwin."""
    plain, ours = (session_of(spark, {**conf, "spark.gpuwin.enabled": on}) for on in ("false", "true"))
    return query(plain, static(plain, folder, schema)), query(ours, static(ours, folder, schema))


def assert_same_rows(plain: DataFrame, ours: DataFrame, *, some: bool = True) -> None:
    """Fails unless the rows are the same, at least one if `some`, and Spark's plan has no node of gpuwin's."""
    assert plain.schema == ours.schema
    assert not any(node in gw.spark.explain(plain) for node in ("PaneWindows", "ProtoSessions"))
    expected, got = rows_of(plain), rows_of(ours)
    assert expected or not some
    assert list(row_differences(expected, got, leaves(plain.schema))) == []
