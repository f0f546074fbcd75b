"""Which process dies, at which step of which batch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from .queries import APPENDING, SPARK_S_OWN

T = TypeVar("T")

TARGETS: Final = ("service", "executor", "driver")
BETWEEN_BATCHES: Final = "between_batches"
#: The moment at which a sink has a batch and Spark has not taken note of it. No plan has it: which sink of which Spark
#: leaves enough time there is for a test to say.
BETWEEN_SINK_AND_COMMIT: Final = "between_sink_and_commit"
#: Names of FailPoint.scala, of the map side on the service. Specifications have none.
BELOW_THE_SHUFFLE: Final = ("before_rows", "mid_rows", "after_cells")
#: Other names of FailPoint.scala, and the moment at which the driver has committed a batch.
STEPS: Final = (
    "before_request",
    "mid_request",
    "after_reply",
    "between_segment_and_commit",
    "after_commit",
    BETWEEN_BATCHES,
)


@dataclass(frozen=True)
class Strike:
    """One kill -9."""

    batch: int
    target: str
    step: str


@dataclass(frozen=True)
class Plan:
    """One query from its first batch to its last, and the kills in it, at most one a batch."""

    seed: int
    provider: str
    query: str
    files: int
    strikes: tuple[Strike, ...]
    source: str = "files"
    sink: str = "parquet"


@dataclass(frozen=True)
class Pipeline:
    """A kind of campaign: one source, queries with their sinks, and the processes that are killed."""

    source: str
    queries: tuple[tuple[str, str], ...]
    targets: tuple[str, ...] = TARGETS


PIPELINES: Final = {
    "files": Pipeline("files", tuple((query, "parquet") for query in APPENDING)),
    "kafka-delta": Pipeline(
        "kafka",
        (*((query, "delta") for query in APPENDING), ("session", "delta by batch"), ("updated", "delta merged")),
        (*TARGETS, "broker"),
    ),
    "kafka-iceberg": Pipeline(
        "kafka",
        (*((query, "iceberg") for query in APPENDING), ("session", "iceberg by batch"), ("updated", "iceberg merged")),
        (*TARGETS, "broker"),
    ),
}


def plans(seed: int, kills: int, provider: str, files: int, pipeline: Pipeline = PIPELINES["files"]) -> list[Plan]:
    """As many queries as it takes. Every query comes before any comes again, in a random order, and so does every pair
    of target and step of those that Spark would run, too, and of the specifications.

    The same arguments give the same plans, rows included, for as long as this file, `queries.QUERIES` and
    `stream.rows` are what they are. Where a process is within its step when it dies is for the machine to say.
    """
    rng = random.Random(f"{seed} {provider}")
    pairs = {
        own: _shuffled_for_ever(rng, list(itertools.product(pipeline.targets, steps)))
        for own, steps in ((True, (*BELOW_THE_SHUFFLE, *STEPS)), (False, STEPS))
    }
    queries = _shuffled_for_ever(rng, pipeline.queries)
    made = []
    while kills > 0:
        batches = sorted(rng.sample(range(files), min(kills, files - 2)))
        query, sink = next(queries)
        strikes = tuple(Strike(batch, *next(pairs[query in SPARK_S_OWN])) for batch in batches)
        made.append(Plan(rng.randrange(1 << 30), provider, query, files, strikes, pipeline.source, sink))
        kills -= len(strikes)
    return made


def _shuffled_for_ever(rng: random.Random, deck: Sequence[T]) -> Iterator[T]:
    return itertools.chain.from_iterable(rng.sample(deck, len(deck)) for _ in itertools.count())
