"""Plan of a join: numbers instead of durations, settings of kernels instead of names."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwin.joins.interval import IntervalLogic
from gpuwin.joins.windows import WindowLogic
from gpuwin.progress import WatermarkRule
from gpuwin.vocabulary.limits import Limits


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """Plan of a join specification."""

    keys: tuple[str, ...]
    times: tuple[str, str] | None  # None: a hash join, which knows no time
    rule: WatermarkRule  # of two inputs, the left side and the right
    logic: IntervalLogic | WindowLogic
    windowed: bool  # the output has window_start and window_end
    cogroup: bool
    close_shift: int  # 0: a window closes once end <= W; 1: once end < W
    limits: Limits
    fingerprint: str  # of the specification: a snapshot belongs to one

    def bound(self, watermark: int) -> int:
        """Time up to which a watermark closes windows, or rows of an interval join leave."""
        return watermark - self.close_shift
