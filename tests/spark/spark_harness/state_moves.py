"""One query in parts, between which its state is shown, rescaled, given back to Spark, and adopted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import gpuwin as gw
from gpuwin_spark.give_back_state import give_back_state
from gpuwin_spark.rescale_state import rescale_state

from .compare import assert_placed
from .record import Query, Recording, Run, run
from .streams import SCHEMA, Stream

SAVE = ("stateStoreSave",)


@dataclass(frozen=True)
class StateMoves:
    """A query over a stream, and where its checkpoints are.

    Attributes:
        how: of the parts on gpuwin and on Spark.
        schema: of the stream's files.
        sparks: names of the operators of plain Spark.
    """

    spark: SparkSession
    query: Query
    stream: Stream
    how: Run
    folder: Path
    schema: str = SCHEMA
    sparks: tuple[str, ...] = SAVE

    def part(self, batches: int, folder: str, enabled: bool, **conf: str) -> Recording:
        """The query up to a batch, on gpuwin or not."""
        how = replace(self.how, conf={**self.how.conf, **conf}, restart_after=frozenset())
        stream = self.stream.head(batches)
        found = run(self.spark, self.query, stream, how, self.folder / folder, enabled=enabled, schema=self.schema)
        assert found.error is None, found.error
        assert_placed(found, ("gpuwin",) if enabled else self.sparks)
        return found

    def assert_equal(self, look: Callable[[DataFrame], None] | None, adopted: bool = True) -> None:
        """Fails unless all of it gives the rows of plain Spark.

        look: at the open windows after two batches, where there are any. adopted: whether the state that was given back
        is adopted again.
        """
        last = len(self.stream.batches)
        plain = self.part(last, "plain", False)
        checkpoint = str(self.folder / "query" / "checkpoint")
        parts = [self.part(2, "query", True)]
        if look is not None:
            look(gw.spark.read_state(self.spark, checkpoint, windows=True))
        rescale_state(self.spark, checkpoint, 3)
        parts.append(self.part(3, "query", True))
        give_back_state(self.spark, checkpoint)
        parts.append(self.part(4 if adopted else last, "query", False))
        if adopted:
            parts.append(self.part(last, "query", True, **{"spark.gpuwin.adopt": "true"}))
        assert parts[-1].all_rows(), "vacuous: nothing came out at the end"
        assert sorted(map(repr, plain.all_rows())) == sorted(repr(r) for part in parts for r in part.all_rows())
