"""Rows of a batch that are aggregated, where a compare with one limit does not tell: the watermark moves with each
row, or windows leave gaps.

The watermark after a row follows from the newest time so far by steps that keep order, so the running maximum is that
of the times themselves. A thread has `ROWS_EACH` rows that follow on one another: what is newest before them is found
first, for all threads, and each goes on from there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.late import NOTHING_SURVEYED
from gpuwin_kernels.cuda.rows import REACH
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch, to_device
from gpuwin_kernels.cuda.scalar import pane_after

ROWS_EACH = 16
"""Of 8 bytes: a line of the cache."""
LATE, UNASSIGNED = 1, 2
"""What stands in `gone`; 0 where the row is aggregated."""
_SIGN = np.uint64(1 << 63)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Moving(NamedTuple):
    """A watermark that moves with each row, the row's own time included.

    `known`: where it is before the batch. A row of time t asks for t - `less`, floored to `floor` (1, or 1,000) and
    moved on by `shift`. A window, or (`by_time`) an instant, is over once it is not after the watermark less `back`.
    All in microseconds, none negative but `known`.
    """

    known: int
    less: int
    floor: int
    shift: int
    back: int
    by_time: bool


class Windows(NamedTuple):
    """Windows of `size` that begin every `slide` microseconds from `origin` on, and do not overlap."""

    slide: int
    size: int
    origin: int


@kernel("void(int64[::1], uint64[::1], int64[::1])", hot=True)
def _newest_of_each(time, newest, surveyed):  # type: ignore[no-untyped-def]
    least = np.int64(_MOST)
    most = np.int64(_LEAST)
    first = np.int64(cuda.grid(1)) * ROWS_EACH
    for k in range(ROWS_EACH):
        if first + k < time.shape[0]:
            t = time[first + k]
            least = min(least, t)
            most = max(most, t)
    if first < time.shape[0]:
        newest[cuda.grid(1)] = np.uint64(most) ^ _SIGN
        if least < surveyed[0]:  # read first: after a few threads most find nothing to do
            cuda.atomic.min(surveyed, 0, least)
        if most > surveyed[1]:
            cuda.atomic.max(surveyed, 1, most)


@kernel("void(int64[::1], int64, int64, int64[::1])")
def _begin_of_grid(surveyed, slide, origin, base):  # type: ignore[no-untyped-def]
    """Where the window, or the gap behind it, begins that the least time is in, modulo 2**64. From here on the
    survey is of the rows that are aggregated.
    """
    if cuda.grid(1) == 0:
        if slide > 0:
            surveyed[5] = 1 if np.uint64(surveyed[1]) - np.uint64(surveyed[0]) >= np.uint64(REACH) else 0
            base[0] = surveyed[0] - (surveyed[0] % slide - origin % slide + slide) % slide
        surveyed[0] = _MOST


@cuda.jit(device=True)
def _floored(x):  # type: ignore[no-untyped-def]
    """To whole milliseconds. 2**63 leaves 808 of them."""
    rest = np.int64((np.uint64(x) ^ _SIGN) % np.uint64(1000)) - np.int64(808)
    return x - (rest if rest >= 0 else rest + np.int64(1000))


@cuda.jit(device=True)
def _watermark(newest, known, less, floor, shift):  # type: ignore[no-untyped-def]
    """Watermark that rows up to `newest` ask for, or `known`. The largest int64 is the end of the stream, which no row
    asks for.
    """
    least = np.int64(_LEAST)
    asked = newest - less if newest >= least + less else least
    if floor > 1:
        asked = _floored(asked) if asked > least + floor else least
    if asked > least:
        asked = min(asked, np.int64(_MOST - 1) - shift) + shift
    return max(asked, known)


@kernel(
    "void(int64[::1], uint64[::1], int64, Tuple((int64, int64, int64, int64, int64, boolean)), int64[::1], "
    "Tuple((int64, int64, float64)), uint8[::1], int64[::1])",
    hot=True,
)
def _admit(time, newest, limit, moving, base, windows, gone, surveyed):  # type: ignore[no-untyped-def]
    known, less, floor, shift, back, by_time = moving
    slide, size, reciprocal = windows
    least = np.int64(_MOST)
    late = np.int64(0)
    unassigned = np.int64(0)
    at = np.int64(cuda.grid(1))
    known, less, limit = np.int64(known), np.int64(less), np.int64(limit)  # in the simulator they are of Python
    floor, shift, back = np.int64(floor), np.int64(shift), np.int64(back)
    moves = newest.shape[0] > 0
    so_far = np.int64(_LEAST)
    if moves and at > 0 and at < newest.shape[0]:
        so_far = np.int64(newest[at - 1] ^ _SIGN)
    apart = surveyed[5] != 0
    for k in range(ROWS_EACH):
        i = at * ROWS_EACH + k
        if i < time.shape[0]:
            t = time[i]
            so_far = max(so_far, t)
            what = 1 if t < limit else 0
            rest = np.int64(0)  # till the window of the row ends
            if slide > 0:
                rest = size - (t - base[0] - pane_after(t, base[0], slide, reciprocal) * slide)
            if moves:
                over = _watermark(so_far, known, less, floor, shift)
                if over > np.int64(_LEAST):
                    over = over - back if over >= np.int64(_LEAST) + back else np.int64(_LEAST)
                passed = slide > 0 and over >= t and np.uint64(over) - np.uint64(t) >= np.uint64(rest)
                if (by_time and t < over) or (not by_time and passed):
                    what = 1
            if slide > 0 and rest <= 0:
                what = 2
            if apart:
                what = 1
            if what == 1:
                late += 1
            elif what == 2:
                unassigned += 1
            else:
                least = min(least, t)
            gone[i] = what
    if least < surveyed[0]:
        cuda.atomic.min(surveyed, 0, least)
    if late > 0:
        cuda.atomic.add(surveyed, 2, late)
    if unassigned > 0:
        cuda.atomic.add(surveyed, 4, unassigned)


def admitted(
    time: DeviceArray, limit: int, moving: Moving | None, windows: Windows | None
) -> tuple[DeviceArray, DeviceArray]:
    """Flags of rows that are not aggregated, of times int64[n], n > 0, in order of arrival. Does not wait.

    A row is late before `limit`, or by a watermark that moves: by its own time, or because its window is over, which
    without `windows` it never is. It is unassigned, and not late, between two of the windows. Returns
    (gone uint8[n]: `LATE`, `UNASSIGNED`, or 0; surveyed int64[6] as `late.survey`). Where the grid matters and times
    lie `rows.REACH` or more apart, surveyed[5] is 1, and all rows are gone.
    """
    n = len(time)
    threads = -(-n // ROWS_EACH)
    surveyed = to_device(np.array(NOTHING_SURVEYED))
    newest, base, gone = empty(threads, np.uint64), empty(1, np.int64), empty(n, np.uint8)
    launch(_newest_of_each, threads, time, newest, surveyed)
    newest = empty(0, np.uint64) if moving is None else primitives.running_max(newest)
    grid = windows or Windows(0, 0, 0)
    launch(_begin_of_grid, 1, surveyed, grid.slide, grid.origin, base)
    rule = moving or Moving(_LEAST, 0, 1, 0, 0, True)
    sizes = grid.slide, grid.size, 1.0 / max(grid.slide, 1)
    launch(_admit, threads, time, newest, limit, tuple(rule), base, sizes, gone, surveyed)
    return gone, surveyed


@kernel("void(uint8[::1], uint8, uint8[::1])", hot=True)
def _equal(gone, what, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < gone.shape[0]:
        flags[i] = 1 if gone[i] == what else 0


def only(gone: DeviceArray, what: int) -> DeviceArray:
    """uint8[n]: 1 where `gone` is `LATE`, or `UNASSIGNED`."""
    flags = empty(len(gone), np.uint8)
    launch(_equal, len(gone), gone, what, flags)
    return flags


__all__ = ["LATE", "UNASSIGNED", "Moving", "Windows", "admitted", "only"]
