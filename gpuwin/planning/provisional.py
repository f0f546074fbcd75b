"""The output schema before any input has been seen."""

from __future__ import annotations

import pyarrow as pa

from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Trigger

_KNOWN = {
    "count": pa.int64(),
    "any": pa.bool_(),
    "all": pa.bool_(),
    "var": pa.float64(),
    "std": pa.float64(),
    "quantile": pa.float64(),
    "count_distinct": pa.int64(),
    "approx_count_distinct": pa.int64(),
}


def provisional_schema(spec: Specification) -> pa.Schema:
    """Names as they will be; types as far as the specification alone decides them, and null otherwise."""
    fields = [pa.field(name, pa.null()) for name in spec.keys]
    fields += [pa.field("window_start", pa.timestamp("us")), pa.field("window_end", pa.timestamp("us"))]
    fields += [pa.field(name, _KNOWN.get(a.kind, pa.null())) for name, a in spec.aggregates.items()]
    if isinstance(spec.emit, Trigger):
        fields.append(pa.field("pane", pa.string(), nullable=False))
    if spec.accumulation == "retracting":
        fields.append(pa.field("is_retraction", pa.bool_(), nullable=False))
    return pa.schema(fields)
