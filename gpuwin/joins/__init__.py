"""Joining two streams: by window, by interval of time, or by key alone."""

from gpuwin.joins.operator import JoinMetrics, JoinOperator
from gpuwin.joins.specs import HashJoin, IntervalJoin, WindowJoin

__all__ = ["HashJoin", "IntervalJoin", "JoinMetrics", "JoinOperator", "WindowJoin"]
