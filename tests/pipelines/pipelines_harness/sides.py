"""One query over topics of a broker, on plain Spark and on gpuwin, recorded and compared as in tests/spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from spark_harness import Query, Recorder, Recording, Run, assert_equal, new_session, rows_of

_APPEND = Run()
Rows = list[tuple[object, ...]]
#: What a test makes of one side: it is given whether gpuwin is on.
Side = Callable[[bool], Any]


def both(side: Side) -> tuple[Any, Any]:
    """Both sides at the same time: plain Spark's result, and gpuwin's."""
    with ThreadPoolExecutor(2) as pool:
        plain, device = pool.map(side, (False, True))
    return plain, device


class Pipeline:
    """The application and the broker of a test, and the folder for what its queries leave."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self.spark, self.address, self.folder = spark, address, folder

    def source(self, session: SparkSession, **options: str) -> DataFrame:
        """A stream of topics from their beginnings, 102 records a batch, unless the options say otherwise."""
        known = {"kafka.bootstrap.servers": self.address, "maxOffsetsPerTrigger": "102"}
        if "startingTimestamp" not in options:
            known["startingOffsets"] = "earliest"
        return session.readStream.format("kafka").options(**{**known, **options}).load()

    def recorder(self, query: Query, enabled: bool, how: Run, name: str = "query", **options: str) -> Recorder:
        """One side of a query, not yet started; what has its name goes on from one checkpoint."""
        folder = self.folder / name / ("device" if enabled else "plain")
        session = new_session(self.spark, how.conf, enabled=enabled)
        return Recorder(session, query, how, folder, lambda session, _: self.source(session, **options))

    def compare(self, query: Query, how: Run = _APPEND, *, expected: Mapping[str, Any], **options: str) -> Recording:
        """Both sides from beginning to end, compared batch by batch; `expected` goes to `assert_equal`.

        Returns gpuwin's side.
        """

        def side(enabled: bool) -> Recording:
            recorder = self.recorder(query, enabled, how, **options)
            recorder.once()
            return recorder.recording

        plain, device = both(side)
        assert_equal(plain, device, **expected)
        assert isinstance(device, Recording)
        return device


class Running:
    """A query whose rows are kept batch by batch, so that one that is done twice counts once.

    For queries that are stopped at any moment: the progress of the batch that was just done may be lost then, and its
    rows are not.
    """

    def __init__(self, session: SparkSession, frame: DataFrame, checkpoint: Path, *, enabled: bool) -> None:
        self.batches: dict[int, Rows] = {}
        self._operators = {"gpuwin"} if enabled else {"stateStoreSave", "sessionWindowStateStoreSaveExec"}
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._see)
        self._writer = writer.trigger(processingTime="0 seconds")
        self.session, self.query = session, self._writer.start()
        self.progress: list[dict[str, Any]] = []

    def stop(self) -> None:
        """Stops the query, and fails unless each of its batches ran where it should."""
        self.query.stop()
        self._take()

    def again(self) -> StreamingQuery:
        """Starts it again from its checkpoint."""
        self.query = self._writer.start()
        return self.query

    def rows(self) -> Rows:
        """All rows so far."""
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def _see(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = list(rows_of(frame))

    def _take(self) -> None:
        ran = [p for p in self.query.recentProgress if "addBatch" in p["durationMs"]]
        self.progress += ran
        operators = {o["operatorName"] for p in ran for o in p["stateOperators"]}
        assert operators <= self._operators, operators
