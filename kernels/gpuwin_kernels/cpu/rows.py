"""Rows to cells, in one pass over the rows for all partial columns. The way depends on how many cells the rows may
touch (`_way`), and changes no result but the last bits of float sums:

- dense: a table [pane, key] for each thread, merged at the end;
- partitioned: rows are moved to partitions of (pane, key) whose tables fit the cache, and each partition is dense;
- sorted: rows are sorted by cell, and records are used one after the other;
- split: times are so far apart that no word holds pane and code, and each half of their range goes its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import slots
from gpuwin_kernels.cpu.cells import radix_sort
from gpuwin_kernels.cpu.found_codes import Codes, FoundCodes, SingleCode, codes_array, with_room
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each, ranges
from gpuwin_kernels.cpu.row_source import COUNT, FLOAT, INT, UINT, WIDE, RowKernelSpec, feed_of, source_of
from gpuwin_kernels.cpu.scratch import borrow, give_back
from gpuwin_kernels.cpu.source import load
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout, joined_columns

NO_MASK = np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False, slots=True)
class RowInput:
    """Input that feeds a partial column. Columns that share values and validity should share the object: it is then
    read once.

    `values`: None counts rows; a numeric array [n]; or int64[n, 2] of (low, high) halves of 128-bit integers, as in an
    Arrow decimal128 buffer. uint64 means unsigned numbers. `bitmap`: Arrow validity (uint8, from bit `offset` on), None
    if every row counts. `time`, `seq` (int64[n]) for first, last.
    """

    values: np.ndarray | None
    bitmap: np.ndarray | None = None
    offset: int = 0
    time: np.ndarray | None = None
    seq: np.ndarray | None = None

    @property
    def form(self) -> str:
        if self.values is None:
            return COUNT
        if self.values.ndim == 2:
            return WIDE
        kind = self.values.dtype.kind
        if kind == "f":
            return FLOAT
        return UINT if self.values.dtype == np.uint64 else INT


class Cells(NamedTuple):
    """Cells sorted by (pane, code), each once."""

    pane: np.ndarray  # int64[m]
    code: np.ndarray  # int32[m]
    columns: tuple[CellArrays, ...]


_Way = Literal["dense", "partitioned", "sorted", "split"]

_Pass = Callable[[CellLayout, Sequence[RowInput]], Cells]
"""Cells of some of the columns, from all rows."""


class SumOverflow(ArithmeticError):
    """Error of an exact sum that left its type on the way."""

    def __init__(self) -> None:
        super().__init__("a sum of integers left its type")


@dataclass(frozen=True, slots=True)
class _Kernels:
    spec: RowKernelSpec
    dense: Callable[..., Any]
    dense_found: Callable[..., Any]
    dense_single: Callable[..., Any]
    fold: Callable[..., Any]
    extract: Callable[..., Any]
    sparse: Callable[..., Any]


@cache
def _kernels(spec: RowKernelSpec) -> _Kernels:
    module = load("rows", source_of(spec))
    dense = module.dense, module.dense_found, module.dense_single
    return _Kernels(spec, *dense, module.fold, module.extract, module.sparse)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Arguments that every way needs."""

    layout: CellLayout
    kernels: _Kernels
    inputs: tuple[Any, ...]  # in the order of the generated functions
    keys: Codes
    time: np.ndarray
    mask: np.ndarray
    codes: int
    width: int
    base: int  # where the first pane starts
    first_pane: int
    panes: int
    rows: int  # that are not masked out
    reach: int  # from the start of the first pane to the last time

    @property
    def records(self) -> int:
        """Number of cells that there may be."""
        return self.panes * self.codes

    @property
    def code_bits(self) -> int:
        """Bits of a code in the number of a cell, below those of its pane."""
        return max(self.codes - 1, 1).bit_length()

    @property
    def bits(self) -> int:
        """Bits of the number of a cell."""
        return self.code_bits + (self.panes - 1).bit_length()

    @property
    def code(self) -> np.ndarray:
        """Codes of the rows, int32[n]."""
        assert not isinstance(self.keys, FoundCodes)
        return codes_array(self.keys)

    def empty_columns(self, n: int) -> tuple[list[np.ndarray], tuple[CellArrays, ...]]:
        """Arrays for n cells: in the order of the generated functions, and as columns."""
        flat, columns = [], []
        for column in self.layout.columns:
            words = tuple(empty(n, w) for w in column.words)
            valid = empty(n, np.uint8) if column.nullable else None
            flat += [*words] if valid is None else [*words, valid]
            columns.append(CellArrays(words, valid))
        return flat, tuple(columns)


def aggregate_rows(
    layout: CellLayout,
    inputs: Sequence[RowInput],
    code: Codes,
    time: np.ndarray,
    width: int,
    origin: int = 0,
    *,
    codes: int,
    mask: np.ndarray = NO_MASK,
    ends: tuple[int, int] | None = None,
) -> Cells:
    """Cells of rows: pane floor((time - origin) / width), key `code`.

    `inputs`: one for each column of the layout. `code` int32[n] in [0, codes), or what finds them and enters keys that
    are new; `time` int64[n] microseconds, `mask` uint8[n]: 0 for rows to leave out. `ends`: the smallest and the
    largest time, where they are known and no row is left out. Raises SumOverflow where an exact sum left its type,
    ValueError for inputs that do not fit the layout.
    """
    if len(layout.columns) > tuning.PASS_COLUMNS and len(inputs) == len(layout.columns):
        if isinstance(code, FoundCodes):
            found = code.array()
            codes = code.count()
            code = found
        one_pass = partial(
            aggregate_rows, code=code, time=time, width=width, origin=origin, codes=codes, mask=mask, ends=ends
        )
        return _in_passes(layout, inputs, one_pass)
    batch = _prepared(layout, inputs, code, time, width, origin, codes, mask, ends)
    if batch is None:
        flat = tuple(
            CellArrays(tuple(np.empty(0, w) for w in c.words), np.empty(0, np.uint8) if c.nullable else None)
            for c in layout.columns
        )
        return Cells(np.empty(0, np.int64), np.empty(0, np.int32), flat)
    way = _way(batch)
    if isinstance(code, FoundCodes) and (way != "dense" or len(mask) or 2 * batch.records > batch.rows):
        batch = replace(batch, keys=code.array(), codes=code.count())
        way = _way(batch)
    return _in_ranges(batch, layout, inputs, width, origin) if way == "split" else _cells_by(way, batch)


def _way(batch: _Batch) -> _Way:
    """Way to the cells of a batch."""
    if batch.reach >= 1 << 64:
        return "split"
    if _is_dense(batch.records, batch.rows, 8 * batch.kernels.spec.width):
        return "dense"
    if batch.bits > 63:
        return "split"
    most = tuning.PART_SPARSITY * batch.rows
    return "partitioned" if batch.rows >= tuning.SORT_ROWS and (batch.panes << batch.code_bits) <= most else "sorted"


def _cells_by(way: _Way, batch: _Batch) -> Cells:
    """Cells by a way that takes the batch as it is."""
    if way == "dense":
        return _dense(batch)
    return _partitioned(batch) if way == "partitioned" else _sorted(batch)


def _in_passes(layout: CellLayout, inputs: Sequence[RowInput], one_pass: _Pass) -> Cells:
    """Cells of many columns, which take several passes over the rows: a kernel takes as long to compile as it has
    columns, and one of a few columns of a kind is compiled once for all of them.
    """
    columns = layout.columns
    by_kind = sorted(range(len(columns)), key=lambda i: _kind(columns[i], inputs[i]))
    size = -(-len(columns) // -(-len(columns) // tuning.PASS_COLUMNS))
    parts: dict[int, CellArrays] = {}
    for first in range(0, len(columns), size):
        some = by_kind[first : first + size]
        cells = one_pass(CellLayout(tuple(columns[i] for i in some)), [inputs[i] for i in some])
        parts |= zip(some, cells.columns, strict=True)
    return cells._replace(columns=tuple(parts[i] for i in range(len(columns))))


def _kind(column: CellColumn, item: RowInput) -> tuple[str, str, bool, bool, str, bool]:
    """Kind of a column: all that the source of a kernel says of it, but for the number of its input."""
    return column.merge, column.dtype, column.wrap, column.nullable, item.form, item.bitmap is not None


def _is_dense(records: int, rows: int, width: int) -> bool:
    """Whether a table of so many records of `width` bytes is the best place for so many rows."""
    size = records * width
    sparsity = tuning.DENSE_SPARSITY if size <= tuning.DENSE_NEAR else tuning.DENSE_SPARSITY_FAR
    most = tuning.DENSE_BYTES * (tuning.DENSE_FULL if 2 * records <= rows else 1)
    return size <= most and records <= max(tuning.DENSE_ANYWAY, sparsity * rows)


def _prepared(
    layout: CellLayout,
    inputs: Sequence[RowInput],
    code: Codes,
    time: np.ndarray,
    width: int,
    origin: int,
    codes: int,
    mask: np.ndarray,
    ends: tuple[int, int] | None,
) -> _Batch | None:
    """Batch as every way takes it; None if there are no rows."""
    if len(inputs) != len(layout.columns):
        raise ValueError(f"the layout has {len(layout.columns)} columns, {len(inputs)} inputs were given")
    if len(code) != len(time) or (len(mask) and len(mask) != len(time)):
        raise ValueError(f"{len(time)} times, {len(code)} codes and {len(mask)} mask bytes")
    if ends is not None and len(time) and not len(mask):
        if ends[0] > ends[1]:
            raise ValueError("a time lies outside of the ends of the rows")
        parts = [(*ends, len(time))]
    else:
        parts = each(lambda part: slots.time_range(time[slice(*part)], mask[slice(*part)]), ranges(len(time)))
    rows = sum(p[2] for p in parts)
    if not rows:
        return None
    # Panes are counted from an origin in [0, width), so that times near the ends of int64 have one.
    shift, origin = divmod(origin, width)
    first = int(slots.pane_of(min(p[0] for p in parts if p[2]), width, origin))
    last = int(slots.pane_of(max(p[1] for p in parts if p[2]), width, origin))
    sources: dict[int, int] = {}
    for item in inputs:
        sources.setdefault(id(item), len(sources))
    distinct = list({id(item): item for item in inputs}.values())
    spec = RowKernelSpec(
        tuple(feed_of(c, sources[id(i)], i.form) for c, i in zip(layout.columns, inputs, strict=True)),
        tuple(i.form for i in distinct),
        tuple(i.bitmap is not None for i in distinct),
    )
    arguments: list[Any] = []
    for item in distinct:
        if item.values is not None:
            if len(item.values) != len(time):
                raise ValueError(f"an input of {len(item.values)} values for {len(time)} rows")
            arguments.append(item.values)
        if item.bitmap is not None:
            arguments += [item.bitmap, item.offset]
    for column, item in zip(layout.columns, inputs, strict=True):
        if column.merge in ("first", "last"):
            if item.time is None or item.seq is None:
                raise ValueError(f"column {column.name!r} needs the time and the seq of each row")
            arguments += [item.time, item.seq]
    base = first * width + origin
    return _Batch(
        layout=layout,
        kernels=_kernels(spec),
        inputs=tuple(arguments),
        keys=code,
        time=time,
        mask=mask,
        codes=codes,
        width=width,
        base=base,
        first_pane=first - shift,
        panes=last - first + 1,
        rows=rows,
        reach=max(p[1] for p in parts if p[2]) - base,
    )


def _views(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return table, table.view(np.uint64), table.view(np.float64)


def _modulo(base: int) -> np.uint64:
    """Base modulo 2**64, so that differences to it are exact even where the first pane starts before the smallest
    int64.
    """
    return np.uint64(base & 0xFFFFFFFFFFFFFFFF)


def _dense(batch: _Batch) -> Cells:
    kernels, spec = batch.kernels, batch.kernels.spec
    records = batch.records
    # A second table has to be merged into the first: not worth it where there are more records than rows.
    parts = ranges(len(batch.time)) if 2 * records <= len(batch.time) else [(0, len(batch.time))]
    tables = [borrow((records + 1) * spec.width) for _ in parts]
    bad, ends = _fill(batch, tables, parts)
    left = [(end, hi) for end, (_, hi) in zip(ends, parts, strict=True)]
    if any(lo < hi for lo, hi in left):
        keys = batch.keys
        assert isinstance(keys, FoundCodes)
        rest = replace(batch, keys=keys.array_of(left), codes=keys.count())
        records, way = rest.records, _way(rest)
        if way != "dense":
            return _cells_by(way, replace(rest, keys=keys.array()))  # and the tables are dropped
        tables = [with_room(table, batch.panes, spec.width, batch.codes, rest.codes) for table in tables]
        batch = rest
        bad |= _fill(batch, tables, left)[0]
    chunks = ranges(records, tuning.SPLIT_ROWS)

    def fold(chunk: tuple[int, int]) -> tuple[bool, int]:
        wrong = False
        for other in tables[1:]:
            wrong |= bool(kernels.fold(*_views(tables[0]), *_views(other), *chunk))
        return wrong, int(slots.count_used(tables[0], spec.width, spec.in_use, *chunk))

    folded = each(fold, chunks)
    if bad or any(wrong for wrong, _ in folded):
        raise SumOverflow  # and the tables are dropped
    starts = np.cumsum([0, *(n for _, n in folded)]).tolist()
    pane, code = empty(starts[-1], np.int64), empty(starts[-1], np.int32)
    flat, columns = batch.empty_columns(starts[-1])

    def extract(k: int) -> None:
        kernels.extract(*_views(tables[0]), *chunks[k], batch.codes, batch.first_pane, starts[k], pane, code, *flat)

    each(extract, range(len(chunks)))
    for table in tables:
        give_back(table)
    return Cells(pane, code, columns)


def _fill(batch: _Batch, tables: list[np.ndarray], parts: list[tuple[int, int]]) -> tuple[bool, list[int]]:
    """Outcome of adding each part of the rows to a table of its own: (whether a sum left its type, up to where each
    part is in).
    """
    kernels, spec, keys = batch.kernels, batch.kernels.spec, batch.keys
    records = batch.records

    def fill(k: int) -> tuple[bool, int]:
        table = tables[k]
        rows = (batch.time, batch.mask, *parts[k], _modulo(batch.base), batch.width, records, batch.codes)
        if isinstance(keys, FoundCodes):
            found = keys.raw, keys.least, keys.index
            bad, end = kernels.dense_found(*_views(table), *found, *rows, *batch.inputs)
        elif isinstance(keys, SingleCode):
            bad, end = kernels.dense_single(*_views(table), *rows[:-1], *batch.inputs)
        else:
            bad, end = kernels.dense(*_views(table), keys, *rows, *batch.inputs)
        table[records * spec.width : (records + 1) * spec.width] = 0
        return bool(bad), int(end)

    done = each(fill, range(len(parts)))
    return any(bad for bad, _ in done), [end for _, end in done]


def _ids(batch: _Batch) -> np.ndarray:
    """Number of the cell of each row, uint64[n]: its pane, from the first on, and below it its code."""
    ids = empty(len(batch.time), np.uint64)
    base = _modulo(batch.base)

    def fill(part: tuple[int, int]) -> None:
        at = slice(*part)
        slots.cell_ids(
            batch.code[at],
            batch.time[at],
            batch.mask[at],
            base,
            np.uint64(batch.width),
            batch.panes,
            batch.code_bits,
            ids[at],
        )

    each(fill, ranges(len(ids)))
    return ids


def _by_part(batch: _Batch, slot_bits: int, parts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows by partition, then in order of arrival: (where each partition starts int64[parts + 1], slot in it, row
    number).
    """
    ids = _ids(batch)
    shares = ranges(len(ids))
    counts = np.zeros((len(shares), parts), np.int64)
    each(lambda k: slots.count_parts(ids, *shares[k], slot_bits, counts[k]), range(len(shares)))
    start = np.zeros(parts + 1, np.int64)
    np.cumsum(counts.sum(axis=0), out=start[1:])
    places = start[:-1] + np.cumsum(counts, axis=0) - counts  # of each range in each partition
    slot, row = empty(batch.rows, np.uint32), empty(batch.rows, np.uint32)
    each(lambda k: slots.scatter_parts(ids, *shares[k], slot_bits, places[k], slot, row), range(len(shares)))
    return start, slot, row


def _partitioned(batch: _Batch) -> Cells:
    kernels, spec, code_bits = batch.kernels, batch.kernels.spec, batch.code_bits
    near = (tuning.PART_BYTES // (8 * spec.width)).bit_length() - 1
    slot_bits = max(near, batch.bits - (tuning.MOST_PARTS.bit_length() - 1), 6)
    parts = ((batch.panes << code_bits) >> slot_bits) + 1
    start, slot, row = _by_part(batch, slot_bits, parts)
    shares = ranges(len(batch.time))
    edges = np.searchsorted(start, np.linspace(0, batch.rows, len(shares) + 1)[1:-1]).tolist()
    spans = list(zip([0, *edges], [*edges, parts], strict=True))
    cell_slot, cell_start = empty(batch.rows, np.uint32), empty(parts + 1, np.int64)

    def list_cells(span: tuple[int, int]) -> int:
        used = np.zeros(max(1, (1 << slot_bits) >> 6), np.uint64)
        return int(slots.list_cells(slot, start, *span, used, cell_slot, cell_start) - start[span[0]])

    numbers = each(list_cells, spans)
    total = numbers[0]
    for span, n in zip(spans[1:], numbers[1:], strict=True):
        at = int(start[span[0]])
        cell_slot[total : total + n] = cell_slot[at : at + n]
        cell_start[slice(*span)] -= at - total
        total += n
    cell_start[parts] = total
    pane, code = empty(total, np.int64), empty(total, np.int32)
    flat, columns = batch.empty_columns(total)

    def aggregate(span: tuple[int, int]) -> bool:
        slots.name_cells(cell_slot, cell_start, span, slot_bits, code_bits, batch.first_pane, pane, code)
        table = borrow(spec.width << slot_bits)
        bad = kernels.sparse(*_views(table), *span, start, slot, row, cell_start, cell_slot, *batch.inputs, *flat)
        give_back(table)
        return bool(bad)

    if any(each(aggregate, spans)):
        raise SumOverflow
    return Cells(pane, code, columns)


def _sorted(batch: _Batch) -> Cells:
    kernels, spec = batch.kernels, batch.kernels.spec
    ids = _ids(batch)
    n = batch.rows
    rows = empty((2, len(ids)), np.int32)
    if n < len(ids):
        slots.drop_masked(ids, rows[0])
    else:
        rows[0] = np.arange(n, dtype=np.int32)
    other = empty(n, np.uint64)
    swapped = radix_sort(ids[:n], rows[0, :n], other, rows[1, :n], batch.bits)
    ids, row = (other, rows[1, :n]) if swapped else (ids[:n], rows[0, :n])
    slot = empty(n, np.uint32)
    pane, code = empty(n, np.int64), empty(n, np.int32)
    m = slots.rank_ids(ids, batch.code_bits, batch.first_pane, slot, pane, code)
    flat, columns = batch.empty_columns(m)
    table = borrow(m * spec.width)
    bounds = np.array([0, n], np.int64), np.array([0, m], np.int64)
    bad = kernels.sparse(
        *_views(table),
        0,
        1,
        bounds[0],
        slot,
        row.view(np.uint32),
        bounds[1],
        np.arange(m, dtype=np.uint32),
        *batch.inputs,
        *flat,
    )
    give_back(table)
    if bad:
        raise SumOverflow
    return Cells(pane[:m].copy(), code[:m].copy(), columns)


def _in_ranges(batch: _Batch, layout: CellLayout, inputs: Sequence[RowInput], width: int, origin: int) -> Cells:
    """Cells of rows whose times are too far apart for one word to hold pane and code: of the halves of their range, one
    after the other.
    """
    middle = batch.base + (batch.panes // 2) * batch.width
    early = (batch.time < middle).astype(np.uint8)
    late = 1 - early
    if len(batch.mask):
        kept = (batch.mask != 0).astype(np.uint8)
        early, late = early & kept, late & kept
    a, b = (
        aggregate_rows(layout, inputs, batch.code, batch.time, width, origin, codes=batch.codes, mask=mask)
        for mask in (early, late)
    )
    columns = joined_columns((a.columns, b.columns), np.concatenate)
    return Cells(np.concatenate((a.pane, b.pane)), np.concatenate((a.code, b.code)), columns)


__all__ = ["Cells", "RowInput", "SumOverflow", "aggregate_rows"]
