"""A user's accumulation, compiled: one row to an accumulator, accumulators to results, and rows in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from gpuwin.errors import SpecificationError
from gpuwin.planning.finishing import Cells, Result
from gpuwin.planning.ingest import instants, is_time, valid_mask
from gpuwin.planning.inputs import Known, RowColumns, merged_valid
from gpuwin.state.heap import BytesHeap
from gpuwin.state.physical import as_int64, words_of
from gpuwin.state.rows.slices import RowSlices
from gpuwin.vocabulary.accumulations import Accumulation
from gpuwin_kernels.cpu.rows import RowInput
from gpuwin_kernels.layout import CellArrays, CellColumn, UserMerge

_FOLDED_ROWS = 1 << 20
"""Rows of windows, each counted once a window, that are put in order at a time."""

_UNIT = """
def unit(n{ins}, {outs}):
    for i in range(n):
        {targets} = add({arguments})
"""
_RESULT = """
def results(valid, {fields}, out):
    for i in range(valid.shape[0]):
        if valid[i] != 0:
            out[i] = result({values})
"""
_OVER = """
def over(lo, hi, order, has_values{ins}, {outs}, valid):
    for w in range(lo.shape[0]):
        {state} = {init}
        any_row = False
        for j in range(lo[w], hi[w]):
            i = order[j]
            if has_values[i] != 0:
                {state} = add({arguments})
                any_row = True
        valid[w] = any_row
        {targets} = {state}
"""


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    return function if hasattr(function, "py_func") else numba.njit(nogil=True)(function)


@cache
def _in_a_tuple(compiled: Any) -> Any:
    """For a state of one field: a function that returns the number itself, as one that returns a tuple of it."""

    def one(*state_and_values):  # type: ignore[no-untyped-def]
        return (compiled(*state_and_values),)

    return numba.njit(nogil=True)(one)


@cache
def _made(name: str, source: str, calls: str, compiled: Any) -> Any:
    """The function `name` of a source that calls a compiled one; kept, so that a second operator compiles nothing."""
    scope: dict[str, Any] = {"np": np, calls: compiled}
    exec(compile(source, f"<gpuwin accumulation {name}>", "exec"), scope)
    return numba.njit(nogil=True)(scope[name])


def _numbers(array: pa.Array) -> np.ndarray:
    """Values that `add` gets: int64 or float64, dates and times as microseconds."""
    if pa.types.is_uint64(array.type):
        return as_int64(array, "of an accumulation")  # looked at when it arrived, too
    if is_time(array.type):
        return instants(array)
    if pa.types.is_duration(array.type):
        array = array.cast(pa.duration("us"), safe=False)
    if pa.types.is_time(array.type):
        array = array.cast(pa.time64("us"), safe=False)
    return words_of(array, None)[0]


def _literal(value: float | int) -> str:
    if isinstance(value, int):
        return f"np.int64({value})"
    if np.isfinite(value):
        return f"np.float64({float(value)!r})"
    return "np.nan" if np.isnan(value) else "np.inf" if value > 0 else "-np.inf"


def _tuple(names: Sequence[str]) -> str:
    return ", ".join(names) + ("," if len(names) == 1 else "")


def _kinds(names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(numba.types, name) for name in names)


@dataclass(frozen=True)
class Fold:
    """An accumulation over inputs of known physical types."""

    accumulation: Accumulation
    inputs: tuple[str, ...]  # "int64" or "float64" each

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Types of the fields: that of the first value, but float64 for one that `add` or `merge` gives a float, whose
        fraction int64 would cut off.
        """
        fields = tuple("int64" if isinstance(v, int) else "float64" for v in self.accumulation.init)
        while True:  # what one field becomes may make another float64
            added = self._returned("add", self.accumulation.add, fields + self.inputs)
            merged = self._returned("merge", self.accumulation.merge, fields + fields)
            wider = tuple(
                "float64" if any(isinstance(kind, numba.types.Float) for kind in kinds) else field
                for field, *kinds in zip(fields, added, merged, strict=True)
            )
            if wider == fields:
                return fields
            fields = wider

    @cached_property
    def result_type(self) -> pa.DataType:
        """Type of what `result` returns, as Numba sees it. Raises SpecificationError if a part does not compile."""
        result = self._typed("result", self.accumulation.result, self.fields)
        if not isinstance(result, numba.types.Integer | numba.types.Float | numba.types.Boolean):
            raise SpecificationError(
                f"accumulation {self.accumulation.name}: result must return one number, and returns {result}"
            )
        if isinstance(result, numba.types.Boolean):
            return pa.bool_()
        return pa.int64() if isinstance(result, numba.types.Integer) else pa.float64()

    @cached_property
    def _add(self) -> Any:
        """Compiled; returns a tuple of the fields."""
        return self._stated("add", self.accumulation.add, self.fields + self.inputs)

    @cached_property
    def _merge(self) -> Any:
        """Compiled; returns a tuple of the fields."""
        return self._stated("merge", self.accumulation.merge, self.fields + self.fields)

    def _stated(self, part: str, function: Callable[..., Any], takes: tuple[str, ...]) -> Any:
        returned = self._typed(part, function, takes)
        compiled = _compiled(function)
        return compiled if isinstance(returned, numba.types.BaseTuple) else _in_a_tuple(compiled)

    def _returned(self, part: str, function: Callable[..., Any], takes: tuple[str, ...]) -> tuple[Any, ...]:
        """Types of the fields that `add` or `merge` returns, of which one may come without its tuple."""
        returned, fields = self._typed(part, function, takes), len(self.accumulation.fields)
        kinds = tuple(returned.types) if isinstance(returned, numba.types.BaseTuple) else (returned,)
        numbers = numba.types.Integer | numba.types.Float | numba.types.Boolean
        if len(kinds) != fields or not all(isinstance(kind, numbers) for kind in kinds):
            raise SpecificationError(
                f"accumulation {self.accumulation.name}: {part} must return a tuple of {fields} "
                f"number{'s' if fields > 1 else ''}, and returns {returned}"
            )
        return kinds

    def _typed(self, part: str, function: Callable[..., Any], takes: tuple[str, ...]) -> Any:
        """Type of what a function of the accumulation returns, as Numba sees it."""
        compiled, types = _compiled(function), _kinds(takes)
        try:
            compiled.compile(types)
        except numba.core.errors.NumbaError as error:
            name = self.accumulation.name
            raise SpecificationError(f"accumulation {name}: {part} does not compile: {error}") from error
        return compiled.overloads[types].signature.return_type

    @property
    def _init(self) -> list[str]:
        """Text of the first value of each field."""
        of = zip(self.fields, self.accumulation.init, strict=True)
        return [_literal(float(value) if field == "float64" else value) for field, value in of]

    @cached_property
    def _unit(self) -> Any:
        ins, outs = [f"x{k}" for k in range(len(self.inputs))], [f"o{k}" for k in range(len(self.fields))]
        source = _UNIT.format(
            ins="".join(f", {x}" for x in ins),
            outs=", ".join(outs),
            targets=_tuple([f"{o}[i]" for o in outs]),
            arguments=", ".join([*self._init, *(f"{x}[i]" for x in ins)]),
        )
        return _made("unit", source, "add", self._add)

    @cached_property
    def _results(self) -> Any:
        names = [f"f{k}" for k in range(len(self.fields))]
        source = _RESULT.format(fields=", ".join(names), values=", ".join(f"{f}[i]" for f in names))
        return _made("results", source, "result", _compiled(self.accumulation.result))

    @cached_property
    def _over(self) -> Any:
        ins, outs = [f"x{k}" for k in range(len(self.inputs))], [f"o{k}" for k in range(len(self.fields))]
        state = [f"s{k}" for k in range(len(self.fields))]
        source = _OVER.format(
            ins="".join(f", {x}" for x in ins),
            outs=", ".join(outs),
            state=_tuple(state),
            init=_tuple(self._init),
            arguments=", ".join([*state, *(f"{x}[i]" for x in ins)]),
            targets=_tuple([f"{o}[w]" for o in outs]),
        )
        return _made("over", source, "add", self._add)

    def _array(self, fields: Sequence[np.ndarray], valid: np.ndarray) -> pa.Array:
        dtype = np.bool_ if pa.types.is_boolean(self.result_type) else self.result_type.to_pandas_dtype()
        out = np.zeros(len(valid), dtype)
        self._results(valid, *fields, out)
        return pa.array(out, mask=None if valid.all() else valid == 0)

    def column(self, name: str) -> CellColumn:
        """The partial column that holds the fields."""
        a = self.accumulation
        user = UserMerge(self.fields, self._merge, tuple(a.init), self._add)
        return CellColumn(name, "user", self.fields[0], nullable=True, user=user)

    def row_cells(self, rows: RowColumns, reads: tuple[str, ...]) -> CellArrays:
        """The accumulator of each row by itself."""
        words = tuple(_numbers(rows.columns[name]) for name in reads)
        outs = tuple(np.empty(len(rows), f) for f in self.fields)
        self._unit(len(rows), *words, *outs)
        valid = merged_valid(rows, reads)
        return CellArrays(outs, np.ones(len(rows), np.uint8) if valid is None else valid.astype(np.uint8))

    def finish(self, result: Result, cells: Cells, heap: BytesHeap | None) -> pa.Array:
        """Results that `result` makes of accumulators."""
        fields, valid = cells[0]
        return self._array(fields, np.ones(len(fields[0]), np.uint8) if valid is None else valid)

    def over_rows(self, slices: RowSlices, columns: tuple[int, ...], order: str) -> pa.Array:
        """One result per window, of its rows by time and arrival, or by arrival."""
        has_values = np.ones(len(slices), np.uint8)
        for c in columns:
            mask = valid_mask(slices.values[c])
            if mask is not None:
                has_values &= mask
        words = tuple(_numbers(slices.values[c]) for c in columns)
        outs = tuple(np.zeros(len(slices.lo), f) for f in self.fields)
        valid = np.zeros(len(slices.lo), np.uint8)

        def fold(some: np.ndarray, lo: np.ndarray, hi: np.ndarray, order_of: np.ndarray) -> None:
            """Writes the results of some windows, of the rows order_of[lo:hi]."""
            found = tuple(np.zeros(len(some), f) for f in self.fields)
            found_any = np.zeros(len(some), np.uint8)
            self._over(lo, hi, order_of, has_values, *words, *found, found_any)
            for out, result in zip((*outs, valid), (*found, found_any), strict=True):
                out[some] = result

        sorted_ = _sorted_windows(slices, order)
        some = np.flatnonzero(sorted_)
        fold(some, slices.lo[some], slices.hi[some], np.arange(len(slices)))
        key = slices.seq if order == "arrival" else slices.time
        for some in _chunks(np.flatnonzero(~sorted_), slices.hi - slices.lo):
            size = (slices.hi - slices.lo)[some]
            window = np.repeat(np.arange(len(some)), size)
            hi = np.cumsum(size)
            row = np.arange(len(window)) - np.repeat(hi - size, size) + np.repeat(slices.lo[some], size)
            fold(some, hi - size, hi, row[np.lexsort((key[row], window))])
        return self._array(outs, valid)


def _sorted_windows(slices: RowSlices, order: str) -> np.ndarray:
    """Windows whose rows lie in this order, bool[w]: in a stream in order of time all of them do, in either order."""
    if order == slices.by or not len(slices):
        return np.ones(len(slices.lo), bool)
    key = slices.seq if order == "arrival" else slices.time
    breaks = np.zeros(len(key) + 1, np.int64)  # before each row; one more place, where an empty window may lie
    np.cumsum(key[1:] < key[:-1], out=breaks[1:-1])
    breaks[-1] = breaks[-2]
    sorted_: np.ndarray = breaks[np.maximum(slices.hi - 1, slices.lo)] == breaks[slices.lo]
    return sorted_


def _chunks(windows: np.ndarray, size: np.ndarray) -> list[np.ndarray]:
    """Windows in runs of about `_FOLDED_ROWS` rows, at least one window each. `size`: rows of each window."""
    if not len(windows):
        return []
    run = np.cumsum(size[windows]) // _FOLDED_ROWS
    return np.split(windows, np.flatnonzero(np.diff(run)) + 1)


@dataclass(frozen=True)
class FoldInput:
    """The input of a partial column of the user's own."""

    fold: Fold
    reads: tuple[str, ...]

    def cells(self, rows: RowColumns, heap: BytesHeap) -> CellArrays:
        return self.fold.row_cells(rows, self.reads)

    def feed(self, rows: RowColumns, known: Known) -> RowInput | None:
        return None

    def sum_limit(self, rows: RowColumns, known: Known) -> int | None:
        return None  # the user's code may raise
