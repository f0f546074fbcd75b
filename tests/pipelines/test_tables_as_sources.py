"""Windows over a Delta table, and over an Iceberg one, that get versions while queries read them.

Where Delta, or Iceberg, has a build for the Spark. Each plays in an application of its own, which has its jars.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pipelines_harness import delta, iceberg
from pipelines_harness.events import SCHEMA, SPARK_OPERATORS, Event, events, windowed
from pipelines_harness.maven import Unreachable
from pipelines_harness.merging import merged_into
from pipelines_harness.sides import Rows, Running, both
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from spark_harness import (
    DEVICE,
    JVM,
    Recorder,
    Recording,
    Run,
    assert_equal,
    await_until,
    end_jvm,
    isolated,
    new_session,
    row_differences,
    rows_of,
    start_session,
)

pytestmark = pytest.mark.pipelines

#: Where rows become cells of each kind of window.
PLACES: Final = {"tumbling": JVM, "sliding": DEVICE, "session": DEVICE}
#: How often queries that wait ask for a new version. Spark's default, 10 ms, would leave no time for anything else.
PATIENT: Final = {"spark.sql.streaming.pollingDelay": "200ms"}
#: Files of a version, and files of a batch: batches begin and end within versions.
FILES, LIMIT = 3, 2
ROWS: Final = events(280)
#: What a table of windows has.
COLUMNS: Final = "k string, start timestamp, stop timestamp, n bigint, total bigint, min_v bigint, mean double"


class DeltaTable:
    """A Delta table."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self._spark, self._path = spark, str(folder / name)
        spark.createDataFrame([], SCHEMA).write.format("delta").save(self._path)

    @staticmethod
    def conf(folder: Path) -> dict[str, str]:
        jars = ",".join(map(str, delta.delta_jars()))
        return {**delta.CONF, "spark.databricks.delta.snapshotPartitions": "1", "spark.jars": jars}

    @staticmethod
    def called(folder: Path, name: str) -> str:
        """What SQL calls a table."""
        return f"delta.`{folder / name}`"

    @staticmethod
    def started(writer: DataStreamWriter, folder: Path, name: str) -> StreamingQuery:
        """The query into a table by the format's own sink."""
        return writer.format("delta").start(str(folder / name))

    def read(self, session: SparkSession, files: int) -> DataFrame:
        return session.readStream.format("delta").option("maxFilesPerTrigger", files).load(self._path)

    def append(self, rows: Sequence[Event], files: int) -> None:
        frame_of(self._spark, rows, files).write.format("delta").mode("append").save(self._path)

    def compact(self) -> int:
        """Writes the rows into fewer files; returns how many it took away."""
        done = self._spark.sql(f"OPTIMIZE delta.`{self._path}`").collect()[0]
        return int(done.metrics.numFilesRemoved)


class IcebergTable:
    """An Iceberg table."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self._spark, self._name = spark, f"db.{name}"
        spark.sql(f"CREATE TABLE lake.{self._name} (k string, ts timestamp, v bigint) USING iceberg")

    @staticmethod
    def conf(folder: Path) -> dict[str, str]:
        jars = ",".join(map(str, iceberg.iceberg_jars()))
        return {**iceberg.CONF, iceberg.WAREHOUSE: str(folder / "lake"), "spark.jars": jars}

    @staticmethod
    def called(folder: Path, name: str) -> str:
        return f"lake.db.{name}"

    @staticmethod
    def started(writer: DataStreamWriter, folder: Path, name: str) -> StreamingQuery:
        return writer.format("iceberg").toTable(f"lake.db.{name}")

    def read(self, session: SparkSession, files: int) -> DataFrame:
        reader = session.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", files)
        return reader.load(f"lake.{self._name}")

    def append(self, rows: Sequence[Event], files: int) -> None:
        frame_of(self._spark, rows, files).writeTo(f"lake.{self._name}").append()

    def compact(self) -> int:
        call = f"CALL lake.system.rewrite_data_files(table => '{self._name}', options => map('rewrite-all', 'true'))"
        return int(self._spark.sql(call).collect()[0].rewritten_data_files_count)


TABLES: Final[dict[str, Any]] = {"delta": DeltaTable, "iceberg": IcebergTable}


def frame_of(spark: SparkSession, rows: Sequence[Event], files: int) -> DataFrame:
    """The rows as a frame that is written as so many files."""
    made = [(e.key, dt.datetime.fromtimestamp(e.time / 1000, dt.UTC), e.value) for e in rows]
    return spark.createDataFrame(made, SCHEMA).repartition(files, "v")


@dataclass
class Played:
    """What the queries over one table did.

    Attributes:
        sides: plain Spark's side and gpuwin's, of each kind of window.
        growing: all rows of both sides, of queries that were not waited for.
        copied: both sides' tables of windows, of each way to write them.
    """

    sides: dict[str, tuple[Recording, Recording]]
    growing: tuple[Rows, Rows]
    copied: dict[str, tuple[Copied, Copied]]


@dataclass
class Copied:
    """A table of windows that a query over another table has made.

    Attributes:
        rows: its rows.
        counts: how many rows it had after each run of the query.
        batches: the numbers of the batches of each run.
        operators: what Spark calls the stateful operators that ran.
        wanted: the windows of all rows of the other table, by a batch query on plain Spark.
    """

    rows: Rows
    counts: list[int]
    batches: list[list[int]]
    operators: set[str]
    wanted: Rows


def play(kind: str, folder: Path) -> Played:
    """All that is done to the tables of a format, in a process of its own."""
    spark = start_session(folder, conf={**PATIENT, **TABLES[kind].conf(folder)})
    table = TABLES[kind](spark, folder, "events")
    recorders = {}
    for window, place in PLACES.items():
        for enabled in (False, True):
            recorders[window, enabled] = Recorder(
                new_session(spark, place, enabled=enabled),
                lambda _, frame, window=window: windowed(frame, window),
                Run(trigger="processing"),
                folder / f"{window}-{enabled}",
                lambda session, _: table.read(session, LIMIT),
            )

    def to_the_end(*, then_stop: bool = False) -> None:
        def one(recorder: Recorder) -> None:
            recorder.process_all()
            if then_stop:
                recorder.stop()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(one, recorders.values()))

    versions = [ROWS[i : i + 40] for i in range(0, len(ROWS), 40)]
    for version in versions[:2]:
        table.append(version, FILES)
    to_the_end()
    for version in versions[2:4]:  # while the queries run
        table.append(version, FILES)
        to_the_end()
    assert table.compact() > 0  # a version without a new row
    to_the_end(then_stop=True)
    for version in versions[4:6]:  # while none runs
        table.append(version, FILES)
    to_the_end()
    table.append(versions[6], FILES)
    to_the_end(then_stop=True)
    grown = growing(spark, kind, folder)
    copied = {way: (sides[False], sides[True]) for way, sides in copying(spark, kind, folder).items()}
    end_jvm(spark)
    return Played({w: (recorders[w, False].recording, recorders[w, True].recording) for w in PLACES}, grown, copied)


def growing(spark: SparkSession, kind: str, folder: Path) -> tuple[Rows, Rows]:
    """A table that gets a version at any moment, with one file and without late rows, under two queries that go on.

    gpuwin's is stopped at any moment, twice.
    """
    table = TABLES[kind](spark, folder, "growing")
    rows = events(200, late=False)
    table.append(rows[:40], 1)
    half, done = threading.Event(), threading.Event()

    def grow() -> None:
        for i in range(40, len(rows), 20):
            if i >= len(rows) // 2:
                half.wait()
            table.append(rows[i : i + 20], 1)
        done.set()

    def side(enabled: bool) -> Running:
        session = new_session(spark, {}, enabled=enabled)
        running = Running(session, windowed(table.read(session, 1)), folder / f"growing-{enabled}", enabled=enabled)
        if enabled:
            await_until(lambda: len(running.batches) >= 2, "two batches")
            running.stop()
            half.set()
            running.again()
            seen = len(running.batches)
            await_until(lambda: len(running.batches) > seen or done.is_set(), "a batch more")
            running.stop()
            running.again()
        done.wait()
        running.query.processAllAvailable()
        running.stop()
        return running

    thread = threading.Thread(target=grow)
    thread.start()
    plain, device = both(side)
    thread.join()
    return plain.rows(), device.rows()


# From a table into a table


def flat(frame: DataFrame) -> DataFrame:
    """The windows as `COLUMNS` has them."""
    bounds = F.col("window.start").alias("start"), F.col("window.end").alias("stop")
    return frame.select("k", *bounds, "n", "total", "min_v", "mean")


#: The output mode of each way to write windows.
WAYS: Final = {"merged": "update", "sink": "append"}
#: A run ends with a batch that has rows, so that the one that is done again writes some. A batch that Delta's sink
#: leaves out commits no state, for which Spark 4.2 would fail once (docs/pipelines.md).
COPYING: Final = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.commitValidation.enabled": "false",
}


def copying(spark: SparkSession, kind: str, folder: Path) -> dict[str, dict[bool, Copied]]:
    """Queries over a table that write windows into tables of the same format, in four runs.

    After each run but the last Spark forgets that it has done the newest batch, as if the driver had died between the
    table's commit and Spark's own. Then the source is compacted and gets two versions, a batch each, and the next run
    does the forgotten batch again. (Two, since a batch that is left out does not move the watermark.)
    """
    table = TABLES[kind](spark, folder, "source")
    rows = events(240, late=False)
    versions = [rows[i : i + 30] for i in range(0, len(rows), 30)]
    copied = {way: {enabled: Copied([], [], [], set(), []) for enabled in (False, True)} for way in WAYS}
    for way in WAYS:
        for enabled in (False, True):
            spark.sql(f"CREATE TABLE {TABLES[kind].called(folder, f'{way}_{enabled}')} ({COLUMNS}) USING {kind}")

    def one(way: str, enabled: bool) -> None:
        name, done = f"{way}_{enabled}", copied[way][enabled]
        session = new_session(spark, COPYING, enabled=enabled)
        writer = flat(windowed(table.read(session, FILES))).writeStream.outputMode(WAYS[way])
        writer = writer.option("checkpointLocation", str(folder / f"of-{name}")).trigger(availableNow=True)
        if way == "merged":
            query = writer.foreachBatch(merged_into(TABLES[kind].called(folder, name))).start()
        else:
            query = TABLES[kind].started(writer, folder, name)
        query.awaitTermination()
        done.batches.append([p["batchId"] for p in query.recentProgress if "addBatch" in p["durationMs"]])
        done.operators |= {o["operatorName"] for p in query.recentProgress for o in p["stateOperators"]}
        done.rows = list(rows_of(session.table(TABLES[kind].called(folder, name))))
        done.counts.append(len(done.rows))

    def forget(way: str, enabled: bool) -> None:
        commits = folder / f"of-{way}_{enabled}" / "commits"
        newest = max(int(p.name) for p in commits.iterdir() if p.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink()

    sides = [(way, enabled) for way in WAYS for enabled in (False, True)]
    for i in range(0, len(versions), 2):
        if i > 0:
            for side in sides:
                forget(*side)
            assert table.compact() > 0
        for version in versions[i : i + 2]:
            table.append(version, FILES)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda side: one(*side), sides))
    wanted = list(rows_of(flat(windowed(frame_of(new_session(spark, {}, enabled=False), rows, 1)))))
    for side in sides:
        copied[side[0]][side[1]].wanted = wanted
    return copied


@pytest.fixture(scope="module", params=TABLES)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp(request.param)
    try:
        TABLES[request.param].conf(folder)
    except Unreachable as e:
        pytest.skip(str(e))
    return isolated(play, request.param, folder)


@pytest.mark.parametrize("window", PLACES)
def test_batches_are_equal(window: str, played: Played) -> None:
    """Versions that were there, that came while the query ran, and while it was stopped; and one that moves rows."""
    plain, device = played.sides[window]
    assert_equal(plain, device, spark_operators=SPARK_OPERATORS[window])
    assert sum(batch.input_rows for batch in plain.batches) == len(ROWS), "each row once"
    assert sum(batch.input_rows > 0 for batch in plain.batches) > 7, "more batches than versions"


def test_a_table_that_grows_meanwhile(played: Played) -> None:
    """Versions that come at any moment, and a query that is stopped at any moment: the rows are the same in all."""
    plain, device = played.growing
    assert len(plain) > 30
    assert list(row_differences(plain, device)) == []


@pytest.mark.parametrize("way", WAYS)
def test_batches_that_are_done_again(way: str, played: Played) -> None:
    """The table has a batch of which Spark takes no note, three times; its source was compacted and grew meanwhile."""
    plain, device = played.copied[way]
    assert (plain.operators, device.operators) == ({"stateStoreSave"}, {"gpuwin"})
    for side in (plain, device):
        assert side.batches == [[0, 1], [1, 2, 3], [3, 4, 5], [5, 6, 7]]
        assert 0 < side.counts[0] < side.counts[1] < side.counts[2] < side.counts[3], "the newest batch wrote rows"
    wanted = plain.wanted
    if WAYS[way] == "append":
        closed = max(row[2] for row in plain.rows)
        wanted = [row for row in wanted if row[2] <= closed]
    assert len(wanted) > 30
    for side in (plain, device):
        assert list(row_differences(wanted, side.rows)) == []
