"""A larger, randomised sweep over the dimensions of the differential suite: `pytest tests/spark -m sweep`.

`--sweep-seed` and `--sweep-cases` say which queries; a failure names both, so that it can be run again alone.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import test_spark_differential as windows
import test_spark_sessions as sessions
from spark_harness import AGGREGATES, Both, Case, SessionCase, write


def random_case(kind: str, seed: int, number: int) -> Case:
    """The `number`-th query of the sweep with this seed: any row of the dimensions that Spark runs."""
    rng = random.Random(f"{seed}/{number}")
    of, make = (windows, Case) if kind == "windows" else (sessions, SessionCase)
    while True:
        dimensions = {**of.DIMENSIONS, "aggregate": list(AGGREGATES)}
        row = {d: rng.choice(values) for d, values in dimensions.items()}
        if of.possible(row):
            return make(**row)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["windows", "sessions"])
def test_random_query(kind: str, number: int, both: Both, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--sweep-seed")
    case = random_case(kind, seed, number)
    rng = random.Random(f"{seed}/{number}/stream")
    spec = replace(
        case.stream,
        seed=rng.randrange(1_000_000),
        batches=rng.randint(3, 6),
        rows=rng.choice([5, 40, 120]),
        empty=rng.choice([None, 0, 1, 2]),
    )
    small = {
        "spark.gpuwin.log.maxSegments": rng.choice(["2", "24"]),
        "spark.gpuwin.chunk.rows": rng.choice(["3", "65536"]),
    }
    how = replace(case.how, conf={**case.how.conf, **small})
    stream = write(spec, tmp_path / "stream")
    try:
        # A stream of a few rows may yield none and have none late, so only what came out is compared.
        both(case.query, stream, how, late=None, rows=None, spark_operators=case.spark_operators)
    except AssertionError as e:
        raise AssertionError(f"--sweep-seed {seed}, {kind} {number}: {case!r}, {spec!r}: {e}") from e
