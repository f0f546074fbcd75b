"""`gw.accumulation`: an aggregate of the user's own, in a few lines of Python that run at compiled speed."""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any, overload

import numpy as np

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.aggregates import Accumulation
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN

_FORM = """write, for example,

    @gw.accumulation
    class Product:
        state = {"product": 1.0}                  # fields, their values before the first row; 0: int64, 0.0: float64
        def add(product, x):                      # the fields, then the values of one row -> the fields
            return (product * x,)
        def merge(product, other):                # the fields of two accumulators -> the fields
            return (product * other,)
        def result(product):                      # the fields -> one number
            return product
"""


def _code_of(function: Callable[..., Any]) -> str:
    """Source of a function, or its bytecode and constants where none is found: no file, or one that is not Python."""
    plain = getattr(function, "py_func", function)
    try:
        source = textwrap.dedent(inspect.getsource(plain))
        ast.parse(source)  # what was compiled under the name of another file has no source there
        return source
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        code = plain.__code__
        return repr((code.co_code.hex(), code.co_names, [c for c in code.co_consts if not hasattr(c, "co_code")]))


# Of these a function's source is not what Numba compiles, and may be another in another version.
_LIBRARIES = {*sys.stdlib_module_names, "numba", "numpy", "scipy"}


def _values_of(function: Callable[..., Any], within: tuple[FunctionType, ...] = ()) -> tuple[tuple[str, str], ...]:
    """(name, text) of the values that a function takes from around it, closures and globals, by name: its source does
    not have them. `within`: the functions that take it.
    """
    plain = getattr(function, "py_func", function)
    if not isinstance(plain, FunctionType) or any(plain is outer for outer in within):
        return ()
    code = plain.__code__
    found: dict[str, object] = {}
    for name in set(_globals_of(code)) & plain.__globals__.keys():
        found[name] = plain.__globals__[name]
    for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    texts = ((name, _text_of(found[name], (*within, plain))) for name in sorted(found))
    return tuple((name, text) for name, text in texts if text is not None)


def _globals_of(code: CodeType) -> Iterator[str]:
    """Names of globals that code reads, that of functions inside it, too."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner)


def _text_of(value: object, within: tuple[FunctionType, ...]) -> str | None:
    """Text of a value that is equal in every process, and differs if the value does; None where there is none."""
    if isinstance(value, np.generic | np.ndarray):
        kept = np.asarray(value)
        return None if kept.dtype.hasobject else repr((kept.dtype.str, kept.shape, kept.tobytes().hex()))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, tuple):
        texts = [_text_of(item, within) for item in value]
        return None if None in texts else repr(texts)
    plain = getattr(value, "py_func", value)
    if not isinstance(plain, FunctionType) or str(plain.__module__).partition(".")[0] in _LIBRARIES:
        return None
    defaults = [_text_of(default, within) for default in plain.__defaults__ or ()]
    return repr((_code_of(plain), defaults, _values_of(plain, within)))


def _parameters(name: str, part: str, function: object) -> int:
    if not callable(function):
        raise SpecificationError(f"accumulation {name}: {part} is missing or not a function; {_FORM}")
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        raise SpecificationError(f"accumulation {name}: {part} takes positional parameters only; {_FORM}")
    return len(parameters)


@overload
def accumulation(cls: type, /, *, name: str | None = None, ordered: bool | None = None) -> Accumulation: ...
@overload
def accumulation(
    *,
    state: dict[str, int | float],
    add: Callable[..., Any],
    merge: Callable[..., Any],
    result: Callable[..., Any],
    name: str | None = None,
    ordered: bool | None = None,
) -> Accumulation: ...
@overload
def accumulation(*, name: str | None = None, ordered: bool | None = None) -> Callable[[type], Accumulation]: ...
def accumulation(
    cls: type | None = None,
    /,
    *,
    state: dict[str, int | float] | None = None,
    add: Callable[..., Any] | None = None,
    merge: Callable[..., Any] | None = None,
    result: Callable[..., Any] | None = None,
    name: str | None = None,
    ordered: bool | None = None,
) -> Accumulation | Callable[[type], Accumulation]:
    """Aggregate of the user's own, made of a class (as a decorator) or of its four parts.

    state: names of the fields and their values before the first row; an int makes an int64 field, a float a float64
    field, and so does an int where add or merge returns a float for it.
    add(*fields, *values) -> fields: one more row. Values are int64 or float64 scalars (booleans, dates and times as
    int64); a row with a null in any of its columns is skipped. A state of one field may be returned as a number or as
    a tuple of one.
    merge(*fields, *other_fields) -> fields: the accumulator of the rows of both. Must be associative; with `ordered`,
    the first accumulator is of the earlier rows, otherwise it must be commutative as well. With `ordered` it is
    compiled with the others, and at present called only where `add` takes no values.
    result(*fields) -> one number: int64 or float64 as its type says. It is not called for a window without rows, which
    gives null.
    ordered: rows are added by arrival (or by time and then arrival, as `Semantics.order` says). For that they are kept,
    and those of a window are added anew, from the first on, for each of its results. It is written in the class, or
    before it: `@gw.accumulation(ordered=True)`.

    An exponentially weighted mean, whose weight falls by half every 60 seconds, for `Recent("value", "time")`::

        @gw.accumulation
        class Recent:
            state = {"weighted": 0.0, "weight": 0.0, "at": 0}

            def add(weighted, weight, at, value, time):
                if weight == 0.0:
                    return value, 1.0, time
                newest = max(at, time)
                old, new = 0.5 ** ((newest - at) / 60e6), 0.5 ** ((newest - time) / 60e6)
                return weighted * old + value * new, weight * old + new, newest

            def merge(weighted, weight, at, weighted2, weight2, at2):
                newest = max(at, at2)
                old, new = 0.5 ** ((newest - at) / 60e6), 0.5 ** ((newest - at2) / 60e6)
                return weighted * old + weighted2 * new, weight * old + weight2 * new, newest

            def result(weighted, weight, at):
                return weighted / weight

    The functions are compiled by Numba when an operator starts, so they may use arithmetic, `math`, tuples, `if` and
    loops, and plain functions that are themselves compiled with `numba.njit`. Numbers, texts, tuples, arrays and
    functions that they take from around them belong to the accumulation as they are when it is written: a snapshot goes
    on with the same ones only. Raises SpecificationError, saying what is
    missing, before any data is touched.
    """
    no_part = all(part is None for part in (cls, state, add, merge, result))
    if no_part and (name is not None or ordered is not None):
        return partial(accumulation, name=name, ordered=ordered)  # the decorator, as @gw.accumulation(ordered=True)
    if cls is not None:
        return _of_class(cls, name, ordered)
    title = str(name or getattr(add, "__name__", "?"))
    fields, starts = _checked_state(title, state)
    functions = _checked_functions(title, len(fields), add, merge, result)
    digest = _digest(fields, starts, bool(ordered), functions)
    return Accumulation(title, fields, starts, *functions, bool(ordered), digest)


Functions = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
"""add, merge and result."""


def _of_class(cls: type, name: str | None, ordered: bool | None) -> Accumulation:
    """Accumulation whose parts are attributes of a class; `ordered` where it was not said before the class."""
    if not isinstance(cls, type):
        raise SpecificationError(f"gw.accumulation is a class decorator or takes state, add, merge, result; {_FORM}")
    parts = {part: inspect.getattr_static(cls, part, None) for part in ("add", "merge", "result", "state", "ordered")}
    found: dict[str, Any] = {k: v.__func__ if isinstance(v, staticmethod) else v for k, v in parts.items()}
    found["ordered"] = bool(found["ordered"]) if ordered is None else ordered
    made: Accumulation = accumulation(**found, name=name or cls.__name__)
    return made


def _checked_state(title: str, state: Any) -> tuple[tuple[str, ...], tuple[int | float, ...]]:
    """Names of the fields, and their values before the first row."""
    if not isinstance(state, dict) or not state:
        raise SpecificationError(f"accumulation {title}: state is missing or empty; {_FORM}")
    for field, value in state.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise SpecificationError(
                f"accumulation {title}: field {field!r} starts with an int or a float, not {value!r}"
            )
        if isinstance(value, int | np.integer) and not INT64_MIN <= value <= INT64_MAX:
            raise SpecificationError(
                f"accumulation {title}: field {field!r} starts with {value}, which is no int64; "
                "a float makes a float64 field"
            )
    starts = (int(value) if isinstance(value, int | np.integer) else float(value) for value in state.values())
    return tuple(state), tuple(starts)


def _checked_functions(title: str, fields: int, add: Any, merge: Any, result: Any) -> Functions:
    """The three functions, which take as many parameters as a state of so many fields needs."""
    if _parameters(title, "add", add) < fields:
        raise SpecificationError(
            f"accumulation {title}: add takes its {fields} fields and then the values of a row; {_FORM}"
        )
    if _parameters(title, "merge", merge) != 2 * fields:
        raise SpecificationError(f"accumulation {title}: merge takes twice its {fields} fields; {_FORM}")
    if _parameters(title, "result", result) != fields:
        raise SpecificationError(f"accumulation {title}: result takes its {fields} fields; {_FORM}")
    return add, merge, result


def _digest(fields: tuple[str, ...], starts: tuple[int | float, ...], ordered: bool, functions: Functions) -> str:
    """Digest of all that results depend on."""
    what: tuple[Any, ...] = fields, starts, ordered, *map(_code_of, functions)
    values = tuple(map(_values_of, functions))
    if any(values):  # others have the digest that they always had: their snapshots go on
        what = *what, values
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


__all__ = ["Accumulation", "accumulation"]
