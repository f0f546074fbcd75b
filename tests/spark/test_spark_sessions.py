"""Session windows give the same on gpuwin as on Spark: every mode, gap, key and aggregate that Spark has for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Both
from pyspark.sql import Column
from pyspark.sql import functions as F
from spark_harness import AGGREGATES, BASES, KEYS, PROVIDERS, SECOND, Case, StreamSpec, covering, write

SPARK_OPERATORS = ["sessionWindowStateStoreSaveExec"]
LOCAL_MERGE = "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition"

#: name -> the gap in SQL: a duration, or an expression over the columns of a row
GAPS = {
    "fixed": "'10 seconds'",
    "short": "'700 milliseconds'",
    "long": "'20 seconds'",
    "by_row": "case when bool then '25 seconds' when short > 0 then '500 milliseconds' else '5 seconds' end",
    "filtered": "case when short < 0 then '-3 seconds' when short = 0 then '0 seconds' when bool then '8 seconds' end",
    "interval": "make_interval(0, 0, 0, 0, 0, 0, abs(cast(short as int)) % 40)",
}


@dataclass(frozen=True)
class SessionCase(Case):
    """A query of the differential suite with a session window; `window` is a name in `GAPS`."""

    window: str = "fixed"
    local_merge: str = "false"

    def window_column(self) -> Column:
        gap = GAPS[self.window]
        return F.session_window(self.time, gap.strip("'") if gap.count("'") == 2 else F.expr(gap))

    def window_sql(self) -> str:
        return f"session_window({self.time}, {GAPS[self.window]})"

    @property
    def late(self) -> bool | None:
        """Whether rows must be dropped: Spark drops those of sessions in complete mode too."""
        return self.watermark != "none"

    @property
    def stream(self) -> StreamSpec:
        """Dense enough that sessions meet and grow across batches."""
        return StreamSpec(base=self.base, files=int(self.files), step=40 * SECOND, rows=90)

    @property
    def conf(self) -> dict[str, str]:
        return {**super().conf, LOCAL_MERGE: self.local_merge}


DIMENSIONS = {
    "window": list(GAPS),
    "mode": ["append", "complete"],
    "watermark": ["10 seconds", "0 seconds", "none"],
    "key": [k for k in KEYS if k != "none"],
    "aggregate": list(AGGREGATES),
    "provider": list(PROVIDERS),
    "partitions": ["1", "5"],
    "trigger": ["available", "processing", "once"],
    "sink": ["foreach", "parquet", "memory"],
    "time": ["ts", "ntz"],
    "zone": ["UTC", "America/New_York"],
    "base": list(BASES),
    "files": ["1", "3"],
    "ansi": ["true", "false"],
    "api": ["frame", "sql"],
    "having": ["no", "yes"],
    "codegen": ["on", "off"],
    "idle_batch": ["on", "off"],
    "restart": ["no", "yes"],
    "local_merge": ["false", "true"],
}

PAIRS = [("mode", "window"), ("mode", "local_merge"), ("mode", "provider"), ("mode", "restart")]


def possible(row: dict[str, str]) -> bool:
    """Whether Spark runs such a query at all, and whether it shows something."""
    return not (
        (row["mode"] == "append" and row["watermark"] == "none")
        or (row["time"] == "ntz" and row["watermark"] != "none")  # Spark marks a timestamp only
        or (row["sink"] == "parquet" and row["mode"] != "append")
        or (row["sink"] == "memory" and (row["restart"] == "yes" or row["trigger"] == "once"))
        or (row["restart"] == "yes" and row["trigger"] != "processing")
        or (row["base"] == "ancient" and row["watermark"] != "none")  # all of it is late
    )


CASES = [SessionCase(**row) for row in covering(DIMENSIONS, PAIRS, possible)]


@pytest.mark.parametrize("case", CASES, ids=[f"{i:02d}-{case}" for i, case in enumerate(CASES)])
def test_same_as_spark(case: SessionCase, both: Both, tmp_path: Path) -> None:
    stream = write(case.stream, tmp_path / "stream")
    both(case.query, stream, case.how, late=case.late, spark_operators=SPARK_OPERATORS)
