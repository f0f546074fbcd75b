"""A specification on a Spark DataFrame: the whole of the engine's semantics, partition by partition.

Here is the static one; `stream_aggregate` has the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from gpuwin.errors import SpecificationError

_PLACE = "place"

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gpuwin.aggregation import WindowedAggregation


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
        gpuwin.SpecificationError: ``spec`` is not a WindowedAggregation, or ``df`` is not a DataFrame of Spark.
        gpuwin.SchemaError: a column is missing, or of a type that the specification cannot take.
        SparkSetupError: a stream without the plugin, or with a watermark that contradicts the specification.
    """
    from pyspark.sql.functions import monotonically_increasing_id
    from pyspark.sql.pandas.types import from_arrow_schema

    from gpuwin.aggregation import WindowedAggregation
    from gpuwin.planning.plan import plan_of

    from .columns import arrow_schema_of, read_columns
    from .map_in_arrow import map_in_arrow

    if not isinstance(spec, WindowedAggregation):
        raise SpecificationError(
            f"aggregate takes a gw.WindowedAggregation, not a {type(spec).__name__}{_instead(spec)}"
        )
    if not hasattr(df, "isStreaming"):
        raise SpecificationError(
            f"aggregate takes a DataFrame of Spark, not {type(df).__name__}; gw.aggregate takes Arrow data"
        )
    if df.isStreaming:
        from .stream_aggregate import aggregate_stream

        return aggregate_stream(df, spec)
    read = read_columns(df, spec)
    schema = plan_of(spec, arrow_schema_of(read)).schema
    device = df.sparkSession.conf.get("spark.gpuwin.device", "auto")
    in_order = spec.semantics.watermark_advance == "row" and spec.semantics.watermark_scope == "stream"
    # A shuffle brings rows in any order: each takes its place along, and they are put back into it. On the way columns
    # are called by number, since mapInArrow takes a dot in a name for a field of a struct.
    names = read.columns
    numbered = read.toDF(*map(_numbered, range(len(names)))).withColumn(_PLACE, monotonically_increasing_id())
    keys = [_numbered(names.index(key)) for key in spec.keys]
    together = numbered.repartition(1) if in_order or not keys else numbered.repartition(*keys)
    return map_in_arrow(
        together, _per_partition(spec, names, str(device)), from_arrow_schema(schema, prefer_timestamp_ntz=True)
    )


def _instead(spec: object) -> str:
    """Words on how Spark does what a specification of another kind says."""
    from gpuwin.deduplication import Deduplicate

    if isinstance(spec, Deduplicate):
        return ": write df.dropDuplicates(keys) or df.dropDuplicatesWithinWatermark(keys)"
    if type(spec).__module__.startswith("gpuwin.joins."):
        return ": write df.join(other, ...), which Spark runs"
    return ""


def _numbered(column: int) -> str:
    return f"c{column}"


def _per_partition(
    spec: WindowedAggregation, names: Sequence[str], device: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)
        if not rows:
            return
        table = pa.Table.from_batches(rows)
        rows.clear()
        table = table.sort_by(_PLACE).drop_columns([_PLACE]).rename_columns(list(names))
        operator = spec.start(device=device)
        for result in (operator.process(table), operator.finish()):
            yield from result.to_batches()

    return run
