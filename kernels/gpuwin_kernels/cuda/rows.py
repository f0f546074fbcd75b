"""Rows to cells on the device, in one pass for all partial columns that atomics can merge. The way depends on how many
cells the rows may touch:

- few: each block has a table in shared memory, added to the one in global memory at its end;
- dense: one table [pane, key] in global memory;
- hashed: an open-addressing table of packed (pane, key).

See `gpuwin_kernels.tuning` for where each begins. A call waits for the device once, to learn how many cells there are
and whether an exact sum left its type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.row_source import COUNT, WIDE, feed_of
from gpuwin_kernels.cpu.rows import RowInput, SumOverflow
from gpuwin_kernels.cpu.slots import pane_of
from gpuwin_kernels.cpu.source import load
from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.row_source import (
    DeviceRowSpec,
    by_atomics,
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
    to_device,
    to_host,
    zeros,
)
from gpuwin_kernels.cuda.scalar import EMPTY
from gpuwin_kernels.layout import CellArrays, CellLayout

REACH = 1 << 51
"""Microseconds that the times of a call may lie apart (71 years): pane numbers come from float64 products."""


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
_ROWS = "int32[::1], int64[::1], int64, int64, float64"


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
        made("mark", "void(int64[::1], uint64[::1], int64[::1], int64[::1])", True),
        made("extract", f"void(int32[::1], {_TABLE}, {out})", False),
    )


@kernel("void(int64[::1], int64[::1], int64[::1])")
def _tell(place, overflow, told):  # type: ignore[no-untyped-def]
    if cuda.grid(1) == 0:
        told[0] = place[place.shape[0] - 1]
        told[1] = overflow[0]


@kernel("void(int64[::1], int32[::1])", hot=True)
def _list_used(place, record):  # type: ignore[no-untyped-def]
    r = cuda.grid(1)
    if r < place.shape[0] - 1 and place[r + 1] > place[r]:
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


@kernel("void(uint64[::1], int32[::1], uint64[::1])")
def _gather_keys(keys, at, out):  # type: ignore[no-untyped-def]
    k = cuda.grid(1)
    if k < at.shape[0]:
        out[k] = keys[at[k]]


def can_aggregate(layout: CellLayout) -> bool:
    """Whether atomics can merge every column; the others are merged by `gpuwin_kernels.cuda.cells.combine`."""
    return all(by_atomics(column) for column in layout.columns)


def aggregate_rows(
    layout: CellLayout,
    inputs: Sequence[RowInput],
    code: np.ndarray,
    time: np.ndarray,
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
    n = len(time)
    if len(inputs) != len(layout.columns) or len(code) != n:
        raise ValueError(f"{len(inputs)} inputs for {len(layout.columns)} columns, {len(code)} codes for {n} times")
    if n >= 1 << 31:
        raise ValueError(f"{n} rows in one call; at most 2**31 - 1 are aggregated at once")
    spec, dtypes, arguments = _inputs(layout, inputs)
    kernels = row_kernels(spec, dtypes)
    if n == 0:
        return DeviceCells(empty(0, np.int64), empty(0, np.int32), _columns(layout, 0)[1])
    shift, start = divmod(origin, width)
    least, most = time_range(time) if span is None else span
    if most - least >= REACH:
        raise ValueError(f"times lie {most - least} microseconds apart; split the rows")
    first, last = int(pane_of(least, width, start)), int(pane_of(most, width, start))
    panes = last - first + 1
    base = (first * width + start + (1 << 63)) % (1 << 64) - (1 << 63)  # may lie below int64: taken modulo 2**64
    common = (_on_device(code), _on_device(time), base, width, 1.0 / width)
    records, words = panes * codes, spec.width
    if records * words * 8 <= tuning.CUDA_SHARED_BYTES:
        table = _table(records * words)
        shared = records * words * 8
        launch_over(kernels.few, n, *common, codes, records, *arguments, *table, shared=shared)
        return _dense_cells(kernels, layout, table, records, codes, first - shift)
    limit = min(
        max(tuning.DENSE_ANYWAY, tuning.CUDA_DENSE_SPARSITY * n), tuning.CUDA_DENSE_BYTES // (8 * words), (1 << 31) - 1
    )
    if records <= limit:
        table = _table(records * words)
        launch_over(kernels.dense, n, *common, codes, *arguments, *table)
        return _dense_cells(kernels, layout, table, records, codes, first - shift)
    code_bits = max(codes - 1, 1).bit_length()
    bits = code_bits + (panes - 1).bit_length()
    if bits > 62:
        raise ValueError(f"{panes} panes of {codes} keys do not fit a packed cell; split the rows")
    capacity = 1 << max(6, (2 * min(n, records) - 1).bit_length())
    keys, table = full(capacity, EMPTY, np.uint64), _table(capacity * words)
    launch_over(kernels.hashed, n, *common, code_bits, keys, *arguments, *table)
    return _hashed_cells(kernels, layout, keys, table, code_bits, bits, first - shift)


def time_range(time: Any) -> tuple[int, int]:
    """(least, most) of int64[n], n > 0, on the host or the device."""
    if isinstance(time, np.ndarray):
        return int(time.min()), int(time.max())
    from gpuwin_kernels.cuda.reductions import least_and_most

    return least_and_most(time)


def _inputs(layout: CellLayout, inputs: Sequence[RowInput]) -> tuple[DeviceRowSpec, tuple[str, ...], list[Any]]:
    """What the kernels depend on, and the arguments of the inputs, each moved once."""
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


def _on_device(array: Any) -> Any:
    return to_device(array) if isinstance(array, np.ndarray) else array


def _wide(values: np.ndarray) -> Any:
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


def _used(kernels: _Kernels, table: tuple[Any, Any, Any], records: int) -> Any:
    """int32[m]: the records that are in use, ascending. The one synchronisation of a call: how many there are comes
    with whether a sum has left its type. Raises SumOverflow.
    """
    used, overflow, told = empty(records, np.int64), zeros(1, np.int64), empty(2, np.int64)
    launch(kernels.mark, records, *table[:2], used, overflow)
    place = primitives.exclusive_sum(used)
    launch(_tell, 1, place, overflow, told)
    m, bad = to_host(told).tolist()
    if bad:
        raise SumOverflow("a sum of integers left its type")
    record = empty(m, np.int32)
    launch(_list_used, records if m else 0, place, record)
    return record


def _extracted(kernels: _Kernels, layout: CellLayout, table: tuple[Any, Any, Any], record: Any) -> Any:
    """The columns of these records."""
    flat, columns = _columns(layout, len(record))
    launch(kernels.extract, len(record), record, *table, *flat)
    return columns


def _dense_cells(
    kernels: _Kernels, layout: CellLayout, table: tuple[Any, Any, Any], records: int, codes: int, first_pane: int
) -> DeviceCells:
    record = _used(kernels, table, records)
    pane, code = empty(len(record), np.int64), empty(len(record), np.int32)
    launch(_name_dense, len(record), record, codes, 1.0 / codes, first_pane, pane, code)
    return DeviceCells(pane, code, _extracted(kernels, layout, table, record))


def _hashed_cells(
    kernels: _Kernels,
    layout: CellLayout,
    keys: Any,
    table: tuple[Any, Any, Any],
    code_bits: int,
    bits: int,
    first_pane: int,
) -> DeviceCells:
    slot = _used(kernels, table, len(keys))
    packed = empty(len(slot), np.uint64)
    launch(_gather_keys, len(slot), keys, slot, packed)
    packed, record = primitives.sort_pairs(packed, slot, bits)
    pane, code = empty(len(record), np.int64), empty(len(record), np.int32)
    launch(unpack, len(record), packed, code_bits, first_pane, pane, code)
    return DeviceCells(pane, code, _extracted(kernels, layout, table, record))


__all__ = ["REACH", "DeviceCells", "aggregate_rows", "can_aggregate", "time_range", "unpack"]
