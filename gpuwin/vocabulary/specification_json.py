"""JSON of a specification, in which it travels to a process that must not run code of a stranger.

Every part of a specification is data but for a user's accumulations, which are code. Those do not travel in the text.
It numbers them, and the reader supplies them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, Final

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.accumulations import Accumulation
from gpuwin.vocabulary.aggregates import Aggregate
from gpuwin.vocabulary.evictors import KeepLast, KeepNear, KeepWithin
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.semantics import Semantics
from gpuwin.vocabulary.specification import Specification
from gpuwin.vocabulary.triggers import (
    Complete,
    Every,
    EveryEventTime,
    EveryRow,
    EveryRows,
    OnChange,
    OnClose,
    OnUpdate,
    Trigger,
)
from gpuwin.vocabulary.watermarks import (
    BoundedOutOfOrderness,
    EventClock,
    ExplicitWatermark,
    MultipleInputs,
    SystemClock,
)
from gpuwin.vocabulary.windows import (
    CalendarWindow,
    Column,
    CumulativeWindow,
    GlobalWindow,
    InheritedWindow,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
)

FORMAT: Final = 1
_PARTS: Final[dict[str, type[Any]]] = {
    part.__name__: part
    for part in (
        *(TumblingWindow, SlidingWindow, CumulativeWindow, CalendarWindow, SessionWindow, GlobalWindow),
        *(InheritedWindow, Column),
        *(BoundedOutOfOrderness, EventClock, SystemClock, ExplicitWatermark, MultipleInputs),
        *(OnClose, OnUpdate, Complete, OnChange, EveryRow, Every, EveryEventTime, EveryRows, Trigger),
        *(KeepLast, KeepNear, KeepWithin, Aggregate, Semantics, Limits),
    )
}
_MICROSECOND: Final = timedelta(microseconds=1)


def write_specification(spec: Specification) -> tuple[str, tuple[Accumulation, ...]]:
    """JSON of a specification, and the user's accumulations in it, by their numbers in the text."""
    code: list[Accumulation] = []
    parts = {f.name: _written(getattr(spec, f.name), code) for f in fields(spec) if f.name != "aggregates"}
    aggregates = [[name, _written(aggregate, code)] for name, aggregate in spec.aggregates.items()]
    return json.dumps({"format": FORMAT, "aggregates": aggregates, **parts}), tuple(code)


def read_specification(text: str, accumulations: Sequence[Accumulation] = ()) -> Specification:
    """The specification that `write_specification` wrote.

    Raises SpecificationError for text that is none, of another format, or that names what is not part of one.
    """
    try:
        found = json.loads(text)
        if found.pop("format") != FORMAT:
            raise SpecificationError("the specification was written by another version of gpuwin")
        aggregates = {str(name): _read(aggregate, accumulations) for name, aggregate in found.pop("aggregates")}
        parts = {str(name): _read(value, accumulations) for name, value in found.items()}
        return Specification(aggregates=aggregates, **parts)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
        if isinstance(e, SpecificationError):
            raise
        raise SpecificationError(f"the text is not a specification: {type(e).__name__}: {e}") from e


def _written(value: Any, code: list[Accumulation]) -> Any:
    if isinstance(value, timedelta):
        return {"us": "max" if value == timedelta.max else value // _MICROSECOND}
    if isinstance(value, Accumulation):
        if value not in code:
            code.append(value)
        return {"code": code.index(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {f.name: _written(getattr(value, f.name), code) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [_written(item, code) for item in value]
    assert value is None or isinstance(value, str | int | float), value
    return value


def _read(value: Any, accumulations: Sequence[Accumulation]) -> Any:
    if isinstance(value, list):
        return tuple(_read(item, accumulations) for item in value)
    if not isinstance(value, dict):
        return value
    if "us" in value:
        return timedelta.max if value["us"] == "max" else timedelta(microseconds=value["us"])
    if "code" in value:
        return accumulations[value["code"]]
    part = _PARTS[value.pop("is")]
    return part(**{str(name): _read(item, accumulations) for name, item in value.items()})


__all__ = ["read_specification", "write_specification"]
