"""Delta tables, read by following their logs, without Spark and at any time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from gpuwin_spark.installed_spark import find_spark

from .maven import Unreachable, added_jars

#: The newest Delta, and the lines of Spark that it is built for.
DELTA, LINES = "4.4.0", ("4.0", "4.1", "4.2")
#: What a session needs to write and merge Delta tables.
CONF: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def delta_jars() -> tuple[Path, ...]:
    """Delta for the installed Spark.

    Raises:
        Unreachable: There is no such Delta, or Maven did not bring it.
    """
    line = find_spark().line
    if line not in LINES:
        raise Unreachable(f"Delta {DELTA} is built for Spark {', '.join(LINES)}, and Spark {line} is installed.")
    return added_jars("io.delta", f"delta-spark_{line}_2.13", DELTA)


def actions_in(table: Path) -> Iterator[dict[str, Any]]:
    """What the log of a Delta table has, in order; nothing where there is no table.

    All commits have to be there as JSON, which they are for a month.
    """
    commits = sorted(p for p in (table / "_delta_log").glob("*.json") if p.stem.isdigit())
    assert [int(p.stem) for p in commits] == list(range(len(commits))), commits
    for commit in commits:
        yield from map(json.loads, commit.read_text().splitlines())


def tables_in(table: Path) -> list[pa.Table]:
    """The rows of a Delta table, file by file: of those that its log has added and not removed."""
    files: set[str] = set()
    for action in actions_in(table):
        if "remove" in action:
            files.discard(action["remove"]["path"])
        if "add" in action:
            assert action["add"].get("deletionVector") is None, "rows deleted within a file are not understood here"
            files.add(action["add"]["path"])
    return [pq.ParquetFile(table / unquote(file)).read() for file in sorted(files)]
