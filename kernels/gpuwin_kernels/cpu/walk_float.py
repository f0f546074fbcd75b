"""Running totals of float64 sums over a queue of stretches (see `gpuwin_kernels.cpu.walk`), in which cells are
subtracted as they leave.
"""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.scalar import two_sum
from gpuwin_kernels.cpu.walk import find_code

_SHRUNK = float(1 << 20)  # a total that fell below its peak by more is summed afresh


@njit(nogil=True, cache=True)
def _add_float(total, c, x, sign):  # type: ignore[no-untyped-def]
    """total[c] is (high, low, sum of magnitudes, peak of those, NaNs, +infs, -infs)."""
    if x - x != 0.0:
        if x != x:
            total[c, 4] += sign
        elif x > 0.0:
            total[c, 5] += sign
        else:
            total[c, 6] += sign
        return
    high, error = two_sum(total[c, 0], sign * x)
    high, low = two_sum(high, total[c, 1] + error)
    total[c, 0] = high
    total[c, 1] = low
    size = total[c, 2] + sign * abs(x)
    total[c, 2] = size
    if not size <= total[c, 3]:
        total[c, 3] = size


@njit(nogil=True, cache=True)
def float_total(total, c):  # type: ignore[no-untyped-def]
    """The value of a float total, infinities and NaN included."""
    if total[c, 4] > 0.0 or (total[c, 5] > 0.0 and total[c, 6] > 0.0):
        return np.nan
    if total[c, 5] > 0.0:
        return np.inf
    if total[c, 6] > 0.0:
        return -np.inf
    return total[c, 0]


@njit(nogil=True, cache=True)
def walk_float(steps, share, cells, total, alive, whole, out):  # type: ignore[no-untyped-def]
    """Totals of a float64 sum, as if summed with twice the precision; `total` is float64[codes, 7], see `_add_float`.

    Subtracting what leaves is only as exact as the largest total was: where a total fell far below its peak, the key's
    cells are summed afresh, which needs the whole window in the span (`whole`); without it, True is returned and the
    totals mean nothing. So it is where an infinity or a NaN leaves totals that were kept: its cell may be the sum of
    several that entered one by one, the finite ones of which are still in the total. `alive` (int64 per code, the
    smallest int64 at first): the last window of the newest valid cell of the key. `cells`, `out`: as in `walk_int`.
    """
    code, _start, leave_after, entered, left, step_window, step_entered, step_left, _row, row_code = steps
    begin, end, row_begin, row_end = share
    (v,), valid = cells
    (sums,), sums_valid = out
    nullable = valid.shape[0] > 0 or sums_valid.shape[0] > 0  # there may be no cells, or no rows
    for s in range(step_window.shape[0]):
        enter_to = step_entered[s]
        leave_to = step_left[s]
        k = step_window[s]
        for j in range(left, min(leave_to, entered)):
            for i in range(begin[j], end[j]):
                if not nullable or valid[i] != 0:
                    _add_float(total, code[i], v[i], -1.0)
                    if v[i] - v[i] != 0.0 and not whole:
                        total[code[i], 3] = np.inf
        for j in range(max(entered, leave_to), enter_to):
            for i in range(begin[j], end[j]):
                if nullable and valid[i] == 0:
                    continue
                c = code[i]
                if alive[c] < k:
                    total[c, :] = 0.0
                alive[c] = max(alive[c], leave_after[j])
                _add_float(total, c, v[i], 1.0)
        entered = max(entered, enter_to)
        left = max(left, leave_to)
        for r in range(row_begin[s], row_end[s]):
            c = row_code[r]
            if alive[c] < k:
                sums[r] = 0.0
            else:
                if not total[c, 3] <= total[c, 2] * _SHRUNK or total[c, 3] == np.inf:
                    if not whole:
                        return True
                    total[c, :] = 0.0
                    plain = 0.0
                    for j in range(left, entered):
                        i = find_code(code, begin[j], end[j], c)
                        if i < end[j] and code[i] == c and (not nullable or valid[i] != 0):
                            _add_float(total, c, v[i], 1.0)
                            plain += v[i]
                    total[c, 3] = total[c, 2]
                    if total[c, 0] - total[c, 0] != 0.0:
                        sums[r] = plain
                        if nullable:
                            sums_valid[r] = 1
                        continue
                sums[r] = float_total(total, c)
            if nullable:
                sums_valid[r] = alive[c] >= k
    return False
