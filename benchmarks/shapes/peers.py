"""Other engines at the same work, each in the form that its users would write, from rows in its own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import chdb.session
import datafusion
import duckdb
import polars as pl
import pyarrow as pa
from shapes import Shape

Run = Callable[[], pa.Table]


@dataclass(frozen=True)
class Dialect:
    """What differs between three dialects of SQL.

    Attributes:
        functions: aggregates by name.
        floor: integer division of two expressions.
        numbers: a relation of one column `i`, of the numbers from 0 to below `n`.
    """

    functions: dict[str, str]
    floor: str
    numbers: str

    def divided(self, what: str, by: int) -> str:
        """Integer division."""
        return self.floor.format(what, by)


COMMON = {
    "count": "count(*)", "sum": "sum(v)", "mean": "avg(v)", "min": "min(v)", "max": "max(v)",
    "std": "stddev_samp(v)", "own": "sum(v * v)",
}  # fmt: skip
DUCKDB = Dialect(
    {**COMMON, "first": "arg_min(v, ts)", "last": "arg_max(v, ts)", "distinct": "count(DISTINCT u)",
     "median": "median(v)", "quantile": "quantile_cont(v, 0.9)", "top": "max(v, 3)", "list": "list(v)"},
    "({} // {})", "(SELECT range AS i FROM range({n}))",
)  # fmt: skip
DATAFUSION = Dialect(
    {**COMMON, "first": "first_value(v ORDER BY ts)", "last": "last_value(v ORDER BY ts)",
     "distinct": "count(DISTINCT u)", "median": "median(v)",
     "quantile": "percentile_cont(0.9) WITHIN GROUP (ORDER BY v)",
     "top": "array_slice(array_agg(v ORDER BY v DESC), 1, 3)", "list": "array_agg(v)"},
    "({} / {})", "(SELECT unnest(range(0, {n})) AS i)",
)  # fmt: skip
CHDB = Dialect(
    {**COMMON, "std": "stddevSamp(v)", "first": "argMin(v, ts)", "last": "argMax(v, ts)", "distinct": "uniqExact(u)",
     "median": "quantileExactInclusive(0.5)(v)", "quantile": "quantileExactInclusive(0.9)(v)",
     "top": "arraySlice(arrayReverseSort(groupArray(v)), 1, 3)", "list": "groupArray(v)"},
    "intDiv({}, {})", "(SELECT number AS i FROM numbers({n}))",
)  # fmt: skip
#: How the aggregate of a window follows from those of its panes.
OF_PANES = {"count": "sum({0})", "sum": "sum({0})", "min": "min({0})", "max": "max({0})"}


def query(shape: Shape, dialect: Dialect) -> str:
    """The query of a shape."""
    keys = shape.key_columns
    by = "".join(f"{k}, " for k in keys)
    aggregates = ", ".join(f"{dialect.functions[a]} AS {a}_" for a in shape.aggregates)
    pane = dialect.divided("ts", shape.slide or 1)
    if shape.kind == "tumbling":
        return f"SELECT {by}{dialect.divided('ts', shape.size)} AS w, {aggregates} FROM t GROUP BY {by}w"
    if shape.kind == "session":
        return _sessions(keys, aggregates, shape.size)
    n = shape.size // shape.slide
    if shape.copies:
        numbers = dialect.numbers.format(n=n)
        copies = f"(SELECT {by}{pane} - i AS w, t.* EXCEPT_KEYS FROM t CROSS JOIN {numbers} AS o)"
        columns = ", ".join(c for c in ("ts", "v", "u") if c in _used(shape))
        copies = copies.replace("t.* EXCEPT_KEYS", columns)
        return f"SELECT {by}w, {aggregates} FROM {copies} AS c GROUP BY {by}w"
    panes = f"(SELECT {by}{pane} AS w, {aggregates} FROM t GROUP BY {by}w) AS p"
    over = ", ".join(f"{OF_PANES[a].format(a + '_')} OVER windows AS {a}_" for a in shape.aggregates)
    partition = "PARTITION BY " + ", ".join(keys)
    if shape.kind == "cumulative":
        partition += f", {dialect.divided('w', n)}"
        frame = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    else:
        frame = f"RANGE BETWEEN {n - 1} PRECEDING AND CURRENT ROW"
    return f"SELECT {by}w, {over} FROM {panes} WINDOW windows AS ({partition} ORDER BY w {frame})"


def _used(shape: Shape) -> set[str]:
    values = {"v"} if set(shape.aggregates) - {"count", "distinct"} else set()
    times = {"ts"} if {"first", "last"} & set(shape.aggregates) else set()
    return values | times | ({"u"} if "distinct" in shape.aggregates else set())


def _sessions(keys: Sequence[str], aggregates: str, gap: int) -> str:
    by = ", ".join(keys)
    before = f"lag(ts) OVER (PARTITION BY {by} ORDER BY ts)"
    cuts = f"SELECT {by}, ts, v, CASE WHEN ts - {before} >= {gap} THEN 1 ELSE 0 END AS cut FROM t"
    running = f"sum(cut) OVER (PARTITION BY {by} ORDER BY ts ROWS UNBOUNDED PRECEDING)"
    numbered = f"SELECT *, {running} AS session FROM ({cuts}) AS cuts"
    return f"SELECT {by}, min(ts) AS w, {aggregates} FROM ({numbered}) AS numbered GROUP BY {by}, session"


def duckdb_run(shape: Shape, rows: pa.Table, threads: int) -> Run:
    """DuckDB, from a table of its own."""
    connection = duckdb.connect()
    connection.execute(f"SET threads={threads}")
    connection.register("given", rows)
    connection.execute("CREATE TABLE t AS SELECT * FROM given")
    text = query(shape, DUCKDB)
    return lambda: connection.sql(text).to_arrow_table()


def datafusion_run(shape: Shape, rows: pa.Table, threads: int) -> Run:
    """DataFusion, from record batches, which are what it has in memory."""
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(threads))
    batches = rows.to_batches(max_chunksize=1 << 16)
    context.register_record_batches("t", [batches[i::threads] for i in range(threads)])
    text = query(shape, DATAFUSION)
    return lambda: context.sql(text).to_arrow_table()


def chdb_run(shape: Shape, rows: pa.Table, threads: int) -> Run:
    """chDB, from a table of its own."""
    session = chdb.session.Session()
    session.query(f"SET max_threads={threads}")
    session.query("DROP TABLE IF EXISTS t")  # of the shape before: sessions of a process share their tables
    given = rows  # found by its name
    session.query("CREATE TABLE t ENGINE = Memory AS SELECT * FROM Python(given)")
    assert given is rows
    text = query(shape, CHDB)
    return lambda: session.query(text, "ArrowTable")


def polars_run(shape: Shape, rows: pa.Table, threads: int) -> Run:
    """Polars, whose threads are set by its environment."""
    del threads
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return lambda: _polars(shape, frame.lazy()).collect().to_arrow()


def _polars(shape: Shape, rows: pl.LazyFrame) -> pl.LazyFrame:
    v, keys = pl.col("v"), shape.key_columns
    functions: dict[str, Callable[[], pl.Expr]] = {
        "count": lambda: pl.len().cast(pl.Int64),
        "sum": v.sum,
        "mean": v.mean,
        "min": v.min,
        "max": v.max,
        "std": v.std,
        "first": lambda: v.sort_by("ts").first(),
        "last": lambda: v.sort_by("ts").last(),
        "distinct": pl.col("u").n_unique,
        "median": v.median,
        "quantile": lambda: v.quantile(0.9, "linear"),
        "top": lambda: v.top_k(3),
        "list": lambda: v.implode(),
        "own": lambda: (v * v).sum(),
    }
    aggregates = [functions[a]().alias(f"{a}_") for a in shape.aggregates]
    if shape.kind == "session":
        cut = pl.any_horizontal(pl.col("ts").diff() >= shape.size, *(pl.col(k).diff() != 0 for k in keys))
        numbered = rows.sort(*keys, "ts").with_columns(cut.fill_null(True).cum_sum().alias("session"))
        return numbered.group_by("session").agg(*(pl.col(k).first() for k in keys), pl.col("ts").first(), *aggregates)
    if shape.kind == "tumbling":
        return rows.group_by(*keys, (pl.col("ts") // shape.size).alias("w")).agg(aggregates)
    n, pane = shape.size // shape.slide, (pl.col("ts") // shape.slide).alias("w")
    if shape.copies:
        windows = pl.int_ranges(pane - (n - 1), pane + 1).alias("w")
        return rows.with_columns(windows).explode("w").group_by(*keys, "w").agg(aggregates)
    panes = rows.group_by(*keys, pane).agg(aggregates).sort(*keys, "w")
    if shape.kind == "sliding":
        summed = [pl.col(f"{a}_").sum() for a in shape.aggregates]
        return panes.rolling("w", period=f"{n}i", group_by=keys).agg(summed)
    running = [pl.col(f"{a}_").cum_sum().over(*keys, pl.col("w") // n) for a in shape.aggregates]
    return panes.with_columns(running)


PEERS: dict[str, Callable[[Shape, pa.Table, int], Run]] = {
    "Polars": polars_run,
    "DuckDB": duckdb_run,
    "DataFusion": datafusion_run,
    "chDB": chdb_run,
}


def version(peer: str) -> str:
    """Its version, for the record."""
    modules: dict[str, Any] = {"Polars": pl, "DuckDB": duckdb, "DataFusion": datafusion, "chDB": chdb}
    return str(modules[peer].__version__)
