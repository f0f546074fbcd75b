"""The instants at which engines disagree, one field each, and a preset for each engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.brief import brief
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.whole import is_whole


@dataclass(frozen=True)
class Semantics:
    """Decisions at boundaries. The defaults are those on which most engines agree; `Semantics.SPARK` and so on are
    whole engines.

    Change single fields with `dataclasses.replace(gw.Semantics.FLINK, session_touch="split")`.
    """

    SPARK: ClassVar[Semantics]
    FLINK: ClassVar[Semantics]
    BEAM: ClassVar[Semantics]
    BYTEWAX: ClassVar[Semantics]
    APEX: ClassVar[Semantics]
    AKKA: ClassVar[Semantics]
    REDUCTION: ClassVar[Semantics]
    STREAMLITE: ClassVar[Semantics]

    watermark_advance: Literal["batch", "row"] = "batch"
    """When the watermark moves: at the end of a batch, followed by one eviction, or after each row, in order of
    arrival."""
    watermark_scope: Literal["stream", "key"] = "stream"
    """Whether one watermark serves the stream or each key has its own."""
    watermark_start: int | None = None
    """The watermark before the first row, in microseconds; None is minus infinity."""
    watermark_inclusive: bool = False
    """A watermark W promises no more rows with time < W, or (True) with time <= W."""
    watermark_precision: Literal["us", "ms"] = "us"
    """Watermarks are floored to this, and it is the tick by which an inclusive watermark differs from an exclusive
    one."""
    watermark_lag: Literal["none", "tick"] = "none"
    """The bounded watermark is the largest time minus the delay, or one tick less (Flink, whose watermark is
    inclusive)."""
    late_filter: Literal["current", "previous"] = "current"
    """Rows are tested against the watermark in force when their batch begins, and a batch ends with an eviction by the
    new one; or, as in Spark without no-data batches, tested against the watermark before that, and evicted by the one
    in force."""
    close: Literal["at_end", "after_end"] = "at_end"
    """A window closes once W >= end, or once W > end."""
    session_close: Literal["as_window", "settled"] = "as_window"
    """Sessions close by the same rule, or as soon as no event in time can join them: once W > end if an event one gap
    later would join, once W >= end if it would not."""
    late_by: Literal["window", "timestamp"] = "window"
    """A row is late for a window that has closed, or when its own time < W - lateness."""
    session_touch: Literal["merge", "split", "forward_split"] = "merge"
    """Events exactly one gap apart are one session, or two; "forward_split" is Apex Malhar's: two if the later one
    arrives later."""
    session_end: Literal["gap", "last_event"] = "gap"
    """End of a session in results: the last event plus the gap, or the last event."""
    session_late_check: Literal["before_merge", "after_merge"] = "before_merge"
    """A row is late if its own interval has passed, or if the session it would join has."""
    late_firing: Literal["batch", "row"] = "batch"
    """`OnClose` emits a closed window again once per batch with late rows, or after each late row."""
    count_trigger: Literal["row", "batch"] = "row"
    """`EveryRows` fires exactly at each n-th row, or when a batch ends with at least n rows."""
    late_count: Literal["restart", "continue"] = "restart"
    """When a window closes `EveryRows` begins to count its late rows, or goes on counting all of its rows. (A trigger
    that fires by one number of rows before and after the end, and not at it, goes on in any case.)"""
    on_time_pane: Literal["if_new", "always"] = "if_new"
    """Discarding, whether a window that closes with nothing new since its last firing says so by an empty result."""
    late_pane: Literal["after_firing", "after_end"] = "after_firing"
    """A firing is `late` once its window has fired on time, or if the watermark had passed the window's end before the
    rows that bring it about: then a window whose first row comes after its end has no firing on time."""
    trigger_merge: Literal["add", "restart"] = "add"
    """When a session grows or merges its row counts for `EveryRows` are added, or start again."""
    change_windows: Literal["every", "timers"] = "every"
    """`OnChange` looks at every window that closes, or, as Reduction's timers do, skips those that the watermark
    jumps over."""
    restored_inputs: Literal["kept", "dropped"] = "kept"
    """Of `MultipleInputs` and the sides of a join, whether a restored operator knows how far each input was, or only
    the watermark that they made together, as Spark does: an input counts again from its first row after the restart."""
    order: Literal["arrival", "time"] = "arrival"
    """Whether order-dependent aggregates (`collect_list`, an accumulation) see the rows as they came or by time."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            value, hint = getattr(self, field.name), hints[field.name]
            if get_origin(hint) is Literal and value not in get_args(hint):
                choices = " or ".join(repr(choice) for choice in get_args(hint))
                raise SpecificationError(f"Semantics.{field.name} is {choices}, not {value!r}")
        if not isinstance(self.watermark_inclusive, bool):
            raise SpecificationError(
                f"Semantics.watermark_inclusive is True or False, not {self.watermark_inclusive!r}"
            )
        start = self.watermark_start
        if start is None:
            return
        if not is_whole(start):
            raise SpecificationError(f"Semantics.watermark_start is a number of microseconds or None, not {start!r}")
        object.__setattr__(self, "watermark_start", int(start))
        if not INT64_MIN < int(start) < INT64_MAX:
            raise SpecificationError(f"Semantics.watermark_start does not fit int64 microseconds: {start}")

    def __repr__(self) -> str:
        return brief(self)

    @property
    def tick(self) -> int:
        """Microseconds between an instant and the next, in the precision of watermarks."""
        return 1_000 if self.watermark_precision == "ms" else 1


Semantics.SPARK = Semantics(watermark_start=0, watermark_precision="ms", restored_inputs="dropped")
Semantics.FLINK = Semantics(
    watermark_inclusive=True,
    watermark_precision="ms",
    watermark_lag="tick",
    session_late_check="after_merge",
    late_firing="row",
)
Semantics.BEAM = Semantics(session_touch="split", count_trigger="batch", on_time_pane="always", late_pane="after_end")
Semantics.BYTEWAX = Semantics(
    watermark_advance="row",
    watermark_scope="key",
    late_by="timestamp",
    session_close="settled",
    session_end="last_event",
    order="time",
)
Semantics.APEX = Semantics(
    watermark_start=-1_000,
    close="after_end",
    late_by="timestamp",
    session_touch="forward_split",
    trigger_merge="restart",
    late_count="continue",
)
Semantics.AKKA = Semantics(watermark_advance="row", watermark_start=0, close="after_end", late_by="timestamp")
Semantics.REDUCTION = Semantics(change_windows="timers")
Semantics.STREAMLITE = Semantics(watermark_inclusive=True, session_end="last_event")
