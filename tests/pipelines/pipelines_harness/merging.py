"""The function of foreachBatch by which docs/pipelines.md says to write windows in update mode."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame


def merged_into(table: str) -> Callable[[DataFrame, int], None]:
    """A MERGE into a table of Delta or Iceberg: rows take the place of those of the same key and window."""

    def merge(batch: DataFrame, _: int) -> None:
        batch.createOrReplaceTempView("changes")
        batch.sparkSession.sql(
            f"MERGE INTO {table} AS t USING changes AS c "
            "ON t.k <=> c.k AND t.start = c.start AND t.stop = c.stop "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return merge
