"""Cells and windows as Arrow tables: reading what came, and building what goes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from .narrow import widened

_CODED: Final = pa.dictionary(pa.int32(), pa.string())


def read_chunks(chunks: list[bytes], schema: pa.Schema) -> pa.Table:
    """Arrow streams, narrow ones too, as one table of one chunk a column, checked against the schema."""
    tables = []
    for chunk in chunks:
        with pa.ipc.open_stream(chunk) as reader:
            table = widened(reader.read_all())
        if table.schema.types != schema.types:
            raise pa.ArrowInvalid(f"cells of types {table.schema.types} came, {schema.types} were announced")
        tables.append(table.rename_columns(schema.names))
    return pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()


def read_rows(chunk: bytes, schema: pa.Schema) -> pa.Table:
    """Rows of an Arrow stream, checked against the schema; columns of strings may come with a dictionary."""
    with pa.ipc.open_stream(chunk) as reader:
        table = reader.read_all()
    types = [pa.string() if t == _CODED else t for t in table.schema.types]
    if types != schema.types:
        raise pa.ArrowInvalid(f"rows of types {table.schema.types} came, {schema.types} were announced")
    return table.combine_chunks()


def column_of(table: pa.Table, at: int) -> pa.Array:
    """A column as one array."""
    column = table.column(at)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def record_batch(
    schema: pa.Schema, keys: Sequence[pa.Array], place: Sequence[np.ndarray], buffers: Sequence[pa.Array]
) -> pa.RecordBatch:
    """Keys, int64 columns that say where in time, and buffers."""
    return pa.RecordBatch.from_arrays([*keys, *(pa.array(p) for p in place), *buffers], schema=schema)


def streamed(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    """Record batches as one Arrow stream; as none where there are none."""
    sink = pa.BufferOutputStream()
    written = 0
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            written += batch.num_rows
    return [sink.getvalue().to_pybytes()] if written else []


def parts_of(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Parts of some rows, of about ``most`` bytes: of at most twice as many, but for a row that has more."""
    step = max(1, most * batch.num_rows // max(1, batch.nbytes))
    for at in range(0, batch.num_rows, step):
        part = batch.slice(at, step)
        if part.num_rows > 1 and part.nbytes > 2 * most:  # rows differ much in size
            yield from parts_of(part, most)
        else:
            yield part
