"""Arrays that double when they are full, for kernels that do not know how much they will find."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.memory import copy_items


@njit(nogil=True, cache=True)
def wider(full):  # type: ignore[no-untyped-def]
    """Twice as many items, the first half those of `full` (one dimension)."""
    out = np.empty(2 * full.shape[0], full.dtype)
    copy_items(full, 0, full.shape[0], out, 0)
    return out


@njit(nogil=True, cache=True)
def longer(full):  # type: ignore[no-untyped-def]
    """Twice as many rows, the first half those of `full` (two dimensions)."""
    out = np.empty((2 * full.shape[0], full.shape[1]), full.dtype)
    copy_items(full.reshape(full.size), 0, full.size, out.reshape(out.size), 0)
    return out
