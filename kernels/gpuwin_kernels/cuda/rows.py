"""Rows to cells on the device, in one pass for all partial columns that atomics can merge. The way depends on how many
cells the rows may touch:

- few: each block has a table in shared memory, added to the one in global memory at its end;
- dense: one table [pane, key] in global memory;
- hashed: an open-addressing table of packed (pane, key).

See `gpuwin_kernels.tuning` for where each begins. A call waits for the device once, to learn how many cells there are
and whether an exact sum left its type; `started` does not wait, and its caller reads those numbers with others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.row_source import COUNT, WIDE, feed_of
from gpuwin_kernels.cpu.rows import RowInput, SumOverflow
from gpuwin_kernels.cpu.source import load
from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.row_source import (
    DeviceRowSpec,
    bounded,
    input_types,
    output_types,
    source_of,
)
from gpuwin_kernels.cuda.runtime import (
    cuda,
    empty,
    full,
    kernel,
    launch,
    launch_over,
    read,
    to_device,
    zeros,
)
from gpuwin_kernels.cuda.scalar import EMPTY, pane_after
from gpuwin_kernels.layout import CellArrays, CellLayout

REACH = 1 << 51
"""Microseconds that the times of a call may lie apart (71 years): pane numbers come from float64 products."""


class TooFarApart(ValueError):
    """Panes and keys do not fit one packed word."""


@dataclass(frozen=True, slots=True)
class DeviceCells:
    """Cells sorted by (pane, code), each once, in device memory."""

    pane: Any  # int64[m]
    code: Any  # int32[m]
    columns: tuple[CellArrays, ...]


@dataclass(frozen=True, slots=True)
class _Kernels:
    spec: DeviceRowSpec
    dense: Any
    few: Any
    hashed: Any
    mark: Any
    extract: Any


_TABLE = "int64[::1], uint64[::1], float64[::1]"
_ROWS = "int32[::1], int64[::1], int64, uint64, int64, float64"


@cache
def row_kernels(spec: DeviceRowSpec, dtypes: tuple[str, ...]) -> _Kernels:
    """The kernels of a set of columns; `dtypes`: of each input's values, "" where it only counts."""
    module = load("cuda_rows", source_of(spec))
    inputs = "".join(f"{t}, " for t in input_types(spec, dtypes))
    out = ", ".join(output_types(spec))

    def made(name: str, signature: str, hot: bool) -> Any:
        own = f"rows.{name}[{module.__name__.rpartition('_')[2]}]"
        function: Callable[..., None] = getattr(module, name)
        return kernel(signature, hot=hot, name=own)(function)

    return _Kernels(
        spec,
        made("dense", f"void({_ROWS}, int64, {inputs}{_TABLE})", True),
        made("few", f"void({_ROWS}, int64, int64, {inputs}{_TABLE})", True),
        made("hashed", f"void({_ROWS}, int64, uint64[::1], {inputs}{_TABLE})", True),
        made("mark", "void(int64[::1], uint64[::1], int64[::1], int64[::1], uint64[::1])", True),
        made("extract", f"void(int32[::1], {_TABLE}, {out})", False),
    )


@kernel("void(int64[::1], int32[::1])", hot=True)
def list_used(place, record):  # type: ignore[no-untyped-def]
    """Where `place`, a running count, goes up; as many as there is room for."""
    r = cuda.grid(1)
    if r < place.shape[0] - 1 and place[r + 1] > place[r] and place[r] < record.shape[0]:
        record[place[r]] = np.int32(r)


@kernel("void(int32[::1], int64, float64, int64, int64[::1], int32[::1])")
def _name_dense(record, codes, reciprocal, first_pane, pane, code):  # type: ignore[no-untyped-def]
    k = cuda.grid(1)
    if k < record.shape[0]:
        r = np.int64(record[k])
        q = np.int64(np.float64(r) * reciprocal)
        rest = r - q * codes
        if rest >= codes:
            q += 1
            rest -= codes
        if rest < 0:
            q -= 1
            rest += codes
        pane[k] = first_pane + q
        code[k] = np.int32(rest)


@kernel("void(uint64[::1], int64, int64, int64[::1], int32[::1])")
def unpack(packed, code_bits, first_pane, pane, code):  # type: ignore[no-untyped-def]
    """The pane and code of packed cells."""
    k = cuda.grid(1)
    if k < packed.shape[0]:
        x = packed[k]
        pane[k] = first_pane + np.int64(x >> np.uint64(code_bits))
        code[k] = np.int32(x & ((np.uint64(1) << np.uint64(code_bits)) - np.uint64(1)))


@kernel("void(uint64[::1], int32[::1], int64[::1], uint64[::1])")
def _gather_keys(keys, at, count, out):  # type: ignore[no-untyped-def]
    k = cuda.grid(1)
    if k < at.shape[0]:
        out[k] = keys[at[k]] if k < count[0] else EMPTY


@kernel("void(int64[::1], int64, int64, int64[::1], int32[::1])")
def mark_spare(count, spare_pane, spare_code, pane, code):  # type: ignore[no-untyped-def]
    """Gives cells behind the first `count` this pane and code."""
    k = cuda.grid(1)
    if k >= count[0] and k < pane.shape[0]:
        pane[k] = spare_pane
        code[k] = np.int32(spare_code)


@kernel("void(int32[::1])")
def _number(out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = np.int32(i)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Rows on their way into cells. The host reads `numbers`, and gives them to `cells`."""

    layout: CellLayout
    rows: int
    kernels: _Kernels
    table: tuple[Any, Any, Any]
    keys: Any  # of the hash table; None for a dense one
    codes: int
    code_bits: int
    bits: int
    panes: tuple[int, int]
    place: Any  # int64[records + 1]: how many records in use there are before each
    numbers: tuple[Any, Any, Any]  # cells int64[1], overflow int64[1], magnitudes of exact sums uint64[k]

    def cells(self, count: np.ndarray, overflow: np.ndarray) -> DeviceCells:
        """Sorted by (pane, code). Raises SumOverflow where an exact sum left its type. Does not wait."""
        self.check(overflow)
        return self._listed(empty(int(count[0]), np.int32))

    @staticmethod
    def check(overflow: np.ndarray) -> None:
        """Raises SumOverflow where an exact sum left its type."""
        if overflow[0]:
            raise SumOverflow("a sum of integers left its type")

    def cells_within(self, room: int) -> DeviceCells:
        """Cells before the host has read anything, as far as there is room. Behind the last cell there are others,
        of the last pane and the code `codes`, one more than there is, which mean nothing. Does not wait.
        """
        cells = self._listed(zeros(room, np.int32))
        launch(mark_spare, room, self.numbers[0], self.panes[1], self.codes, cells.pane, cells.code)
        return cells

    def _listed(self, record: Any) -> DeviceCells:
        """As many cells as `record` has room for; behind the last, those of the record that stands there."""
        m = len(record)
        pane, code = empty(m, np.int64), empty(m, np.int32)
        launch(list_used, len(self.place) - 1 if m else 0, self.place, record)
        if self.keys is None:
            launch(_name_dense, m, record, self.codes, 1.0 / self.codes, self.panes[0], pane, code)
        else:
            packed = empty(m, np.uint64)
            launch(_gather_keys, m, self.keys, record, self.numbers[0], packed)
            packed, record = primitives.sort_pairs(packed, record, self.bits)
            launch(unpack, m, packed, self.code_bits, self.panes[0], pane, code)
        flat, columns = _columns(self.layout, m)
        launch(self.kernels.extract, m, record, *self.table, *flat)
        return DeviceCells(pane, code, columns)

    def all_records(self) -> tuple[CellArrays, ...]:
        """The columns of all records of a dense table of one pane, by code, whether rows fell into them or not. Does
        not wait.
        """
        if self.keys is not None:
            raise ValueError("the records of a hash table have no order")
        record = empty(self.codes, np.int32)
        launch(_number, self.codes, record)
        flat, columns = _columns(self.layout, self.codes)
        launch(self.kernels.extract, self.codes, record, *self.table, *flat)
        return columns

    def bounds(self, magnitudes: np.ndarray) -> tuple[int, ...]:
        """For each column at least the largest |sum| of a cell; 0 where it is not an exact sum."""
        known, out = iter(magnitudes.tolist()), []
        for feed in self.kernels.spec.feeds:
            if bounded(feed):
                size = next(known)
                out.append(size if feed.dtype == "int64" else (size + 1) << 64)
            else:
                out.append(self.rows if feed.form == COUNT else 0)
        return tuple(out)


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Rows with the places of their cells: row i is of the pane floor((time[i] - origin) / width) and the key code[i].

    Rows of panes that are not in [first, last] `panes`, and those of a negative code, are passed over.
    """

    code: Any  # int32[n], below `codes`
    codes: int
    time: Any  # int64[n], microseconds
    panes: tuple[int, int]
    width: int = 1
    origin: int = 0


def started(layout: CellLayout, inputs: Sequence[RowInput], rows: PlacedRows, dense: bool = False) -> Aggregation:
    """Launches what aggregates rows, at least one, into cells, and does not wait for it. As `aggregate_rows`.

    `dense`: the caller knows that most cells have a row, so no hash table is taken, whatever its size.
    """
    n, codes, panes, width = len(rows.time), rows.codes, rows.panes, rows.width
    _check_lengths(layout, inputs, rows.code, rows.time)
    spec, dtypes, arguments = _inputs(layout, inputs)
    kernels = row_kernels(spec, dtypes)
    count = panes[1] - panes[0] + 1
    base = _wrapped(panes[0] * width + rows.origin)
    reach = np.uint64(min(count * width, (1 << 64) - 1))
    common = (_on_device(rows.code), _on_device(rows.time), base, reach, width, 1.0 / width)
    records, words = count * codes, spec.width
    code_bits = max(codes - 1, 1).bit_length()
    bits = code_bits + (count - 1).bit_length()
    limit = min(
        max(tuning.DENSE_ANYWAY, tuning.CUDA_DENSE_SPARSITY * n), tuning.CUDA_DENSE_BYTES // (8 * words), (1 << 31) - 1
    )
    keys = None
    if records * words * 8 <= tuning.CUDA_SHARED_BYTES:
        table, shared = _table(records * words), records * words * 8
        launch_over(kernels.few, n, *common, codes, records, *arguments, *table, shared=shared)
    elif dense or records <= limit:
        table = _table(records * words)
        launch_over(kernels.dense, n, *common, codes, *arguments, *table)
    else:
        if bits > 62:
            raise TooFarApart(f"{count} panes of {codes} keys do not fit a packed cell; split the rows")
        # A record's number is an int32; beyond 2**30 rows the table is more than half full, and never quite full.
        records = 1 << min(31, max(6, (2 * min(n, records) - 1).bit_length()))
        keys, table = full(records, EMPTY, np.uint64), _table(records * words)
        launch_over(kernels.hashed, n, *common, code_bits, keys, *arguments, *table)
    used, overflow = empty(records, np.int64), zeros(1, np.int64)
    magnitudes = zeros(sum(bounded(feed) for feed in spec.feeds), np.uint64)
    launch(kernels.mark, records, *table[:2], used, overflow, magnitudes)
    place = primitives.exclusive_sum(used)
    numbers = place[records : records + 1], overflow, magnitudes
    return Aggregation(layout, n, kernels, table, keys, codes, code_bits, bits, panes, place, numbers)


def _check_lengths(layout: CellLayout, inputs: Sequence[RowInput], code: Any, time: Any) -> None:
    n = len(time)
    if len(inputs) != len(layout.columns) or len(code) != n:
        raise ValueError(f"{len(inputs)} inputs for {len(layout.columns)} columns, {len(code)} codes for {n} times")
    if n >= 1 << 31:
        raise ValueError(f"{n} rows in one call; at most 2**31 - 1 are aggregated at once")


def aggregate_rows(
    layout: CellLayout,
    inputs: Sequence[RowInput],
    code: Any,
    time: Any,
    width: int,
    origin: int = 0,
    *,
    codes: int,
    span: tuple[int, int] | None = None,
) -> DeviceCells:
    """Aggregates rows into cells on the device: pane floor((time - origin) / width), key `code`.

    `inputs`: one for each column; values, `code` (int32[n], in [0, codes)) and `time` (int64[n] microseconds, at most
    `REACH` apart) may be arrays of the host or of the device. `span`: the least and the most time, if they are known;
    for times on the device, that saves a second wait. Raises SumOverflow where an exact sum left its type,
    OutOfDeviceMemory, and ValueError for inputs that do not fit.
    """
    _check_lengths(layout, inputs, code, time)
    if not len(time):
        return DeviceCells(empty(0, np.int64), empty(0, np.int32), _columns(layout, 0)[1])
    least, most = time_range(time) if span is None else span
    panes = panes_between(least, most, width, origin)
    begun = started(layout, inputs, PlacedRows(code, codes, time, panes, width, origin))
    count, overflow, _ = read(*begun.numbers)
    return begun.cells(count, overflow)


def panes_between(least: int, most: int, width: int, origin: int) -> tuple[int, int]:
    """The first and the last pane of times in [least, most]. Raises ValueError if they lie `REACH` or more apart."""
    if most - least >= REACH:
        raise ValueError(f"times lie {most - least} microseconds apart; split the rows")
    return (least - origin) // width, (most - origin) // width


def time_range(time: Any) -> tuple[int, int]:
    """(least, most) of int64[n], n > 0, on the host or the device."""
    if isinstance(time, np.ndarray):
        return int(time.min()), int(time.max())
    from gpuwin_kernels.cuda.reductions import least_and_most

    return least_and_most(time)


def _inputs(layout: CellLayout, inputs: Sequence[RowInput]) -> tuple[DeviceRowSpec, tuple[str, ...], list[Any]]:
    """Facts that the kernels depend on, and the arguments of the inputs, each moved once."""
    distinct = list({id(item): item for item in inputs}.values())
    number = {id(item): k for k, item in enumerate(distinct)}
    if len(distinct) > 62:
        raise ValueError(f"{len(distinct)} inputs; the flags of a record have room for 62")
    spec = DeviceRowSpec(
        tuple(feed_of(c, number[id(i)], i.form) for c, i in zip(layout.columns, inputs, strict=True)),
        tuple(i.form for i in distinct),
        tuple(i.bitmap is not None for i in distinct),
    )
    dtypes, arguments = [], []
    for item in distinct:
        dtypes.append("" if item.form == COUNT else str(item.values.dtype))  # type: ignore[union-attr]
        if item.values is not None:
            arguments.append(_wide(item.values) if item.form == WIDE else _on_device(item.values))
        if item.bitmap is not None:
            arguments += [_on_device(item.bitmap), item.offset]
    return spec, tuple(dtypes), arguments


def resident(inputs: Sequence[RowInput]) -> list[RowInput]:
    """Inputs in device memory: what several columns share is still one."""
    moved: dict[int, RowInput] = {}
    for item in inputs:
        if id(item) not in moved:
            wide = item.form == WIDE
            values = item.values if item.values is None else _wide(item.values) if wide else _on_device(item.values)
            bitmap = None if item.bitmap is None else _on_device(item.bitmap)
            moved[id(item)] = replace(item, values=values, bitmap=bitmap)
    return [moved[id(item)] for item in inputs]


@kernel("void(int64[::1], int64, int64, float64, int64, int64[::1])", hot=True)
def _panes(time, base, width, reciprocal, first, pane):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < time.shape[0]:
        pane[i] = first + pane_after(time[i], base, width, reciprocal)


def panes_of(time: Any, width: int, origin: int, first: int) -> Any:
    """int64[n]: floor((time - origin) / width) of times (int64[n], on the device) at most `REACH` apart, the first
    pane of which is `first`.
    """
    pane = empty(len(time), np.int64)
    launch(_panes, len(time), time, _wrapped(first * width + origin), width, 1.0 / width, first, pane)
    return pane


def _wrapped(value: int) -> int:
    """Modulo 2**64, as int64: where a pane begins may lie below int64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _on_device(array: Any) -> Any:
    return to_device(array) if isinstance(array, np.ndarray) else array


def _wide(values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    flat = to_device(np.ascontiguousarray(values).reshape(-1))
    return flat.reshape(len(values), 2)


def _table(words: int) -> tuple[Any, Any, Any]:
    table = zeros(words, np.int64)
    return table, table.view(np.uint64), table.view(np.float64)


def _columns(layout: CellLayout, m: int) -> tuple[list[Any], tuple[CellArrays, ...]]:
    flat, columns = [], []
    for column in layout.columns:
        words = tuple(empty(m, w) for w in column.words)
        valid = empty(m, np.uint8) if column.nullable else None
        flat += [*words] if valid is None else [*words, valid]
        columns.append(CellArrays(words, valid))
    return flat, tuple(columns)


__all__ = [
    "REACH",
    "Aggregation",
    "DeviceCells",
    "PlacedRows",
    "TooFarApart",
    "aggregate_rows",
    "list_used",
    "mark_spare",
    "panes_between",
    "panes_of",
    "resident",
    "started",
    "time_range",
    "unpack",
]
