"""Output of a join: keys, the window, then the columns of both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwin.joins.side import Found


@dataclass(frozen=True, slots=True)
class JoinOutput:
    """Names of the output columns: `left_keys[i]` and `right_keys[i]` are the columns of key i, `left_rest` and
    `right_rest` the others in order.
    """

    schema: pa.Schema
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    left_rest: tuple[int, ...]
    right_rest: tuple[int, ...]
    left_types: tuple[pa.DataType, ...]
    right_types: tuple[pa.DataType, ...]
    windowed: bool
    cogroup: bool

    @classmethod
    def of(
        cls,
        left: pa.Schema,
        right: pa.Schema,
        keys: Sequence[str],
        zone: str | None,
        *,
        windowed: bool,
        cogroup: bool,
        left_alone: bool = False,
    ) -> JoinOutput:
        """Output of two schemas, or of the left one alone. A key has its name once. A column of the right side whose
        name is taken gets `_right` appended, and one of the left side that is called like a window bound gets `_left`,
        until the name is free.
        """
        fields = [pa.field(name, left.field(name).type) for name in keys]
        if windowed:
            bound = pa.timestamp("us", zone)
            fields += [pa.field("window_start", bound), pa.field("window_end", bound)]
        rest = []
        for schema, suffix, shown in ((left, "_left", True), (right, "_right", not left_alone)):
            columns = [i for i, name in enumerate(schema.names) if shown and name not in keys]
            rest.append(tuple(columns))
            for i in columns:
                name = schema.names[i]
                while any(f.name == name for f in fields):
                    name += suffix
                type_ = schema.field(i).type
                fields.append(pa.field(name, pa.list_(type_) if cogroup else type_))
        return cls(
            pa.schema(fields),
            tuple(left.names.index(k) for k in keys),
            tuple(right.names.index(k) for k in keys),
            rest[0],
            rest[1],
            tuple(left.types),
            tuple(right.types),
            windowed,
            cogroup,
        )

    def table(self, found: Sequence[Found]) -> pa.Table:
        """Table of the pairs in the order in which they were found; of a window join, by key and window."""
        batches = [self._batch(part) for f in found if f.rows for part in f.fitting()]
        return pa.Table.from_batches(batches, schema=self.schema)

    def _batch(self, found: Found) -> pa.RecordBatch:
        left, right = found.left or None, found.right or None  # of a side that was never seen there are no columns
        key_left, key_right = left, right
        if found.firsts is not None:
            key_left, key_right = found.firsts[0] or None, found.firsts[1] or None
        columns = []
        for a, b in zip(self.left_keys, self.right_keys, strict=True):
            if key_left is None or key_right is None:
                columns.append(key_left[a] if key_left is not None else key_right[b])  # type: ignore[index]
            else:
                columns.append(_first_known(key_left[a], key_right[b]))
        if self.windowed:
            bound = self.schema.field("window_start").type
            for edge in (found.window_start, found.window_end):
                whole = pa.nulls(found.rows, pa.int64()) if edge is None else pa.array(edge)
                columns.append(whole.cast(bound))
        for values, rest, types in (
            (left, self.left_rest, self.left_types),
            (right, self.right_rest, self.right_types),
        ):
            columns += [pa.nulls(found.rows, types[i]) if values is None else values[i] for i in rest]
        columns = [v if v.type == type_ else v.cast(type_) for v, type_ in zip(columns, self.schema.types, strict=True)]
        return pa.record_batch(columns, schema=self.schema)


def _first_known(values: pa.Array, others: pa.Array) -> pa.Array:
    """Values, and the others where there is none."""
    if not values.null_count:
        return values
    if pa.types.is_nested(values.type) or isinstance(values.type, pa.BaseExtensionType):
        # Arrow chooses between no extension types, and no nested ones that hold them, but it gathers them.
        at = np.arange(len(values)) + np.where(values.is_valid(), 0, len(values))
        return pa.concat_arrays([values, others]).take(pa.array(at))
    return pc.if_else(values.is_valid(), values, others)
