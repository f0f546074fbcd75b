"""Sinks of the queries: files with a log, which are Spark's own, and Delta and Iceberg tables, each written in several
ways.

A sink is used on both sides: the driver writes it, and the harness reads what was committed, at any time and without
Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from .stream import OutputRow, counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery


class Sink(Protocol):
    """Where the results of a query go: the folder `out`."""

    def jars(self) -> tuple[Path, ...]:
        """What the driver needs beside gpuwin's jar. Raises `pipelines_harness.maven.Unreachable`."""

    def conf(self) -> Mapping[str, str]:
        """What the driver's session needs."""

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        """Starts the query that writes the results, in the driver."""

    def committed(self, out: Path) -> Counter[OutputRow]:
        """The rows that a reader sees now, as the oracle has them, with how often each is there."""

    def has(self, out: Path, batch: int) -> bool:
        """Whether a batch is in it, whatever Spark knows of that."""

    def table(self, emitted: Iterable[OutputRow]) -> Counter[OutputRow]:
        """What is there once all these rows have come, in this order."""


class ParquetFiles:
    """Spark's own sink: the files that its log names, and no others."""

    def jars(self) -> tuple[Path, ...]:
        return ()

    def conf(self) -> Mapping[str, str]:
        return {}

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        return writer.format("parquet").start(str(out))

    def committed(self, out: Path) -> Counter[OutputRow]:
        found: Counter[OutputRow] = Counter()
        for path in _files(out / "_spark_metadata"):
            found += counted(pq.ParquetFile(path).read())
        return found

    def has(self, out: Path, batch: int) -> bool:
        return any((out / "_spark_metadata" / name).exists() for name in (str(batch), f"{batch}.compact"))

    def table(self, emitted: Iterable[OutputRow]) -> Counter[OutputRow]:
        return Counter(emitted)


def _files(log: Path) -> list[Path]:
    """Batches after the newest compacted file are in files of their own."""
    if not log.exists():
        return []
    compact = max((int(p.stem) for p in log.glob("*.compact") if p.stem.isdigit()), default=-1)
    newer = sorted((p for p in log.iterdir() if p.name.isdigit() and int(p.name) > compact), key=lambda p: int(p.name))
    entries = [log / f"{compact}.compact"] * (compact >= 0) + newer
    lines = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()[1:]]
    return [Path(unquote(urlparse(line["path"]).path)) for line in lines if line["action"] == "add"]


class Delta:
    """A Delta table to which Delta's own sink appends. It knows the batches that it has."""

    def jars(self) -> tuple[Path, ...]:
        from pipelines_harness.delta import delta_jars

        return delta_jars()

    def conf(self) -> Mapping[str, str]:
        from pipelines_harness.delta import CONF

        return {**CONF, "spark.databricks.delta.snapshotPartitions": "1"}

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        return writer.format("delta").start(str(out))

    def committed(self, out: Path) -> Counter[OutputRow]:
        from pipelines_harness.delta import tables_in

        return sum(map(counted, tables_in(out)), Counter())

    def has(self, out: Path, batch: int) -> bool:
        from pipelines_harness.delta import actions_in

        return any(action["txn"]["version"] == batch for action in actions_in(out) if "txn" in action)

    def table(self, emitted: Iterable[OutputRow]) -> Counter[OutputRow]:
        return Counter(emitted)


class DeltaByBatch(Delta):
    """A Delta table to which a function of foreachBatch appends, with the number of the batch."""

    def conf(self) -> Mapping[str, str]:
        # Delta leaves out a batch that it has, and then Spark 4.2 fails the query once, after the batch.
        return {**super().conf(), "spark.sql.streaming.stateStore.commitValidation.enabled": "false"}

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        def append(batch: DataFrame, number: int) -> None:
            told = {"txnAppId": "the query of this checkpoint", "txnVersion": str(number)}
            batch.write.format("delta").mode("append").options(**told).save(str(out))

        return writer.foreachBatch(append).start()


class DeltaForgetful(Delta):
    """A Delta table to which a function of foreachBatch appends what it is given: the fault that a test has to find."""

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        def append(batch: DataFrame, number: int) -> None:
            batch.write.format("delta").mode("append").option("userMetadata", str(number)).save(str(out))

        return writer.foreachBatch(append).start()

    def has(self, out: Path, batch: int) -> bool:
        return _says(out, batch)


class DeltaMerged(Delta):
    """A Delta table in which results of update mode take the place of those of the same key and window."""

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        def merge(batch: DataFrame, number: int) -> None:
            spark = batch.sparkSession
            spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{out}` ({batch.schema.toDDL()}) USING delta")
            batch.createOrReplaceTempView("changes")
            spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", str(number))
            spark.sql(_merge(f"delta.`{out}`"))

        return writer.foreachBatch(merge).start()

    def has(self, out: Path, batch: int) -> bool:
        return _says(out, batch)

    def table(self, emitted: Iterable[OutputRow]) -> Counter[OutputRow]:
        return Counter({row[:3]: row for row in emitted}.values())


def _says(out: Path, batch: int) -> bool:
    """Whether a commit of a Delta table has the number of a batch for its user's metadata."""
    from pipelines_harness.delta import actions_in

    return any(action.get("commitInfo", {}).get("userMetadata") == str(batch) for action in actions_in(out))


def _merge(table: str) -> str:
    """The statement by which the view of changes takes its place in a table."""
    return (
        f"MERGE INTO {table} AS t USING changes AS c "
        "ON t.key <=> c.key AND t.start = c.start AND t.end = c.end "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


class Iceberg:
    """An Iceberg table to which Iceberg's own sink appends. Its snapshots name the batches that it has."""

    def jars(self) -> tuple[Path, ...]:
        from pipelines_harness.iceberg import iceberg_jars

        return iceberg_jars()

    def conf(self) -> Mapping[str, str]:
        from pipelines_harness.iceberg import CONF

        return CONF

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        return writer.format("iceberg").toTable(_table_for(results, out))

    def committed(self, out: Path) -> Counter[OutputRow]:
        from pipelines_harness.iceberg import tables_in

        return sum(map(counted, tables_in(out / "db" / "results")), Counter())

    def has(self, out: Path, batch: int) -> bool:
        return self._has(out, "spark.sql.streaming.epochId", str(batch))

    def _has(self, out: Path, said: str, value: str) -> bool:
        from pipelines_harness.iceberg import snapshots_in

        return any(snapshot["summary"].get(said) == value for snapshot in snapshots_in(out / "db" / "results"))

    def table(self, emitted: Iterable[OutputRow]) -> Counter[OutputRow]:
        return Counter(emitted)


def _table_for(results: DataFrame, out: Path) -> str:
    """The name of the table in the folder; a new table where there is none."""
    from pipelines_harness.iceberg import WAREHOUSE

    spark, table = results.sparkSession, "lake.db.results"
    spark.conf.set(WAREHOUSE, str(out))
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({results.schema.toDDL()}) USING iceberg")
    return table


class IcebergForgetful(Iceberg):
    """An Iceberg table to which a function of foreachBatch appends what it is given: the fault to be found."""

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        table = _table_for(results, out)

        def append(batch: DataFrame, number: int) -> None:
            batch.writeTo(table).option("snapshot-property.batch", str(number)).append()

        return writer.foreachBatch(append).start()

    def has(self, out: Path, batch: int) -> bool:
        return self._has(out, "batch", str(batch))


class IcebergByBatch(IcebergForgetful):
    """An Iceberg table to which a function of foreachBatch appends, unless a snapshot has the number of the batch."""

    def conf(self) -> Mapping[str, str]:
        # The function leaves out a batch that the table has, and then Spark 4.2 fails the query once, after the batch.
        return {**super().conf(), "spark.sql.streaming.stateStore.commitValidation.enabled": "false"}

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        table = _table_for(results, out)

        def append(batch: DataFrame, number: int) -> None:
            snapshots = batch.sparkSession.table(f"{table}.snapshots")
            if snapshots.where(f"summary['batch'] = '{number}'").isEmpty():
                batch.writeTo(table).option("snapshot-property.batch", str(number)).append()

        return writer.foreachBatch(append).start()


class IcebergMerged(IcebergForgetful):
    """An Iceberg table in which results of update mode take the place of those of the same key and window."""

    def start(self, results: DataFrame, writer: DataStreamWriter, out: Path) -> StreamingQuery:
        table = _table_for(results, out)

        def merge(batch: DataFrame, number: int) -> None:
            batch.createOrReplaceTempView("changes")
            batch.sparkSession.conf.set("spark.sql.iceberg.snapshot-property.batch", str(number))
            batch.sparkSession.sql(_merge(table))

        return writer.foreachBatch(merge).start()

    def table(self, emitted: Iterable[OutputRow]) -> Counter[OutputRow]:
        return Counter({row[:3]: row for row in emitted}.values())


SINKS: Final[dict[str, Sink]] = {
    "parquet": ParquetFiles(),
    "delta": Delta(),
    "delta by batch": DeltaByBatch(),
    "delta forgetful": DeltaForgetful(),
    "delta merged": DeltaMerged(),
    "iceberg": Iceberg(),
    "iceberg by batch": IcebergByBatch(),
    "iceberg forgetful": IcebergForgetful(),
    "iceberg merged": IcebergMerged(),
}
