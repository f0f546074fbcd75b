"""Which process dies, at which step of which batch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from .queries import QUERIES, SPARK_S_OWN

T = TypeVar("T")

TARGETS: Final = ("service", "executor", "driver")
BETWEEN_BATCHES: Final = "between_batches"
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


def plans(seed: int, kills: int, provider: str, files: int) -> list[Plan]:
    """As many queries as it takes. Every query comes before any comes again, in a random order, and so does every pair
    of target and step of those that Spark would run, too, and of the specifications.

    The same arguments give the same plans, rows included, for as long as this file, `queries.QUERIES` and
    `stream.rows` are what they are. Where a process is within its step when it dies is for the machine to say.
    """
    rng = random.Random(f"{seed} {provider}")
    pairs = {
        own: _shuffled_for_ever(rng, list(itertools.product(TARGETS, (*BELOW_THE_SHUFFLE, *STEPS) if own else STEPS)))
        for own in (True, False)
    }
    queries = _shuffled_for_ever(rng, list(QUERIES))
    made = []
    while kills > 0:
        batches = sorted(rng.sample(range(files), min(kills, files - 2)))
        query = next(queries)
        strikes = tuple(Strike(batch, *next(pairs[query in SPARK_S_OWN])) for batch in batches)
        made.append(Plan(rng.randrange(1 << 30), provider, query, files, strikes))
        kills -= len(strikes)
    return made


def _shuffled_for_ever(rng: random.Random, deck: Sequence[T]) -> Iterator[T]:
    return itertools.chain.from_iterable(rng.sample(deck, len(deck)) for _ in itertools.count())
