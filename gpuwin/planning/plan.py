"""From a specification and an Arrow schema to partial columns: what each row puts into its cell, and what becomes of
a merged cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from gpuwin.errors import SchemaError, SpecificationError
from gpuwin.planning.aggregate_record import CellRecord, RowRecord
from gpuwin.planning.aggregates import AGGREGATES
from gpuwin.planning.finishing import Finish, Result
from gpuwin.planning.folding import Fold, FoldInput
from gpuwin.planning.ingest import check_known, check_time, place_of, planned_type
from gpuwin.planning.inputs import CellInput, ColumnInput
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import dtype_of
from gpuwin.state.rows.kept_rows import FirstOfEquals, KeptRows, Largest
from gpuwin.state.rows.row_state import RowState
from gpuwin.state.rows.sketches import AnySketch, finisher_of
from gpuwin.state.rows.slices import Order, RowSlices
from gpuwin.vocabulary.aggregates import Aggregate
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import Trigger
from gpuwin.vocabulary.watermarks import SystemClock
from gpuwin.vocabulary.windows import Column, InheritedWindow, SessionWindow
from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout

CellFinish = Callable[[Sequence[CellArrays], BytesHeap | None], pa.Array]
RowFinish = Callable[[RowSlices], pa.Array]
FinishAll = Callable[..., list[pa.Array]]


@dataclass(frozen=True)
class Output:
    """One aggregate column of the result; `finish`: from cells, None where rows give it."""

    name: str
    type: pa.DataType
    finish: CellFinish | None = None


@dataclass(frozen=True)
class RowOutputs:
    """Aggregate columns of the result that are finished from rows together; `at`: their places among the outputs."""

    at: tuple[int, ...]
    finish: Callable[[RowSlices], Sequence[pa.Array]]


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
    of_rows: tuple[RowOutputs, ...]  # those of the outputs that rows give
    schema: pa.Schema  # of the result

    @cached_property
    def only_keys(self) -> frozenset[str]:
        """The key columns that no aggregate reads."""
        return frozenset(self.spec.keys).difference(*(each.reads for each in self.spec.aggregates.values()))

    @cached_property
    def values(self) -> dict[str, pa.DataType]:
        """Types of the input columns whose values are read: all but a time column that only places its rows."""
        spec = self.spec
        read = {*spec.keys, *(name for a in spec.aggregates.values() for name in a.reads)}
        read |= set(spec._evictor_reads)
        if isinstance(spec.window, InheritedWindow):
            read |= {"window_start", "window_end"}
        return {name: type_ for name, type_ in self.types.items() if name in read or name != spec.time}

    @cached_property
    def kept_values(self) -> dict[str, pa.DataType]:
        """Types of the columns that rows are kept with: those of `values` but for keys that nothing else reads."""
        unread = self.only_keys.difference(self.spec._evictor_reads)
        return {name: type_ for name, type_ in self.values.items() if name not in unread}

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
        return RowState.empty([self.types[name] for name in self.row_names], self.sketches, self.kept_rows)

    @cached_property
    def kept_rows(self) -> KeptRows | None:
        """Rows of a cell that stay, where all that reads rows looks at different values alone, or all of it at the
        largest values of one column; None where all stay.
        """
        spec = self.spec
        if self.sketches or (isinstance(spec.emit, Trigger) and spec.emit.evict is not None):
            return None
        if any(_sees_order(a) for a in spec.aggregates.values()):
            return None
        read = [(AGGREGATES[a.kind], a) for a in spec.aggregates.values() if a.accumulation is None]
        by_rows = [(record, a) for record, a in read if isinstance(record, RowRecord)]
        if all(record.different for record, _ in by_rows):
            return FirstOfEquals(spec.semantics.order)
        if len(self.row_names) == 1 and all(a.kind == "top_k" for _, a in by_rows):
            return Largest(max(a.k for _, a in by_rows))
        return None


class _Partials:
    """Collects partial columns; aggregates that need the same one share it."""

    def __init__(self) -> None:
        self.columns: dict[str, CellColumn] = {}
        self.inputs: dict[str, CellInput] = {}
        self.rows: list[str] = []
        self.sketches: list[AnySketch] = []
        self.by_rows: list[tuple[list[str], Callable[[RowSlices], Sequence[pa.Array]]]] = []
        self.together: dict[tuple[FinishAll, int], tuple[list[str], dict[str, list[Any]]]] = {}

    def finish(self, name: str, finish: RowFinish) -> None:
        """Takes note of how rows give one output."""
        self.by_rows.append(([name], lambda slices: [finish(slices)]))

    def finish_together(self, name: str, finish: FinishAll, column: int, options: Mapping[str, Any]) -> None:
        """Takes note of an output that rows give together with others of the same column."""
        if (finish, column) not in self.together:
            names, lists = self.together[finish, column] = [], {option: [] for option in options}
            self.by_rows.append((names, partial(finish, column=column, **lists)))  # which are filled below
        names, lists = self.together[finish, column]
        names.append(name)
        for option, value in options.items():
            lists[option].append(value)

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


def _sees_order(a: Aggregate) -> bool:
    """Whether an aggregate is an accumulation that sees rows in order. Without values they are all alike."""
    return a.accumulation is not None and a.accumulation.ordered and bool(a.columns)


def plan_of(spec: Specification, schema: pa.Schema) -> Plan:
    """Checks the schema and lays out the cells.

    Raises SchemaError for a missing column, or a type that an aggregate, a key or the time cannot have.
    """
    types = {name: planned_type(name, schema.field(place_of(schema, name)).type) for name in spec.input_names}
    _check_bounds(spec, types)
    for name, a in spec.aggregates.items():
        for column, accepted in zip(a.reads, () if a.accumulation else AGGREGATES[a.kind].takes, strict=False):
            accepted.check(name, a, column, types[column])
    partials = _Partials()
    sketched = _sketches_of(spec, types)
    outputs = []
    for name, a in spec.aggregates.items():
        if a.accumulation is not None:
            outputs.append(_user_output(spec, name, a, types, partials))
        elif name in sketched:
            place = partials.sketch(a.reads[0], sketched[name])
            partials.finish(name, finisher_of(sketched[name], place, a.fraction))
            outputs.append(Output(name, AGGREGATES[a.kind].out((types[a.reads[0]],))))
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
        tuple(RowOutputs(tuple(map(list(spec.aggregates).index, names)), of) for names, of in partials.by_rows),
        _result_schema(spec, types, {o.name: o.type for o in outputs}),
    )


def provisional_schema(spec: Specification) -> pa.Schema:
    """The output schema before any input: names as they will be, types as far as the specification alone decides them,
    and null otherwise."""
    known = {name: AGGREGATES[a.kind].gives if a.accumulation is None else None for name, a in spec.aggregates.items()}
    outputs = {name: type_ if isinstance(type_, pa.DataType) else pa.null() for name, type_ in known.items()}
    return _result_schema(spec, {}, outputs)


def _sketches_of(spec: Specification, types: dict[str, pa.DataType]) -> dict[str, AnySketch]:
    """Sketches by the names of their aggregates. There are none where rows are kept anyway, which then answer exactly:
    for an aggregate that needs them, an evictor that looks at them, or values that no sketch takes.
    """
    if isinstance(spec.emit, Trigger) and spec.emit.evict is not None:
        return {}
    found: dict[str, AnySketch] = {}
    for name, a in spec.aggregates.items():
        record = AGGREGATES.get(a.kind)
        if isinstance(record, RowRecord):
            sketch = None if record.sketch is None else record.sketch(a, types[a.reads[0]])
            if sketch is None:
                return {}
            found[name] = sketch
        elif _sees_order(a):
            return {}
    return found


def _check_bounds(spec: Specification, types: dict[str, pa.DataType]) -> None:
    if spec.time is not None and not isinstance(spec.watermark, SystemClock):
        check_time(spec.time, types[spec.time])
    if isinstance(spec.window, InheritedWindow):
        for name in ("window_start", "window_end"):
            check_time(name, types[name])
    for name in spec._evictor_reads:
        check_known("KeepNear: column", name, types[name])
        if dtype_of(types[name]) not in ("int64", "float64"):
            raise SchemaError(f"KeepNear compares column {name!r}, which is {types[name]}; it takes numbers and times")
    if isinstance(spec.window, SessionWindow) and isinstance(spec.window.gap, Column):
        type_ = types[spec.window.gap.name]
        check_known("the session gap", spec.window.gap.name, type_)
        ok = pa.types.is_duration(type_) or pa.types.is_integer(type_) or pa.types.is_string(type_)
        if not ok and not pa.types.is_large_string(type_):
            raise SchemaError(
                f"the session gap {spec.window.gap.name!r} is {type_}: "
                "it must be a duration, an integer of microseconds, or a string"
            )


def _result_schema(spec: Specification, types: dict[str, pa.DataType], outputs: dict[str, pa.DataType]) -> pa.Schema:
    clock = types.get("window_start" if isinstance(spec.window, InheritedWindow) else spec.time or "")
    bound = pa.timestamp("us", clock.tz if clock is not None and pa.types.is_timestamp(clock) else None)
    fields = [pa.field(name, types.get(name, pa.null())) for name in spec.keys]
    fields += [pa.field("window_start", bound), pa.field("window_end", bound)]
    fields += [pa.field(name, type_) for name, type_ in outputs.items()]
    if isinstance(spec.emit, Trigger):
        fields.append(pa.field("pane", pa.string(), nullable=False))
    if spec.accumulation == "retracting":
        fields.append(pa.field("is_retraction", pa.bool_(), nullable=False))
    return pa.schema(fields)


def _output(spec: Specification, name: str, a: Aggregate, types: dict[str, pa.DataType], partials: _Partials) -> Output:
    """The output of an aggregate of the table, which keeps cells or rows."""
    record, input_types = AGGREGATES[a.kind], tuple(types[c] for c in a.reads)
    out = record.out(input_types)
    if isinstance(record, RowRecord):
        more = {"order": _order(spec, name)} if record.ordered(input_types) else record.options(a)
        columns = {"column": partials.keep(a.reads[0])}
        if a.by is not None:
            columns["by"] = partials.keep(a.by)
        if record.finish_all is not None:
            partials.finish_together(name, record.finish_all, columns["column"], more)
        else:
            assert record.finish is not None
            partials.finish(name, partial(record.finish, **columns, **more))
        return Output(name, out)
    assert isinstance(record, CellRecord)
    at = []
    for part in record.keeps(input_types):
        column = CellColumn(
            f"{part.how} {_joined(a.reads)}" if a.reads else "rows", part.merge, part.dtype, part.nullable
        )
        at.append(partials.need(column, ColumnInput(column, a.reads, part.take)))
    return Output(name, out, _finish(record.finish, Result(a, input_types, out), at))


def _order(spec: Specification, name: str) -> Order:
    """Order in which an aggregate sees the rows of a window. Raises SpecificationError where they do not lie so."""
    order = spec.semantics.order
    if (
        order == "time"
        and isinstance(spec.window, InheritedWindow)
        and spec.time not in (None, "window_start", "window_end")
    ):
        raise SpecificationError(
            f"aggregate {name!r} sees the rows of a window by time, and rows that bring their windows along are kept "
            'by these: write time="window_start", or Semantics(order="arrival")'
        )
    return order


def _finish(finish: Finish, result: Result, at: Sequence[int]) -> CellFinish:
    """The finish of one aggregate, of all partial columns: it looks at those number `at`."""

    def of_all(columns: Sequence[CellArrays], heap: BytesHeap | None) -> pa.Array:
        return finish(result, [columns[k] for k in at], heap)

    return of_all


def _joined(names: tuple[str, ...]) -> str:
    """Column names in one; different for different ones, also where names have spaces."""
    return repr(names) if any(" " in name for name in names) else " ".join(names)


def _user_output(
    spec: Specification, name: str, a: Aggregate, types: dict[str, pa.DataType], partials: _Partials
) -> Output:
    accumulation = a.accumulation
    assert accumulation is not None
    input_types = tuple(types[c] for c in a.columns)
    for column, type_ in zip(a.columns, input_types, strict=True):
        check_known(f"aggregate {name!r}: column", column, type_)
        if dtype_of(type_) not in ("int64", "float64"):
            raise SchemaError(
                f"aggregate {name!r}: {accumulation.name} reads column {column!r}, which is {type_}; "
                "an accumulation takes numbers, booleans, dates and times (a decimal has to be cast)"
            )
    fold = Fold(accumulation, tuple(str(dtype_of(t)) for t in input_types))
    if _sees_order(a):
        at = tuple(partials.keep(c) for c in a.columns)
        partials.finish(name, partial(fold.over_rows, columns=at, order=_order(spec, name)))
        return Output(name, fold.result_type)
    held = fold.column(f"user {_joined((name, *a.columns))}")
    number = partials.need(held, FoldInput(fold, a.columns))
    result = Result(a, input_types, fold.result_type)
    return Output(name, fold.result_type, _finish(fold.finish, result, [number]))
