"""Deduplication of a stream: of rows with equal keys the first to come is passed on."""

from gpuwin.deduplication.operator import DeduplicateOperator
from gpuwin.deduplication.specs import Deduplicate
from gpuwin.deduplication.state import DeduplicateMetrics

__all__ = ["Deduplicate", "DeduplicateMetrics", "DeduplicateOperator"]
