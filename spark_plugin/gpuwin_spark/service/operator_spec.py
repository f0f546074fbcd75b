"""What Spark says of an operator: its windows, its columns, and how each aggregation buffer is merged."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from gpuwin.state import WindowGrid

from .protocol import ProtocolError

MODES = ("append", "update", "complete")
MERGES = ("sum", "min", "max", "moments", "decimal_sum", "decimal_avg_sum")
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}


@dataclass(frozen=True, slots=True)
class Merge:
    """How one or more buffer columns are merged: see ``MergeSpec.scala``."""

    merge: str
    columns: tuple[int, ...]
    wrap: bool
    nullable: bool
    precision: int


@dataclass(frozen=True)
class OperatorSpec:
    """One windowed aggregation as the service runs it.

    Window ``k`` is ``[origin + k*slide, origin + k*slide + size)`` in microseconds; a cell's row is its keys, the start
    of its pane, and its buffers, of the types ``types`` in that order.
    """

    size: int
    slide: int
    origin: int
    mode: str
    types: tuple[pa.DataType, ...]
    keys: int
    merges: tuple[Merge, ...]

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> OperatorSpec:
        """Reads and checks the specification in an OPEN request.

        Raises:
            ProtocolError: a field is missing, of the wrong type, or out of bounds.
        """
        try:
            size, slide, origin, keys = (int(fields[n]) for n in ("size", "slide", "origin", "keys"))
            mode = str(fields["mode"])
            types = tuple(_parse_type(str(t)) for t in fields["types"])
            merges = tuple(
                Merge(
                    str(m["merge"]),
                    tuple(int(c) for c in m["columns"]),
                    bool(m["wrap"]),
                    bool(m["nullable"]),
                    int(m["precision"]),
                )
                for m in fields["merges"]
            )
        except (KeyError, TypeError, ValueError) as e:
            raise ProtocolError(f"the operator's specification is malformed: {e}") from e
        buffers = len(types) - keys - 1
        if (
            not 0 < slide <= size <= 1 << 62
            or not 0 <= origin < slide
            or mode not in MODES
            or not 0 <= keys < len(types)
        ):
            raise ProtocolError("the operator's specification is out of bounds")
        if types[keys] != pa.int64():
            raise ProtocolError("the pane of a cell must be a bigint")
        if any(m.merge not in MERGES or not all(0 <= c < buffers for c in m.columns) for m in merges):
            raise ProtocolError("the operator's specification names an unknown merge or buffer")
        return cls(size, slide, origin, mode, types, keys, merges)

    @cached_property
    def pane(self) -> int:
        """Width of a pane in microseconds."""
        return math.gcd(self.size, self.slide)

    @cached_property
    def grid(self) -> WindowGrid:
        """The windows in units of panes."""
        return WindowGrid(self.size // self.pane, self.slide // self.pane)

    @cached_property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """Arrow types of the keys."""
        return self.types[: self.keys]

    @cached_property
    def buffer_types(self) -> tuple[pa.DataType, ...]:
        """Arrow types of the aggregation buffers."""
        return self.types[self.keys + 1 :]

    @cached_property
    def cell_schema(self) -> pa.Schema:
        """Schema of a table of cells, as Spark sends it and the state log keeps it."""
        return pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(self.types)])

    @cached_property
    def window_schema(self) -> pa.Schema:
        """Schema of a table of windows: keys, start, end, buffers."""
        columns = [*self.key_types, pa.int64(), pa.int64(), *self.buffer_types]
        return pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(columns)])

    def first_open(self, watermark: int) -> int:
        """The first window that a watermark (microseconds) leaves open: the first with ``end > watermark``."""
        return (watermark - self.size - self.origin) // self.slide + 1

    def first_pane(self, window: int) -> int:
        """The pane that a window begins with."""
        return window * self.grid.panes_per_slide


def _parse_type(name: str) -> pa.DataType:
    if name in _TYPES:
        return _TYPES[name]
    decimal = _DECIMAL.fullmatch(name)
    if decimal is None or not 1 <= int(decimal[1]) <= 38:
        raise ProtocolError(f"unknown column type {name[:40]}")
    return pa.decimal128(int(decimal[1]), int(decimal[2]))
