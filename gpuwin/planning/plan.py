"""From a specification and an Arrow schema to partial columns: what each row puts into its cell, and what becomes of
a finished cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from gpuwin.errors import SchemaError
from gpuwin.planning.approximate import sketches_of
from gpuwin.planning.finishing import Finish, finisher
from gpuwin.planning.folding import Fold, FoldInput
from gpuwin.planning.ingest import check_time, place_of, plain_type, unknown_type
from gpuwin.planning.inputs import CellInput, ColumnInput
from gpuwin.state.physical import dtype_of, rankable
from gpuwin.state.rows import holistic
from gpuwin.state.rows.row_state import RowSlices, RowState
from gpuwin.state.rows.sketches import AnySketch, finisher_of
from gpuwin.vocabulary.aggregates import HOLISTIC, Aggregate
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Trigger
from gpuwin.vocabulary.watermarks import SystemClock
from gpuwin.vocabulary.windows import Column, InheritedWindow, SessionWindow
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

_NUMBER = "a number or a decimal"
RowFinish = Callable[[RowSlices], pa.Array]


@dataclass(frozen=True)
class Output:
    """One aggregate column of the result: finished from cells, or from rows."""

    name: str
    type: pa.DataType
    finish: Finish | None
    finish_rows: RowFinish | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that depends on the specification and on the types of the input, and on nothing else."""

    spec: Specification
    types: dict[str, pa.DataType]  # of the input columns that are read
    key_types: tuple[pa.DataType, ...]
    layout: CellLayout
    inputs: tuple[CellInput, ...]  # one for each column of the layout
    row_names: tuple[str, ...]  # the columns that are kept as rows, or as sketches of rows
    sketches: tuple[AnySketch, ...]  # one for each of them, or none
    outputs: tuple[Output, ...]
    schema: pa.Schema  # of the result

    @cached_property
    def only_keys(self) -> frozenset[str]:
        """The key columns that no aggregate reads."""
        return frozenset(self.spec.keys).difference(*(each.reads for each in self.spec.aggregates.values()))

    @cached_property
    def values(self) -> dict[str, pa.DataType]:
        """The input columns that are more than the time of a row."""
        spec = self.spec
        read = {*spec.keys, *(name for a in spec.aggregates.values() for name in a.reads)}
        read |= set(spec._evictor_reads)
        if isinstance(spec.window, InheritedWindow):
            read |= {"window_start", "window_end"}
        return {name: type_ for name, type_ in self.types.items() if name in read or name != spec.time}

    @cached_property
    def folded_uint64(self) -> tuple[str, ...]:
        """The uint64 columns that an accumulation of the user's own gets as int64."""
        folded = {name for a in self.spec.aggregates.values() for name in a.columns}
        return tuple(name for name in self.types if name in folded and self.types[name] == pa.uint64())

    @property
    def keeps_rows(self) -> bool:
        return bool(self.row_names)

    def no_rows(self) -> RowState | None:
        """Where rows are kept, before there are any."""
        if not self.keeps_rows:
            return None
        return RowState.empty([self.types[name] for name in self.row_names], self.sketches)


class _Partials:
    """Collects partial columns; aggregates that need the same one share it."""

    def __init__(self) -> None:
        self.columns: dict[str, CellColumn] = {}
        self.inputs: dict[str, CellInput] = {}
        self.rows: list[str] = []
        self.sketches: list[AnySketch] = []

    def need(self, column: CellColumn, cell: CellInput) -> int:
        if column.name not in self.columns:
            self.columns[column.name] = column
            self.inputs[column.name] = cell
        return list(self.columns).index(column.name)

    def keep(self, name: str) -> int:
        if name not in self.rows:
            self.rows.append(name)
        return self.rows.index(name)

    def sketch(self, name: str, sketch: AnySketch) -> int:
        pairs = list(zip(self.rows, self.sketches, strict=True))
        if (name, sketch) not in pairs:
            self.rows.append(name)
            self.sketches.append(sketch)
            return len(pairs)
        return pairs.index((name, sketch))


def plan_of(spec: Specification, schema: pa.Schema) -> Plan:
    """Checks the schema and lays out the cells.

    Raises SchemaError for a missing column, or a type that an aggregate, a key or the time cannot have.
    """
    types = {name: plain_type(schema.field(place_of(schema, name)).type) for name in spec.input_names}
    _check_bounds(spec, types)
    partials = _Partials()
    sketched = sketches_of(spec, types)
    outputs = []
    for name, a in spec.aggregates.items():
        if name in sketched and a.column is not None:
            finish = finisher_of(sketched[name], partials.sketch(a.column, sketched[name]), a.fraction)
            out = pa.int64() if a.kind == "approx_count_distinct" else types[a.column]
            outputs.append(Output(name, out, None, finish))
        else:
            outputs.append(_output(spec, name, a, types, partials))
    layout = CellLayout(tuple(partials.columns.values()))
    key_types = tuple(types[name] for name in spec.keys)
    return Plan(
        spec,
        types,
        key_types,
        layout,
        tuple(partials.inputs.values()),
        tuple(partials.rows),
        tuple(partials.sketches),
        tuple(outputs),
        _result_schema(spec, types, outputs),
    )


def _check_bounds(spec: Specification, types: dict[str, pa.DataType]) -> None:
    if spec.time is not None and not isinstance(spec.watermark, SystemClock):
        check_time(spec.time, types[spec.time])
    if isinstance(spec.window, InheritedWindow):
        for name in ("window_start", "window_end"):
            check_time(name, types[name])
    for name in spec._evictor_reads:
        if dtype_of(types[name]) not in ("int64", "float64"):
            raise SchemaError(f"KeepNear compares column {name!r}, which is {types[name]}; it takes numbers and times")
    if isinstance(spec.window, SessionWindow) and isinstance(spec.window.gap, Column):
        type_ = types[spec.window.gap.name]
        ok = pa.types.is_duration(type_) or pa.types.is_integer(type_) or pa.types.is_string(type_)
        if not ok and not pa.types.is_large_string(type_):
            raise SchemaError(
                f"the session gap {spec.window.gap.name!r} is {type_}: "
                "it must be a duration, an integer of microseconds, or a string"
            )


def _result_schema(spec: Specification, types: dict[str, pa.DataType], outputs: list[Output]) -> pa.Schema:
    zone = None
    clock = types.get(spec.time) if spec.time is not None else None
    if isinstance(spec.window, InheritedWindow):
        clock = types["window_start"]
    if clock is not None and pa.types.is_timestamp(clock):
        zone = clock.tz
    bound = pa.timestamp("us", zone)
    fields = [pa.field(name, types[name]) for name in spec.keys]
    fields += [pa.field("window_start", bound), pa.field("window_end", bound)]
    fields += [pa.field(o.name, o.type) for o in outputs]
    if isinstance(spec.emit, Trigger):
        fields.append(pa.field("pane", pa.string(), nullable=False))
    if spec.accumulation == "retracting":
        fields.append(pa.field("is_retraction", pa.bool_(), nullable=False))
    return pa.schema(fields)


def _wrong(name: str, aggregate: Aggregate, type_: pa.DataType, wanted: str) -> SchemaError:
    kind = "quantile or median" if aggregate.kind == "quantile" else aggregate.kind
    if pa.types.is_null(type_):
        assert aggregate.column is not None
        return SchemaError(
            f"aggregate {name!r}: column {aggregate.column!r}, which is null, has no type in the first batch: "
            f"{unknown_type(aggregate.column)}"
        )
    return SchemaError(
        f"aggregate {name!r}: {kind} of column {aggregate.column!r}, which is {type_}; it takes {wanted}"
    )


def _output(spec: Specification, name: str, a: Aggregate, types: dict[str, pa.DataType], partials: _Partials) -> Output:
    if a.kind in HOLISTIC:
        return _holistic_output(spec, name, a, types, partials)
    if a.kind == "accumulation":
        return _user_output(spec, name, a, types, partials)
    if a.column is None:
        rows = CellColumn("rows", "sum", "int64")
        at = partials.need(rows, ColumnInput(rows, (), (), "one"))
        return Output(name, pa.int64(), finisher("count", (at,), pa.int64()))
    type_ = types[a.column]
    reads, kind = (a.column,), a.kind
    number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    physical = dtype_of(type_)

    def need(merge: str, dtype: str, how: str, nullable: bool = True, of: tuple[str, ...] = reads) -> int:
        column = CellColumn(f"{how} {_joined(of)}", merge, dtype, nullable)
        return partials.need(column, ColumnInput(column, of, tuple(types[n] for n in of), how))

    if kind == "count":
        return Output(name, pa.int64(), finisher("count", (need("sum", "int64", "present", False),), pa.int64()))
    if kind in ("any", "all"):
        if not pa.types.is_boolean(type_):
            raise _wrong(name, a, type_, "booleans")
        at = need("max" if kind == "any" else "min", "int64", "max" if kind == "any" else "min")
        return Output(name, pa.bool_(), finisher("value", (at,), pa.bool_()))
    if kind == "sum":
        if not number and not pa.types.is_duration(type_):
            raise _wrong(name, a, type_, f"{_NUMBER}, or a duration")
        if pa.types.is_decimal(type_):
            out: pa.DataType = pa.decimal128(38, type_.scale)
            _needs_physical(name, a, type_)
            return Output(name, out, finisher("value", (need("sum", "int128", "sum"),), out))
        out = pa.int64() if pa.types.is_integer(type_) else pa.float64() if pa.types.is_floating(type_) else type_
        dtype = "float64" if pa.types.is_floating(type_) else "int64"
        return Output(name, out, finisher("value", (need("sum", dtype, "sum"),), out))
    if kind == "mean":
        if not number:
            raise _wrong(name, a, type_, _NUMBER)
        _needs_physical(name, a, type_)
        size = need("sum", "int64", "present", False)
        if pa.types.is_floating(type_):
            return Output(name, pa.float64(), finisher("mean", (need("sum", "float64", "sum"), size), pa.float64()))
        wide = pa.types.is_decimal(type_) or type_.bit_width == 64
        total = (
            need("sum", "int128", "wide sum" if pa.types.is_integer(type_) else "sum")
            if wide
            else need("sum", "int64", "sum")
        )
        out = pa.float64()
        if pa.types.is_decimal(type_):
            scale = min(type_.scale + 4, 38)
            out = pa.decimal128(max(min(type_.precision + 4, 38), scale), scale)
        return Output(name, out, finisher("mean", (total, size), out, type_))
    if kind in ("var", "std"):
        if not number:
            raise _wrong(name, a, type_, _NUMBER)
        at = need("moments", "float64", "moments")
        return Output(name, pa.float64(), finisher(kind, (at,), pa.float64(), ddof=a.ddof))
    if physical is None:
        raise _wrong(name, a, type_, "numbers, booleans, times, strings and binary")
    if kind in ("min", "max", "first", "last"):
        how = "value" if kind in ("min", "max") else "picked"
        return Output(name, type_, finisher(how, (need(kind, physical, kind),), type_))
    assert a.by is not None
    by_type = types[a.by]
    if not rankable(by_type):
        raise SchemaError(
            f"aggregate {name!r}: {kind} orders by column {a.by!r}, which is {by_type}; "
            "it takes numbers, decimals of up to 18 digits, booleans and times"
        )
    at = need("first" if kind == "min_by" else "last", physical, kind, True, (a.column, a.by))
    return Output(name, type_, finisher("picked", (at,), type_))


def _joined(names: tuple[str, ...]) -> str:
    """Column names in one; different for different ones, also where names have spaces."""
    return repr(names) if any(" " in name for name in names) else " ".join(names)


def _needs_physical(name: str, a: Aggregate, type_: pa.DataType) -> None:
    if dtype_of(type_) is None:
        raise _wrong(name, a, type_, "decimals of at most 38 digits: cast it to decimal128")


def _holistic_output(
    spec: Specification, name: str, a: Aggregate, types: dict[str, pa.DataType], partials: _Partials
) -> Output:
    assert a.column is not None
    type_ = types[a.column]
    if a.kind in ("quantile", "approx_quantile", "top_k"):
        number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
        if a.kind == "quantile" and not number:
            raise _wrong(name, a, type_, _NUMBER)
        if a.kind != "quantile" and pa.types.is_nested(type_):
            raise _wrong(name, a, type_, "values that have an order")
    if pa.types.is_null(type_) or isinstance(type_, pa.BaseExtensionType) or pa.types.is_interval(type_):
        raise _wrong(name, a, type_, "values of a plain type: cast it")
    at = partials.keep(a.column)
    order = spec.semantics.order
    finishes: dict[str, tuple[pa.DataType, RowFinish]] = {
        "quantile": (pa.float64(), partial(holistic.quantile, column=at, q=a.fraction)),
        "approx_quantile": (
            type_,
            partial(holistic.approx_quantile, column=at, q=a.fraction, accuracy=int(a.accuracy)),
        ),
        "count_distinct": (pa.int64(), partial(holistic.count_distinct, column=at)),
        "approx_count_distinct": (pa.int64(), partial(holistic.approx_count_distinct, column=at, rsd=a.accuracy)),
        "collect_list": (pa.list_(type_), partial(holistic.collect_list, column=at, order=order)),
        "collect_set": (pa.list_(type_), partial(holistic.collect_set, column=at, order=order)),
        "top_k": (pa.list_(type_), partial(holistic.top_k, column=at, k=a.k)),
        "histogram": (pa.map_(type_, pa.int64()), partial(holistic.histogram, column=at)),
    }
    out, finish = finishes[a.kind]
    return Output(name, out, None, finish)


def _user_output(
    spec: Specification, name: str, a: Aggregate, types: dict[str, pa.DataType], partials: _Partials
) -> Output:
    accumulation = a.accumulation
    assert accumulation is not None
    input_types = tuple(types[c] for c in a.columns)
    for column, type_ in zip(a.columns, input_types, strict=True):
        if dtype_of(type_) not in ("int64", "float64"):
            raise SchemaError(
                f"aggregate {name!r}: {accumulation.name} reads column {column!r}, which is {type_}; "
                "an accumulation takes numbers, booleans, dates and times (a decimal has to be cast)"
            )
    physical = tuple(str(dtype_of(t)) for t in input_types)
    fold = Fold(accumulation, physical)
    if accumulation.ordered:
        at = tuple(partials.keep(c) for c in a.columns)
        return Output(name, fold.result_type, None, partial(fold.over_rows, columns=at, order=spec.semantics.order))
    held = fold.column(f"user {_joined((name, *a.columns))}")
    number = partials.need(held, FoldInput(fold, a.columns))
    return Output(name, fold.result_type, fold.finisher(number))


def empty_cells(layout: CellLayout, rows: int) -> tuple[CellArrays, ...]:
    """Cells of no rows: what an aggregate is of an empty window."""
    return tuple(
        CellArrays(tuple(np.zeros(rows, w) for w in c.words), np.zeros(rows, np.uint8) if c.nullable else None)
        for c in layout.columns
    )
