"""A specification on a Spark DataFrame: the whole of the engine's semantics, partition by partition.

Here is the static one; `stream_aggregate` has the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

_PLACE = "__gpuwin_place"

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gpuwin.specification import WindowedAggregation


def aggregate(df: DataFrame, spec: WindowedAggregation) -> DataFrame:
    """Applies a specification to a streaming or a static DataFrame.

    A streaming one gets a stateful operator that gives the rows of `WindowedAggregation.start` on the same batches,
    with its state, watermark and checkpoint in Spark's hands; docs/spark_specifications.md says what that means for
    each watermark and clock. It needs the plugin, and a sink in append mode.

    A static one is one batch, and then the stream is over, as with ``gw.aggregate``: for the backfill of a stream, say.
    Rows meet by key, in as many partitions as ``spark.sql.shuffle.partitions`` says, and in the order in which ``df``
    has them; without keys, and where one watermark moves row by row for the whole stream, in one partition. Each
    partition is held in memory while it is aggregated, on the device that ``spark.gpuwin.device`` names, and has a
    watermark and a clock of its own; gpuwin must be installed in the executors' Python. The plugin is not needed.

    Returns:
        A DataFrame of the operator's ``output_schema``; instants with a zone are ``timestamp``, others
        ``timestamp_ntz``.

    Raises:
        TypeError: ``spec`` is not a WindowedAggregation.
        gpuwin.SchemaError: a column is missing, or of a type that the specification cannot take.
        SparkSetupError: a stream without the plugin, or with a watermark that contradicts the specification.
    """
    from pyspark.sql.functions import monotonically_increasing_id
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    from gpuwin.plan import plan_of
    from gpuwin.specification import WindowedAggregation

    if not isinstance(spec, WindowedAggregation):
        raise TypeError(f"aggregate takes a gw.WindowedAggregation, not a {type(spec).__name__}")
    if not hasattr(df, "isStreaming"):
        raise TypeError(f"aggregate takes a DataFrame of Spark, not {type(df).__name__}; gw.aggregate takes Arrow data")
    if df.isStreaming:
        from .stream_aggregate import aggregate_stream

        return aggregate_stream(df, spec)
    there = set(df.columns)  # what is not there is for the plan to say
    read = df.select(*(f"`{name}`" for name in sorted(spec.input_names) if name in there))
    schema = plan_of(spec, to_arrow_schema(read.schema, timezone="UTC")).schema
    device = df.sparkSession.conf.get("spark.gpuwin.device", "auto")
    in_order = spec.semantics.watermark_advance == "row" and spec.semantics.watermark_scope == "stream"
    # A shuffle brings rows in any order: each takes its place along, and they are put back into it.
    placed = read.withColumn(_PLACE, monotonically_increasing_id())
    together = (
        placed.repartition(1) if in_order or not spec.keys else placed.repartition(*(f"`{k}`" for k in spec.keys))
    )
    return together.mapInArrow(_per_partition(spec, str(device)), from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _per_partition(
    spec: WindowedAggregation, device: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)
        if not rows:
            return
        table = pa.Table.from_batches(rows)
        rows.clear()
        table = table.sort_by(_PLACE).drop_columns([_PLACE])
        operator = spec.start(device=device)
        for result in (operator.process(table), operator.finish()):
            yield from result.to_batches()

    return run
