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
from gpuwin_kernels.cuda import primitives, ranks
from gpuwin_kernels.cuda.device_array import DeviceArray, Kernel, Length
from gpuwin_kernels.cuda.reading import read
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
    kept,
    kernel,
    launch,
    launch_over,
    to_device,
    together,
)
from gpuwin_kernels.cuda.scalar import EMPTY, pane_after
from gpuwin_kernels.layout import CellArrays, CellLayout, columns_from_arrays

REACH = 1 << 51
"""Microseconds that the times of a call may lie apart (71 years): pane numbers come from float64 products."""

MOST_INPUTS = 62
"""Different inputs of a call: a record has a flag for each in one word."""


class TooFarApart(ValueError):
    """Panes and keys do not fit one packed word."""


@dataclass(frozen=True, slots=True)
class DeviceCells:
    """Cells sorted by (pane, code), each once, in device memory."""

    pane: DeviceArray  # int64[m]
    code: DeviceArray  # int32[m]
    columns: tuple[CellArrays, ...]


@dataclass(frozen=True, slots=True)
class _Kernels:
    spec: DeviceRowSpec
    dense: Kernel
    few: Kernel
    hashed: Kernel
    mark: Kernel
    cells: Kernel
    sorted_cells: Kernel
    records: Kernel


_TABLE = "int64[::1], uint64[::1], float64[::1]"
_PANES = "UniTuple(int64, 2)"
_CELLS = "int64[::1], int32[::1]"
_SORTED = "uint64[::1], int32[::1], int64[::1]"
_ROWS = "int32[::1], int64[::1], int64, uint64, int64, float64"


@cache
def row_kernels(spec: DeviceRowSpec, dtypes: tuple[str, ...]) -> _Kernels:
    """The kernels of a set of columns; `dtypes`: of each input's values, "" where it only counts."""
    module = load("cuda_rows", source_of(spec))
    inputs = "".join(f"{t}, " for t in input_types(spec, dtypes))
    out = ", ".join(output_types(spec))

    def made(name: str, signature: str, hot: bool) -> Kernel:
        own = f"rows.{name}[{module.__name__.rpartition('_')[2]}]"
        function: Callable[..., None] = getattr(module, name)
        return kernel(signature, hot=hot, name=own)(function)

    return _Kernels(
        spec,
        made("dense", f"void({_ROWS}, int64, {inputs}{_TABLE})", True),
        made("few", f"void({_ROWS}, int64, int64, {inputs}{_TABLE})", True),
        made("hashed", f"void({_ROWS}, int64, uint64[::1], {inputs}{_TABLE})", True),
        made("mark", "void(int64[::1], uint64[::1], int64[::1], int64[::1], int64[::1], uint64[::1])", True),
        made("cells", f"void(int64[::1], int64[::1], int64, float64, {_PANES}, {_TABLE}, {_CELLS}, {out})", False),
        made(
            "sorted_cells",
            f"void({_SORTED}, int64, int64, {_PANES}, {_TABLE}, {_CELLS}, {out})",
            False,
        ),
        made("records", f"void(int64, int64[::1], uint64[::1], {_TABLE}, {out})", False),
    )


@kernel("void(int64[::1], int32[::1])", hot=True)
def list_used(place, record):  # type: ignore[no-untyped-def]
    """Places at which `place`, a running count, goes up; as many as there is room for."""
    r = cuda.grid(1)
    if r < place.shape[0] - 1 and place[r + 1] > place[r] and place[r] < record.shape[0]:
        record[place[r]] = np.int32(r)


@kernel("void(uint64[::1], int64, int64, int64[::1], int32[::1])")
def unpack(packed, code_bits, first_pane, pane, code):  # type: ignore[no-untyped-def]
    """The pane and code of packed cells."""
    k = cuda.grid(1)
    if k < packed.shape[0]:
        x = packed[k]
        pane[k] = first_pane + np.int64(x >> np.uint64(code_bits))
        code[k] = np.int32(x & ((np.uint64(1) << np.uint64(code_bits)) - np.uint64(1)))


@kernel("void(uint64[::1], int64[::1], uint64[::1], int32[::1])", hot=True)
def _list_keys(keys, before, packed, record):  # type: ignore[no-untyped-def]
    """The records in use, where `before` goes up, with their keys; as many as there is room for. EMPTY behind them."""
    r = cuda.grid(1)
    n = keys.shape[0]
    if r < n and before[r + 1] > before[r] and before[r] < record.shape[0]:
        packed[before[r]] = keys[r]
        record[before[r]] = np.int32(r)
    if r >= before[n] and r < record.shape[0]:
        packed[r] = EMPTY
        record[r] = 0


@kernel("void(int64[::1], int64, int64, int64[::1], int32[::1])")
def mark_spare(count, spare_pane, spare_code, pane, code):  # type: ignore[no-untyped-def]
    """Gives cells behind the first `count` this pane and code."""
    k = cuda.grid(1)
    if k >= count[0] and k < pane.shape[0]:
        pane[k] = spare_pane
        code[k] = np.int32(spare_code)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Rows on their way into cells. The host reads `numbers`, and gives them to `cells`."""

    layout: CellLayout
    rows: int
    kernels: _Kernels
    table: tuple[DeviceArray, DeviceArray, DeviceArray]
    keys: DeviceArray | None  # of the hash table; None for a dense one
    codes: int
    code_bits: int
    bits: int
    panes: tuple[int, int]
    before: DeviceArray | None  # int64[records + 1], marks as of `ranks.counted`; None if all records are cells
    tiles: DeviceArray  # their counters
    # Cells, in parts, int64[j]; overflow int64[1]; magnitudes of exact sums uint64[k].
    numbers: tuple[DeviceArray, DeviceArray, DeviceArray]

    def cells(self, count: np.ndarray, overflow: np.ndarray) -> DeviceCells:
        """Cells, sorted by (pane, code). Raises SumOverflow where an exact sum left its type. Does not wait."""
        self.check(overflow)
        return self.cells_within(int(count.sum()))

    @staticmethod
    def check(overflow: np.ndarray) -> None:
        """Check of the sums. Raises SumOverflow where an exact one left its type."""
        if overflow[0]:
            raise SumOverflow

    def cells_within(self, room: int) -> DeviceCells:
        """Cells before the host has read anything, as far as there is room. Behind the last cell there are others,
        of the last pane and the code `codes`, one more than there is, which mean nothing. Does not wait.
        """
        with kept():
            pane, code, *flat = together((room, np.int64), (room, np.int32), *_sizes(self.layout, room))
        if not room:
            return DeviceCells(pane, code, columns_from_arrays(self.layout, flat))
        assert self.before is not None
        n, out = max(room, len(self.before) - 1), (*self.table, pane, code, *flat)
        if self.keys is None:
            launch(self.kernels.cells, n, self.before, self.tiles, self.codes, 1.0 / self.codes, self.panes, *out)
        else:
            packed, record = together((room, np.uint64), (room, np.int32))
            launch(_list_keys, n, self.keys, self.before, packed, record)
            packed, record = primitives.sort_pairs(packed, record, self.bits)
            places = packed, record, self.numbers[0], self.code_bits, self.codes, self.panes
            launch(self.kernels.sorted_cells, room, *places, *out)
        return DeviceCells(pane, code, columns_from_arrays(self.layout, flat))

    def all_records(self) -> tuple[CellArrays, ...]:
        """The columns of all records of a dense table of one pane, by code, whether rows fell into them or not. Sets
        the overflow and the magnitudes of `numbers`. Does not wait.
        """
        if self.before is not None:
            raise ValueError("records were marked: only those in use are cells")
        flat = together(*_sizes(self.layout, self.codes))
        launch(self.kernels.records, self.codes, self.codes, *self.numbers[1:], *self.table, *flat)
        return columns_from_arrays(self.layout, flat)

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

    code: DeviceArray  # int32[n], below `codes`
    codes: int
    time: DeviceArray  # int64[n], microseconds
    panes: tuple[int, int]
    width: int = 1
    origin: int = 0


def started(
    layout: CellLayout,
    inputs: Sequence[RowInput],
    rows: PlacedRows,
    dense: bool = False,
    zero: Sequence[DeviceArray] | None = None,
) -> Aggregation:
    """Launches what aggregates rows, at least one, into cells, and does not wait for it. As `aggregate_rows`.

    `dense`: the caller takes `all_records`, as most cells have a row; so no hash table is taken, whatever its size.
    `zero`: arrays of zeros for it, as of `zeros_for`, if there are some.
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
    few = records * words * 8 <= tuning.CUDA_SHARED_BYTES
    hashed = not few and not dense and records > limit
    if hashed:
        if bits > 62:
            raise TooFarApart(f"{count} panes of {codes} keys do not fit a packed cell; split the rows")
        # A record's number is an int32; beyond 2**30 rows the table is more than half full, and never quite full.
        records = 1 << min(31, max(6, (2 * min(n, records) - 1).bit_length()))
    if zero is None:
        zero = together(*_zero(spec, records, dense or hashed), zero=True)
    table, overflow, magnitudes, tiles = zero
    tables, keys = (table, table.view(np.uint64), table.view(np.float64)), None
    if few:
        launch_over(kernels.few, n, *common, codes, records, *arguments, *tables, shared=records * words * 8)
    elif hashed:
        keys = full(records, EMPTY, np.uint64)
        launch_over(kernels.hashed, n, *common, code_bits, keys, *arguments, *tables)
    else:
        launch_over(kernels.dense, n, *common, codes, *arguments, *tables)
    before = None if dense else empty(records + 1, np.int64)
    if before is not None:
        launch(kernels.mark, records, *tables[:2], before, tiles, overflow, magnitudes)
        before = ranks.counted(before, tiles)
    found = empty(0, np.int64) if before is None else ranks.total_of(before, tiles)
    numbers = found, overflow, magnitudes
    return Aggregation(layout, n, kernels, tables, keys, codes, code_bits, bits, panes, before, tiles, numbers)


def _zero(spec: DeviceRowSpec, records: int, unmarked: bool) -> list[Length]:
    """(values, dtype) of what begins as zero: records, whether a sum left its type, magnitudes, counters of marks."""
    checked = sum(bounded(feed) for feed in spec.feeds)
    tiles = (0, np.int64) if unmarked else ranks.tiles_of(records)
    return [(records * spec.width, np.int64), (1, np.int64), (checked, np.uint64), tiles]


def zeros_for(layout: CellLayout, inputs: Sequence[RowInput], codes: int) -> list[Length]:
    """(values, dtype) of the arrays that begin as zero where rows of one pane come into a `dense` table."""
    return _zero(_inputs(layout, inputs)[0], codes, True)


def _check_lengths(
    layout: CellLayout, inputs: Sequence[RowInput], code: np.ndarray | DeviceArray, time: np.ndarray | DeviceArray
) -> None:
    n = len(time)
    if len(inputs) != len(layout.columns) or len(code) != n:
        raise ValueError(f"{len(inputs)} inputs for {len(layout.columns)} columns, {len(code)} codes for {n} times")
    if n >= 1 << 31:
        raise ValueError(f"{n} rows in one call; at most 2**31 - 1 are aggregated at once")


def aggregate_rows(
    layout: CellLayout,
    inputs: Sequence[RowInput],
    code: np.ndarray | DeviceArray,
    time: np.ndarray | DeviceArray,
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
        return DeviceCells(
            empty(0, np.int64), empty(0, np.int32), columns_from_arrays(layout, together(*_sizes(layout, 0)))
        )
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


def time_range(time: np.ndarray | DeviceArray) -> tuple[int, int]:
    """(least, most) of int64[n], n > 0, on the host or the device."""
    if isinstance(time, np.ndarray):
        return int(time.min()), int(time.max())
    from gpuwin_kernels.cuda.reductions import least_and_most

    return least_and_most(time)


def _inputs(layout: CellLayout, inputs: Sequence[RowInput]) -> tuple[DeviceRowSpec, tuple[str, ...], list[object]]:
    """Facts that the kernels depend on, and the arguments of the inputs, each moved once."""
    distinct = list({id(item): item for item in inputs}.values())
    number = {id(item): k for k, item in enumerate(distinct)}
    if len(distinct) > MOST_INPUTS:
        raise ValueError(f"{len(distinct)} inputs; the flags of a record have room for {MOST_INPUTS}")
    spec = DeviceRowSpec(
        tuple(feed_of(c, number[id(i)], i.form) for c, i in zip(layout.columns, inputs, strict=True)),
        tuple(i.form for i in distinct),
        tuple(i.bitmap is not None for i in distinct),
    )
    dtypes: list[str] = []
    arguments: list[object] = []
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
            # `RowInput` says np.ndarray, on the device, too.
            values: Any = None if item.values is None else (_wide if wide else _on_device)(item.values)
            bitmap: Any = None if item.bitmap is None else _on_device(item.bitmap)
            moved[id(item)] = replace(item, values=values, bitmap=bitmap)
    return [moved[id(item)] for item in inputs]


@kernel("void(int64[::1], int64, int64, float64, int64, int64[::1])", hot=True)
def _panes(time, base, width, reciprocal, first, pane):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < time.shape[0]:
        pane[i] = first + pane_after(time[i], base, width, reciprocal)


def panes_of(time: DeviceArray, width: int, origin: int, first: int) -> DeviceArray:
    """int64[n]: floor((time - origin) / width) of times (int64[n], on the device) at most `REACH` apart, the first
    pane of which is `first`.
    """
    pane = empty(len(time), np.int64)
    launch(_panes, len(time), time, _wrapped(first * width + origin), width, 1.0 / width, first, pane)
    return pane


def _wrapped(value: int) -> int:
    """Modulo 2**64, as int64: where a pane begins may lie below int64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _on_device(array: np.ndarray | DeviceArray) -> DeviceArray:
    return to_device(array) if isinstance(array, np.ndarray) else array


def _wide(values: np.ndarray | DeviceArray) -> DeviceArray:
    if not isinstance(values, np.ndarray):
        return values
    flat = to_device(np.ascontiguousarray(values).reshape(-1))
    return flat.reshape(len(values), 2)


def _sizes(layout: CellLayout, m: int) -> list[Length]:
    """(values, dtype) of the arrays of m cells."""
    return [(m, word) for c in layout.columns for word in (*c.words, *(["uint8"] if c.nullable else []))]


__all__ = [
    "MOST_INPUTS",
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
    "zeros_for",
]
