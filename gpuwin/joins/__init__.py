"""Joins of two streams: by window, by interval of time, as of a time, or by key alone."""

from gpuwin.joins.operator import JoinOperator
from gpuwin.joins.specs import AsOfJoin, HashJoin, IntervalJoin, WindowJoin
from gpuwin.joins.state import JoinMetrics

__all__ = ["AsOfJoin", "HashJoin", "IntervalJoin", "JoinMetrics", "JoinOperator", "WindowJoin"]
