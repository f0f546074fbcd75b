"""Linear functions of integers, as the bounds of windows are of their numbers, by all threads."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.aliases import alias_of
from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each, ranges


@njit(nogil=True, cache=True)
def _fill(number, factor, offset, out):  # type: ignore[no-untyped-def]
    for i in range(number.shape[0]):
        out[i] = number[i] * factor + offset


def linear(number: np.ndarray, factor: int, offset: int) -> np.ndarray:
    """number * factor + offset, int64[n], of numbers int64[n] whose results fit int64, as factor and offset do."""
    out = empty(len(number), np.int64)
    number = alias_of(number)
    each(lambda part: _fill(number[slice(*part)], factor, offset, out[slice(*part)]), ranges(len(out)))
    return out
