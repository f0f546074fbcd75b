"""When rows leave the operator: on close, on update, on change, after each row, all of them each time, or as a
trigger says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.durations import Duration, as_timedelta
from gpuwin.vocabulary.evictors import Evictor
from gpuwin.vocabulary.whole import whole


def _positive(owner: object, field: str) -> None:
    value = as_timedelta(getattr(owner, field), f"{type(owner).__name__}.{field}")
    if value <= timedelta(0):
        raise SpecificationError(f"{type(owner).__name__}.{field} must be positive, and is {value}")
    object.__setattr__(owner, field, value)


@dataclass(frozen=True)
class OnClose:
    """Each (key, window) once, when the watermark closes it (Spark's append). Late rows inside `allowed_lateness`
    fire it again."""


@dataclass(frozen=True)
class OnUpdate:
    """After each batch, each (key, window) whose aggregate the batch changed (Spark's update)."""


@dataclass(frozen=True)
class Complete:
    """After each batch, every (key, window) ever seen (Spark's complete). Nothing is late and nothing is forgotten."""


@dataclass(frozen=True)
class OnChange:
    """On close, where the value differs from that of the key's window before; once a key has no rows left, the empty
    window's value, once."""


@dataclass(frozen=True)
class EveryRow:
    """After each row, the aggregate of each of its windows."""


@dataclass(frozen=True)
class Every:
    """An interval of system time, looked at when a batch ends: counted from a window's first row, then from its last
    firing."""

    interval: Duration

    def __post_init__(self) -> None:
        _positive(self, "interval")


@dataclass(frozen=True)
class EveryEventTime:
    """At multiples of an interval of event time, as the watermark passes them, from a window's first row on: once for
    each, also where the watermark passes several at once and nothing is new (Flink's ContinuousEventTimeTrigger).

    A row that comes behind the watermark waits for it to move. A multiple at which the window closes is its firing on
    time."""

    interval: Duration

    def __post_init__(self) -> None:
        _positive(self, "interval")


@dataclass(frozen=True)
class EveryRows:
    """After each `rows` rows of a (key, window)."""

    rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", whole(self.rows, "EveryRows.rows", 1))


Schedule = Every | EveryRows | EveryEventTime


@dataclass(frozen=True)
class Trigger:
    """Fires a window before it closes (`early`), when it closes (`on_time`), and for rows within `allowed_lateness`
    after that (`late`).

    `evict`: which rows of a window a firing looks at, and keeps: `gw.KeepLast`, `gw.KeepWithin`, `gw.KeepNear`.
    `only_updated`: a firing whose values equal the last one's is left out. The output has a column `pane`: "early",
    "on_time" or "late".
    """

    early: Schedule | None = None
    late: Schedule | None = None
    on_time: bool = True
    only_updated: bool = False
    evict: Evictor | None = None

    def __post_init__(self) -> None:
        if self.evict is not None and not isinstance(self.evict, Evictor):
            raise SpecificationError(f"Trigger.evict is for example gw.KeepLast(10), not {self.evict!r}")
        for name in ("early", "late"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Schedule):
                raise SpecificationError(
                    f"Trigger.{name} is gw.Every(...), gw.EveryRows(n) or gw.EveryEventTime(...), not {value!r}"
                )
        for name in ("on_time", "only_updated"):
            if not isinstance(getattr(self, name), bool):
                raise SpecificationError(f"Trigger.{name} is True or False, not {getattr(self, name)!r}")


Emission = OnClose | OnUpdate | Complete | OnChange | EveryRow | Trigger
