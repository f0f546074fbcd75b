"""The two queries of the demo, in their order. Plain PySpark that knows nothing of gpuwin: both sides run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def per_carrier_and_origin(flights: DataFrame) -> DataFrame:
    """Departures, mean delay and cancellations per carrier and origin over the last 7 days, every 5 minutes."""
    from pyspark.sql import functions as F

    return (
        flights.withWatermark("scheduled", "2 hours")
        .groupBy("carrier", "origin", F.window("scheduled", "7 days", "5 minutes"))
        .agg(
            F.count("delay").alias("departures"),
            F.avg("delay").alias("mean_delay"),
            (F.count("*") - F.count("delay")).alias("cancelled"),
        )
    )


def per_origin(flights: DataFrame) -> DataFrame:
    """Delays per origin over the last 6 hours, every 20 minutes."""
    from pyspark.sql import functions as F

    return (
        flights.withWatermark("scheduled", "2 hours")
        .groupBy("origin", F.window("scheduled", "6 hours", "20 minutes"))
        .agg(
            F.count("delay").alias("departures"),
            F.avg("delay").alias("mean_delay"),
            (F.count("*") - F.count("delay")).alias("cancelled"),
        )
    )


@dataclass(frozen=True)
class DemoQuery:
    """A query, and what a recomputation that does not use Spark has to know about it."""

    name: str
    title: str
    build: Callable[[DataFrame], DataFrame]
    keys: tuple[str, ...]
    size: timedelta
    slide: timedelta
    watermark_delay: timedelta

    @property
    def windows_per_row(self) -> int:
        """Number of copies that Spark makes of each row."""
        return -(-self.size // self.slide)


QUERIES: Final = {
    q.name: q
    for q in (
        DemoQuery(
            "per_carrier_and_origin",
            "7 d every 5 min, per carrier and origin",
            per_carrier_and_origin,
            ("carrier", "origin"),
            timedelta(days=7),
            timedelta(minutes=5),
            timedelta(hours=2),
        ),
        DemoQuery(
            "per_origin",
            "6 h every 20 min, per origin",
            per_origin,
            ("origin",),
            timedelta(hours=6),
            timedelta(minutes=20),
            timedelta(hours=2),
        ),
    )
}
