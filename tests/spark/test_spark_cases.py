"""The known answers of tests/cases/cases.jsonl on Spark: `pytest -m sweep tests/spark/test_spark_cases.py`.

CI plays all of them on partitions as Spark runs them (tests/engine/test_cases_on_partitions.py) and leaves Spark itself
to this sweep. A stream has no end and nobody who moves its watermark or its clock by hand, so cases that do are played
there only.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases_runner as cases
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import gpuwin as gw

pytestmark = pytest.mark.sweep


def playable() -> list[Any]:
    found = []
    for case in cases.load_cases():
        plain = all("ts_ms" in entry for batch in case.get("batches", []) for entry in batch)
        clock = case.get("time") == "processing" or "streaming_window_ms" in case.get("options", {})
        if case["kind"] == "window_agg" and "agg" in case and plain and not clock:
            found.append(pytest.param(case, id=case["id"]))
    assert len(found) >= 15
    return found


@pytest.mark.parametrize("case", playable())
def test_case(case: dict[str, Any], spark: SparkSession, tmp_path: Path) -> None:
    play = cases.Play(case)
    spec = replace(play.spec, collect_late=False)
    source = tmp_path / "source"
    source.mkdir()
    for number, events in enumerate(case["batches"]):
        path = source / f"{number:03d}.parquet"
        pq.write_table(cases.table_of(events, play.unit, play.types), path)
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    schema = spark.read.parquet(str(source)).schema
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    sink = gw.spark.aggregate(frame, spec).writeStream.format("parquet").option("path", str(tmp_path / "sink"))
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    table = spark.read.parquet(str(tmp_path / "sink")).toArrow()
    expected = [row for rows in case["expected"] for row in rows]
    for row in expected:
        row.pop("pane", None)  # the number of a firing, which no row carries
    cases.same(play.rows(table), expected, ordered=False)
