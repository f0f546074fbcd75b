"""State that moves, at random: adopted, rescaled and given back, against one undisturbed run of plain Spark.

`pytest -m sweep tests/spark/test_spark_moves.py`; `--sweep-seed` and `--sweep-cases` say which queries. A failure names
both, so that it can be run again alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import test_spark_adopt as adopt
import test_spark_aggregates as aggregates
import test_spark_rescale as rescale
from pyspark.sql import SparkSession
from spark_harness import Case, Query, Recording, Run, Stream, StreamSpec, differences, run, write
from test_spark_sweep import random_case

from gpuwin_spark.give_back_state import give_back_state
from gpuwin_spark.rescale_state import rescale_state

Move = Literal["stay", "adopt", "rescale", "give back"]
#: Queries of several operators, and with aggregates that depend on what came first.
OTHERS: dict[str, Query] = {
    "ordered": adopt.ordered,
    "ordered_sliding": adopt.ordered_sliding,
    "stacked": adopt.stacked,
    "stacked_sliding": rescale.stacked,
    "distinct": rescale.distinct,
    "deduplicated": rescale.deduplicated,
    "joined": rescale.joined,
    "some_sliding": rescale.some_sliding,
}


@dataclass(frozen=True)
class Journey:
    """A query, and where its state goes before each part of its stream."""

    name: str
    query: Query
    how: Run
    stream: StreamSpec
    moves: tuple[tuple[Move, int], ...]


def moves(rng: random.Random) -> Iterator[tuple[Move, int]]:
    """Batches on Spark, then each move at least once, in an order that can be."""
    yield "stay", rng.randint(1, 2)
    left: list[Move] = ["adopt", "give back", *rng.choices(["adopt", "give back"], k=rng.randint(0, 1)), "rescale"]
    ours = False
    while left:
        able = [m for m in left if (m == "adopt") != ours]
        if not able:  # what is left needs the other engine
            able = ["give back" if ours else "adopt"]
        move = rng.choice(able)
        if move in left:
            left.remove(move)
        ours = move != "give back"
        yield move, rng.randint(1, 2)


def journey(seed: int, number: int) -> Journey:
    """The `number`-th journey with this seed."""
    rng = random.Random(f"moves/{seed}/{number}")
    kind = rng.choice(["windows", "windows", "windows", "sessions", "others", "aggregates"])
    more = {"spark.sql.shuffle.partitions": str(rng.randint(1, 20)), **adopt.V1}
    if rng.random() < 0.7:
        del more["spark.sql.streaming.aggregation.stateFormatVersion"]
    if kind == "others":
        name = rng.choice(list(OTHERS))
        how = replace(adopt.CASE, provider=rng.choice(["hdfs", "rocksdb", "rocksdb_changelog"])).how
        query, stream = OTHERS[name], StreamSpec()
    elif kind == "aggregates":
        aggregation = aggregates.Aggregation(
            rng.choice(list(aggregates.SETS)),
            Case(
                window=rng.choice(["tumbling", "sliding", "uneven", "dense"]),
                mode=rng.choice(["append", "update", "complete"]),
                key=rng.choice(["none", "boolean", "short"]),
                aggregate="counts",
                provider=rng.choice(["hdfs", "rocksdb", "rocksdb_changelog"]),
                ansi="false",
            ),
        )
        name, query, how, stream = repr(aggregation), aggregation.query, aggregation.case.how, StreamSpec()
    else:
        case = replace(random_case(kind, seed, number), trigger="processing")
        name, query, how, stream = repr(case), case.query, case.how, case.stream
    sink = "foreach" if how.sink == "memory" else how.sink  # a memory sink starts once
    how = replace(how, trigger="processing", sink=sink, conf={**how.conf, **more})
    way = tuple(moves(rng))
    rows, batches = rng.choice([20, 60]), sum(n for _, n in way)
    stream = replace(stream, seed=rng.randrange(1_000_000), batches=batches, rows=rows, empty=None)
    return Journey(name, query, how, stream, way)


def walked(spark: SparkSession, way: Journey, stream: Stream, folder: Path, rng: random.Random) -> Iterator[Recording]:
    """The query in parts, each after a move of its state."""
    done, ours = 0, False
    for move, batches in way.moves:
        how = way.how
        if move == "adopt":
            how = replace(how, conf={**how.conf, "spark.gpuwin.adopt": "true"})
        elif move == "rescale":
            numbers = [n for n in range(1, 9) if str(n) != how.conf["spark.sql.shuffle.partitions"]]
            rescale_state(spark, str(folder / "checkpoint"), rng.choice(numbers))
        elif move == "give back":
            give_back_state(spark, str(folder / "checkpoint"))
        ours = move in ("adopt", "rescale")
        done += batches
        part = run(spark, way.query, stream.head(done), how, folder, enabled=move != "stay")
        assert part.error is None, f"after {move}: {part.error}"
        for batch in part.batches:
            assert ("gpuwin" in batch.operators) == ours, f"after {move} batch {batch.id} ran {batch.operators}"
        yield part


@pytest.mark.sweep
def test_random_journey(number: int, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--sweep-seed")
    way = journey(seed, number)
    rng = random.Random(f"{seed}/{number}/stream")
    stream = write(way.stream, tmp_path / "stream")
    try:
        plain = run(spark, way.query, stream, way.how, tmp_path / "plain", enabled=False)
        parts = list(walked(spark, way, stream, tmp_path / "moved", rng))
        together = replace(parts[-1], batches=[b for part in parts for b in part.batches])
        assert plain.error is None
        assert differences(plain, together) == []
    except Exception as e:
        raise AssertionError(f"--sweep-seed {seed}, {number}: {way}: {e}") from e
