"""Specifications of joins, as a user writes them: the four joins of two streams, frozen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, get_args

import pyarrow as pa

from gpuwin.device.choice import resolve_device
from gpuwin.errors import SpecificationError
from gpuwin.grid import WindowGrid
from gpuwin.joins.as_of import AsOfLogic
from gpuwin.joins.interval import IntervalLogic
from gpuwin.joins.operator import JoinOperator
from gpuwin.joins.plan import JoinPlan, OutputTimes
from gpuwin.joins.side import Alone
from gpuwin.joins.snapshots import state_of
from gpuwin.joins.windows import Keep, WindowLogic
from gpuwin.progress import WatermarkRule
from gpuwin.vocabulary.column_names import column_names
from gpuwin.vocabulary.durations import Duration, as_timedelta, micros
from gpuwin.vocabulary.instant import check_clock
from gpuwin.vocabulary.limits import Limits
from gpuwin.vocabulary.semantics import Semantics
from gpuwin.vocabulary.watermarks import BoundedOutOfOrderness, EventClock, ExplicitWatermark, MultipleInputs
from gpuwin.vocabulary.windows import (
    Column,
    GlobalWindow,
    InheritedWindow,
    SessionWindow,
    Window,
)

How = Literal["inner", "left", "right", "full", "semi", "anti", "cogroup"]
SideWatermark = BoundedOutOfOrderness | ExplicitWatermark | EventClock
_IN_ORDER = BoundedOutOfOrderness("0 seconds")


def _check_how(how: str, allowed: Sequence[str], what: str = "how") -> None:
    if how not in allowed:
        raise SpecificationError(f"{what} is one of {', '.join(allowed)}, not {how!r}")


def _outer(how: How) -> tuple[bool, bool]:
    """Whether left rows without a partner come out, and right ones."""
    return how in ("left", "full", "anti"), how in ("right", "full")


def _alone(how: How) -> Alone | None:
    return how if how in ("semi", "anti") else None


def _rule(watermark: Any, semantics: Semantics) -> WatermarkRule:
    """Rule of the watermarks of both sides, from one watermark for both, or a pair (left, right)."""
    pair = watermark if isinstance(watermark, tuple) else (watermark, watermark)
    if len(pair) != 2:
        raise SpecificationError("watermark is one for both sides, or a pair (left, right)")
    explicit = all(isinstance(w, ExplicitWatermark) for w in pair)
    inputs: list[BoundedOutOfOrderness | ExplicitWatermark] = []
    for w in pair:
        if isinstance(w, EventClock) and w.wait == timedelta.max:
            inputs.append(ExplicitWatermark())  # no row moves it
        elif isinstance(w, BoundedOutOfOrderness) or explicit:
            inputs.append(w)
        else:
            idle = ": where a side is idle, move both by op.advance_watermark(time)"
            raise SpecificationError(
                "the watermark of a join is BoundedOutOfOrderness on each side, ExplicitWatermark on both, "
                f"or EventClock(timedelta.max), not {w!r}{idle if isinstance(w, EventClock) else ''}"
            )
    return WatermarkRule(MultipleInputs((inputs[0], inputs[1])), semantics)


def _check_parts(join: Any) -> None:
    """Check of the fields that all joins have."""
    carried = isinstance(getattr(join, "window", None), InheritedWindow)
    for name in () if carried else ("left_time", "right_time"):
        if not isinstance(getattr(join, name, "t"), str):
            raise SpecificationError(f"{name} is the name of a column, not {getattr(join, name)!r}")
    if not isinstance(getattr(join, "semantics", Semantics()), Semantics):
        raise SpecificationError(f"semantics is for example gw.Semantics.SPARK, not {join.semantics!r}")
    if not isinstance(join.limits, Limits):
        raise SpecificationError(f"limits is for example gw.Limits(max_state_bytes=1 << 30), not {join.limits!r}")
    if not isinstance(getattr(join, "collect_late", False), bool):
        raise SpecificationError(f"collect_late is True or False, not {join.collect_late!r}")
    if join.limits.max_open_windows is not None:
        raise SpecificationError(
            "Limits.max_open_windows counts the windows of an aggregation; a join is bounded by Limits.max_state_bytes"
        )


def _fingerprint(join: Any) -> str:
    """Specification as text, without its limits, which a restored join may change."""
    return repr(replace(join, limits=Limits()))


def _on(device: str, plan: JoinPlan) -> JoinPlan:
    """Plan with the kernels of a device. "auto" is the CPU until somebody has measured which is faster."""
    if device == "auto" or resolve_device(device) == "cpu":
        return plan
    from gpuwin.joins.device import OnCuda

    return replace(plan, logic=replace(plan.logic, kernels=OnCuda()))


def _micros(value: Any, what: str) -> int:
    return micros(as_timedelta(value, what))


class _Join:
    """Base of the four joins: `start` and `restore`."""

    def _plan(self) -> JoinPlan:
        raise AssertionError

    def start(
        self,
        device: str = "auto",
        *,
        clock: Callable[[], int] | None = None,
        left_schema: pa.Schema | None = None,
        right_schema: pa.Schema | None = None,
    ) -> JoinOperator:
        """Running join. The schemas of the sides are those of their first batches, unless they are given here.

        `device`: "cuda" finds pairs on the GPU (rows stay on the host); "cpu" and "auto" on the CPU. Raises
        `gpuwin.DeviceError` where CUDA is asked for and cannot be used. `clock`: as for other operators; joins go
        by the times of their rows and never call it.
        """
        check_clock(clock)
        for name, schema in (("left_schema", left_schema), ("right_schema", right_schema)):
            if schema is not None and not isinstance(schema, pa.Schema):
                raise SpecificationError(f"{name} is a pyarrow.Schema of the side, not {type(schema).__name__}")
        return JoinOperator.started(_on(device, self._plan()), left_schema, right_schema)

    def restore(self, data: bytes, device: str = "auto", allow_changes: bool = False) -> JoinOperator:
        """Running join that goes on from `JoinOperator.snapshot`. Limits may differ, and with `allow_changes` the
        delays of `BoundedOutOfOrderness`. Raises `gpuwin.SnapshotError` for a damaged one, or one of another
        specification.
        """
        plan = _on(device, self._plan())
        return JoinOperator(plan, state_of(plan, data, allow_changes))


@dataclass(frozen=True)
class WindowJoin(_Join):
    """Join of rows of equal keys in the same window; emitted when the window closes.

    window: with `InheritedWindow` rows bring their windows along, as the results of an operator upstream do, and meet
    in equal windows; they need no left_time and right_time. keys: none joins by window alone.
    how: "inner", "left", "right", "full", "semi", "anti", or "cogroup": one row per (key, window), with the columns of
    both sides as lists. watermark: of each side, or a pair (left, right); the join goes by the smaller one. keep: "all"
    rows of a window, or only the "first" or "last" of each side by time (Bytewax's insert modes). collect_late: late
    rows are kept for `late_rows()`. semantics: `close`,
    `session_close`, `session_touch`, `session_end`, `watermark_inclusive`, `watermark_precision`, `watermark_lag`,
    `watermark_start` and `restored_inputs` apply to a join.
    """

    window: Window
    keys: Sequence[str]
    left_time: str | None = None
    right_time: str | None = None
    how: How = "inner"
    _: KW_ONLY
    watermark: SideWatermark | tuple[SideWatermark, SideWatermark] = _IN_ORDER
    keep: Keep = "all"
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen, so it can be shared
    limits: Limits = Limits()  # noqa: RUF009 - frozen, so it can be shared
    collect_late: bool = field(default=False, repr=False)  # no part of the fingerprint: it may change at a restore

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", column_names(self.keys, "a join", least=0))
        if not isinstance(self.window, Window):
            raise SpecificationError(f'window is for example gw.TumblingWindow("10 minutes"), not {self.window!r}')
        carried = isinstance(self.window, InheritedWindow)
        if carried and (self.left_time, self.right_time) != (None, None):
            raise SpecificationError(
                "rows that bring their windows along join by these: leave out left_time and right_time"
            )
        _check_parts(self)
        _check_how(self.how, get_args(How))
        _check_how(self.keep, get_args(Keep), "keep")
        _rule(self.watermark, self.semantics)
        if {"window_start", "window_end"} & set(self.keys):
            hint = "they need not be among the keys" if carried else "keys need other names"
            raise SpecificationError(f"window_start and window_end are columns of the result: {hint}")
        if isinstance(self.window, SessionWindow) and isinstance(self.window.gap, Column):
            raise SpecificationError("the sessions of a join have one gap for all rows, not a column")

    def _plan(self) -> JoinPlan:
        s = self.semantics
        carried = isinstance(self.window, InheritedWindow)
        grid, gap = _grid(self.window), None
        if isinstance(self.window, SessionWindow):
            gap = _micros(self.window.gap, "gap")
        strict = s.close == "after_end"
        if gap is not None and s.session_close == "settled":  # as soon as no event in time can join
            strict = s.session_touch == "merge"
        logic = WindowLogic(
            grid,
            gap,
            s.session_touch,
            s.session_end == "last_event",
            *_outer(self.how),
            self.how == "cogroup",
            self.keep,
            _alone(self.how),
        )
        times = (str(self.left_time), str(self.right_time))
        output = None if isinstance(self.window, GlobalWindow) else OutputTimes(gap or 0 if logic.last_event else 0)
        return JoinPlan(
            (*self.keys, "window_start", "window_end") if carried else tuple(self.keys),
            ("window_end", "window_end") if carried else times,
            _rule(self.watermark, self.semantics),
            logic,
            windowed=not carried,  # the bounds are keys, then, and come out as these
            cogroup=self.how == "cogroup",
            close_shift=int(strict),
            output=output,
            limits=self.limits,
            fingerprint=_fingerprint(self),
            collect_late=self.collect_late,
            carried=carried,
        )


@dataclass(frozen=True)
class IntervalJoin(_Join):
    """Join of rows of equal keys with `lower <= right time - left time <= upper`, emitted as soon as both have come.

    Rows without a partner ("left", "right", "full") follow once the watermark says that none can come. A row older than
    the watermark is late, and kept for `late_rows()` with `collect_late`.
    """

    keys: Sequence[str]
    left_time: str
    right_time: str
    lower: Duration
    upper: Duration
    how: How = "inner"
    _: KW_ONLY
    watermark: SideWatermark | tuple[SideWatermark, SideWatermark] = _IN_ORDER
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen, so it can be shared
    limits: Limits = Limits()  # noqa: RUF009 - frozen, so it can be shared
    collect_late: bool = field(default=False, repr=False)  # no part of the fingerprint: it may change at a restore

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", column_names(self.keys, "a join"))
        _check_parts(self)
        _check_how(self.how, [how for how in get_args(How) if how != "cogroup"])
        _rule(self.watermark, self.semantics)
        object.__setattr__(self, "lower", as_timedelta(self.lower, "IntervalJoin.lower"))
        object.__setattr__(self, "upper", as_timedelta(self.upper, "IntervalJoin.upper"))
        if self.lower > self.upper:  # type: ignore[operator]
            raise SpecificationError(f"IntervalJoin: lower {self.lower} is larger than upper {self.upper}")

    def _plan(self) -> JoinPlan:
        lower, upper = _micros(self.lower, "lower"), _micros(self.upper, "upper")
        logic = IntervalLogic(lower, upper, *_outer(self.how), _alone(self.how))
        return _by_time(self, logic, OutputTimes.of_interval(lower, upper))


@dataclass(frozen=True)
class AsOfJoin(_Join):
    """Join of each left row with the newest right row of equal keys that is not after it, emitted when the watermark
    has passed the left row. Of right rows of the same time the last to come counts.

    tolerance: how much older than the left row a right row may be; None keeps the newest of each key for ever.
    allow_exact_matches: whether a right row of the same time is a partner (as in pandas and polars). how: "left": left
    rows without a partner come out, too; "inner"; "semi" and "anti": left rows alone that have a partner, or none. A
    row of either side that is older than the watermark is late, and kept for `late_rows()` with `collect_late`.
    """

    keys: Sequence[str]
    left_time: str
    right_time: str
    tolerance: Duration | None = None
    how: How = "left"
    _: KW_ONLY
    allow_exact_matches: bool = True
    watermark: SideWatermark | tuple[SideWatermark, SideWatermark] = _IN_ORDER
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen, so it can be shared
    limits: Limits = Limits()  # noqa: RUF009 - frozen, so it can be shared
    collect_late: bool = field(default=False, repr=False)  # no part of the fingerprint: it may change at a restore

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", column_names(self.keys, "a join"))
        _check_parts(self)
        _check_how(self.how, ("left", "inner", "semi", "anti"))
        _rule(self.watermark, self.semantics)
        if not isinstance(self.allow_exact_matches, bool):
            raise SpecificationError(f"allow_exact_matches is True or False, not {self.allow_exact_matches!r}")
        if self.tolerance is None:
            return
        tolerance = as_timedelta(self.tolerance, "AsOfJoin.tolerance")
        if tolerance < timedelta(0):
            raise SpecificationError(f"AsOfJoin.tolerance is at least 0, not {tolerance}")
        object.__setattr__(self, "tolerance", tolerance)

    def _plan(self) -> JoinPlan:
        tolerance = None if self.tolerance is None else _micros(self.tolerance, "tolerance")
        logic = AsOfLogic(tolerance, self.allow_exact_matches, self.how in ("left", "anti"), _alone(self.how))
        return _by_time(self, logic, OutputTimes(tolerance, 0, tolerance))


def _by_time(join: IntervalJoin | AsOfJoin, logic: IntervalLogic | AsOfLogic, output: OutputTimes) -> JoinPlan:
    """Plan of a join of rows by their times, without windows."""
    return JoinPlan(
        tuple(join.keys),
        (join.left_time, join.right_time),
        _rule(join.watermark, join.semantics),
        logic,
        windowed=False,
        cogroup=False,
        close_shift=0,
        output=output,
        limits=join.limits,
        fingerprint=_fingerprint(join),
        collect_late=join.collect_late,
    )


@dataclass(frozen=True)
class HashJoin(_Join):
    """Join of all rows of equal keys, whenever they come. No row is ever evicted, whatever `advance_watermark` is told,
    so the streams should be bounded. Results of windows meet by `WindowJoin(InheritedWindow(), keys)`, which evicts.

    Rows without a partner, and the groups of "cogroup", follow at `finish`.
    """

    keys: Sequence[str]
    how: How = "inner"
    _: KW_ONLY
    limits: Limits = Limits()  # noqa: RUF009 - frozen, so it can be shared

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", column_names(self.keys, "a join"))
        _check_parts(self)
        _check_how(self.how, get_args(How))

    def _plan(self) -> JoinPlan:
        logic: IntervalLogic | WindowLogic
        if self.how == "cogroup":
            logic = WindowLogic(None, None, "merge", False, False, False, True, "all")
        else:
            logic = IntervalLogic(None, None, *_outer(self.how), _alone(self.how))
        return JoinPlan(
            tuple(self.keys),
            None,
            _rule(ExplicitWatermark(), Semantics()),
            logic,
            windowed=False,
            cogroup=self.how == "cogroup",
            close_shift=0,
            output=None,
            limits=self.limits,
            fingerprint=_fingerprint(self),
        )


def _grid(window: Window) -> WindowGrid | None:
    """Grid of a window that is neither a session nor the global one. Rows that bring their windows along have the last
    instants of these as their times, so that each microsecond is a window.
    """
    if isinstance(window, InheritedWindow):
        return WindowGrid.sliding(1, 1)
    return None if isinstance(window, SessionWindow | GlobalWindow) else WindowGrid.of(window)
