"""Specification of an operator over cells, as Spark sends it: of windows on a grid, or of sessions; its columns, and
the merges of its buffers.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np
import pyarrow as pa

from gpuwin.drivers.grid_windows import Mode
from gpuwin.grid import WindowGrid
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.layout import STATISTICS

from .protocol import ProtocolError

MODES: Final[dict[str, Mode]] = {"append": "append", "update": "update", "complete": "complete"}
SESSION_MODES = ("append", "complete")
#: Merges whose result depends on which value arrived first or last: they have a column that says when it did.
ARRIVAL_MERGES = ("first", "last", "min_by", "max_by")
#: The merge of buffers that only Spark's code merges: their pieces are joined. See `with_pieces`.
PIECES: Final = "pieces"
#: The merge of quantile summaries, which are kept as pieces are, and become one piece as they are merged.
SUMMARIES: Final = "summaries"
#: The merges of counts of values, likewise, by what the values are: of doubles and floats all NaNs are one value.
COUNTS: Final = ("counts", "counts_of_double", "counts_of_float")
#: Merges of sets of values, and the bytes of a value; 0 where values fit no word.
SETS: Final = {"sets": 0, "sets_of_1": 1, "sets_of_2": 2, "sets_of_4": 4, "sets_of_8": 8}
_KEPT: Final = (PIECES, SUMMARIES, *COUNTS, *SETS)
#: The merge of a word of registers of `approx_count_distinct`.
REGISTERS: Final = "registers"
PLAIN_MERGES = ("sum", "min", "max", "bit_and", "bit_or", "bit_xor", REGISTERS)
#: All merges, and how many buffers each has.
MERGES: Final[dict[str, int]] = {
    **dict.fromkeys(PLAIN_MERGES, 1),
    **STATISTICS,
    "decimal_sum": 2,
    "decimal_avg_sum": 1,
    **dict.fromkeys(ARRIVAL_MERGES, 2),
    **dict.fromkeys(_KEPT, 1),
}
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
    """Merge of one or more buffer columns: see ``MergeSpec.scala``. ``sent_at``: the position of the first one in the
    operator as Spark sent it, where this is a specification of a part of its buffers.
    """

    merge: str
    columns: tuple[int, ...]
    wrap: bool
    nullable: bool
    precision: int
    arrival: int = -1
    sent_at: int = -1

    @property
    def number(self) -> int:
        """Position of its first buffer in the operator as Spark sent it: the name of its columns, also in errors."""
        return self.columns[0] if self.sent_at < 0 else self.sent_at

    @property
    def places(self) -> tuple[int, ...]:
        """Positions of its buffers, and of its hidden column if it has one."""
        return self.columns if self.arrival < 0 else (*self.columns, self.arrival)


class CellColumns:
    """The columns of an operator's cells, of the types ``types`` in that order: its keys, ``PLACE`` columns of
    microseconds that say where in time a cell lies, its buffers, and ``hidden`` columns that no window has: when the
    value of a buffer arrived.
    """

    PLACE: ClassVar[int]
    types: tuple[pa.DataType, ...]
    keys: int
    merges: tuple[Merge, ...]
    hidden: int

    @cached_property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """Arrow types of the keys."""
        return self.types[: self.keys]

    @cached_property
    def buffer_types(self) -> tuple[pa.DataType, ...]:
        """Arrow types of the aggregation buffers."""
        return self.types[self.keys + self.PLACE : len(self.types) - self.hidden]

    @cached_property
    def buffers_at(self) -> range:
        """Where the buffers and the hidden columns are among the columns of a cell."""
        return range(self.keys + self.PLACE, len(self.types))

    @cached_property
    def cell_schema(self) -> pa.Schema:
        """Schema of a table of cells; in the shuffle and the log its integers may be narrower (`narrow`)."""
        return pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(self.types)])

    @cached_property
    def window_schema(self) -> pa.Schema:
        """Schema of a table of windows: keys, start, end, buffers."""
        columns = [*self.key_types, pa.int64(), pa.int64(), *self.buffer_types]
        return pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(columns)])

    @cached_property
    def pieces(self) -> tuple[int, ...]:
        """Positions, among the buffers, of those that are kept in pieces, ascending."""
        return tuple(m.columns[0] for m in self.merges if m.merge in _KEPT)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The merges of these."""
        return tuple(m.merge for m in self.merges if m.merge in _KEPT)

    @cached_property
    def pieces_at(self) -> tuple[int, ...]:
        """Their positions among the columns of a cell."""
        return tuple(self.buffers_at[i] for i in self.pieces)

    @cached_property
    def without_pieces(self) -> Self:
        """Specification of the operator without these buffers."""
        return self._without(_KEPT)

    @cached_property
    def without_registers(self) -> Self:
        """Specification of the operator without the buffers of `approx_count_distinct`."""
        return self._without((REGISTERS,))

    def _without(self, merges: Collection[str]) -> Self:
        gone = {c for m in self.merges if m.merge in merges for c in m.columns}
        left = [i for i in range(len(self.buffers_at)) if i not in gone]
        moved = {old: new for new, old in enumerate(left)}
        kept = tuple(
            replace(m, columns=tuple(moved[c] for c in m.columns), arrival=moved.get(m.arrival, -1), sent_at=m.number)
            for m in self.merges
            if m.merge not in merges
        )
        gone_at = {self.buffers_at[i] for i in gone}
        types = tuple(t for i, t in enumerate(self.types) if i not in gone_at)
        return replace(self, types=types, merges=kept)  # type: ignore[type-var]


@dataclass(frozen=True)
class GridSpec(CellColumns):
    """One aggregation by windows of a grid, as the service runs it.

    Window ``k`` is ``[origin + k*slide, origin + k*slide + size)`` in microseconds; a cell's row is its keys, the start
    of its pane, and its buffers, of the types ``types`` in that order.

    ``length``: of the windows as Spark knows them, where each row came with one of several that contain it. Such a
    window is a pane that ends where the window does, and begins before it.
    """

    PLACE = 1
    size: int
    slide: int
    origin: int
    mode: Mode
    types: tuple[pa.DataType, ...]
    keys: int
    merges: tuple[Merge, ...]
    hidden: int = 0
    length: int | None = None

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> GridSpec:
        """Reads and checks the specification in a request.

        Raises:
            ProtocolError: a field is missing, of the wrong type, or out of bounds.
        """
        try:
            size, slide, origin = (int(fields[n]) for n in ("size", "slide", "origin"))
            length = int(fields["length"]) if "length" in fields else None
        except (KeyError, TypeError, ValueError) as e:
            raise ProtocolError(f"the operator's specification is malformed: {e}") from e
        mode, types, keys, merges, hidden = _common(fields, cls.PLACE)
        if not 0 < slide <= size <= 1 << 62 or not 0 <= origin < slide:
            raise ProtocolError("the operator's specification is out of bounds")
        if length is not None and not size == slide <= length <= 1 << 62:
            raise ProtocolError("the operator's specification gives its windows a length that they cannot have")
        return cls(size, slide, origin, mode, types, keys, merges, hidden, length)

    @cached_property
    def grid(self) -> WindowGrid:
        """The panes and windows of the operator."""
        return WindowGrid.sliding(self.size, self.slide, self.origin)

    def bounds(self, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends, int64[n] microseconds each, of windows int64[n]."""
        ends = self.grid.ends(window)
        return self.grid.starts(window) if self.length is None else ends - self.length, ends

    def last_closed(self, watermark: int | None) -> int:
        """The last window that a watermark (microseconds; None: there is none yet) closes."""
        if watermark is None:
            return INT64_MIN
        closed = self.grid.last_closed(watermark)
        return INT64_MAX - 1 if closed is None else closed

    @property
    def steps(self) -> dict[int, int]:
        """By column of a cell, the distance in which its values come: that of panes."""
        return {self.keys: self.grid.width}

    @property
    def window_steps(self) -> dict[int, int]:
        """By column of a window, the distance in which its values come."""
        return {self.keys: self.grid.width, self.keys + 1: self.grid.width}


@dataclass(frozen=True)
class SessionSpec(CellColumns):
    """One aggregation by session windows, as the service runs it; a cell's row is its keys, start and end of its
    session (which already holds the gap), and its buffers. How long a gap is, Spark's plan says, and not the state. A
    value arrived at the event time of its row, since Spark adds the rows of a session in order of that.
    """

    PLACE = 2
    mode: Mode
    types: tuple[pa.DataType, ...]
    keys: int
    merges: tuple[Merge, ...]
    hidden: int = 0

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> SessionSpec:
        """As `GridSpec.parse`."""
        mode, types, keys, merges, hidden = _common(fields, cls.PLACE)
        if mode not in SESSION_MODES:
            raise ProtocolError(f"sessions are not emitted in {mode[:20]} mode")
        return cls(mode, types, keys, merges, hidden)

    @property
    def steps(self) -> dict[int, int]:
        """By column, the distance in which its values come: sessions begin and end anywhere."""
        return {}

    window_steps = steps


def parse_spec(fields: dict[str, Any]) -> GridSpec | SessionSpec:
    """The specification in a request. Raises ProtocolError as `GridSpec.parse`."""
    match fields.get("window"):
        case "grid":
            return GridSpec.parse(fields)
        case "session":
            return SessionSpec.parse(fields)
    raise ProtocolError("the operator's specification names an unknown window")


def _common(fields: dict[str, Any], place: int) -> tuple[Mode, tuple[pa.DataType, ...], int, tuple[Merge, ...], int]:
    """(mode, types, keys, merges, hidden), checked."""
    try:
        mode, keys, hidden = MODES[str(fields["mode"])], int(fields["keys"]), int(fields["hidden"])
        types = tuple(_parse_type(str(t)) for t in fields["types"])
        merges = tuple(
            Merge(
                str(m["merge"]),
                tuple(int(c) for c in m["columns"]),
                bool(m["wrap"]),
                bool(m["nullable"]),
                int(m["precision"]),
                int(m["arrival"]),
            )
            for m in fields["merges"]
        )
    except (KeyError, TypeError, ValueError) as e:
        raise ProtocolError(f"the operator's specification is malformed: {e}") from e
    buffers = len(types) - keys - place - hidden
    if keys < 0 or hidden < 0 or buffers < 0:
        raise ProtocolError("the operator's specification is out of bounds")
    if any(t != pa.int64() for t in types[keys : keys + place]):
        raise ProtocolError("the place of a cell in time must be a bigint")
    if any(m.merge not in MERGES or not all(0 <= c < buffers for c in m.columns) for m in merges):
        raise ProtocolError("the operator's specification names an unknown merge or buffer")
    arrivals = [m.arrival for m in merges if m.merge in ARRIVAL_MERGES]
    if arrivals != list(range(buffers, buffers + hidden)) or any(t != pa.int64() for t in types[len(types) - hidden :]):
        raise ProtocolError("the operator's specification does not say when values arrived")
    if any(len(m.columns) != MERGES[m.merge] for m in merges):
        raise ProtocolError("the operator's specification gives a merge another number of buffers than it has")
    return mode, types, keys, merges, hidden


def _parse_type(name: str) -> pa.DataType:
    if name in _TYPES:
        return _TYPES[name]
    decimal = _DECIMAL.fullmatch(name)
    if decimal is None or not 1 <= int(decimal[1]) <= 38:
        raise ProtocolError(f"unknown column type {name[:40]}")
    return pa.decimal128(int(decimal[1]), int(decimal[2]))
