"""Work row by row beside four other engines: the first row of each key, and what the rows of a key so far, or the
last ones, make at each row.

    python benchmarks/shapes/rows.py --json benchmarks/results/rows.json

gpuwin gets the rows in ten batches, the others answer one query over all of them, which are in memory; the same
threads, one process, in turns. Before it is measured, the answers are compared: the number of result rows, and the sum
of their values. Rows of a key have different times.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from measure import THREADS, best_times  # first: it sets the threads of the engines

# isort: split
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from peers import PEERS, version
from sql import Run, chdb_run, datafusion_run, duckdb_run

import gpuwin as gw

BATCHES = 10


@dataclass(frozen=True)
class Case:
    """One measurement: the first rows of keys, the sum of the rows of a key so far at each row, or the mean of the last
    `last` ones.
    """

    name: str
    kind: Literal["first", "total", "last"]
    keys: int
    rows: float = 1.0  # as a share of those that were asked for
    last: int = 10
    strings: bool = False


CASES = [
    Case("first rows, 10,000 keys", "first", 10_000),
    Case("first rows, a million keys", "first", 1_000_000),
    Case("first rows, a million strings", "first", 1_000_000, strings=True),
    Case("total at each row, 10,000 keys", "total", 10_000, 0.2),
    Case("last 10 rows at each row, 10,000 keys", "last", 10_000, 0.2),
    Case("last 100 rows at each row, 100 keys", "last", 100, 0.04, last=100),
]


def rows_of(case: Case, n: int) -> pa.Table:
    """Rows of `key`, `ts` (microseconds, all different, ascending) and `v` (float64)."""
    n = int(n * case.rows)
    rng = np.random.default_rng(1)
    key = pa.array(rng.integers(0, case.keys, n).astype(np.int32))
    if case.strings:
        names = pa.array([f"customer-{i:07d}" for i in range(case.keys)])
        key = pa.DictionaryArray.from_arrays(key, names).dictionary_decode()
    return pa.table({"key": key, "ts": pa.array(np.arange(n) * 720), "v": pa.array(rng.random(n))})


def ours(case: Case, rows: pa.Table) -> Run:
    """gpuwin: `process` for each batch, and the end of the stream."""
    spec: gw.Deduplicate | gw.WindowedAggregation = gw.Deduplicate(["key"])
    if case.kind == "last":
        spec = gw.WindowedAggregation(
            window=gw.GlobalWindow(), keys=["key"], time="ts", aggregates={"v": gw.mean("v")},
            emit=gw.Trigger(gw.EveryRows(1), on_time=False, evict=gw.KeepLast(case.last)),
        )  # fmt: skip
    if case.kind == "total":
        spec = gw.WindowedAggregation(
            window=gw.GlobalWindow(), keys=["key"], time="ts", aggregates={"v": gw.sum("v")}, emit=gw.EveryRow()
        )
    timed = rows.set_column(1, "ts", rows["ts"].combine_chunks().view(pa.timestamp("us")))
    step = -(-len(timed) // BATCHES)

    def run() -> pa.Table:
        return pa.concat_tables(gw.run(spec, [timed.slice(i * step, step) for i in range(BATCHES)]))

    return run


def queries(case: Case) -> dict[str, str]:
    """The query of a case for each engine of SQL, as its users would write it."""
    if case.kind == "last":
        frame = f"PARTITION BY key ORDER BY ts ROWS BETWEEN {case.last - 1} PRECEDING AND CURRENT ROW"
        return dict.fromkeys(("DuckDB", "DataFusion", "chDB"), f"SELECT key, avg(v) OVER ({frame}) AS v FROM t")
    if case.kind == "total":
        frame = "PARTITION BY key ORDER BY ts ROWS UNBOUNDED PRECEDING"
        return dict.fromkeys(("DuckDB", "DataFusion", "chDB"), f"SELECT key, sum(v) OVER ({frame}) AS v FROM t")
    distinct = "SELECT DISTINCT ON (key) key, ts, v FROM t ORDER BY key, ts"
    return {
        "DuckDB": "SELECT key, min(ts) AS ts, arg_min(v, ts) AS v FROM t GROUP BY key",
        "DataFusion": distinct,
        "chDB": "SELECT key, min(ts) AS since, argMin(v, ts) AS v FROM t GROUP BY key",
    }


def polars_run(case: Case, rows: pa.Table) -> Run:
    frame = pl.DataFrame(pl.from_arrow(rows)).lazy()
    if case.kind == "first":
        return lambda: frame.unique("key", keep="first").collect().to_arrow()
    if case.kind == "total":
        return lambda: frame.select("key", pl.col("v").cum_sum().over("key")).collect().to_arrow()
    mean = pl.col("v").rolling_mean(case.last, min_samples=1).over("key")
    return lambda: frame.select("key", mean).collect().to_arrow()


SQL: dict[str, Callable[..., Run]] = {"DuckDB": duckdb_run, "DataFusion": datafusion_run, "chDB": chdb_run}


def measure(case: Case, rows: int, repeat: int) -> dict[str, Any]:
    """Seconds of each, the best of the repeats. Raises where an answer is not that of gpuwin."""
    table = rows_of(case, rows)
    runs = {"gpuwin": ours(case, table), "Polars": polars_run(case, table)}
    runs |= {name: SQL[name]({"t": table}, query, THREADS) for name, query in queries(case).items()}
    totals = {}
    for name, run in runs.items():
        result = run()
        totals[name] = (len(result), float(pc.sum(result["v"]).as_py()))
        if not np.allclose(totals[name], totals["gpuwin"]):
            raise RuntimeError(f"{case.name}: {name} answers {totals[name]}, gpuwin {totals['gpuwin']}")
    best = best_times(runs, repeat)
    fastest = min(best.keys() - {"gpuwin"}, key=best.__getitem__)
    return {
        "case": case.name,
        "rows": len(table),
        "results": totals["gpuwin"][0],
        "seconds": {name: round(s, 4) for name, s in best.items()},
        "fastest": fastest,
        "ratio": round(best[fastest] / best["gpuwin"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    head = {"machine": platform.machine(), "cpus": os.cpu_count(), "threads": THREADS,
            "load_before": [round(x, 1) for x in os.getloadavg()], "python": platform.python_version(),
            "peers": {p: version(p) for p in PEERS}}  # fmt: skip
    results = []
    for case in (c for c in CASES if args.only in c.name):
        results.append(measure(case, args.rows, args.repeat))
        print(json.dumps(results[-1]), flush=True)
    if args.json:
        lines = ",\n".join(f"  {json.dumps(result)}" for result in results)
        args.json.write_text(f'{json.dumps(head)[:-1]},\n "results": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
