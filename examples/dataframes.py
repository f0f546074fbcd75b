"""polars, pandas, duckdb and pyarrow: batches go in as they are, results go back in one call."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

import gpuwin as gw

hourly = gw.WindowedAggregation(
    window=gw.TumblingWindow("1 hour"),
    keys=["city"],
    time="at",
    aggregates={"rides": gw.count(), "fare": gw.mean("fare")},
)

COLUMNS = {
    "city": ["Oslo", "Rome", "Oslo", "Oslo"],
    "at": [datetime(2026, 5, 1, 8) + timedelta(minutes=m) for m in (3, 10, 50, 65)],
    "fare": [12.0, 9.0, 18.0, 30.0],
}


def main() -> dict[str, Any]:
    pandas_frame = pd.DataFrame(COLUMNS)
    inputs = {
        "pyarrow": pa.table(COLUMNS),
        "polars": pl.DataFrame(COLUMNS),
        "pandas": pandas_frame,
        "duckdb": duckdb.sql("SELECT * FROM pandas_frame"),
    }
    results = {name: gw.aggregate(batch, hourly) for name, batch in inputs.items()}
    result = results["pyarrow"]
    backs = {
        "polars": pl.from_arrow(result),
        "pandas": result.to_pandas(),
        "duckdb": duckdb.sql("SELECT city, window_start, rides, fare FROM result ORDER BY city, window_start"),
    }
    print(backs["polars"])
    print(backs["pandas"])
    print(backs["duckdb"])
    return {"results": results, "backs": {**backs, "duckdb": backs["duckdb"].fetchall()}}


if __name__ == "__main__":
    main()
