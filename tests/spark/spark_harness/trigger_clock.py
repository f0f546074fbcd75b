"""The clock that Spark's micro-batches take their time from, moved by hand."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from .versions import SPARK, streaming_class


class TriggerClock:
    """A clock for queries of this application: it shows what it was set to, which may be earlier than before.

    DataStreamWriter has no word for it, so queries are started as DataStreamWriter starts them, with one argument more.
    """

    def __init__(self, spark: SparkSession, millis: int) -> None:
        assert spark._jvm is not None
        self._java = spark._jvm.org.apache.spark.util.ManualClock(millis)

    def set(self, millis: int) -> None:
        """Milliseconds since 1970."""
        self._java.setTime(millis)

    def start(self, frame: DataFrame, mode: str, folder: Path, checkpoint: Path) -> StreamingQuery:
        """Starts a query that writes Parquet files to `folder`, as often as there are rows."""
        jvm = frame.sparkSession._jvm
        assert jvm is not None
        session = frame._jdf.sparkSession()
        files = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat()
        none, nothing = jvm.scala.Option.apply(None), jvm.PythonUtils.toScalaMap({})
        sink = getattr(jvm, streaming_class("sinks", "FileStreamSink"))(
            session, str(folder), files, jvm.PythonUtils.toSeq([]), jvm.PythonUtils.toScalaMap({"path": str(folder)})
        )
        queries = session.streams()
        names = [none] * (2 if SPARK >= (4, 2) else 1)  # of the query and, from 4.2 on, of its sink
        started = queries.startQuery(
            *names,
            jvm.scala.Option.apply(str(checkpoint)),
            frame._jdf,
            nothing,
            sink,
            getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())(),
            False,
            True,
            jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(0),
            self._java,
            none,
            none,
        )
        return StreamingQuery(started)
