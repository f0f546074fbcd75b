"""Windowed-aggregation kernels on plain arrays, twice: `gpuwin_kernels.cpu` (Numba) and `gpuwin_kernels.cuda` (Numba
CUDA).
"""

from gpuwin_kernels.layout import CellArrays, CellColumn, CellLayout, UserMerge

__all__ = ["CellArrays", "CellColumn", "CellLayout", "UserMerge"]
