"""Means of totals and counts, by all threads."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.aliases import alias_of
from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each, ranges


@njit(nogil=True, cache=True, error_model="numpy")
def _fill(total, size, out):  # type: ignore[no-untyped-def]
    empty = 0
    for i in range(size.shape[0]):
        n = size[i]
        empty += n == 0
        out[i] = np.float64(total[i]) / np.float64(n if n != 0 else 1)
    return empty


def means_of(total: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, bool]:
    """(total / size, float64[n]; whether a size is 0, by which nothing is divided). `total` is float64[n] or int64[n],
    which becomes the nearest float64 before it is divided; `size` int64[n].
    """
    out = empty(len(size))
    total, size = alias_of(total), alias_of(size)

    def fill(part: tuple[int, int]) -> int:
        rows = slice(*part)
        return int(_fill(total[rows], size[rows], out[rows]))

    return out, any(each(fill, ranges(len(out))))
