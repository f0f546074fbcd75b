"""Groups of equal cells (pane, code) in any order, found in a table of all cells that there could be.

Where these are not many more than there are, nothing has to be sorted.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.kept_memory import empty
from gpuwin_kernels.cpu.parallel import each, ranges


@njit(nogil=True, cache=True)
def _mark(pane, code, least, codes, used):  # type: ignore[no-untyped-def]
    for i in range(pane.shape[0]):
        used[np.uint64(pane[i] - least) * np.uint64(codes) + np.uint64(code[i])] = np.uint8(1)


@njit(nogil=True, cache=True)
def _number(used, least, codes, number, out_pane, out_code):  # type: ignore[no-untyped-def]
    m = 0
    for p in range(used.shape[0] // codes):
        for c in range(codes):
            r = p * codes + c
            if used[r] != 0:
                number[r] = m
                out_pane[m] = least + p
                out_code[m] = c
                m += 1


@njit(nogil=True, cache=True)
def _look_up(pane, code, least, codes, number, group):  # type: ignore[no-untyped-def]
    for i in range(pane.shape[0]):
        group[i] = number[np.uint64(pane[i] - least) * np.uint64(codes) + np.uint64(code[i])]


def dense_groups(pane: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(number of each cell's group int64[n], pane int64[m] and code int32[m] of the groups, sorted) of cells: pane
    int64[n], code int32[n] from 0 on. None where a table would be too sparse, or the cells are too few for one.
    """
    n = len(pane)
    if n < tuning.SORT_ROWS:
        return None
    least, codes = int(pane.min()), int(code.max()) + 1
    records = (int(pane.max()) - least + 1) * codes
    if records > max(tuning.DENSE_ANYWAY, tuning.DENSE_SPARSITY * n):
        return None
    used, number, group = np.zeros(records, np.uint8), empty(records, np.int32), empty(n, np.int64)
    parts = [slice(*part) for part in ranges(n)]
    each(lambda part: _mark(pane[part], code[part], least, codes, used), parts)
    m = int(np.count_nonzero(used))
    out_pane, out_code = empty(m, np.int64), empty(m, np.int32)
    _number(used, least, codes, number, out_pane, out_code)
    each(lambda part: _look_up(pane[part], code[part], least, codes, number, group[part]), parts)
    return group, out_pane, out_code
