"""What one sees of an offloaded operator: metrics of its node and of its progress, explain(), and a page to scrape."""

from __future__ import annotations

import datetime as dt
import os
import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from spark_harness import SPARK, Stream, await_until, service, write_tables

import gpuwin as gw
from gpuwin.device.choice import why_auto_is_cpu
from gpuwin_spark.explain import plugin_object

#: The heading that Spark makes of the title of our section of explain().
SECTION = "== Extended Information (gpuwin) =="
#: (key, minute) of the rows of each micro-batch; the groups of a batch are its cells, whatever the number of rows.
BATCHES = (
    [(1, 0), (1, 0), (2, 0), (3, 1)],
    [(1, 0), (1, 1), (4, 1), (4, 1), (4, 1)],
    [(2, 2), (2, 2)],
)


def table(rows: Sequence[tuple[int, int]]) -> pa.Table:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    times = [start + dt.timedelta(minutes=m, seconds=i) for i, (_, m) in enumerate(rows)]
    return pa.table({"key": [k for k, _ in rows], "ts": pa.array(times, pa.timestamp("us", "UTC"))})


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return write_tables([[table(rows)] for rows in BATCHES], tmp_path_factory.mktemp("observed") / "stream")


@pytest.fixture
def small(spark: SparkSession) -> SparkSession:
    """One partition, and a log that is compacted when it has three segments."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.gpuwin.log.maxSegments", "2")
    return session


def counts(spark: SparkSession, stream: Stream) -> DataFrame:
    frame = spark.readStream.schema("key long, ts timestamp").option("maxFilesPerTrigger", 1)
    rows = frame.parquet(str(stream.files[0].parent)).withWatermark("ts", "1 hour")
    return rows.groupBy("key", F.window("ts", "1 minute")).agg(F.count("*").alias("n"))


def finished(frame: DataFrame, checkpoint: Path, mode: str = "update") -> StreamingQuery:
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def node_metrics(query: StreamingQuery) -> dict[str, int]:
    """The SQL metrics of the GpuWindow node of the last batch, as the SQL page of Spark's UI shows them."""
    plans = [query._jsq.streamingQuery().lastExecution().executedPlan()]
    for plan in plans:
        if plan.nodeName() == "GpuWindow":
            metrics = plan.metrics()
            names = metrics.keys().iterator()
            found = {}
            while names.hasNext():
                name = names.next()
                found[name] = metrics.apply(name).value()
            return found
        children = plan.children()
        plans.extend(children.apply(i) for i in range(children.size()))
    raise AssertionError("no GpuWindow in the plan")


def test_metrics_are_what_happened(small: SparkSession, stream: Stream, tmp_path: Path) -> None:
    query = finished(counts(small, stream), tmp_path / "checkpoint")
    with_rows = [p for p in query.recentProgress if p["numInputRows"]]
    operators: list[dict[str, Any]] = [p["stateOperators"][0] for p in with_rows]
    custom = [o["customMetrics"] for o in operators]
    distinct = [len(set(rows)) for rows in BATCHES]
    ever = [len({r for rows in BATCHES[: n + 1] for r in rows}) for n in range(len(BATCHES))]

    assert [p["numInputRows"] for p in with_rows] == [len(rows) for rows in BATCHES]
    assert [c["gpuwinCellsIn"] for c in custom] == distinct
    assert [o["numRowsUpdated"] for o in operators] == distinct
    assert [o["numRowsTotal"] for o in operators] == ever
    assert [c["gpuwinCompactions"] for c in custom] == [0, 0, 1]
    assert [c["gpuwinSegments"] for c in custom[:2]] == [1, 2]
    assert custom[2]["gpuwinSegments"] < 3
    assert [c["gpuwinResidentHits"] for c in custom] == [0, 1, 1]
    assert [c["gpuwinServiceRestarts"] for c in custom] == [0, 0, 0]
    assert [c["gpuwinPartitionsOnCuda"] for c in custom] == [0, 0, 0]
    assert [c["gpuwinPartitionsOnCpu"] for c in custom] == [1, 1, 1]
    for p, c in zip(with_rows, custom, strict=True):
        assert 0 <= c["gpuwinDeviceTimeMs"] <= p["durationMs"]["addBatch"]
        assert c["gpuwinBytesFromDevice"] > 0
    for c in custom[:2]:  # what is logged was sent, and little else, where nothing is compacted or rebuilt
        assert 0 < c["gpuwinLogBytesWritten"] < c["gpuwinBytesToDevice"] < c["gpuwinLogBytesWritten"] + 4096

    of_node, last = node_metrics(query), query.recentProgress[-1]["stateOperators"][0]
    assert {name: of_node[name] for name in last["customMetrics"] if name.startswith("gpuwin")} == {
        name: value for name, value in last["customMetrics"].items() if name.startswith("gpuwin")
    }
    assert of_node["numTotalStateRows"] == last["numRowsTotal"] == ever[-1]


@pytest.mark.skipif(SPARK < (4, 0), reason="Spark 3.5 has no sections of explain()")
def test_explain_has_a_section_about_gpuwin(
    spark: SparkSession, stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = spark.newSession()
    session.conf.set("spark.gpuwin.device", "auto")
    assert "device=auto, " in gw.spark.explain(counts(session, stream))
    query = finished(counts(session, stream), tmp_path / "checkpoint")
    assert f"device=auto ({'cpu' if why_auto_is_cpu() else 'cuda'}), " in gw.spark.explain(query)
    query.explain()
    shown = capsys.readouterr().out
    assert f"{SECTION}\n1 of 1 stateful operators on gpuwin\n+ operator 0: GpuWindow" in shown, shown

    listed = counts(spark, stream).groupBy("window").agg(F.histogram_numeric("n", F.lit(3)))
    listed.explain()
    shown = capsys.readouterr().out
    assert f"{SECTION}\n1 of 2 stateful operators on gpuwin" in shown, shown
    assert "histogram_numeric" in shown.split(SECTION)[1]

    spark.range(3).explain()
    assert f"{SECTION}\nThe query has no stateful operator" in capsys.readouterr().out


def test_partitions_far_above_the_cores_are_said(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "9")
    said = "! 9 shuffle partitions on 2 cores: every batch runs 9 tasks and commits 9 state stores"
    assert said in gw.spark.explain(counts(session, stream))
    query = finished(counts(session, stream), tmp_path / "checkpoint")
    assert said in gw.spark.explain(query)
    session.conf.set("spark.sql.shuffle.partitions", "8")
    assert "shuffle partitions" not in gw.spark.explain(counts(session, stream))


def test_a_partition_without_rows_and_state_asks_nothing(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """Four keys in nine partitions: five or more have nothing to say, in any batch."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "9")
    query = finished(counts(session, stream), tmp_path / "checkpoint")
    custom = [p["stateOperators"][0]["customMetrics"] for p in query.recentProgress if p["numInputRows"]]
    used = [c["gpuwinPartitionsOnCpu"] for c in custom]
    assert 1 <= used[0] <= 3  # the keys 1, 2 and 3
    assert used == sorted(used)
    assert used[-1] <= 4
    assert [c["gpuwinResidentHits"] for c in custom] == [0, *used[:-1]]


def test_tasks_leave_their_connections_to_the_next(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    """As many as tasks have run at once, which is two here, and not one for each of dozens of tasks."""
    finished(counts(spark, stream), tmp_path / "checkpoint")
    folder = Path("/proc") / str(service(spark)) / "fd"

    def kept() -> int:
        links = [os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()]
        return sum(link.startswith("socket:") for link in links) - 1  # one is the service's own

    await_until(lambda: 1 <= kept() <= 2, "one or two connections")  # another one tells of states that are gone


def test_stores_on_a_local_disk_start_no_processes(spark: SparkSession) -> None:
    """Spark's default asks `readlink` of four paths for each file that it renames."""
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    local = plugin_object("StoreFiles")
    given = spark._jsc.hadoopConfiguration()
    assert given.get(manager) is None
    made = local.configuration("file:/tmp/c", given)
    assert made.get(manager).endswith(".FileSystemBasedCheckpointFileManager")
    assert given.get(manager) is None
    assert local.configuration("/tmp/c", given).equals(made), "tasks of a batch share one"
    own = spark._jvm.org.apache.hadoop.conf.Configuration(given)
    own.set(manager, "the user's")
    assert local.configuration("file:/tmp/c", own).get(manager) == "the user's"
    if SPARK >= (4, 2):  # the plugin sets it by itself
        own.set(manager, "org.apache.spark.sql.gpuwin.GuardedCheckpointFiles")
        assert local.configuration("file:/tmp/c", own).get(manager).endswith(".FileSystemBasedCheckpointFileManager")
    elsewhere = spark._jvm.org.apache.hadoop.conf.Configuration(given)
    assert local.configuration("hdfs://localhost:9/c", elsewhere).get(manager) is None


def test_the_prometheus_listener_of_the_examples(spark: SparkSession) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "prometheus_listener.py"))
    page = example["watched"](spark, 500)
    samples = dict(re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", page, re.MULTILINE))
    assert all(re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+(\{.*\})? [-+.e\d]+", line) for line in page.splitlines()), page
    assert 'gpuwin_cells_total{query="watched",operator="gpuwin",number="0"}' in page
    batches, rest = divmod(float(samples["spark_streaming_input_rows_total"]), 500)
    assert rest == 0
    assert float(samples["gpuwin_cells_total"]) == batches > 0  # each batch is a second, and one window
    assert float(samples["gpuwin_to_device_bytes_total"]) > 0
    assert samples["spark_streaming_failed_total"] == "0"
