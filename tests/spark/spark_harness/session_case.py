"""A query of the differential suite whose windows are sessions."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from .case import Case
from .streams import SECOND, StreamSpec
from .versions import SPARK

#: The name of Spark's operator for sessions in progress, which Spark 3.5 does not name.
SPARK_SESSIONS = ("sessionWindowStateStoreSaveExec" if SPARK >= (4, 0) else "defaultName",)
LOCAL_MERGE = "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition"

#: name -> the gap in SQL: a duration, or an expression over the columns of a row
GAPS = {
    "fixed": "'10 seconds'",
    "short": "'700 milliseconds'",
    "long": "'20 seconds'",
    "calendar": "'1 day 2 hours'",
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
    def late(self) -> bool:
        """Whether rows must be dropped: Spark drops those of sessions in complete mode too."""
        return self.watermark != "none" and self.window != "calendar"

    @property
    def spark_operators(self) -> tuple[str, ...]:
        return SPARK_SESSIONS

    @property
    def stream(self) -> StreamSpec:
        """Dense enough that sessions meet and grow across batches."""
        return StreamSpec(base=self.base, files=int(self.files), step=40 * SECOND, rows=90)

    @property
    def conf(self) -> dict[str, str]:
        return {**super().conf, LOCAL_MERGE: self.local_merge}
