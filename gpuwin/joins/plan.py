"""Plan of a join: numbers instead of durations, settings of kernels instead of names."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwin.joins.as_of import AsOfLogic
from gpuwin.joins.interval import IntervalLogic
from gpuwin.joins.windows import WindowLogic
from gpuwin.progress import WatermarkRule
from gpuwin.vocabulary.limits import Limits


@dataclass(frozen=True, slots=True)
class OutputTimes:
    """Times of the pairs to come, in microseconds behind the bound of the watermark at most: the ends of their windows,
    which are after that, or the times of their left and right rows. None: they may be any.
    """

    end: int | None = 0  # of an interval join and an as-of join, the older of both rows
    left: int | None = None  # of a window join, which goes by the ends, None
    right: int | None = None

    @staticmethod
    def of_interval(lower: int, upper: int) -> OutputTimes:
        """Times of the pairs of an interval join. Of two rows that meet, at least one is yet to come."""
        left, right = max(upper, 0), max(-lower, 0)
        return OutputTimes(max(left, right), left, right)


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """Plan of a join specification."""

    keys: tuple[str, ...]
    times: tuple[str, str] | None  # None: a hash join, which knows no time
    rule: WatermarkRule  # of two inputs, the left side and the right
    logic: IntervalLogic | AsOfLogic | WindowLogic
    windowed: bool  # the output has window_start and window_end
    cogroup: bool
    close_shift: int  # 0: a window closes once end <= W; 1: once end < W
    output: OutputTimes | None  # of pairs; None: they have none that goes on with the watermark
    limits: Limits
    fingerprint: str  # of the specification: a snapshot belongs to one
    collect_late: bool = False  # late rows are kept until they are asked for
    carried: bool = False  # rows bring their windows along, and have the last instants of these as their times

    def keeps_values(self, number: int) -> bool:
        """Whether the columns of a side (0: left, 1: right) come out. Of left rows that come out alone, right rows only
        say which.
        """
        return number == 0 or self.logic.alone is None

    def bound(self, watermark: int) -> int:
        """Time up to which a watermark closes windows, or rows of an interval join leave."""
        return watermark - self.close_shift
