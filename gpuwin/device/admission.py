"""Rules by which the device finds late rows, and rows in gaps between windows, so that the host need not look
at rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwin.bounds import Bounds
from gpuwin.grid import WindowGrid
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cuda import late
from gpuwin_kernels.cuda.admission import Moving, Windows, admitted
from gpuwin_kernels.cuda.device_array import DeviceArray


@dataclass(frozen=True, slots=True)
class Admission:
    """Rule for the rows of a batch. Rows before `limit` are late. Rows before `closed` lie in a window that has closed,
    if windows overlap. Others are late by a watermark that moves with each row (`moving`), or lie between windows that
    do not meet (`windows`). `by_end`: the ends of windows are compared with `limit`, not the times of rows.
    """

    limit: int = INT64_MIN
    closed: int = INT64_MIN
    moving: Moving | None = None
    windows: Windows | None = None
    by_end: bool = False

    def survey(self, time: DeviceArray, end: DeviceArray | None) -> tuple[DeviceArray, tuple[DeviceArray, ...]]:
        """(gone uint8[n], surveyed int64[6]) of times on the device, in order of arrival; see `late.survey`. `end`: the
        end of the window that each row carries; with these there is a second `surveyed`, of the ends. Does not wait.
        """
        if end is not None:
            gone, of_times = late.survey(time, INT64_MIN if self.by_end else self.limit, INT64_MIN)
            ended, of_ends = late.survey(end, self.limit if self.by_end else INT64_MIN, INT64_MIN)
            return (ended if self.by_end else gone), (of_times, of_ends)
        if self.moving is None and self.windows is None:
            gone, surveyed = late.survey(time, self.limit, self.closed)
        else:
            gone, surveyed = admitted(time, self.limit, self.moving, self.windows)
        return gone, (surveyed,)


def admission(
    grid: WindowGrid, bounds: Bounds, rule: WatermarkRule, progress: Progress, tested: int, keeps_all: bool
) -> Admission | None:
    """Rule for the rows of a batch, under the watermark `tested` if it does not move with them. `keeps_all`: no row is
    late. None where times alone do not decide.
    """
    windows = Windows(grid.panes_per_slide * grid.width, grid.panes_per_window * grid.width, grid.origin)
    gaps = windows if grid.gaps else None
    if keeps_all or rule.system:
        return Admission(windows=gaps)
    if rule.per_row and (progress.sources or grid.inherited or rule.shift > rule.lag):
        return None  # each row moves one of several watermarks, or has two times, or would be late by its own time
    if bounds.by_time and grid.inherited:
        return None  # a row is late by its own time, or with the window that it brings along
    if rule.per_row and rule.delay is not None:
        moving = _moving(bounds, rule, progress)
        needed = gaps if grid.endless or bounds.by_time else windows
        return None if moving is None else Admission(moving=moving, windows=needed)
    passed = grid.last_closed(bounds.evicting(tested))
    if passed is None or tested >= INT64_MAX:
        return None
    if bounds.by_time:
        return Admission(INT64_MIN if tested == INT64_MIN else max(INT64_MIN, tested - bounds.lateness), windows=gaps)
    if passed == INT64_MIN or grid.endless:
        return Admission(windows=gaps)
    limit = grid.start_of(passed + 1)
    closed = grid.end_of(passed) if grid.overlaps else INT64_MIN
    return None if INT64_MAX in (limit, closed) else Admission(limit, closed, None, gaps, grid.inherited)


def _moving(bounds: Bounds, rule: WatermarkRule, progress: Progress) -> Moving | None:
    """Watermark that moves with each row; None for one at the end of time, or for ever behind."""
    assert rule.delay is not None
    less = rule.delay + rule.lag
    back = bounds.lateness + (bounds.strict and not bounds.by_time)
    if progress.watermark >= INT64_MAX or max(less, back) >= INT64_MAX:
        return None
    return Moving(progress.watermark, less, rule.floor, rule.shift, back, bounds.by_time)


__all__ = ["Admission", "admission"]
