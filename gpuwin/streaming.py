"""Loops around an operator: over batches, and over one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from gpuwin.aggregation import WindowedAggregation
from gpuwin.errors import SchemaError, SpecificationError
from gpuwin.operator import WindowOperator
from gpuwin.vocabulary.watermarks import MultipleInputs


def run(
    spec: WindowedAggregation,
    batches: Iterable[Any],
    device: str = "auto",
    clock: Callable[[], int] | None = None,
) -> Iterator[pa.Table]:
    """Generator of one table for each batch and one for the end of the stream, all of one schema once a batch has come.

    batches: any iterable of what `WindowOperator.process` takes; it is read as the tables are asked for. With
    `gw.MultipleInputs` it is of pairs, `(source, batch)`: the number of the input, and a batch of it.

    Raises gw.SpecificationError and gw.SchemaError at once for what is no specification and no stream of batches, and
    from the generator whatever `process` raises.
    """
    _check(spec, "gw.run(spec, batches)")
    single = isinstance(batches, Mapping) or hasattr(batches, "__arrow_c_array__")
    single |= hasattr(batches, "__arrow_c_stream__") and not isinstance(batches, pa.RecordBatchReader)
    if single or not isinstance(batches, Iterable):
        raise SchemaError(
            f"gw.run takes an iterable of batches, not one {type(batches).__name__}: "
            "write gw.run(spec, [batch]), or gw.aggregate(batch, spec)"
        )
    operator = spec.start(device=device, clock=clock)
    several = isinstance(spec.watermark, MultipleInputs)
    return _tables_of_pairs(operator, batches) if several else _tables(operator, batches)


def _tables(operator: WindowOperator, batches: Iterable[Any]) -> Iterator[pa.Table]:
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


def _check(spec: object, call: str) -> None:
    if not isinstance(spec, WindowedAggregation):
        joins = type(spec).__module__.startswith("gpuwin.joins.")
        hint = "; a join goes by its own loop: op = join.start(), and op.process(left=..., right=...)" if joins else ""
        raise SpecificationError(f"write {call}: spec is a gw.WindowedAggregation, not {type(spec).__name__}{hint}")
