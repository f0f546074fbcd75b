"""Engines of SQL with tables in their own memory, and one query over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import chdb.session
import datafusion
import duckdb
import pyarrow as pa

Run = Callable[[], pa.Table]
Tables = Mapping[str, pa.Table]


def duckdb_run(tables: Tables, query: str, threads: int) -> Run:
    connection = duckdb.connect()
    connection.execute(f"SET threads={threads}")
    for name, table in tables.items():
        connection.register("given", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
    return lambda: connection.sql(query).to_arrow_table()


def datafusion_run(tables: Tables, query: str, threads: int) -> Run:
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(threads))
    for name, table in tables.items():
        batches = table.to_batches(max_chunksize=1 << 16)
        context.register_record_batches(name, [batches[i::threads] for i in range(threads)])
    return lambda: context.sql(query).to_arrow_table()


def chdb_run(tables: Tables, query: str, threads: int) -> Run:
    """chDB; a row of a left join without a partner has nulls, as in SQL."""
    session = chdb.session.Session()
    session.query(f"SET max_threads={threads}, join_use_nulls=1")
    for name, given in tables.items():
        session.query(f"DROP TABLE IF EXISTS {name}")
        session.query(f"CREATE TABLE {name} ENGINE = Memory AS SELECT * FROM Python(given)")
        assert given.num_rows  # found by its name
    return lambda: session.query(query, "ArrowTable")
