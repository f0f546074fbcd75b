"""Rows of several batches, one behind the other in arrays with room for more: what a log holds of batches whose columns
are of a fixed width and have no nulls. They are read as one batch without another copy.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gpuwin.batch.timed_rows import TimedRows
from gpuwin_kernels.cpu.kept_memory import empty

_ROOM = 4  # batches of the first one's size that a buffer has room for


class RowBuffer:
    """Arrays of rows with a time. Rows are only put behind the others, and never change: so logs of several lengths may
    share a buffer, of which the first that needs the place behind its rows gets it.
    """

    __slots__ = ("_columns", "_filled", "_time", "room", "row_bytes")

    def __init__(self, types: dict[str, pa.DataType], room: int) -> None:
        #: Each name's type, width in bytes, and values (uint8[room * width]).
        self._columns = {name: (type_, w := _width(type_), empty(room * w, np.uint8)) for name, type_ in types.items()}
        self._time = empty(room, np.int64)
        self._filled = 0
        #: Rows that there is memory for.
        self.room = room
        #: Bytes that a row takes.
        self.row_bytes = self._time.itemsize + sum([width for _, width, _ in self._columns.values()])

    @staticmethod
    def of(rows: TimedRows, room: int) -> RowBuffer | None:
        """Buffer with these rows, at least one, and room for as many as `room` and for some more such batches. None
        where it cannot hold them.
        """
        types = {name: column.type for name, column in rows.columns.items()}
        if not all(map(_is_fixed, types.values())):
            return None
        return RowBuffer(types, max(room, _ROOM * len(rows))).with_rows(0, rows)

    def with_rows(self, n: int, rows: TimedRows) -> RowBuffer | None:
        """Buffer of the first n rows of this one, and these behind them: this one, where nobody has put others there
        and there is room. None where it cannot hold them: of rows with a null, or of what is left of a batch.
        """
        if not (rows.index is rows.start is rows.end is rows.gap is None):
            return None
        for name, (type_, _, _) in self._columns.items():
            column = rows.columns[name]
            if column.null_count or column.type != type_:
                return None
        end = n + len(rows)
        into = self if n == self._filled and end <= self.room else self._longer(n, end)
        into._time[n:end] = rows.time
        for name, (_, width, values) in into._columns.items():
            column = rows.columns[name]
            new = np.frombuffer(column.buffers()[1], np.uint8, len(column) * width, column.offset * width)
            values[n * width : end * width] = new
        into._filled = end
        return into

    def _longer(self, n: int, least: int) -> RowBuffer:
        """Buffer of the first n rows of this one, with room for `least` and more."""
        other = RowBuffer({name: type_ for name, (type_, _, _) in self._columns.items()}, max(self.room, 2 * least))
        other._time[:n] = self._time[:n]
        for name, (_, width, values) in other._columns.items():
            values[: n * width] = self._columns[name][2][: n * width]
        return other

    def rows(self, first: int, lo: int, hi: int) -> TimedRows:
        """Rows [lo, hi), in shared memory, as of one batch. `first`: the arrival of the buffer's first row."""
        columns = {
            name: pa.Array.from_buffers(type_, hi - lo, [None, pa.py_buffer(values[lo * width : hi * width])])
            for name, (type_, width, values) in self._columns.items()
        }
        return TimedRows(columns, self._time[lo:hi], first + lo)


def _is_fixed(type_: pa.DataType) -> bool:
    """Whether a value takes whole bytes, and always as many."""
    return bool((pa.types.is_primitive(type_) and not pa.types.is_boolean(type_)) or pa.types.is_decimal(type_))


def _width(type_: pa.DataType) -> int:
    return int(type_.bit_width) // 8
