"""Watermarks and grids in the form of kernels, so that the device finds the windows that close together with the batch
that closes them.
"""

from __future__ import annotations

from gpuwin.bounds import Bounds
from gpuwin.grid import WindowGrid
from gpuwin.progress import Progress, WatermarkRule
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cuda.watermark import Panes, Watermark


def watermark_of(bounds: Bounds, rule: WatermarkRule, progress: Progress) -> Watermark | None:
    """Watermark that evicts windows after a batch, by its newest time; without allowed lateness it closes them, too.
    None where the watermark is one of several or at an end of time, or
    nothing is evicted.
    """
    moves = not rule.by_previous and rule.delay is not None
    less = (rule.delay or 0) + rule.lag
    if progress.sources or progress.watermark >= INT64_MAX or max(less, bounds.lateness) >= INT64_MAX:
        return None
    if not moves and progress.watermark == INT64_MIN:
        return None
    return Watermark(progress.watermark, moves, less, rule.floor, rule.shift, bounds.strict + bounds.lateness)


def panes_of(grid: WindowGrid) -> Panes:
    """Grid of windows that have an end, in the form of kernels."""
    size = 0 if grid.inherited else grid.panes_per_window
    return Panes(grid.width, grid.origin, size, grid.panes_per_slide, grid.cumulative)


class Pace:
    """Step of event time from batch to batch: a guess at the next one, which no result depends on."""

    def __init__(self) -> None:
        self.newest: int | None = None
        self.step = 0

    def saw(self, newest: int) -> None:
        """Takes the newest time of a batch."""
        self.step = 0 if self.newest is None else max(newest - self.newest, 0)
        self.newest = newest

    @property
    def next(self) -> int:
        """Newest time that is expected of the next batch, an eighth of a step on."""
        return INT64_MIN if self.newest is None else min(self.newest + self.step + self.step // 8, INT64_MAX)


__all__ = ["Pace", "panes_of", "watermark_of"]
