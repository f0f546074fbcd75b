"""Loops around an operator, over batches and over one table, and the times of results for the operator after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwin.aggregation import WindowedAggregation
from gpuwin.deduplication import Deduplicate, DeduplicateOperator
from gpuwin.errors import SchemaError, SpecificationError
from gpuwin.operator import WindowOperator
from gpuwin.planning.ingest import as_table, check_time, found_column, last_instants, planned_time, planned_type
from gpuwin.vocabulary.watermarks import MultipleInputs


def run(
    spec: WindowedAggregation | Deduplicate,
    batches: Iterable[Any],
    device: str = "auto",
    clock: Callable[[], int] | None = None,
) -> Iterator[pa.Table]:
    """Generator of one table for each batch and one for the end of the stream, all of one schema once a batch has come.

    spec: of an aggregation, or of a deduplication.
    batches: any iterable of what `WindowOperator.process` takes; it is read as the tables are asked for. With
    `gw.MultipleInputs` it is of pairs, `(source, batch)`: the number of the input, and a batch of it.

    Raises gw.SpecificationError and gw.SchemaError at once for what is no specification and no stream of batches, and
    from the generator whatever `process` raises.
    """
    if not isinstance(spec, Deduplicate):
        _check(spec, "gw.run(spec, batches)")
    single = isinstance(batches, Mapping) or hasattr(batches, "__arrow_c_array__")
    single |= hasattr(batches, "__arrow_c_stream__") and not isinstance(batches, pa.RecordBatchReader)
    if single or not isinstance(batches, Iterable):
        raise SchemaError(
            f"gw.run takes an iterable of batches, not one {type(batches).__name__}: "
            "write gw.run(spec, [batch]), or gw.aggregate(batch, spec)"
        )
    operator: WindowOperator | DeduplicateOperator = spec.start(device=device, clock=clock)
    if isinstance(operator, WindowOperator) and isinstance(spec.watermark, MultipleInputs):
        return _tables_of_pairs(operator, batches)
    return _tables(operator, batches)


def _tables(operator: WindowOperator | DeduplicateOperator, batches: Iterable[Any]) -> Iterator[pa.Table]:
    for batch in batches:
        yield operator.process(batch)
    yield operator.finish()


def _tables_of_pairs(operator: WindowOperator, pairs: Iterable[Any]) -> Iterator[pa.Table]:
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise SchemaError(
                "with MultipleInputs gw.run takes pairs (source, batch), which say whose rows come, not "
                f"{type(pair).__name__}"
            )
        source, batch = pair
        yield operator.process(batch, source=source)
    yield operator.finish()


def aggregate(table: Any, spec: WindowedAggregation, device: str = "auto") -> pa.Table:
    """Table of all results for one table of input: those of `process`, then those of `finish`."""
    _check(spec, "gw.aggregate(table, spec)")
    operator = spec.start(device=device)
    first = operator.process(table)
    return pa.concat_tables([first, operator.finish()])


def window_time(results: Any) -> pa.Table:
    """Results with a column `window_time` behind the others: the last instant of their window, `window_end` less a
    microsecond, and null where that is null.

    It is the time of a result for the next operator, as Spark's `window_time` is: within the window, and never before
    the `output_watermark` of the operator that has yet to emit it. results: whatever `WindowOperator.process` takes.

    Raises gw.SchemaError if there is no column `window_end` of times, or a `window_time` already.
    """
    data = as_table(results)
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    end = found_column(table, "window_end")
    planned = planned_type("window_end", end.type)
    check_time("window_end", planned)
    if "window_time" in table.schema.names:
        raise SchemaError("the results have a column 'window_time' already: rename or drop it")
    missing = None if not end.null_count else np.asarray(end.is_null())
    type_ = pa.timestamp("us", planned.tz if pa.types.is_timestamp(planned) else None)
    times = pa.array(last_instants(planned_time(table, "window_end", planned)), pa.int64(), mask=missing)
    return table.append_column("window_time", times.cast(type_))


def _check(spec: object, call: str) -> None:
    if not isinstance(spec, WindowedAggregation):
        hint = ""
        if isinstance(spec, Deduplicate):
            hint = "; a deduplication of one table is pa.concat_tables(gw.run(spec, [table]))"
        elif type(spec).__module__.startswith("gpuwin.joins."):
            hint = "; a join goes by its own loop: op = join.start(), and op.process(left=..., right=...)"
        raise SpecificationError(f"write {call}: spec is a gw.WindowedAggregation, not {type(spec).__name__}{hint}")
