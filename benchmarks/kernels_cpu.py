# ruff: noqa: E402
"""The CPU kernels beside Polars, DuckDB and a plain Numba loop: rows in memory as Arrow, result as Arrow, the same
number of threads for all; and beside that loop without a result, as a harder bar.

    python benchmarks/kernels_cpu.py [--rows 10_000_000] [--repeat 5] [--order time|random] [--only NAME] [--json FILE]

Prints seconds (the best of the repeats, which alternate between the contestants) and how many times as fast the kernels
are; with `--json` the processor time of all threads is kept too, which other load hardly moves. The first part calls
the state and its kernels as an operator does for one batch; the second drives the public `op.process` with the same
rows in 1, 10 and 1,000 batches.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = int(os.environ.get("GPUWIN_THREADS", "2"))
for _name in ("GPUWIN_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = str(THREADS)  # before any of them is imported

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from layouts import COUNT_SUM, FIVE_AGGREGATES, MINUTE
from plain_loops import plain_loops

import gpuwin as gw
from gpuwin.grid import WindowGrid
from gpuwin.state import KeyDictionary, PaneState, Run
from gpuwin_kernels.cpu.rows import RowInput, aggregate_rows
from gpuwin_kernels.layout import CellLayout

Contestant = Callable[[], Any]


def rows_of(n: int, keys: int, span: int, order: str, kind: str = "int") -> pa.Table:
    rng = np.random.default_rng(7)
    ts = rng.integers(0, span, n)
    if order == "time":
        ts.sort()
    key = rng.integers(0, keys, n)
    column: pa.Array = pa.array(key)
    if kind != "int":
        names = pa.array([f"customer-{i:07d}" for i in range(keys)])
        column = pa.DictionaryArray.from_arrays(pa.array(key.astype(np.int32)), names)
        if kind == "plain":
            column = column.dictionary_decode()
    return pa.table({"ts": ts, "key": column, "v": rng.normal(size=n)})


def aggregated(layout: CellLayout, inputs: list[RowInput], code: Any, time_: Any, width: int, *, codes: int) -> Run:
    """The cells of rows."""
    cells = aggregate_rows(layout, inputs, code, time_, width, codes=codes)
    return Run(cells.pane, cells.code, cells.columns)


def ours(table: pa.Table, layout: CellLayout, grid: WindowGrid) -> pa.Table:
    """What an operator does with one batch and an end of stream."""
    state = PaneState.empty(layout, [table.schema.field("key").type])
    time_ = table["ts"].chunk(0).to_numpy()
    code = state.keys.coded([table["key"]], len(table))
    value = RowInput(table["v"].chunk(0).to_numpy())
    inputs = [RowInput(None), value, value, value][: len(layout.columns)]
    run = aggregated(layout, inputs, code, time_, MINUTE, codes=len(state.keys))
    batch = state.add(run).closing(grid, None, None)
    columns = {c.name: a.values[0] for c, a in zip(layout.columns, batch.columns, strict=True)}
    if len(layout.columns) > 2:
        columns["mean"] = columns["s"] / columns["n"]
    return pa.table({"key": state.keys.take(batch.code)[0], "window": batch.window, **columns})


def polars_tumbling(frame: pl.DataFrame) -> Any:
    v = pl.col("v")
    aggregates = [
        pl.len().alias("n"),
        v.sum().alias("s"),
        v.mean().alias("m"),
        v.min().alias("lo"),
        v.max().alias("hi"),
    ]
    return frame.lazy().group_by((pl.col("ts") // MINUTE).alias("w"), "key").agg(aggregates).collect().to_arrow()


def duckdb_query(table: pa.Table, query: str) -> Contestant:
    connection = duckdb.connect()
    connection.execute(f"SET threads={THREADS}")
    connection.register("t", table)
    return lambda: connection.sql(query).to_arrow_table()


TUMBLING_SQL = f"SELECT ts // {MINUTE} w, key, count(*) n, sum(v) s, avg(v) m, min(v) lo, max(v) hi FROM t GROUP BY ALL"
SLIDING_SQL = f"""
    WITH panes AS (SELECT ts // {MINUTE} w, key, count(*) n, sum(v) s FROM t GROUP BY ALL)
    SELECT w, key, sum(n) OVER last_hour n, sum(s) OVER last_hour s FROM panes
    WINDOW last_hour AS (PARTITION BY key ORDER BY w RANGE BETWEEN 59 PRECEDING AND CURRENT ROW)"""


def polars_sliding(frame: pl.DataFrame) -> Any:
    panes = (
        frame.lazy()
        .group_by((pl.col("ts") // MINUTE).alias("w"), "key")
        .agg(pl.len().cast(pl.Int64).alias("n"), pl.col("v").sum().alias("s"))
    )
    rolled = panes.sort("key", "w").rolling("w", period="60i", group_by="key").agg(pl.col("n").sum(), pl.col("s").sum())
    return rolled.collect().to_arrow()


SESSIONS_SQL = """
    WITH gaps AS (SELECT key, ts, v, CASE WHEN ts - lag(ts) OVER key_by_time > 30000000 THEN 1 ELSE 0 END cut FROM t
                  WINDOW key_by_time AS (PARTITION BY key ORDER BY ts)),
    numbered AS (SELECT *, sum(cut) OVER (PARTITION BY key ORDER BY ts ROWS UNBOUNDED PRECEDING) session FROM gaps)
    SELECT key, min(ts), max(ts), count(*) n, sum(v) s FROM numbered GROUP BY key, session"""


def polars_sessions(frame: pl.DataFrame) -> Any:
    cut = (pl.col("ts").diff() > 30_000_000) | (pl.col("key").diff() != 0)
    numbered = frame.lazy().sort("key", "ts").with_columns(cut.fill_null(True).cum_sum().alias("session"))
    one = (pl.col("key").first(), pl.col("ts").first(), pl.col("ts").last().alias("last"), pl.len(), pl.col("v").sum())
    return numbered.group_by("session").agg(*one).collect().to_arrow()


FIVE = {"n": gw.count(), "s": gw.sum("v"), "m": gw.mean("v"), "lo": gw.min("v"), "hi": gw.max("v")}
TWO = {"n": gw.count(), "s": gw.sum("v")}


def specification(window: gw.TumblingWindow | gw.SlidingWindow | gw.SessionWindow) -> gw.WindowedAggregation:
    aggregates = FIVE if isinstance(window, gw.TumblingWindow) else TWO
    return gw.WindowedAggregation(window=window, keys=["key"], time="ts", aggregates=aggregates)


def through_operator(spec: gw.WindowedAggregation, table: pa.Table, batches: int) -> int:
    """The public way: rows in batches, and the end of the stream. Returns rows emitted."""
    op = spec.start(device="cpu")
    step = len(table) // batches
    emitted = sum(op.process(table.slice(i * step, step)).num_rows for i in range(batches))
    return emitted + op.finish().num_rows


def stamped(table: pa.Table) -> pa.Table:
    return table.set_column(0, "ts", table["ts"].combine_chunks().view(pa.timestamp("us")))


def workloads(n: int, order: str) -> Iterator[tuple[str, dict[str, Contestant]]]:
    hour = 60 * MINUTE
    tumbling = WindowGrid(1, 1)
    for name, keys, kind in (
        ("tumbling, 10,000 int keys", 10_000, "int"),
        ("tumbling, 1,000,000 int keys", 1_000_000, "int"),
        ("tumbling, 10,000 dictionary keys", 10_000, "dictionary"),
        ("tumbling, 10,000 string keys", 10_000, "plain"),
    ):
        table = rows_of(n, keys, hour, order, kind)
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        contestants: dict[str, Contestant] = {
            "gpuwin": lambda t=table: ours(t, FIVE_AGGREGATES, tumbling),  # type: ignore[misc]
            "polars": lambda f=frame: polars_tumbling(f),  # type: ignore[misc]
            "duckdb": duckdb_query(table, TUMBLING_SQL),
            **plain_loops(table, THREADS, 60, keys),
        }
        yield name, contestants
    table = rows_of(n, 10_000, 6 * hour, order)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    yield (
        "sliding 1 h / 1 min, 10,000 keys",
        {
            "gpuwin": lambda: ours(table, COUNT_SUM, WindowGrid(60, 1)),
            "polars": lambda: polars_sliding(frame),
            "duckdb": duckdb_query(table, SLIDING_SQL),
            **plain_loops(table, THREADS, 360, 10_000, 60),
        },
    )
    sessions = specification(gw.SessionWindow("30 seconds"))
    rows = stamped(table)
    yield (
        "session gap 30 s, 10,000 keys",
        {
            "gpuwin": lambda: through_operator(sessions, rows, 10),
            "polars": lambda: polars_sessions(frame),
            "duckdb": duckdb_query(table, SESSIONS_SQL),
        },
    )


def operator_workloads(n: int, order: str) -> Iterator[tuple[str, Callable[[int], int]]]:
    """The same rows through `op.process`, in a number of batches."""
    hour = 60 * MINUTE
    for name, keys, span, window in (
        ("tumbling, 10,000 int keys", 10_000, hour, gw.TumblingWindow("1 minute")),
        ("tumbling, 1,000,000 int keys", 1_000_000, hour, gw.TumblingWindow("1 minute")),
        ("sliding 1 h / 1 min, 10,000 keys", 10_000, 6 * hour, gw.SlidingWindow("1 hour", "1 minute")),
        ("session gap 30 s, 10,000 keys", 10_000, 6 * hour, gw.SessionWindow("30 seconds")),
    ):
        table, spec = stamped(rows_of(n, keys, span, order)), specification(window)
        yield name, lambda batches, t=table, s=spec: through_operator(s, t, batches)  # type: ignore[misc]


@contextmanager
def quiet() -> Iterator[None]:
    """One benchmark at a time on a machine."""
    with open(Path(tempfile.gettempdir()) / "gw-bench.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Measured:
    """The best of the repeats for each contestant, in seconds: that passed, and of processor time of all threads."""

    seconds: dict[str, float]
    processor: dict[str, float]


def measure(contestants: dict[str, Contestant], repeat: int) -> Measured:
    best = {name: (float("inf"), float("inf")) for name in contestants}
    for contestant in contestants.values():
        contestant()  # compiles, and takes memory from the system
    for _ in range(repeat):
        for name, contestant in contestants.items():
            begun, used = time.perf_counter(), time.process_time()
            contestant()
            passed, busy = time.perf_counter() - begun, time.process_time() - used
            best[name] = min(best[name][0], passed), min(best[name][1], busy)
    return Measured({n: b[0] for n, b in best.items()}, {n: b[1] for n, b in best.items()})


def small_batches() -> dict[str, float]:
    """Seconds per batch of 10,000 rows, on the warm path: keys, aggregation, state."""
    table = rows_of(10_000 * 100, 10_000, 60 * MINUTE, "time")
    batches = [table.slice(i * 10_000, 10_000) for i in range(100)]
    keys = KeyDictionary([pa.int64()])
    keys.encode([table["key"]], len(table))
    steps = {"keys": 0.0, "rows": 0.0, "state": 0.0}
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(5):
        steps = dict.fromkeys(steps, 0.0)
        state = PaneState(FIVE_AGGREGATES, keys, PaneState.empty(FIVE_AGGREGATES, [pa.int64()]).heap)
        for batch in batches:
            a = time.perf_counter()
            code = keys.encode([batch["key"].chunk(0)], 10_000)
            b = time.perf_counter()
            value = RowInput(batch["v"].chunk(0).to_numpy())
            ts = batch["ts"].chunk(0).to_numpy()
            run = aggregated(FIVE_AGGREGATES, [RowInput(None), value, value, value], code, ts, MINUTE, codes=len(keys))
            c = time.perf_counter()
            state = state.add(run)
            d = time.perf_counter()
            steps["keys"] += b - a
            steps["rows"] += c - b
            steps["state"] += d - c
        best = {k: min(best[k], steps[k] / len(batches)) for k in steps}
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--order", choices=("time", "random"), default="time")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    processor: dict[str, dict[str, float]] = {}
    title = f"{options.rows:,} rows in order of {options.order}, {THREADS} threads"
    print(f"{title}, seconds (gpuwin is so many times as fast)")
    with quiet():
        for name, contestants in workloads(options.rows, options.order):
            if options.only not in name:
                continue
            measured = measure(contestants, options.repeat)
            results[name], processor[name] = measured.seconds, measured.processor
            seconds = measured.seconds
            own = seconds["gpuwin"]
            others = "  ".join(f"{k} {v:.3f} ({v / own:.2f})" for k, v in seconds.items() if k != "gpuwin")
            print(f"{name:36s} {own:.3f}  {options.rows / own / 1e6:6.0f} M rows/s   {others}", flush=True)
        print("through op.process, seconds in 1, 10 and 1,000 batches")
        for name, drive in operator_workloads(options.rows, options.order):
            if options.only not in name:
                continue
            by_batches = {str(n): lambda n=n, d=drive: d(n) for n in (1, 10, 1000)}  # type: ignore[misc]
            measured = measure(by_batches, options.repeat)
            results[f"op.process, {name}"] = measured.seconds
            processor[f"op.process, {name}"] = measured.processor
            print(f"{name:36s} " + "  ".join(f"{v:.3f}" for v in measured.seconds.values()), flush=True)
        if not options.only:
            results["batch of 10,000 rows"] = small_batches()
            parts = "  ".join(f"{k} {v * 1e6:.0f}" for k, v in results["batch of 10,000 rows"].items())
            print(f"batch of 10,000 rows, microseconds: {parts}")
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "rows": options.rows,
                    "order": options.order,
                    "load": os.getloadavg()[0],
                    "seconds": results,
                    "processor": processor,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
