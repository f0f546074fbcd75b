"""Emission: when windows are emitted, on close, on update, on change, after each row, all of them each time, or by a
trigger.
"""

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
    """Emission of each (key, window) once, when the watermark closes it (Spark's append). Late rows inside
    `allowed_lateness` emit it again.
    """


@dataclass(frozen=True)
class OnUpdate:
    """Emission after each batch, of each (key, window) whose aggregate the batch changed (Spark's update)."""


@dataclass(frozen=True)
class Complete:
    """Emission after each batch, of every (key, window) ever seen (Spark's complete). Nothing is late and nothing is
    evicted.
    """


@dataclass(frozen=True)
class OnChange:
    """Emission on close, where the value differs from that of the key's window before. Once a key has no rows left, the
    empty window's value follows, once.
    """


@dataclass(frozen=True)
class EveryRow:
    """Emission after each row, of the aggregate of each of its windows."""


@dataclass(frozen=True)
class Every:
    """Schedule of a trigger by system time: it fires at the end of a batch once an interval has passed since the
    window's first row, then since its last firing.
    """

    interval: Duration

    def __post_init__(self) -> None:
        _positive(self, "interval")


@dataclass(frozen=True)
class EveryEventTime:
    """Schedule of a trigger by event time: it fires at multiples of an interval, as the watermark passes them, from a
    window's first row on. It fires once for each, also where the watermark passes several at once and nothing is new
    (Flink's ContinuousEventTimeTrigger).

    A row that comes behind the watermark waits for it to move; where it moves with each row, or by key, such a row is
    a move of its own. A multiple at which the window closes is its firing on time.
    """

    interval: Duration

    def __post_init__(self) -> None:
        _positive(self, "interval")


@dataclass(frozen=True)
class EveryRows:
    """Schedule of a trigger by rows: it fires after each `rows` rows of a (key, window)."""

    rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", whole(self.rows, "EveryRows.rows", 1))


Schedule = Every | EveryRows | EveryEventTime


@dataclass(frozen=True)
class Trigger:
    """Emission by a trigger. It fires before a window closes (`early`), when it closes (`on_time`), and for rows within
    `allowed_lateness` after that (`late`).

    `evict`: the rows of a window that a firing sees, and keeps: `gw.KeepLast`, `gw.KeepWithin`, `gw.KeepNear`.
    `only_updated`: a firing whose values equal the last one's emits nothing. The output has a column `pane` with the
    timing: "early", "on_time" or "late".
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
