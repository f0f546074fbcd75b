"""Evictors: which rows of a window a firing looks at, and which stay for the next one (Flink). They go with
`gw.Trigger(evict=...)`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwin.durations import Duration, as_timedelta
from gpuwin.errors import SpecificationError


@dataclass(frozen=True)
class KeepLast:
    """The last `rows` rows by arrival; the others are evicted before each firing, or `after` it."""

    rows: int
    after: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 0:
            raise SpecificationError(f"KeepLast.rows is a whole number, not {self.rows!r}")


@dataclass(frozen=True)
class KeepWithin:
    """The rows whose time is less than `span` before the newest of the window."""

    span: Duration
    after: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "span", as_timedelta(self.span, "KeepWithin.span"))


@dataclass(frozen=True)
class KeepNear:
    """The rows whose value of `column` is less than `threshold` below that of the row that came last."""

    column: str
    threshold: float
    after: bool = False


Evictor = KeepLast | KeepWithin | KeepNear
