"""Session windows give the same on gpuwin as on Spark: every mode, gap, key and aggregate that Spark has for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conftest import Both
from pyspark.sql import Column
from pyspark.sql import functions as F
from spark_harness import Case, write

SPARK_OPERATORS = ["sessionWindowStateStoreSaveExec"]

#: name -> the gap in SQL: a duration, or an expression over the columns of a row
GAPS = {
    "fixed": "'10 seconds'",
    "short": "'700 milliseconds'",
}


@dataclass(frozen=True)
class SessionCase(Case):
    """A query of the differential suite with a session window; `window` is a name in `GAPS`."""

    def window_column(self) -> Column:
        gap = GAPS[self.window]
        return F.session_window(self.time, gap.strip("'") if gap.startswith("'") else F.expr(gap))

    def window_sql(self) -> str:
        return f"session_window({self.time}, {GAPS[self.window]})"


def test_first(both: Both, tmp_path: Path) -> None:
    case = SessionCase(window="fixed", aggregate="counts", key="short")
    both(case.query, write(case.stream, tmp_path / "stream"), case.how, spark_operators=SPARK_OPERATORS)
