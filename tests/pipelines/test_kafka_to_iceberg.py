"""Windows from a topic into an Iceberg table in append mode, where Iceberg fits the Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from pipelines_harness.broker import Broker
from pipelines_harness.events import events, from_json, records, windowed
from pipelines_harness.maven import Module, Unreachable, added_jars
from pipelines_harness.topics import Topics
from pyspark.sql import functions as F
from spark_harness import end_jvm, isolated, start_session

from gpuwin_spark.installed_spark import find_spark

pytestmark = pytest.mark.pipelines

#: The newest Iceberg, and the lines of Spark that it is built for.
ICEBERG, LINES = "1.11.0", ("4.0", "4.1")
CONF: Final = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
TABLE: Final = "lake.db.windows"


@pytest.fixture(scope="module")
def jars(modules: list[Module]) -> str:
    """The connector and Iceberg, as `spark.jars` has them."""
    line = find_spark().line
    if line not in LINES:
        pytest.skip(f"Iceberg {ICEBERG} is built for Spark {', '.join(LINES)}, and Spark {line} is installed")
    try:
        iceberg = added_jars("org.apache.iceberg", f"iceberg-spark-runtime-{line}_2.13", ICEBERG)
    except Unreachable as e:
        pytest.skip(str(e))
    return ",".join(map(str, [*modules[0].jars, *iceberg]))


def appended(jars: str, address: str, topic: str, folder: Path, enabled: bool) -> tuple[list[str], set[str]]:
    """Runs the query to the end of the topic; returns the rows of the table, and the stateful operators."""
    conf = {**CONF, "spark.sql.catalog.lake.warehouse": str(folder / "lake"), "spark.jars": jars}
    spark = start_session(folder, conf={**conf, "spark.gpuwin.enabled": str(enabled).lower()})
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {TABLE} "
        "(k string, start timestamp, stop timestamp, n bigint, total bigint, min_v bigint, mean double) USING iceberg"
    )
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    source = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "102").load()
    bounds = F.col("window.start").alias("start"), F.col("window.end").alias("stop")
    results = windowed(from_json(source)).select("k", *bounds, "n", "total", "min_v", "mean")
    writer = results.writeStream.format("iceberg").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).toTable(TABLE)
    query.awaitTermination()
    operators = {o["operatorName"] for p in query.recentProgress for o in p["stateOperators"]}
    rows = sorted(str(row) for row in spark.table(TABLE).collect())
    end_jvm(spark)
    return rows, operators


def test_append(jars: str, broker: Broker, topics: Topics, tmp_path: Path) -> None:
    """In two runs, the second of which goes on where the first was, and on plain Spark in the same two."""
    topic = topics.create()
    found: dict[bool, list[list[str]]] = {True: [], False: []}
    for part in (events()[:204], events()[204:]):
        topics.send(topic, records(part))
        for enabled, runs in found.items():
            rows, operators = isolated(appended, jars, broker.address, topic, tmp_path / str(enabled), enabled)
            assert operators == {"gpuwin" if enabled else "stateStoreSave"}
            runs.append(rows)
    assert found[True] == found[False]
    assert 0 < len(found[True][0]) < len(found[True][1])
