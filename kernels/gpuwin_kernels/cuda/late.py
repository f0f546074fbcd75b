"""Late rows on the device, by one limit for a batch: which they are, and what the host learns of their times."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch, to_device

_ROWS_EACH = 16
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
NOTHING_SURVEYED = (_MOST, _LEAST, 0, 0, 0, 0)
"""What `survey` begins with."""


@kernel("void(int64[::1], int64, int64, uint8[::1], int64[::1])", hot=True)
def _survey(time, limit, old, gone, surveyed):  # type: ignore[no-untyped-def]
    least = np.int64(_MOST)
    newest = np.int64(_LEAST)
    late = np.int64(0)
    before = np.int64(0)
    for k in range(_ROWS_EACH):  # of no constant length, the loop would be unrolled, for which it divides
        i = cuda.grid(1) + k * cuda.gridsize(1)
        if i < time.shape[0]:
            t = time[i]
            newest = max(newest, t)
            if t < old:
                before += 1
            if t < limit:
                late += 1
            else:
                least = min(least, t)
            if gone.shape[0] > 0:
                gone[i] = 1 if t < limit else 0
    if least < surveyed[0]:  # read first: after a few threads most find nothing to do
        cuda.atomic.min(surveyed, 0, least)
    if newest > surveyed[1]:
        cuda.atomic.max(surveyed, 1, newest)
    if late > 0:
        cuda.atomic.add(surveyed, 2, late)
    if before > 0:
        cuda.atomic.add(surveyed, 3, before)


def survey(time: DeviceArray, limit: int, old: int) -> tuple[DeviceArray, DeviceArray]:
    """Survey of the times of a batch, int64[n], n > 0, in one pass and without a wait.

    Returns (gone uint8[n]: 1 for rows that are late, before `limit`, or empty where no time can be; surveyed int64[6]:
    the least time that is not late (the largest int64 if there is none), the newest of all, how many rows are late, how
    many come before `old`, and two 0 that `admission.admitted` makes use of: how many rows are in no window, and
    whether times lie too far apart to tell).
    """
    gone = empty(0 if limit == _LEAST else len(time), np.uint8)
    surveyed = to_device(np.array(NOTHING_SURVEYED))
    launch(_survey, -(-len(time) // _ROWS_EACH), time, limit, old, gone, surveyed)
    return gone, surveyed


@kernel("void(uint8[::1], int32[::1])", hot=True)
def _pass_over(gone, code):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < gone.shape[0] and gone[i] != 0:
        code[i] = -1


def pass_over(gone: DeviceArray, code: DeviceArray) -> None:
    """Sets the codes (int32[n]) of rows that are gone (uint8[n]) to -1."""
    launch(_pass_over, len(gone), gone, code)


__all__ = ["NOTHING_SURVEYED", "pass_over", "survey"]
