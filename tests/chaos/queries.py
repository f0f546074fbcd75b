"""The queries whose processes are killed, each with what the oracle says of it.

Four are Spark's own, which the plugin takes over; two are specifications, with what Spark has no words for: windows
that fire early, late windows that fire again, retractions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oracle import Oracle

import gpuwin as gw

from .stream import InputRow, OutputRow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SIZE, SLIDE, GAP, DELAY = 120, 30, 4, 200  # seconds
#: Of the late rows, which are 1,500 seconds behind, most are in time for this and some are not. Sessions end sooner
#: after a row than sliding windows do.
LATENESS, LATENESS_OF_SESSIONS = 1250, 1350
#: Rows of one session of a specification meet more often, also the late ones.
LONG_GAP: Final = 20


@dataclass(frozen=True)
class Query:
    """What runs on Spark, and a new oracle that plays the same files."""

    on_spark: Callable[[DataFrame], DataFrame]
    oracle: Callable[[], Oracle]
    mode: str = "append"

    def emitted(self, batches: Iterable[tuple[InputRow, ...]]) -> list[OutputRow]:
        """(key, start, end, count, sum, min, max), and where it is a specification the rest of its columns, of all
        that is emitted before the stream would end, in order of batches."""
        oracle = self.oracle()
        emitted = [row for batch in batches for row in oracle.process(list(batch))]
        columns = _COLUMNS_OF[oracle.emit]
        return [
            (key, start, end, len(v), sum(v), min(v), max(v), *(pane, retracts)[:columns])
            for key, start, end, v, pane, retracts in emitted
        ]

    def expected(self, batches: Iterable[tuple[InputRow, ...]]) -> Counter[OutputRow]:
        """How often each row is emitted."""
        return Counter(self.emitted(batches))


@dataclass(frozen=True)
class Deduplicated(Query):
    """Different (key, second) of the rows, in the columns of the other queries. What comes out does not depend on the
    order of the rows of a batch.
    """

    def emitted(self, batches: Iterable[tuple[InputRow, ...]]) -> list[OutputRow]:
        """As of `Query`: each with the first batch that has it."""
        seen: dict[OutputRow, None] = {}
        newest = None
        for batch in batches:
            late = None if newest is None else newest - DELAY
            on_time = [(key, second) for key, second, _ in batch if late is None or second > late]
            seen.update(dict.fromkeys((key, second, second, 1, 0, 0, 0) for key, second in on_time))
            newest = max([second for _, second, _ in batch] + ([] if newest is None else [newest]), default=None)
        return list(seen)


def _windows(window: Callable[[], Column]) -> Callable[[DataFrame], DataFrame]:
    def on_spark(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return (
            frame.withWatermark("ts", f"{DELAY} seconds")
            .groupBy("key", window().alias("window"))
            .agg(
                F.count("*").alias("n"),
                F.sum("value").alias("total"),
                F.min("value").alias("low"),
                F.max("value").alias("high"),
            )
            .select("key", "window.start", "window.end", "n", "total", "low", "high")
        )

    return on_spark


def _deduplicated(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    frame.sparkSession.conf.set("spark.gpuwin.deduplicate", "true")
    once = frame.withWatermark("ts", f"{DELAY} seconds").select("key", "ts").dropDuplicates(["key", "ts"])
    none = [F.lit(0).cast("long").alias(name) for name in ("total", "low", "high")]
    return once.select(
        "key", F.col("ts").alias("start"), F.col("ts").alias("end"), F.lit(1).cast("long").alias("n"), *none
    )


def _sliding() -> Column:
    from pyspark.sql import functions as F

    return F.window("ts", f"{SIZE} seconds", f"{SLIDE} seconds")


def _session() -> Column:
    from pyspark.sql import functions as F

    return F.session_window("ts", f"{GAP} seconds")


def _specified(spec: gw.WindowedAggregation) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: gw.spark.aggregate(frame, spec)


#: Of pane and is_retraction, how many a specification has, by what the oracle calls its emission.
_COLUMNS_OF: Final = {"close": 0, "update": 0, "rows": 2}
_COMMON: Final[dict[str, Any]] = {
    "keys": ["key"],
    "time": "ts",
    "aggregates": {"n": gw.count(), "total": gw.sum("value"), "low": gw.min("value"), "high": gw.max("value")},
    "watermark": gw.BoundedOutOfOrderness(f"{DELAY} seconds"),
}
TRIGGERED: Final = gw.WindowedAggregation(
    window=gw.SlidingWindow(f"{SIZE} seconds", f"{SLIDE} seconds"),
    emit=gw.Trigger(early=gw.EveryRows(3), late=gw.EveryRows(2)),
    accumulation="retracting",
    allowed_lateness=f"{LATENESS} seconds",
    **_COMMON,
)
REOPENED: Final = gw.WindowedAggregation(
    window=gw.SessionWindow(f"{LONG_GAP} seconds"),
    emit=gw.OnClose(),
    allowed_lateness=f"{LATENESS_OF_SESSIONS} seconds",
    **_COMMON,
)

QUERIES: Final = {
    "sliding": Query(_windows(_sliding), lambda: Oracle(("sliding", SIZE, SLIDE, 0), delay=DELAY)),
    "updated": Query(
        _windows(_sliding), lambda: Oracle(("sliding", SIZE, SLIDE, 0), delay=DELAY, emit="update"), mode="update"
    ),
    "session": Query(_windows(_session), lambda: Oracle(("session", GAP), delay=DELAY)),
    "deduplicated": Deduplicated(_deduplicated, lambda: Oracle(("session", GAP), delay=DELAY)),
    "triggered": Query(
        _specified(TRIGGERED),
        lambda: Oracle(
            ("sliding", SIZE, SLIDE, 0),
            delay=DELAY,
            lateness=LATENESS,
            emit="rows",
            early=3,
            late=2,
            accumulation="retracting",
        ),
    ),
    "reopened": Query(
        _specified(REOPENED), lambda: Oracle(("session", LONG_GAP), delay=DELAY, lateness=LATENESS_OF_SESSIONS)
    ),
}
#: Those that Spark would run without the plugin too.
SPARK_S_OWN: Final = ("sliding", "updated", "session")
#: Those that go to a sink that can only append.
APPENDING: Final = tuple(name for name, query in QUERIES.items() if query.mode == "append")
