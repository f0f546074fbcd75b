"""``gpuwin qualify``: from a plan or from progress reports, what gpuwin would take over, and what that may bring."""

from .errors import QualifyError
from .gain import Gain, estimate
from .plan_text import PlannedOperator, read_plan
from .progress import Batch, OperatorReport, QueryRun, read_progress
from .report import qualify

__all__ = [
    "Batch",
    "Gain",
    "OperatorReport",
    "PlannedOperator",
    "QualifyError",
    "QueryRun",
    "estimate",
    "qualify",
    "read_plan",
    "read_progress",
]
