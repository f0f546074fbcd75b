"""Late rows as they came, kept batch by batch and returned as one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.errors import SchemaError
from gpuwin.planning.ingest import dictionaries_join, plain_type, recoded
from gpuwin.state.buffers import copied, with_own_dictionaries
from gpuwin.state.keys.dictionary import FEWER

LateRows = tuple[pa.Table, ...]
_WIDER = "permissive"


def _takeable(type_: pa.DataType) -> pa.DataType:
    """Type in which Arrow can gather values: views and runs are decoded, and so are dictionaries of types that Arrow
    cannot gather.
    """
    if dictionaries_join(type_) and plain_type(type_) == type_.value_type:
        return type_
    return plain_type(type_)


def _cast(table: pa.Table, types: Callable[[pa.DataType], pa.DataType]) -> pa.Table:
    """The table in other types, cast column by column: a name may be there more than once."""
    schema = pa.schema([field.with_type(types(field.type)) for field in table.schema], table.schema.metadata)
    columns = [
        pa.chunked_array([recoded(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _taken(table: pa.Table, places: np.ndarray) -> pa.Table:
    """Rows at some places (int64[n]), in memory of their own. Arrow gathers indices, and shares dictionaries."""
    taken = table.take(pa.array(places))
    columns = [
        pa.chunked_array([_own(chunk) for chunk in column.chunks], column.type) for column in taken.itercolumns()
    ]
    return pa.Table.from_arrays(columns, schema=taken.schema)


def _own(array: pa.Array) -> pa.Array:
    """Gathered values, with dictionaries of their own. Of one far larger than the rows only their values are taken."""
    type_ = array.type
    if not pa.types.is_dictionary(type_):
        return with_own_dictionaries(array)
    if len(array.dictionary) <= FEWER * len(array):
        return copied(array)
    used = array.indices.drop_null().unique().sort()
    places = pc.index_in(array.indices, value_set=used).cast(type_.index_type)
    return pa.DictionaryArray.from_arrays(places, array.dictionary.take(used), ordered=type_.ordered)


def kept(late: LateRows, batch: pa.Table | pa.RecordBatch, places: Sequence[np.ndarray]) -> LateRows:
    """Late rows so far, with those at `places` (int64[n] each, in any order) of a batch.

    Raises SchemaError where they cannot stand in one table with those that are kept already.
    """
    if not places:
        return late
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    if any(field.type != _takeable(field.type) for field in table.schema):
        table = _cast(table, _takeable)
    table = _taken(table, np.sort(np.concatenate(places)))
    if late and late[-1].schema != table.schema:
        try:
            pa.unify_schemas([_cast(t.slice(0, 0), plain_type).schema for t in (*late, table)], promote_options=_WIDER)
        except pa.ArrowException as error:
            raise SchemaError(
                f"the late rows of this batch and those that are kept cannot stand in one table: {error}; "
                "call late_rows() before a batch with other columns"
            ) from error
    return (*late, table)


def one_table(late: LateRows, batch: pa.Schema | None) -> pa.Table:
    """All late rows in order of arrival. Where their schemas differ, the types hold the values of all. Where there are
    none, the table is that of no row of a batch (None: none has come).
    """
    if not late:
        return pa.table({}) if batch is None else _cast(batch.empty_table(), _takeable)
    if all(table.schema == late[0].schema for table in late):
        return pa.concat_tables(late)
    return pa.concat_tables([_cast(table, plain_type) for table in late], promote_options=_WIDER)
