"""The cells that the benchmarks of the kernels fill: of a count, a sum, a mean, a minimum and a maximum, and of two."""

from gpuwin_kernels.layout import CellColumn, CellLayout

MINUTE = 60_000_000
"""Microseconds."""
FIVE_AGGREGATES = CellLayout(
    (
        CellColumn("n", "sum", "int64"),
        CellColumn("s", "sum", "float64"),
        CellColumn("lo", "min", "float64"),
        CellColumn("hi", "max", "float64"),
    )
)
"""The mean is the sum and the count."""
COUNT_SUM = CellLayout(FIVE_AGGREGATES.columns[:2])
