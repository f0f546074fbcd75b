"""Joins beside four other engines: the same rows in memory, the same threads, one process, in turns.

    python benchmarks/shapes/joins.py --json benchmarks/results/joins.json
    python benchmarks/shapes/joins.py --only "window" --rows 200_000

gpuwin gets both sides in batches, as streams bring them, and gives out pairs as windows close or rows meet; the others
answer one query over all rows. Printed is the time of the fastest other engine over ours, the worst first. Before it is
measured, the answers are compared: the number of result rows, and the sum of each column of values. `pip install
datafusion chdb` for the two that are not among the tests' requirements. Polars joins rows of equal keys and compares
their times afterwards, so an interval is left to the engines of SQL; DataFusion has no as-of join.
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
from peers import CHDB, DATAFUSION, DUCKDB, PEERS, Dialect, version
from sql import Run, chdb_run, datafusion_run, duckdb_run

import gpuwin as gw

SECOND = 1_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
"""Microseconds."""

Sides = tuple[pa.Table, pa.Table]


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        kind: a window join, an interval join of rows at most `size` apart, an as-of join, or a hash join.
        size: of a window or half of an interval, and the slide of windows; microseconds.
        rows: of each side, as a share of those that were asked for.
        batches: in which gpuwin gets each side.
    """

    name: str
    kind: Literal["window", "interval", "as of", "hash"] = "window"
    size: int = MINUTE
    slide: int = MINUTE
    how: Literal["inner", "left", "semi", "anti"] = "inner"
    keys: int = 10_000
    strings: bool = False
    rows: float = 1.0
    batches: int = 10


CASES = [
    Case("window of 1 min"),
    Case("window of 1 min, left", how="left"),
    Case("window of 1 min, semi", how="semi"),
    Case("window of 1 min, anti", how="anti"),
    Case("window of 1 min, a million keys", keys=1_000_000),
    Case("window of 1 min, 10,000 strings", strings=True),
    Case("window of 1 min, a hundred small batches", batches=100),
    Case("windows of 10 min every 1 min, 100,000 keys", size=10 * MINUTE, keys=100_000, rows=0.2),
    Case("interval of 5 s", "interval", 5 * SECOND),
    Case("interval of 1 min, a million keys", "interval", MINUTE, keys=1_000_000),
    Case("as of", "as of", how="left"),
    Case("as of, a million keys", "as of", how="left", keys=1_000_000),
    Case("hash, a million keys", "hash", keys=1_000_000),
]


def rows_of(case: Case, n: int) -> Sides:
    """Rows of both sides, of an hour: `key`, `ts` (int64 microseconds, ascending), and `v` or `w` (float64)."""
    n = int(n * case.rows)
    sides = []
    for seed, value in ((1, "v"), (2, "w")):
        rng = np.random.default_rng(seed)
        key = pa.array(rng.integers(0, case.keys, n).astype(np.int32))
        if case.strings:
            names = pa.array([f"customer-{i:07d}" for i in range(case.keys)])
            key = pa.DictionaryArray.from_arrays(key, names).dictionary_decode()
        ts = np.sort(rng.integers(0, HOUR, n))
        sides.append(pa.table({"key": key, "ts": pa.array(ts), value: pa.array(rng.random(n))}))
    return sides[0], sides[1]


def ours(case: Case, sides: Sides) -> Run:
    """gpuwin: `process` for each batch of both sides, and the end of the streams."""
    span = np.timedelta64
    times = {"left_time": "ts", "right_time": "ts"}
    join: gw.WindowJoin | gw.IntervalJoin | gw.AsOfJoin | gw.HashJoin
    if case.kind == "window":
        window = gw.SlidingWindow(span(case.size, "us"), span(case.slide, "us"))
        join = gw.WindowJoin(window, ["key"], how=case.how, **times)
    elif case.kind == "interval":
        bounds = {"lower": -span(case.size, "us"), "upper": span(case.size, "us")}
        join = gw.IntervalJoin(["key"], how=case.how, **times, **bounds)
    elif case.kind == "as of":
        join = gw.AsOfJoin(["key"], how=case.how, **times)
    else:
        join = gw.HashJoin(["key"], how=case.how)
    left, right = (side.set_column(1, "ts", side["ts"].combine_chunks().view(pa.timestamp("us"))) for side in sides)
    step = -(-len(left) // case.batches)

    def run() -> pa.Table:
        op = join.start()
        parts = [op.process(left.slice(i * step, step), right.slice(i * step, step)) for i in range(case.batches)]
        return pa.concat_tables([*parts, op.finish()])

    return run


def query(case: Case, dialect: Dialect) -> str:
    """The query of a case, over the tables `l` and `r`."""
    if case.kind == "hash":
        return "SELECT l.key, l.ts, v, r.ts AS ts2, w FROM l JOIN r ON l.key = r.key"
    if case.kind == "interval":
        near = f"r.ts BETWEEN l.ts - {case.size} AND l.ts + {case.size}"
        return f"SELECT l.key, l.ts, v, r.ts AS ts2, w FROM l JOIN r ON l.key = r.key AND {near}"
    if case.kind == "as of":
        join = "ASOF LEFT JOIN" if dialect is DUCKDB else "LEFT ASOF JOIN"
        return f"SELECT l.key, l.ts, v, r.ts AS ts2, w FROM l {join} r ON l.key = r.key AND l.ts >= r.ts"
    number = dialect.divided("ts", case.slide)
    copies = ""
    if case.size > case.slide:
        copies = f" CROSS JOIN {dialect.numbers.format(n=case.size // case.slide)} AS o"
        number += " - i"
    a, b = (f"(SELECT key, ts, {v}, {number} AS n FROM {t}{copies})" for t, v in (("l", "v"), ("r", "w")))
    on = "a.key = b.key AND a.n = b.n"
    if case.how in ("semi", "anti"):
        alone = case.how.upper() if dialect is DUCKDB else f"LEFT {case.how.upper()}"
        return f"SELECT a.key, a.n, a.ts, v FROM {a} AS a {alone} JOIN {b} AS b ON {on}"
    return f"SELECT a.key, a.n, a.ts, v, b.ts AS ts2, w FROM {a} AS a {case.how.upper()} JOIN {b} AS b ON {on}"


def polars_run(case: Case, sides: Sides) -> Run:
    """Polars, whose threads are set by its environment."""
    frames = [pl.DataFrame(pl.from_arrow(side)).lazy() for side in sides]
    if case.kind == "hash":
        return lambda: frames[0].join(frames[1], on="key").collect().to_arrow()
    if case.kind == "as of":
        named = frames[1].with_columns(pl.col("ts").alias("ts2"))
        return lambda: frames[0].join_asof(named, on="ts", by="key", check_sortedness=False).collect().to_arrow()
    number = pl.col("ts") // case.slide
    if case.size > case.slide:
        count = case.size // case.slide
        left, right = (f.with_columns(pl.int_ranges(number - (count - 1), number + 1).alias("n")) for f in frames)
        left, right = left.explode("n"), right.explode("n")
    else:
        left, right = (f.with_columns(number.alias("n")) for f in frames)
    return lambda: left.join(right, on=["key", "n"], how=case.how).collect().to_arrow()


CANNOT = {("interval", "Polars"), ("as of", "DataFusion")}
SQL: dict[str, tuple[Dialect, Callable[..., Run]]] = {
    "DuckDB": (DUCKDB, duckdb_run),
    "DataFusion": (DATAFUSION, datafusion_run),
    "chDB": (CHDB, chdb_run),
}


def others(case: Case, sides: Sides) -> dict[str, Run]:
    """The other engines that can do a case, each with its own tables."""
    tables = dict(zip("lr", sides, strict=True))
    runs = {"Polars": polars_run(case, sides)} if (case.kind, "Polars") not in CANNOT else {}
    for name, (dialect, run) in SQL.items():
        if (case.kind, name) not in CANNOT:
            runs[name] = run(tables, query(case, dialect), THREADS)
    return runs


def totals(result: pa.Table) -> list[float]:
    """The number of rows, and the sum of each column of values."""
    return [
        float(len(result)),
        *(float(pc.sum(result[c]).as_py() or 0) for c in ("v", "w") if c in result.column_names),
    ]


def measure(case: Case, rows: int, repeat: int) -> dict[str, Any]:
    """Seconds of each, the best of the repeats. Raises where an answer is not that of gpuwin."""
    sides = rows_of(case, rows)
    runs = {"gpuwin": ours(case, sides)}
    runs |= others(case, sides)
    own = totals(runs["gpuwin"]())
    for name, run in runs.items():
        if not np.allclose(totals(run()), own):
            raise RuntimeError(f"{case.name}: {name} answers {totals(run())}, gpuwin {own}")
    best = best_times(runs, repeat)
    fastest = min(best.keys() - {"gpuwin"}, key=best.__getitem__)
    return {
        "case": case.name,
        "rows": len(sides[0]),
        "pairs": int(own[0]),
        "batches": case.batches,
        "seconds": {name: round(s, 4) for name, s in best.items()},
        "fastest": fastest,
        "ratio": round(best[fastest] / best["gpuwin"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each side")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    load = [round(x, 1) for x in os.getloadavg()]
    head = {"machine": platform.machine(), "cpus": os.cpu_count(), "threads": THREADS, "load_before": load,
            "python": platform.python_version(), "peers": {p: version(p) for p in PEERS}}  # fmt: skip
    results = []
    for case in (c for c in CASES if args.only in c.name):
        results.append(measure(case, args.rows, args.repeat))
        print(json.dumps(results[-1]), flush=True)
        if args.json:  # after each, so that a run that is cut short leaves what it has
            lines = ",\n".join(f"  {json.dumps(result)}" for result in results)
            args.json.write_text(f'{json.dumps(head)[:-1]},\n "results": [\n{lines}\n]}}\n')
    print("\nthe worst first")
    for result in sorted(results, key=lambda r: r["ratio"]):
        seconds = "  ".join(f"{name} {s:.3f}" for name, s in result["seconds"].items())
        print(f"{result['ratio']:6.2f} {result['case']:48s} {seconds}")


if __name__ == "__main__":
    main()
