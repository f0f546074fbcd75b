"""A specification on a streaming DataFrame: what of it Spark has to know, and the operator that it becomes there."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gpuwin.accumulations import Accumulation
from gpuwin.operator import engine_reads_clock
from gpuwin.plan import plan_of
from gpuwin.progress import WatermarkRule
from gpuwin.snapshots import described
from gpuwin.specification import WindowedAggregation
from gpuwin.specification_json import write_specification
from gpuwin.watermarks import EventClock, ExplicitWatermark, MultipleInputs, SystemClock

from .explain import plugin_object
from .java import SparkSetupError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("gpuwin")

_SCALA: Final = "SpecifiedAggregation"


@dataclass(frozen=True)
class RunsAs:
    """How a specification is spread over partitions.

    follows: Spark's watermark moves it, which is that of the whole stream; otherwise its own does, of what a partition
    sees. together: one partition sees all rows. ticks: time that passes without rows can change something.
    """

    follows: bool
    together: bool
    ticks: bool


def runs_as(spec: WindowedAggregation) -> RunsAs:
    """How the specification runs on Spark, so that it gives the rows that it gives on Arrow batches."""
    rule = WatermarkRule(spec.watermark, spec.semantics)
    by_rows = rule.delay is not None
    in_order = not rule.per_key and ((rule.per_row and by_rows) or isinstance(spec.watermark, EventClock))
    follows = isinstance(spec.watermark, ExplicitWatermark) or not (
        rule.per_key or in_order or isinstance(spec.watermark, SystemClock)
    )
    return RunsAs(follows, in_order or not spec.keys, rule.clocked or engine_reads_clock(spec))


def aggregate_stream(df: DataFrame, spec: WindowedAggregation) -> DataFrame:
    """`aggregate` on a streaming DataFrame; see there."""
    from pyspark.sql import DataFrame as SparkDataFrame
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    if isinstance(spec.watermark, MultipleInputs):
        raise SparkSetupError(
            "gw.MultipleInputs has one watermark for each input, and a DataFrame is one input: unite the streams, each "
            "with its own withWatermark, and write watermark=gw.ExplicitWatermark(), which on Spark is theirs"
        )
    if spec.collect_late or spec.collect_merges:
        log.warning("collect_late and collect_merges do nothing on Spark: its progress counts the late rows")
        spec = replace(spec, collect_late=False, collect_merges=False)
    operator = plugin_object(_SCALA)
    there = set(df.columns)  # what is not there is for the plan to say
    read = df.select(*(f"`{name}`" for name in spec.input_names if name in there))
    input_schema = to_arrow_schema(read.schema, timezone="UTC")
    output = from_arrow_schema(plan_of(spec, input_schema).schema, prefer_timestamp_ntz=True)
    text, accumulations = write_specification(spec)
    how = runs_as(spec)
    request = {
        "specification": text,
        "input": _encoded(input_schema),
        "output": _encoded(to_arrow_schema(output, timezone="UTC")),
        "follows": how.follows,
    }
    placing = {
        "inputs": spec.input_names,
        "keys": [] if how.together else list(spec.keys),
        "time": spec.time if how.follows and not isinstance(spec.watermark, ExplicitWatermark) else None,
        "follows": how.follows,
        "ticks": how.ticks,
        "identity": "; ".join(f"{name}: {value}" for name, value in sorted(described(spec).items())),
        "window": repr(spec.window),
        "code": _distributed(df, accumulations),
    }
    java = operator.of(df._jdf, json.dumps(placing), json.dumps(request), output.json())
    return SparkDataFrame(java, df.sparkSession)


def _encoded(schema: pa.Schema) -> str:
    return b64encode(bytes(schema.serialize())).decode()


def _distributed(df: DataFrame, accumulations: Sequence[Accumulation]) -> dict[str, str] | None:
    """Gives the user's code to the executors as Spark gives them Python files; its name and digest."""
    if not accumulations:
        return None
    from numba import cloudpickle

    with _by_value(cloudpickle, accumulations):
        data = cloudpickle.dumps(tuple(accumulations))
    digest = hashlib.sha256(data).hexdigest()
    name = f"gpuwin-accumulations-{digest[:16]}.pickle"
    folder = Path(tempfile.mkdtemp(prefix="gpuwin-"))
    (folder / name).write_bytes(data)
    df.sparkSession.sparkContext.addFile(str(folder / name))
    return {"name": name, "sha256": digest}


@contextmanager
def _by_value(cloudpickle: Any, accumulations: Sequence[Accumulation]) -> Iterator[None]:
    """The modules that the user's functions were written in travel with them: an executor need not have them."""
    names = {getattr(f, "__module__", None) for a in accumulations for f in (a.add, a.merge, a.result)}
    modules = [sys.modules[n] for n in names if n in sys.modules and n != "__main__"]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
