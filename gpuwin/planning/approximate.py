"""Which aggregates of a specification are answered from sketches, and which from the rows themselves."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from gpuwin.state.rows.sketches import AnySketch, Distinct, Ranks
from gpuwin.vocabulary.aggregates import APPROXIMATE, HOLISTIC, Aggregate
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Trigger


def sketches_of(spec: Specification, types: Mapping[str, pa.DataType]) -> dict[str, AnySketch]:
    """By the name of the aggregate. None where rows are kept anyway, which then answer exactly: for an aggregate that
    needs them, an evictor that looks at them, or values that no sketch takes."""
    emit, found = spec.emit, {}
    if isinstance(emit, Trigger) and emit.evict is not None:
        return {}
    for name, a in spec.aggregates.items():
        if _keeps_rows(a):
            return {}
        if a.kind in APPROXIMATE and a.column is not None:
            sketch = _sketch(a, types[a.column])
            if sketch is None:
                return {}
            found[name] = sketch
    return found


def _keeps_rows(a: Aggregate) -> bool:
    ordered = a.accumulation is not None and a.accumulation.ordered
    return ordered or a.kind in HOLISTIC - APPROXIMATE


def _sketch(a: Aggregate, type_: pa.DataType) -> AnySketch | None:
    if a.kind == "approx_count_distinct":
        return Distinct.of(a.accuracy) if Distinct.takes(type_) else None
    return Ranks.of(type_, int(a.accuracy)) if Ranks.takes(type_) else None
