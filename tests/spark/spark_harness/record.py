"""Runs a streaming query over a generated stream and records what it did, batch by batch."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructField, StructType, YearMonthIntervalType

from .streams import SCHEMA, Stream
from .trigger_clock import TriggerClock
from .versions import TASK_ERROR, arrow_of, condition_of, java_sessions, streaming_class

#: Confs of both sides. The file manager saves child processes (70 ms a batch) and changes no result.
FAST = {
    "spark.sql.streaming.checkpointFileManagerClass": streaming_class(
        "checkpointing", "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}

Rows = tuple[tuple[object, ...], ...]
Query = Callable[[SparkSession, DataFrame], DataFrame]
#: The source of a query: called for each start, with how many files a batch may have, or None for no limit.
Read = Callable[[SparkSession, int | None], DataFrame]


@dataclass(frozen=True)
class Batch:
    """One micro-batch that ran to its end."""

    id: int
    rows: Rows | None
    watermark: str | None
    input_rows: int
    dropped: int
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """An error as a user sees it: the class in Python, Spark's error class, and the message without what is chance."""

    kind: str
    condition: str | None
    state: str | None
    message: str


@dataclass
class Recording:
    """What a query did, over all its runs if it was stopped and resumed."""

    schema: str = ""
    columns: tuple[str, ...] = ()
    plan_schema: str = ""
    plan: str = ""
    batches: list[Batch] = field(default_factory=list)
    error: Failure | None = None

    def all_rows(self) -> list[tuple[object, ...]]:
        return [row for batch in self.batches for row in batch.rows or ()]

    def column(self, name: str) -> list[object]:
        """The values of one result column in all batches. Fields of a struct are called `window.start`."""
        at = self.columns.index(name)
        return [row[at] for row in self.all_rows()]


@dataclass(frozen=True)
class Run:
    """How a query is run.

    trigger: ``available`` (every file is there, one start), ``processing`` (one start; each batch's files appear when
    the batch before is done, its no-data batch included) or ``once`` (a start for each batch).
    sink: ``foreach`` (foreachBatch), ``parquet`` (append mode only) or ``memory``, where the table is read after each
    start or batch of the stream, so that the rows of a no-data batch stand for those of the batch before it as well.
    restart_after: batches of the stream after which the query is stopped and started again.
    clock: what batches take their time from; of trigger ``processing`` and sink ``parquet`` only.
    checkpoint: where the checkpoint is, if it is not in the folder of the run.
    """

    mode: str = "append"
    trigger: str = "available"
    sink: str = "foreach"
    conf: Mapping[str, str] = field(default_factory=dict)
    restart_after: frozenset[int] = frozenset()
    clock: TriggerClock | None = None
    checkpoint: str = ""


def run(
    spark: SparkSession,
    query: Query,
    stream: Stream,
    how: Run,
    folder: Path,
    *,
    enabled: bool,
    before_batch: Callable[[int, StreamingQuery | None], None] | None = None,
    schema: str = SCHEMA,
) -> Recording:
    """Runs `query` over `stream` in a session of its own, with `spark.gpuwin.enabled` as given, and records it.

    `folder` keeps the source, the checkpoint and the output; a second call with the same folder goes on from there.
    `before_batch` is called with the number of each batch of the stream before its files appear.
    """
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)

    def read(session: SparkSession, files_per_batch: int | None) -> DataFrame:
        reader = session.readStream.schema(schema)
        if files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", files_per_batch)
        return reader.parquet(str(source / "*"))

    recorder = Recorder(new_session(spark, how.conf, enabled=enabled), query, how, folder, read)
    files_per_batch = max(map(len, stream.batches), default=1)
    if how.trigger == "available":
        _stage(stream.batches, source)
        recorder.once(files_per_batch)
        return recorder.recording
    for i, files in enumerate(stream.batches):
        if before_batch:
            before_batch(i, recorder.active)
        _stage([files], source)
        if how.trigger == "once":
            recorder.once(files_per_batch)
        else:
            recorder.process_all()
            if i in how.restart_after:
                recorder.stop()
        if recorder.recording.error:
            break
    recorder.stop()
    return recorder.recording


def new_session(spark: SparkSession, conf: Mapping[str, str], *, enabled: bool) -> SparkSession:
    """A session of the same application for one side of a comparison, and the active one of this thread.

    What is given as an empty text stays as the application has it.
    """
    session = spark.newSession()
    for key, value in {**FAST, **conf, "spark.gpuwin.enabled": str(enabled).lower()}.items():
        if value:
            session.conf.set(key, value)
    _activate(session)
    return session


def _activate(session: SparkSession) -> None:
    """Makes it the active one of this thread, of which some settings are read."""
    java_sessions(session).setActiveSession(session._jsparkSession)


def _stage(batches: Sequence[Sequence[Path]], source: Path) -> None:
    """Makes files appear in the source; those of a batch all at once, so that none can be read without the others."""
    for files in batches:
        target = source / files[0].stem
        if not target.exists():
            aside = source.with_name("staged") / target.name
            aside.mkdir(parents=True)
            for f in files:
                shutil.copy2(f, aside / f.name)
            aside.rename(target)


class Recorder:
    """Starts, stops and listens to one query, over any source."""

    def __init__(self, session: SparkSession, query: Query, how: Run, folder: Path, read: Read) -> None:
        self.session, self.query, self.how, self.folder, self.read = session, query, how, folder, read
        self.recording = Recording()
        self.active: StreamingQuery | None = None
        self._seen: dict[int, Rows] = {}
        self._raised: BaseException | None = None

    def once(self, files_per_batch: int | None = None) -> None:
        """One start with trigger ``available`` or ``once``, to its end."""
        trigger: dict[str, Any] = {"availableNow": True} if self.how.trigger == "available" else {"once": True}
        with self._recorded():
            self._start(trigger, files_per_batch).awaitTermination()

    def process_all(self) -> None:
        """All that there is to read now, with trigger ``processing``; the query goes on."""
        with self._recorded():
            active = self.active or self._start({"processingTime": "0 seconds"}, None)
            active.processAllAvailable()

    def stop(self) -> None:
        if self.active is not None:
            with self._recorded():
                self.active.stop()
            self.active = None

    def _start(self, trigger: dict[str, Any], files_per_batch: int | None) -> StreamingQuery:
        _activate(self.session)
        frame = self.query(self.session, self.read(self.session, files_per_batch))
        self.recording.schema, self.recording.columns = frame.schema.json(), leaves(frame.schema)
        if self.how.clock is not None:
            assert (self.how.trigger, self.how.sink) == ("processing", "parquet")
            places = self.folder / "out", self.folder / "checkpoint"
            self.active = self.how.clock.start(frame, self.how.mode, *places)
            return self.active
        writer = frame.writeStream.outputMode(self.how.mode).trigger(**trigger)
        writer = writer.option("checkpointLocation", self.how.checkpoint or str(self.folder / "checkpoint"))
        if self.how.sink == "foreach":
            writer = writer.foreachBatch(self._see)
        elif self.how.sink == "parquet":
            writer = writer.format("parquet").option("path", str(self.folder / "out"))
        else:
            writer = writer.format("memory").queryName(f"t{id(self)}")
        self.active = writer.start()
        return self.active

    def _see(self, frame: DataFrame, batch: int) -> None:
        try:
            self._seen[batch] = rows_of(frame)
        except BaseException as e:
            self._raised = e
            raise

    @contextlib.contextmanager
    def _recorded(self) -> Any:
        """Takes down the progress and the plan of the query however the block ends."""
        try:
            yield
        except PySparkException as e:
            told = isinstance(self._raised, PySparkException | TASK_ERROR)
            self.recording.error = failure(self._raised if told else e, self.folder)
        finally:
            if self.active is not None:
                self._take_down(self.active)
                if not self.active.isActive:
                    self.active = None

    def _take_down(self, query: StreamingQuery) -> None:
        execution = query._jsq.streamingQuery().lastExecution()
        if execution is not None:
            with contextlib.suppress(Exception):  # a plan that could not be made has been recorded as the error
                plan = execution.executedPlan()
                self.recording.plan, self.recording.plan_schema = plan.toString(), plan.schema().json()
        known = {b.id for b in self.recording.batches}
        ran = [p for p in _progress(query) if "addBatch" in p["durationMs"] and p["batchId"] not in known]
        for progress in ran:
            number = progress["batchId"]
            operators = progress["stateOperators"]
            self.recording.batches.append(
                Batch(
                    id=number,
                    rows=self._rows(number, last=progress is ran[-1]),
                    watermark=progress.get("eventTime", {}).get("watermark"),
                    input_rows=progress["numInputRows"],
                    dropped=sum(o["numRowsDroppedByWatermark"] for o in operators),
                    operators=tuple(o["operatorName"] for o in operators),
                )
            )

    def _rows(self, batch: int, *, last: bool) -> Rows | None:
        if self.how.sink == "foreach":
            return self._seen.get(batch, ())
        if self.how.sink == "memory":
            return rows_of(self.session.table(f"t{id(self)}")) if last else None
        log = self.folder / "out" / "_spark_metadata" / str(batch)
        paths = [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]] if log.exists() else []
        if not paths:
            return ()
        schema = StructType.fromJson(json.loads(self.recording.schema))
        return rows_of(self.session.read.schema(schema).parquet(*paths), schema)


def _progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """As Spark says it: PySpark cannot read a batch that took no time, which is so where a test moves the clock."""
    return [json.loads(progress.json()) for progress in query._jsq.recentProgress()]


def rows_of(frame: DataFrame, schema: StructType | None = None) -> Rows:
    """The rows as tuples of plain values, one for each of `leaves`; times and dates as numbers.

    schema: of the query that made the rows, where they come from files, in which every column may be null.
    """
    months = [f.name for f in frame.schema.fields if isinstance(f.dataType, YearMonthIntervalType)]
    for name in months:  # Arrow has them, but PySpark does not hand them over
        frame = frame.withColumn(name, F.expr(f"extract(YEAR FROM {name}) * 12 + extract(MONTH FROM {name})"))
    table = arrow_of(frame)
    columns = [
        values
        for f, column in zip((schema or frame.schema).fields, table.columns, strict=True)
        for values in _flat(f, column.combine_chunks())
    ]
    return tuple(zip(*columns, strict=True)) if columns else tuple(() for _ in range(table.num_rows))


def leaves(schema: StructType, prefix: str = "") -> tuple[str, ...]:
    names: list[str] = []
    for f in schema.fields:
        if isinstance(f.dataType, StructType):
            names.extend(
                ([f"{prefix}{f.name} is null"] if f.nullable else []) + list(leaves(f.dataType, f"{prefix}{f.name}."))
            )
        else:
            names.append(prefix + f.name)
    return tuple(names)


def _flat(f: StructField, array: pa.Array) -> list[list[object]]:
    if isinstance(f.dataType, StructType):
        children = zip(f.dataType.fields, array.flatten(), strict=True)
        inner = [values for child, part in children for values in _flat(child, part)]
        return [array.is_null().to_pylist(), *inner] if f.nullable else inner
    if pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type) or pa.types.is_time64(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    values = array.to_pylist()
    return [[tuple(v) if isinstance(v, list) else v for v in values]]


_CHANCE = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "*"),
    (re.compile(r"\b([sS]tage|[tT]ask) [0-9.]+"), r"\1 *"),
    (re.compile(r"\(TID [0-9]+\) \([^)]*\)"), "(TID *)"),
    (re.compile(r"#[0-9]+L?"), "#*"),
    (re.compile(r"@[0-9a-f]{5,}"), "@*"),
    (re.compile(r"\bcalling o[0-9]+\."), "calling *."),
    (re.compile(r"\n\tat .*"), ""),
]


def failure(error: PySparkException | Py4JJavaError, folder: Path) -> Failure:
    """The error without names that differ from run to run, and without the stack of the JVM."""
    message = str(error).split("\nJVM stacktrace:")[0].split("\nDriver stacktrace:")[0].replace(str(folder), "*")
    for pattern, text in _CHANCE:
        message = pattern.sub(text, message)
    state = error.getSqlState() if isinstance(error, PySparkException) else None
    return Failure(type(error).__name__, condition_of(error), state, message.strip())
