"""Plan of a join: numbers instead of durations, settings of kernels instead of names."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwin.joins.interval import IntervalLogic
from gpuwin.joins.windows import WindowLogic
from gpuwin.vocabulary.limits import Limits


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """Plan of a join specification."""

    keys: tuple[str, ...]
    times: tuple[str, str] | None  # None: a hash join, which knows no time
    delays: tuple[int, int] | None  # microseconds; None: the watermark moves only by `advance_watermark`
    logic: IntervalLogic | WindowLogic
    windowed: bool  # the output has window_start and window_end
    cogroup: bool
    close_shift: int  # 0: a window closes once end <= W; 1: once end < W
    watermark_shift: int  # 1: a watermark that is given says "nothing at or before it" (inclusive)
    bounded_lag: int  # how much a watermark that follows the rows stays behind their largest time minus the delay
    watermark_start: int | None
    limits: Limits
    fingerprint: str  # of the specification: a snapshot belongs to one
    drops_inputs: bool = False  # after a restart: how far each side was, but for the watermark that they made
