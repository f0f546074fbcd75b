"""The usual loops around an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from gpuwin.specification import WindowedAggregation


def run(
    spec: WindowedAggregation,
    batches: Iterable[Any],
    device: str = "auto",
    clock: Callable[[], int] | None = None,
) -> Iterator[pa.Table]:
    """Starts an operator, and yields a table for each batch and one for the end of the stream."""
    operator = spec.start(device=device, clock=clock)
    for batch in batches:
        yield operator.process(batch)
    yield operator.finish()


def aggregate(table: Any, spec: WindowedAggregation, device: str = "auto") -> pa.Table:
    """Everything that `spec` emits for one table of input."""
    operator = spec.start(device=device)
    first = operator.process(table)
    return pa.concat_tables([first, operator.finish()])
