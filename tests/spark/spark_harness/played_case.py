"""One known answer of tests/cases as a streaming query: what its rows, watermarks, clock and restarts are on Spark."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases_runner as cases
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

import gpuwin as gw
from gpuwin_spark.stream_aggregate import delay_ms, runs_as

from .record import FAST
from .trigger_clock import TriggerClock

#: Milliseconds that the clock of a case is ahead: of every machine, so that time does not pass for a query but here. A
#: number of whole weeks, and of five hours, so that windows of either lie as they do from 1970 on.
LATER = 6_670 * 7 * 86_400_000
#: When a stream has ended, in milliseconds: the watermark that no row of a case reaches.
END = 4_000_000_000_000

_CONF = {
    **FAST,
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
}


def beyond_spark(case: dict[str, Any]) -> str | None:
    """Why a stream of Spark cannot come into the situation of a case; None where it can."""
    if case.get("kind", "window_agg") != "window_agg" or "agg" not in case or "window" not in case:
        return f"not a windowed aggregation: {case['kind']}"
    entries = [entry for batch in case["batches"] for entry in batch]
    if any(entry.get("watermark_ms", 0) < 0 for entry in entries):
        return "a watermark before 1970, where Spark's begins"
    if any("eof" in entry for entry in entries):
        spec = cases.Play(case).spec
        if isinstance(spec.window, gw.GlobalWindow) or case.get("watermark", {}).get("delay_ms") == "max":
            return "windows that only the end of the stream closes, which a query does not have"
    return None


@dataclass(frozen=True)
class Step:
    """What Spark takes at once: the rows of a micro-batch, and where the watermark and the clock are put, in
    milliseconds. `again`: the query is stopped and started first."""

    rows: list[dict[str, Any]]
    mark: int | None = None
    now: int | None = None
    again: bool = False


def steps_of(case: dict[str, Any]) -> list[Step]:
    """The micro-batches of a case. A watermark that comes right after rows is put there by a row among them."""
    length = case.get("options", {}).get("streaming_window_ms")
    found: list[Step] = []
    again = False
    for number, entries in enumerate(case["batches"]):
        now = None if length is None else number * length
        rows: list[dict[str, Any]] | None = None if entries else []
        for entry in [*entries, None]:
            if entry is not None and "ts_ms" in entry:
                rows = [*(rows or []), entry]
                continue
            mark = None if entry is None else END if "eof" in entry else entry.get("watermark_ms")
            if rows is not None or mark is not None:
                found.append(Step(rows or [], mark, now, again))
                rows, again = None, False
            if entry is not None and "processing_time_ms" in entry:
                now = entry["processing_time_ms"]
                found.append(Step([], None, now, again))
                again = False
            again = again or (entry is not None and "restart" in entry)
    return found


class PlayedCase:
    """The files, the query and the results of one case, in a folder of its own."""

    def __init__(self, case: dict[str, Any], spark: SparkSession, folder: Path) -> None:
        self.play, self.folder = cases.Play(case), folder
        self.spec = self.play.spec
        self.how = runs_as(self.spec)
        self.steps = steps_of(case)
        self.session = spark.newSession()
        for key, value in _CONF.items():
            self.session.conf.set(key, value)
        self.clock = TriggerClock(spark, LATER)
        self.source = folder / "source"
        self.source.mkdir(parents=True)
        # Where the watermark follows rows, the end of a stream is a row that only the watermark sees.
        ends = any(step.mark == END for step in self.steps)
        self.marked = self.how.follows and (ends or isinstance(self.spec.watermark, gw.ExplicitWatermark))

    def run(self) -> list[dict[str, Any]]:
        """All rows that the query wrote, as a case has them."""
        starts = [i for i, step in enumerate(self.steps) if i == 0 or step.again]
        for first, end in zip(starts, [*starts[1:], len(self.steps)], strict=True):
            if self.how.ticks:
                self._one_by_one(range(first, end))
            else:
                for number in range(first, end):
                    self._stage(number)
                self._start().awaitTermination()
        return self._results()

    def _one_by_one(self, numbers: range) -> None:
        query = self.clock.start(self._frame(), "append", self.folder / "sink", self.folder / "checkpoint")
        try:
            for number in numbers:
                step = self.steps[number]
                if step.mark == END:
                    self.clock.set(LATER + END)
                elif step.now is not None:
                    self.clock.set(LATER + step.now * self.play.unit // 1000)
                self._stage(number)
                query.processAllAvailable()
        finally:
            query.stop()

    def _start(self) -> StreamingQuery:
        writer = self._frame().writeStream.format("parquet").option("path", str(self.folder / "sink"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def _frame(self) -> DataFrame:
        schema = from_arrow_schema(self._table(self.steps[0]).schema, prefer_timestamp_ntz=True)
        frame = self.session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.source))
        if self.marked:
            frame = frame.withWatermark("mark", f"{delay_ms(self.spec)} milliseconds")
            if not isinstance(self.spec.watermark, gw.ExplicitWatermark):
                frame = frame.withColumn("time", F.col("mark"))
        # With the mark in the condition, rows of no case are dropped above the watermark, which has seen them.
        return gw.spark.aggregate(frame.where("NOT alone OR mark IS NULL"), self.spec)

    def _stage(self, number: int) -> None:
        aside, path = (self.source / f"{dot}{number:03d}.parquet" for dot in (".", ""))
        pq.write_table(self._table(self.steps[number]), aside)
        os.utime(aside, (1_000_000_000 + number, 1_000_000_000 + number))
        aside.rename(path)

    def _table(self, step: Step) -> pa.Table:
        """The rows of a batch, and a last one for the watermark alone, whose columns are null."""
        rows, unit = step.rows, self.play.unit
        if step.mark == END and not self.marked and self.spec.watermark != gw.SystemClock():
            # The watermark is the operator's own, of a key maybe: rows whose window stays open move it.
            keys = dict.fromkeys(row.get("key") for each in self.steps for row in each.rows)
            rows = [*rows, *({"key": key, "ts_ms": END * 1000 // unit, "gap_ms": 1} for key in keys)]
        table = cases.table_of([*rows, {"ts_ms": None}], unit, self.play.types)
        table = table.set_column(table.column_names.index("gap"), "gap", table["gap"].cast(pa.int64()))
        last = 0 if step.mark is None else END * 1000 if step.mark == END else step.mark * unit
        if isinstance(self.spec.watermark, gw.ExplicitWatermark):
            marks = [*[0] * len(rows), last]
        else:
            marks = [*table["ts"].to_pylist()[:-1], last]
        table = table.append_column("mark", pa.array(marks, pa.timestamp("us", "UTC")))
        return table.append_column("alone", pa.array([*[False] * len(rows), True]))

    def _results(self) -> list[dict[str, Any]]:
        if not list((self.folder / "sink").glob("*.parquet")):
            return []
        found = self.play.rows(pq.read_table(self.folder / "sink"))
        if isinstance(self.spec.watermark, gw.SystemClock):
            later = LATER * 1000 // self.play.unit
            found = [{**row, "start_ms": row["start_ms"] - later, "end_ms": row["end_ms"] - later} for row in found]
        return found
