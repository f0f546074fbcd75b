"""``gpuwin size``: what a query will need, from the rate of its rows, its keys and its windows."""

from .command import SizeError, SizeOptions, size
from .costs import Costs, measured_costs
from .estimate import Estimate, estimate
from .load import Counts, Load
from .report import report

__all__ = [
    "Costs",
    "Counts",
    "Estimate",
    "Load",
    "SizeError",
    "SizeOptions",
    "estimate",
    "measured_costs",
    "report",
    "size",
]
