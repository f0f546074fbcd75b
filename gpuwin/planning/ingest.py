"""From what the user hands in to Arrow columns of the types the operator was planned for, and times in int64
microseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.errors import SchemaError
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN

_PER_UNIT = {"day": 86_400_000_000, "s": 1_000_000, "ms": 1_000}


def as_table(batch: Any) -> pa.Table | pa.RecordBatch:
    """Any object that holds Arrow data: pyarrow, polars, pandas, duckdb, cudf, or whatever has the Arrow PyCapsule
    methods; and a pyarrow dataset or its scanner, as a whole.

    Raises SchemaError if it has none of them.
    """
    if isinstance(batch, pa.Table | pa.RecordBatch):
        return batch
    _check_objects(batch)
    try:
        if hasattr(batch, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(batch).read_all()
            return _without_index(table) if type(batch).__module__.startswith("pandas") else table
        if hasattr(batch, "__arrow_c_array__"):
            return pa.record_batch(batch)
        if hasattr(batch, "__dataframe__") and type(batch).__module__.startswith("pandas"):
            return pa.Table.from_pandas(batch, preserve_index=False)
        if hasattr(batch, "fetch_arrow_table"):  # duckdb relations of before the PyCapsule protocol
            return batch.fetch_arrow_table()
        if hasattr(batch, "to_arrow"):  # cudf
            return as_table(batch.to_arrow())
        if type(batch).__module__ == "pyarrow._dataset" and hasattr(batch, "to_table"):
            return batch.to_table()
        if isinstance(batch, Mapping):
            return pa.table(dict(batch))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"this {type(batch).__name__} cannot be read as Arrow data: {error}") from error
    hint = "; collect() it first" if type(batch).__name__ == "LazyFrame" else ""
    if isinstance(batch, list | tuple):
        of_rows = len(batch) > 0 and all(isinstance(row, Mapping) for row in batch)
        several = "; for several batches there is gw.run(spec, batches)"
        hint = "; pa.Table.from_pylist(rows) makes one of rows" if of_rows else several
    raise SchemaError(
        f"a batch is Arrow data (pyarrow, polars, pandas, duckdb, cudf, anything with __arrow_c_stream__), "
        f"not {type(batch).__name__}{hint}"
    )


def _check_objects(batch: Any) -> None:
    """Raises SchemaError for a polars DataFrame with columns of Python objects, which polars exports as addresses."""
    if not type(batch).__module__.startswith("polars.dataframe"):
        return
    objects = [name for name, type_ in batch.schema.items() if str(type_) == "Object"]
    if objects:
        raise SchemaError(
            f"column {objects[0]!r} of the polars frame has Python objects (polars' type Object), which are no Arrow "
            "data: cast it to another type, or drop it"
        )


def _without_index(table: pa.Table) -> pa.Table:
    """Without the index of a pandas frame where it has no name, as after a filter."""
    return table.drop_columns([name for name in table.schema.names if name.startswith("__index_level_")])


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values, however they are encoded: dictionaries, runs and views are encodings."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if type_ == pa.string_view():
        return pa.string()
    if type_ == pa.binary_view():
        return pa.binary()
    if _is_list(type_):
        item = type_.value_field.with_type(plain_type(type_.value_type))
        if pa.types.is_fixed_size_list(type_):
            return pa.list_(item, type_.list_size)
        narrow = pa.types.is_list(type_) or pa.types.is_list_view(type_)
        return pa.list_(item) if narrow else pa.large_list(item)
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type_])
    return type_


def _is_list(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
        or _is_list_view(type_)
    )


def _is_list_view(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_))


def holds(type_: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type passes a test, or one within it does, at any depth."""
    if test(type_):
        return True
    if isinstance(type_, pa.BaseExtensionType):
        return holds(type_.storage_type, test)
    if pa.types.is_map(type_):
        return holds(type_.key_type, test) or holds(type_.item_type, test)
    if pa.types.is_struct(type_) or pa.types.is_union(type_):
        return any(holds(type_.field(i).type, test) for i in range(type_.num_fields))
    encoded = pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_)
    return (encoded or _is_list(type_)) and holds(type_.value_type, test)


def planned_type(name: str, type_: pa.DataType) -> pa.DataType:
    """Plain type of the column of that name. Raises SchemaError where there are views that cannot be made plain."""
    plain = plain_type(type_)
    if holds(plain, _is_list_view):
        raise SchemaError(
            f"column {name!r} is {type_}: views of lists are not read in maps, unions and extension types; cast them "
            "to lists"
        )
    return plain


def recoded(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """A cast, also of runs, of dictionaries of views or nested values, and of views of lists, which Arrow does not
    cast.
    """
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        values = recoded(array.dictionary, plain_type(array.type.value_type))
        array = pa.DictionaryArray.from_arrays(array.indices, values)
        if not pa.types.is_dictionary(type_):
            array = array.dictionary_decode()
    array = _with_plain_items(array)
    return array if array.type == type_ else array.cast(type_)


def _with_plain_items(array: pa.Array) -> pa.Array:
    """Array whose lists and structs are those of its plain type. Arrow's own cast of views of lists reads beyond their
    offsets.
    """
    type_ = array.type
    if type_ == plain_type(type_):
        return array
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_):
        columns = [_plain_array(array.field(i)) for i in range(type_.num_fields)]
        return pa.StructArray.from_arrays(columns, fields=list(plain_type(type_)), mask=nulls)
    if not _is_list(type_):
        return array
    if pa.types.is_fixed_size_list(type_):
        size = type_.list_size
        items = _plain_array(array.values.slice(array.offset * size, len(array) * size))
        return pa.FixedSizeListArray.from_arrays(items, type=plain_type(type_), mask=nulls)
    items = _plain_array(array.flatten())  # in the order of the lists, without what is in none
    sizes = pc.list_value_length(array).fill_null(0)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.asarray(sizes), dtype=np.int64)))
    if pa.types.is_large_list(type_) or pa.types.is_large_list_view(type_):
        return pa.LargeListArray.from_arrays(pa.array(ends), items, type=plain_type(type_), mask=nulls)
    return pa.ListArray.from_arrays(pa.array(ends).cast(pa.int32()), items, type=plain_type(type_), mask=nulls)


def _plain_array(array: pa.Array) -> pa.Array:
    return recoded(array, plain_type(array.type))


def same_kind(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether a value of plain type `b` may come where `a` was planned: only encodings and units of time may differ."""
    if a == b:
        return True
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b):
        return bool(a.tz == b.tz)
    texts = (pa.string(), pa.large_string())
    blobs = (pa.binary(), pa.large_binary())
    return (a in texts and b in texts) or (a in blobs and b in blobs)


def planned_column(
    batch: pa.Table | pa.RecordBatch, name: str, planned: pa.DataType, keep_codes: bool, given: str = "schema=..."
) -> pa.Array:
    """One contiguous column in the planned type. `keep_codes`: dictionaries are left as they are. `given`: see
    `unknown_type`.
    """
    array = found_column(batch, name)
    type_ = array.type
    if type_ == planned:
        return array
    plain = plain_type(type_)
    if not same_kind(planned, plain):
        if pa.types.is_null(plain):
            return pa.nulls(len(array), planned)
        hint = unknown_type(name, given)
        if not pa.types.is_null(planned):
            hint = f"cast it, or start another operator, with types that hold all batches: start({given})"
        raise SchemaError(f"column {name!r} is {type_}, and was {planned} in the first batch: {hint}")
    codes = keep_codes and pa.types.is_dictionary(type_) and plain_type(type_.value_type) == planned
    try:
        return recoded(array, pa.dictionary(type_.index_type, planned) if codes else planned)
    except pa.ArrowException as error:
        raise SchemaError(f"column {name!r} does not fit the type of the first batch, {planned}: {error}") from error


def planned_time(batch: pa.Table | pa.RecordBatch, name: str, planned: pa.DataType) -> pa.Array:
    """The time column as it came: its unit may change from batch to batch, what it means may not."""
    array = found_column(batch, name)
    if array.type == planned:
        return array
    plain = plain_type(array.type)
    if pa.types.is_null(plain):
        return pa.nulls(len(array), planned)
    if plain != planned and not (is_time(plain) and same_kind(planned, plain)):
        raise SchemaError(f"time column {name!r} is {array.type}, and was {planned} in the first batch: cast it")
    return recoded(array, plain)


def place_of(schema: pa.Schema, name: str) -> int:
    """Where the column of that name is. Raises SchemaError if there is none, or more than one."""
    at = schema.get_field_index(name)
    if at < 0:
        if name in schema.names:
            raise SchemaError(f"column {name!r} is there more than once: rename one of them")
        some = f"it has {', '.join(schema.names[:20])}" if schema.names else "it has no columns"
        raise SchemaError(f"no column {name!r} in the batch; {some}")
    return int(at)


def found_column(batch: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """The column of that name as one array. Raises SchemaError if there is none, or more than one, or if its chunks
    cannot become one.
    """
    column = batch.column(place_of(batch.schema, name))
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return joined_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    except pa.ArrowException as error:
        raise SchemaError(f"the chunks of column {name!r}, {column.type}, cannot become one: {error}") from error


def joined_arrays(arrays: Sequence[pa.Array]) -> pa.Array:
    """At least one array of one plain type, some of which may be dictionaries, one behind the other. Raises
    ArrowInvalid for more than 32-bit offsets reach.
    """
    if len(arrays) == 1:
        return arrays[0]
    type_ = arrays[0].type
    plain = plain_type(type_)
    if all(a.type == type_ for a in arrays[1:]):
        if type_ == plain:
            return pa.concat_arrays(arrays)
        if dictionaries_join(type_):
            try:
                joined = pa.chunked_array(arrays).combine_chunks()
                return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
            except pa.ArrowException:  # of nulls in a dictionary
                pass
    return pa.concat_arrays([_plain_array(a) for a in arrays])


def dictionaries_join(type_: pa.DataType) -> bool:
    """Whether this is a dictionary, and of a type of which Arrow makes one of several. Of nested values it makes none,
    and of float16 one that is wrong: numbers that are the bits of the values.
    """
    return pa.types.is_dictionary(type_) and not (
        pa.types.is_nested(type_.value_type) or pa.types.is_float16(type_.value_type)
    )


def unknown_type(name: str, given: str = "schema=...") -> str:
    """Error about a column that has only nulls in the first batch, and no type. `given`: the arguments of `start` that
    give the types.
    """
    return f"cast it to the type that {name!r} is to have, or give the types beforehand: start({given})"


def check_known(what: str, name: str, type_: pa.DataType, given: str = "schema=...") -> None:
    """Raises SchemaError if a column, the `what` of that name, has only nulls in the first batch. `given`: see
    `unknown_type`.
    """
    if pa.types.is_null(type_):
        raise SchemaError(
            f"{what} {name!r}, which is null, has no type in the first batch: {unknown_type(name, given)}"
        )


def is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))


def check_time(name: str, type_: pa.DataType, given: str = "schema=...") -> None:
    """Raises SchemaError if a column of this type has no times. `given`: see `unknown_type`."""
    check_known("the time column", name, type_, given)
    if not is_time(type_):
        raise SchemaError(
            f"the time column {name!r} is {type_}: it must be an Arrow timestamp (of any unit and zone) or a date"
        )


def instants(array: pa.Array) -> np.ndarray:
    """int64[n] microseconds since the epoch, UTC, saturated, nanoseconds floored; what stands at a null means
    nothing."""
    type_ = array.type
    if pa.types.is_date32(type_):
        return micros_of(np.asarray(array.view(pa.int32()).fill_null(0)).astype(np.int64), "day")
    raw = array.view(pa.int64())
    values = np.frombuffer(raw.buffers()[1] or b"", np.int64)[raw.offset : raw.offset + len(raw)]
    return micros_of(values, "ms" if pa.types.is_date64(type_) else type_.unit)


def last_instants(end: pa.Array) -> np.ndarray:
    """int64[n] microseconds: the last instants of windows with these ends, which are the times of their results."""
    last: np.ndarray = np.maximum(instants(end), INT64_MIN + 1) - 1
    return last


def check_bounds(start: pa.Array, end: pa.Array) -> None:
    """Raises SchemaError for a window, of those that rows bring along, that ends before it starts."""
    wrong = instants(start) > instants(end)
    for known in (valid_mask(start), valid_mask(end)):
        if known is not None:
            wrong &= known
    if wrong.any():
        row = int(wrong.argmax())
        raise SchemaError(
            f"the window of row {row} ends before it starts: window_start is {start[row]}, window_end {end[row]}. "
            "InheritedWindow takes the bounds that another operator gave out"
        )


def micros_of(values: np.ndarray, unit: str) -> np.ndarray:
    """int64[n] microseconds of values in an Arrow unit of time, saturated, nanoseconds floored."""
    if unit == "us":
        return values
    if unit == "ns":
        return values // 1_000
    factor = _PER_UNIT[unit]
    most = INT64_MAX // factor
    if len(values) and (int(values.max()) > most or int(values.min()) < -most):
        exact = np.clip(values, -most, most) * factor
        return np.where(values > most, INT64_MAX, np.where(values < -most, INT64_MIN, exact))
    return values * factor


def valid_mask(array: pa.Array) -> np.ndarray | None:
    """bool[n]: where there is a value; None if everywhere."""
    return np.asarray(array.is_valid()) if array.null_count else None
