"""Joins of two streams: by window, by interval of time, or by key alone."""

from gpuwin.joins.operator import JoinOperator
from gpuwin.joins.specs import HashJoin, IntervalJoin, WindowJoin
from gpuwin.joins.state import JoinMetrics

__all__ = ["HashJoin", "IntervalJoin", "JoinMetrics", "JoinOperator", "WindowJoin"]
