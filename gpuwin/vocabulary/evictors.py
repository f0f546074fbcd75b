"""Evictors: the rows of a window that a firing sees, and that stay for the next one (Flink). They go with
`gw.Trigger(evict=...)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from gpuwin.errors import SpecificationError
from gpuwin.vocabulary.durations import Duration, as_timedelta
from gpuwin.vocabulary.whole import is_real, whole


@dataclass(frozen=True)
class KeepLast:
    """Evictor that keeps the last `rows` rows by arrival; the others are evicted before each firing, or `after` it."""

    rows: int
    after: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", whole(self.rows, "KeepLast.rows", 0))
        _check_after(self)


@dataclass(frozen=True)
class KeepWithin:
    """Evictor that keeps the rows whose time is less than `span` before the newest of the window."""

    span: Duration
    after: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "span", as_timedelta(self.span, "KeepWithin.span"))
        _check_after(self)


@dataclass(frozen=True)
class KeepNear:
    """Evictor that keeps the rows whose value of `column` is less than `threshold` below that of the row that came
    last.
    """

    column: str
    threshold: float
    after: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise SpecificationError(f"KeepNear.column is the name of a column, not {self.column!r}")
        if not is_real(self.threshold) or self.threshold != self.threshold:
            raise SpecificationError(f"KeepNear.threshold is a number, not {self.threshold!r}")
        plain = int(self.threshold) if isinstance(self.threshold, Integral) else float(self.threshold)
        object.__setattr__(self, "threshold", plain)  # that of NumPy has another text
        _check_after(self)


Evictor = KeepLast | KeepWithin | KeepNear


def _check_after(evictor: Evictor) -> None:
    if not isinstance(evictor.after, bool):
        raise SpecificationError(f"{type(evictor).__name__}.after is True or False, not {evictor.after!r}")
