"""Each query gives the same on gpuwin as on Spark: rows batch by batch, schema, watermarks, late rows, errors.

The queries come from a covering design: every value of every dimension below, and every pair where two could interfere.
They run on one state store provider each, by turns. `pytest -m sweep -k other_provider` of this file and of that of
sessions runs each on the other, and so every window in every mode on both. The rows of half of them become cells on
the service, below the shuffle; the plan says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from marks import second_ones_long
from spark_harness import (
    AGGREGATES,
    BASES,
    KEYS,
    OTHER_PROVIDER,
    PROVIDERS,
    WINDOWS,
    Both,
    Case,
    assert_below,
    covering,
    write,
)

DIMENSIONS = {
    "window": list(WINDOWS),
    "mode": ["append", "update", "complete"],
    "watermark": ["10 seconds", "0 seconds", "none"],
    "key": list(KEYS),
    "aggregate": [a for a in AGGREGATES if a != "lists"],  # test_spark_pieces.py
    "provider": list(PROVIDERS),
    "partitions": ["1", "5"],
    "trigger": ["available", "processing", "once"],
    "sink": ["foreach", "parquet", "memory"],
    "time": ["ts", "ntz"],
    "zone": ["UTC", "America/New_York", "Asia/Kolkata"],
    "base": list(BASES),
    "files": ["1", "3"],
    "ansi": ["true", "false"],
    "api": ["frame", "sql"],
    "having": ["no", "yes"],
    "codegen": ["on", "off"],
    "reader": ["columnar", "rows"],
    "idle_batch": ["on", "off"],
    "restart": ["no", "yes"],
    "map_side": ["auto", "device"],
}

PAIRS = [
    ("mode", "aggregate"), ("mode", "window"), ("mode", "provider"), ("mode", "watermark"), ("mode", "trigger"),
    ("mode", "partitions"), ("mode", "restart"), ("provider", "trigger"), ("provider", "restart"), ("time", "zone"),
    ("mode", "base"), ("mode", "having"), ("mode", "idle_batch"), ("watermark", "idle_batch"), ("ansi", "codegen"),
    # Not with "key": where the side is chosen, the first batch of a run goes to the service, and later ones to the JVM.
    ("map_side", "window"), ("map_side", "mode"), ("map_side", "aggregate"), ("map_side", "restart"),
]  # fmt: skip


def possible(row: dict[str, str]) -> bool:
    """Whether Spark runs such a query at all, and whether it shows something."""
    drops = row["watermark"] != "none" and row["mode"] != "complete"
    return not (
        (row["mode"] == "append" and row["watermark"] == "none")
        or (row["time"] == "ntz" and row["watermark"] != "none")  # Spark marks a timestamp only
        or (row["sink"] == "parquet" and row["mode"] != "append")
        or (row["sink"] == "memory" and row["restart"] == "yes")
        or (row["sink"] == "memory" and row["trigger"] == "once")  # neither can go on from a checkpoint
        or (row["restart"] == "yes" and row["trigger"] != "processing")
        or (row["base"] == "ancient" and drops)  # all of it is late: the watermark begins in 1970
        or (row["window"] == "millis" and row["having"] == "yes")  # no window as short as that has three rows
    )


# With this seed both kinds of window are there in each mode on each provider; test_spark_comparison.py asks for that.
CASES = [Case(**row) for row in covering(DIMENSIONS, PAIRS, possible, seed=1)]
NAMES = [f"{i:02d}-{case}" for i, case in enumerate(CASES)]


@pytest.mark.parametrize("case", second_ones_long(CASES, NAMES, short=5))
def test_same_as_spark(case: Case, both: Both, tmp_path: Path) -> None:
    _, found = both(case.query, write(case.stream, tmp_path / "stream"), case.how, late=case.late)
    if case.map_side == "device":
        assert_below(found)


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_same_as_spark_on_the_other_provider(case: Case, both: Both, tmp_path: Path) -> None:
    test_same_as_spark(replace(case, provider=OTHER_PROVIDER[case.provider]), both, tmp_path)
