"""Rows that go through a topic, as JSON, and the windowed queries over them."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_harness import SPARK_SESSIONS

from .topics import Record

SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
#: 2024-01-01, in milliseconds. (Kafka takes no record that says it comes from the future.)
START: Final = 1_704_067_200_000
SCHEMA: Final = "k string, ts timestamp, v long"
KEYS: Final = ("ada", "bob", "cyd", "dot", "eve", "", None)


@dataclass(frozen=True)
class Event:
    """One row: its key, its event time in milliseconds since 1970, and a number."""

    key: str | None
    time: int
    value: int

    @property
    def json(self) -> bytes:
        at = dt.datetime.fromtimestamp(self.time / 1000, dt.UTC).isoformat(timespec="milliseconds")
        return json.dumps({"k": self.key, "ts": at.replace("+00:00", "Z"), "v": self.value}).encode()


def events(count: int = 306, *, seed: int = 1, first: int = 0, late: bool = True) -> list[Event]:
    """The rows of a stream, two seconds apart, from row `first` on, out of order by less than the watermark's delay.

    With `late`, one in twelve of those after the first hundred is six to twelve minutes behind, and so too late.
    """
    rng, made = random.Random(seed), []
    for i in range(first, first + count):
        behind = rng.randrange(8 * SECOND)
        if late and i >= 100 and rng.random() < 1 / 12:
            behind = rng.randrange(6 * MINUTE, 12 * MINUTE)
        made.append(Event(rng.choice(KEYS), START + 2 * SECOND * i - behind, rng.randrange(-100, 100)))
    return made


def records(rows: Sequence[Event], partitions: Sequence[int] = (0, 1, 2), *, timed: bool = False) -> list[Record]:
    """The rows as JSON, in turns on some partitions; with `timed` the records have the rows' times."""
    return [
        Record(row.json, partition=partitions[i % len(partitions)], time=row.time if timed else None)
        for i, row in enumerate(rows)
    ]


def from_json(frame: DataFrame, *others: str) -> DataFrame:
    """The rows of a topic with JSON, and other columns. A value that is null, or no JSON, is a row of nulls."""
    return frame.withColumn("row", F.from_json(F.col("value").cast("string"), SCHEMA)).select("row.*", *others)


#: The window of each kind, over the column ts.
WINDOWS: Final[dict[str, Callable[[], Column]]] = {
    "tumbling": lambda: F.window("ts", "1 minute"),
    "sliding": lambda: F.window("ts", "2 minutes", "30 seconds"),
    "session": lambda: F.session_window("ts", "20 seconds").alias("window"),
}
#: What plain Spark calls the stateful operator of each.
SPARK_OPERATORS: Final = {
    "tumbling": ("stateStoreSave",),
    "sliding": ("stateStoreSave",),
    "session": SPARK_SESSIONS,
}


def windowed(frame: DataFrame, kind: str = "sliding", *keys: str) -> DataFrame:
    """The windowed aggregation of each test: by the column k, or by other keys."""
    grouped = frame.withWatermark("ts", "10 seconds").groupBy(*(keys or ("k",)), WINDOWS[kind]())
    return grouped.agg(
        F.count("*").alias("n"), F.sum("v").alias("total"), F.min("v").alias("min_v"), F.avg("v").alias("mean")
    )


def over_json(kind: str = "sliding") -> Callable[[SparkSession, DataFrame], DataFrame]:
    """The query of a topic with JSON."""
    return lambda _, frame: windowed(from_json(frame), kind)
