"""State of a running deduplication beside its keys, its counters, and the columns that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from gpuwin.batch.late_rows import LateRows
from gpuwin.deduplication.plan import DeduplicatePlan
from gpuwin.deduplication.remembered_keys import RememberedKeys
from gpuwin.errors import SchemaError
from gpuwin.planning.ingest import check_known, check_time, planned_type
from gpuwin.progress import BEFORE_TIME, Progress


@dataclass(frozen=True, slots=True)
class DeduplicateMetrics:
    """Counters of a deduplication since its start, and the size of its state now. Rows that came in and are counted
    nowhere else were duplicates.
    """

    rows_in: int = 0
    rows_late: int = 0
    rows_null_time: int = 0
    rows_out: int = 0
    keys: int = 0  # that are remembered
    state_bytes: int = 0
    watermark: int | None = None

    @property
    def rows_duplicate(self) -> int:
        return self.rows_in - self.rows_late - self.rows_null_time - self.rows_out


@dataclass(frozen=True, slots=True)
class DeduplicateState:
    """State that a batch replaces as a whole when it has succeeded; the keys change in place. `schema`: of all batches,
    None before the first; `batch`: of the last one, in its encodings.
    """

    schema: pa.Schema | None = None
    batch: pa.Schema | None = None
    progress: Progress = BEFORE_TIME
    finished: bool = False
    late: LateRows = ()  # that nobody has asked for yet
    late_bytes: int = 0
    counted: DeduplicateMetrics = field(default_factory=DeduplicateMetrics)


def planned_schema(plan: DeduplicatePlan, schema: pa.Schema) -> pa.Schema:
    """Columns of the rows, in plain types. Raises SchemaError if they do not fit the specification."""
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise SchemaError(f"the batch has more than one column called {', '.join(repeated)}")
    for what, name in (*(("key column", name) for name in plan.keys), ("time column", plan.time)):
        if name is not None and name not in schema.names:
            raise SchemaError(f"the batch has no {what} {name!r}; it has {schema.names}")
    for name in plan.keys:
        check_known("the key column", name, schema.field(name).type)
    if plan.time is not None:
        check_time(plan.time, schema.field(plan.time).type)
    return pa.schema([pa.field(f.name, planned_type(f.name, f.type)) for f in schema])


def fresh_keys(plan: DeduplicatePlan, schema: pa.Schema) -> RememberedKeys:
    """No keys, of the types of a schema. Raises SchemaError for a type whose values cannot be keys."""
    return RememberedKeys([schema.field(name).type for name in plan.keys])
