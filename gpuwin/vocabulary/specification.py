"""Specification of a windowed aggregation: the one description that runs in this process and on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from types import FunctionType, MappingProxyType
from typing import Any, Literal

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.aggregates import Accumulation, Aggregate
from gpuwin.vocabulary.brief import brief
from gpuwin.vocabulary.durations import Duration, as_timedelta
from gpuwin.vocabulary.evictors import KeepNear
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.semantics import Semantics
from gpuwin.vocabulary.triggers import Complete, Emission, Every, EveryRows, OnChange, OnClose, Trigger
from gpuwin.vocabulary.watermarks import BoundedOutOfOrderness, EventClock, MultipleInputs, SystemClock, Watermark
from gpuwin.vocabulary.windows import Column, GlobalWindow, InheritedWindow, SessionWindow, Window

AccumulationMode = Literal["accumulating", "discarding", "retracting"]


def _is(value: object, union: Any, name: str, example: str) -> None:
    if not isinstance(value, union):
        meant = isinstance(value, type) and issubclass(value, union)
        meant |= isinstance(value, FunctionType) and value.__module__ == "gpuwin.vocabulary.aggregates"
        call = f"{value.__name__}()" if meant else ""  # type: ignore[attr-defined]
        if isinstance(value, Accumulation) and union is Aggregate:
            columns = ", ".join(['"..."'] * value.inputs)
            call = f"{value.name}({columns})"
        hint = f"; did you mean {call}?" if call else ""
        raise SpecificationError(f"{name} is for example {example}, not {value!r}{hint}")


@dataclass(frozen=True)
class Specification:
    """Keys, windows, aggregates, watermark and emission of an aggregation. Immutable, picklable, and checked when it is
    made. Users write it as `gw.WindowedAggregation`.

    window: `TumblingWindow`, `SlidingWindow`, `CumulativeWindow`, `CalendarWindow`, `SessionWindow`, `GlobalWindow`,
    `InheritedWindow`.
    aggregates: name of an output column -> `gw.count()`, `gw.sum("amount")`, ...
    keys: column names; none makes the whole stream one group. Null is a key of its own.
    time: the column with the time of a row: Arrow timestamp of any unit and zone, or date. Not needed with
    `SystemClock`, which ignores it, nor with `InheritedWindow`, whose rows then have the last instant of their window.
    watermark, emit, semantics, limits: see their classes.
    allowed_lateness: how long after its end a window is kept, and emitted again for late rows; `timedelta.max` is for
    ever.
    accumulation: the rows in a result: all rows of the window so far ("accumulating"), those since the last firing
        ("discarding"), or all of them after retracting the row that was emitted last ("retracting").
    collect_late: keep late rows for `WindowOperator.late_rows`.
    collect_merges: keep the sessions that became one for `WindowOperator.session_merges`.

    Raises SpecificationError for anything that is not as described.
    """

    window: Window
    keys: Sequence[str] = ()
    time: str | None = None
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    watermark: Watermark = BoundedOutOfOrderness("0 seconds")  # noqa: RUF009 - frozen, so it can be shared
    allowed_lateness: Duration = timedelta(0)
    emit: Emission = OnClose()  # noqa: RUF009 - frozen, so it can be shared
    accumulation: AccumulationMode = "accumulating"
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen, so it can be shared
    collect_late: bool = False
    limits: Limits = Limits()  # noqa: RUF009 - frozen, so it can be shared
    collect_merges: bool = False

    def __post_init__(self) -> None:
        _is(self.window, Window, "window", 'gw.TumblingWindow("10 minutes")')
        _is(self.watermark, Watermark, "watermark", 'gw.BoundedOutOfOrderness("5 minutes")')
        _is(self.emit, Emission, "emit", "gw.OnClose()")
        _is(self.semantics, Semantics, "semantics", "gw.Semantics.SPARK")
        _is(self.limits, Limits, "limits", "gw.Limits(max_open_windows=1_000_000)")
        lateness = as_timedelta(self.allowed_lateness, "allowed_lateness")
        if lateness < timedelta(0):
            raise SpecificationError(f"allowed_lateness must not be negative, and is {lateness}")
        object.__setattr__(self, "allowed_lateness", lateness)
        if self.accumulation not in ("accumulating", "discarding", "retracting"):
            raise SpecificationError(
                f'accumulation is "accumulating", "discarding" or "retracting", not {self.accumulation!r}'
            )
        for name in ("collect_late", "collect_merges"):
            if not isinstance(getattr(self, name), bool):
                raise SpecificationError(f"{name} is True or False, not {getattr(self, name)!r}")
        self._check_columns()
        self._check_combination()

    def _check_columns(self) -> None:
        ordered = isinstance(self.keys, Iterable) and not isinstance(self.keys, str | Set | Mapping)
        names = tuple(self.keys) if ordered else ()
        if not ordered or not all(isinstance(name, str) for name in names):
            raise SpecificationError(f"keys is a list of column names, not {self.keys!r}")
        object.__setattr__(self, "keys", names)
        if self.time is not None and not isinstance(self.time, str):
            raise SpecificationError(f"time is the name of a column, not {self.time!r}")
        timeless = isinstance(self.watermark, SystemClock) or isinstance(self.window, InheritedWindow)
        if self.time is None and not timeless:
            raise SpecificationError("time is missing: name the column with the time of a row, or use gw.SystemClock()")
        if not isinstance(self.aggregates, Mapping) or not self.aggregates:
            raise SpecificationError('aggregates is a non-empty dict: {"views": gw.count()}')
        for name, aggregate in self.aggregates.items():
            if not isinstance(name, str) or not name:
                raise SpecificationError(f"the name of an aggregate is a non-empty string, not {name!r}")
            _is(aggregate, Aggregate, f"aggregates[{name!r}]", 'gw.sum("amount")')
        object.__setattr__(self, "aggregates", MappingProxyType(dict(self.aggregates)))
        names = tuple(self.output_names)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SpecificationError(
                f"the output would have two columns called {', '.join(twice)}: rename keys or aggregates"
            )

    def _check_combination(self) -> None:
        window, emit = self.window, self.emit
        if self.collect_merges and not isinstance(window, SessionWindow):
            raise SpecificationError(f"only sessions merge: leave out collect_merges with {type(window).__name__}")
        by_rows = isinstance(self.watermark, MultipleInputs) and any(
            isinstance(one, BoundedOutOfOrderness) for one in self.watermark.inputs
        )
        if by_rows and self.semantics.watermark_scope == "key":
            raise SpecificationError(
                "the inputs of MultipleInputs move one watermark for the stream: leave the semantics' watermark_scope "
                "at its default, or give each input an ExplicitWatermark"
            )
        of_rows = isinstance(self.watermark, BoundedOutOfOrderness | EventClock)
        if isinstance(window, InheritedWindow) and of_rows and self.semantics.watermark_scope == "key":
            raise SpecificationError(
                "windows that rows bring along close by one watermark for the stream: leave the semantics' "
                "watermark_scope at its default, or use an ExplicitWatermark"
            )
        if isinstance(emit, Trigger):
            if emit.only_updated and self.accumulation == "discarding":
                raise SpecificationError(
                    "Trigger(only_updated=True) needs the last result, which accumulation='discarding' does not keep"
                )
            if emit.evict is not None:
                self._check_evictor(emit)
        elif isinstance(emit, Complete | OnChange) and self.accumulation != "accumulating":
            raise SpecificationError(f"{type(emit).__name__} emits whole windows: use accumulation='accumulating'")
        if isinstance(emit, OnChange) and isinstance(window, SessionWindow | GlobalWindow | InheritedWindow):
            raise SpecificationError(
                f"OnChange compares a window with the one before it, and {type(window).__name__} has none before it"
            )
        if isinstance(emit, OnChange) and self.allowed_lateness != timedelta(0):
            raise SpecificationError("OnChange looks at a window once, when it closes: leave out allowed_lateness")
        if isinstance(emit, OnChange) and (
            self.semantics.watermark_scope == "key" or self.semantics.watermark_advance == "row"
        ):
            raise SpecificationError(
                "OnChange needs one watermark for the stream that advances by batch: leave watermark_scope and "
                "watermark_advance of the semantics at their defaults"
            )

    def _check_evictor(self, emit: Trigger) -> None:
        """Check of an evictor: it makes each firing depend on the one before it, so it goes with little else."""
        counted = all(every is None or isinstance(every, EveryRows) for every in (emit.early, emit.late))
        semantics = self.semantics
        plain = semantics.watermark_scope == "stream" and semantics.watermark_advance == "batch"
        plain &= semantics.late_filter == "current"
        if isinstance(self.window, SessionWindow | InheritedWindow) or not counted or not plain or emit.only_updated:
            raise SpecificationError(
                "an evictor goes with windows on a grid or GlobalWindow, with EveryRows, and with one watermark "
                "that advances by batch; not with only_updated, nor with late_filter='previous'"
            )
        if self.accumulation != "accumulating":
            raise SpecificationError("an evictor says which rows stay in a window: use accumulation='accumulating'")

    @property
    def output_names(self) -> list[str]:
        """Names of the output columns, in order."""
        names = [*self.keys, "window_start", "window_end", *self.aggregates]
        if isinstance(self.emit, Trigger):
            names.append("pane")
        if self.accumulation == "retracting":
            names.append("is_retraction")
        return names

    @property
    def input_names(self) -> list[str]:
        """Names of the input columns that are read, each once."""
        names = list(self.keys)
        if self.time is not None and not isinstance(self.watermark, SystemClock):
            names.append(self.time)
        if isinstance(self.window, InheritedWindow):
            names += ["window_start", "window_end"]
        if isinstance(self.window, SessionWindow) and isinstance(self.window.gap, Column):
            names.append(self.window.gap.name)
        for aggregate in self.aggregates.values():
            names += aggregate.reads
        names += self._evictor_reads
        return list(dict.fromkeys(names))

    @property
    def _evictor_reads(self) -> list[str]:
        evictor = self.emit.evict if isinstance(self.emit, Trigger) else None
        return [evictor.column] if isinstance(evictor, KeepNear) else []

    @property
    def trigger_reads_clock(self) -> bool:
        """Whether a schedule of the trigger goes by the system time."""
        emit = self.emit
        return isinstance(emit, Trigger) and (isinstance(emit.early, Every) or isinstance(emit.late, Every))

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["aggregates"] = dict(self.aggregates)
        return _rebuilt, (type(self), values)

    def __repr__(self) -> str:
        aggregates = ", ".join(f"{name!r}: {aggregate!r}" for name, aggregate in self.aggregates.items())
        return brief(self).replace(repr(self.aggregates), f"{{{aggregates}}}")

    def __hash__(self) -> int:
        return hash((self.window, tuple(self.aggregates.items()), self.keys, self.time, self.watermark, self.emit))


def _rebuilt(of: type[Specification], values: dict[str, Any]) -> Specification:
    return of(**values)
