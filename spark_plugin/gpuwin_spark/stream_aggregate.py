"""A specification on a streaming DataFrame: what of it Spark has to know, and the operator that it becomes there."""

from __future__ import annotations

import json
import logging
import tempfile
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gpuwin.aggregation import WindowedAggregation
from gpuwin.planning.plan import plan_of
from gpuwin.progress import WatermarkRule
from gpuwin.snapshots import described
from gpuwin.vocabulary.accumulations import Accumulation
from gpuwin.vocabulary.specification_json import write_specification
from gpuwin.vocabulary.watermarks import EventClock, ExplicitWatermark, MultipleInputs, SystemClock

from .columns import arrow_schema_of, in_arrow, read_columns
from .errors import SparkSetupError
from .explain import plugin_object
from .user_code import code_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("gpuwin")

_SCALA: Final = "SpecifiedAggregation"
_ANOTHER: Final = -2
_LONGEST_MS: Final = 1000 * 365 * 24 * 3600 * 1000


@dataclass(frozen=True)
class RunsAs:
    """Way in which a specification is spread over partitions.

    follows: Spark's watermark moves it, which is that of the whole stream; otherwise its own does, of what a partition
    sees. together: one partition sees all rows. ticks: time that passes without rows can change something.
    """

    follows: bool
    together: bool
    ticks: bool


def runs_as(spec: WindowedAggregation) -> RunsAs:
    """Way in which the specification runs on Spark, so that it gives the rows that it gives on Arrow batches."""
    rule = WatermarkRule(spec.watermark, spec.semantics)
    by_rows = rule.delay is not None
    in_order = not rule.per_key and ((rule.per_row and by_rows) or isinstance(spec.watermark, EventClock))
    follows = isinstance(spec.watermark, ExplicitWatermark) or not (
        rule.per_key or in_order or isinstance(spec.watermark, SystemClock)
    )
    return RunsAs(follows, in_order or not spec.keys, rule.clocked or spec.trigger_reads_clock)


def aggregate_stream(df: DataFrame, spec: WindowedAggregation) -> DataFrame:
    """`aggregate` on a streaming DataFrame; see there."""
    from pyspark.sql import DataFrame as SparkDataFrame
    from pyspark.sql.pandas.types import from_arrow_schema

    if isinstance(spec.watermark, MultipleInputs):
        raise SparkSetupError(
            "gw.MultipleInputs has one watermark for each input, and a DataFrame is one input: unite the streams, each "
            "with its own withWatermark, and write watermark=gw.ExplicitWatermark(), which on Spark is theirs"
        )
    if spec.collect_late or spec.collect_merges:
        log.warning("collect_late and collect_merges do nothing on Spark: its progress counts the late rows")
        spec = replace(spec, collect_late=False, collect_merges=False)
    operator = plugin_object(_SCALA)
    read = read_columns(df, spec)
    input_schema = arrow_schema_of(read)
    output = from_arrow_schema(plan_of(spec, input_schema).schema, prefer_timestamp_ntz=True)
    text, accumulations = write_specification(spec)
    how = runs_as(spec)
    request = {
        "specification": text,
        "input": _encoded(input_schema),
        "output": _encoded(in_arrow(output)),
        "follows": how.follows,
    }
    names = spec.input_names
    placing = {
        "keys": [] if how.together else [names.index(key) for key in spec.keys],
        "time": _time_of(operator, read, spec) if how.follows else None,
        "follows": how.follows,
        "delay_ms": delay_ms(spec),
        "no_data": how.follows and spec.semantics.late_filter == "current",
        "ticks": how.ticks,
        "identity": _identity(spec, input_schema),
        "describe": f"[{', '.join(spec.keys)}], {spec.window!r}, {spec.emit!r}",
        "code": _distributed(df, accumulations),
    }
    java = operator.of(read._jdf, json.dumps(placing), json.dumps(request), output.json())
    return SparkDataFrame(java, df.sparkSession)


def _time_of(operator: Any, read: DataFrame, spec: WindowedAggregation) -> int | None:
    """Column that Spark's watermark is to watch; None where it is there already, and the specification's own."""
    if isinstance(spec.watermark, ExplicitWatermark):
        return None
    if spec.time is None:
        raise SparkSetupError(
            "Spark moves a watermark by a column: name one by time=..., also with InheritedWindow, or write "
            "watermark=gw.ExplicitWatermark(), which on Spark is the stream's"
        )
    time = spec.input_names.index(spec.time)
    if operator.watermarkOf(read._jdf, time) == _ANOTHER:
        raise SparkSetupError(
            f"the stream has a watermark that is not on {spec.time!r} alone, and the specification has one of its own: "
            "leave withWatermark out, or write watermark=gw.ExplicitWatermark(), which on Spark is the stream's"
        )
    return time


def delay_ms(spec: WindowedAggregation) -> int:
    """The delay of the watermark that is added to the stream, for which Spark has milliseconds.

    It is the specification's own, rounded up, so that what comes out is not older than Spark's watermark says, by which
    operators above this one and beside it go.
    """
    delay = WatermarkRule(spec.watermark, spec.semantics).delay or 0
    return min(-(-delay // 1000), _LONGEST_MS)


def _identity(spec: WindowedAggregation, columns: pa.Schema) -> str:
    """Text that a checkpoint is compared by: the specification, and the types of what it reads, as in the log."""
    said = {**described(spec), "columns": ", ".join(f"{column.name}: {column.type}" for column in columns)}
    return "; ".join(f"{name}: {value}" for name, value in sorted(said.items()))


def _encoded(schema: pa.Schema) -> str:
    return b64encode(bytes(schema.serialize())).decode()


def _distributed(df: DataFrame, accumulations: Sequence[Accumulation]) -> str | None:
    """Gives the user's code to the executors as Spark gives them Python files; the digest of the file."""
    if not accumulations:
        return None
    name, data, digest = code_of(accumulations)
    context = df.sparkSession.sparkContext
    # Spark tells every task of every file, for as long as the application lives: a query that is started again must not
    # add one each time.
    if not any(url.rpartition("/")[2] == name for url in context.listFiles):
        path = Path(tempfile.mkdtemp(prefix="gpuwin-", dir=context._temp_dir)) / name
        path.write_bytes(data)
        context.addFile(str(path))
    return digest
