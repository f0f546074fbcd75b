"""Windows that close with a batch, and the places where runs are cut for those that go, by numbers on the device.

The newest time of a batch is there before the host has seen it. One thread follows the rule of the watermark, without
regard to the ends of int64: the host, which has regard to them, compares what it finds by itself before it believes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from gpuwin_kernels.cuda.cells import Combining
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.many import Beside, Source, alone
from gpuwin_kernels.cuda.rows import DeviceCells
from gpuwin_kernels.cuda.runtime import cuda, empty, to_device

_MOST_CUTS = 16  # of one kernel


class Watermark(NamedTuple):
    """From the newest time of a batch to the instant by which what ends is closed. Microseconds.

    `known`: where the watermark is before the batch. If it `moves` with it, a row of time t asks for t - `less`,
    floored to `floor` and moved on by `shift`. What ends at or before the watermark less `back` is closed.
    """

    known: int
    moves: bool
    less: int
    floor: int
    shift: int
    back: int


class Panes(NamedTuple):
    """Panes of `width` microseconds from `origin` on; a window has `size` of them (0: it ends where its pane begins)
    and begins every `slide`; if they are `cumulative`, each ends with another pane of a period of `size`.
    """

    width: int
    origin: int
    size: int
    slide: int
    cumulative: bool


@cuda.jit(device=True)
def closing_instant(newest, watermark):  # type: ignore[no-untyped-def]
    """Instant by which windows have ended that are closed after a batch with this newest time."""
    known, moves, less, floor, shift, back = watermark
    over = np.int64(known)
    if moves:
        over = max(over, (newest - np.int64(less)) // np.int64(floor) * np.int64(floor) + np.int64(shift))
    return over - np.int64(back)


WATERMARK = "Tuple((int64, boolean, int64, int64, int64, int64))"
"""A `Watermark` in Numba's notation."""
_PANES = "Tuple((int64, int64, int64, int64, boolean))"


@cuda.jit(device=True)
def closed(surveyed, watermark, panes):  # type: ignore[no-untyped-def]
    """(the last window that is closed after a batch, the oldest pane that others need)."""
    width, origin, size, slide, cumulative = panes
    before = (closing_instant(surveyed[1], watermark) - np.int64(origin)) // np.int64(width)
    if cumulative:
        return before - np.int64(1), before // np.int64(size) * np.int64(size)
    last = (before - np.int64(size)) // np.int64(slide)
    return last, (last + np.int64(1)) * np.int64(slide)


# -- where runs are cut ------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def cut(pane, wanted, number, out):  # type: ignore[no-untyped-def]
    """Cut number so many of `cuts`, of the panes of cells."""
    lo = np.int64(0)
    hi = np.int64(pane.shape[0])
    while lo < hi:
        middle = (lo + hi) >> 1
        if pane[middle] < wanted:
            lo = middle + 1
        else:
            hi = middle
    out[2 * number] = lo
    out[2 * number + 1] = pane[lo] if lo < pane.shape[0] else wanted


@cuda.jit(device=True)
def cut_combining(packed, before, code_bits, least, wanted, number, out):  # type: ignore[no-untyped-def]
    """As `cut`, of cells that are being combined."""
    lo = np.int64(0)
    hi = np.int64(packed.shape[0])
    while lo < hi:
        middle = (lo + hi) >> 1
        if np.int64(packed[middle] >> np.uint64(code_bits)) + least < wanted:
            lo = middle + 1
        else:
            hi = middle
    out[2 * number] = before[lo]
    last = packed.shape[0]
    out[2 * number + 1] = np.int64(packed[lo] >> np.uint64(code_bits)) + least if lo < last else wanted


@cache
def source_of(combining: tuple[bool, ...], ahead: bool) -> Source:
    """Of `cuts`, or of `cuts_beside`: a thread for each run, of those that are being combined and of others. Each is in
    a warp of its own, as they search one after the other in the same one.
    """
    arguments = [("cuts", "int64[::1]"), ("bounds", "int64[::1]")]
    lines = [f"if i & 31 == 0 and i < {32 * len(combining)}:"]
    if ahead:
        arguments += [("surveyed", "int64[::1]"), ("watermark", WATERMARK), ("grid", _PANES)]
        lines += ["    last, wanted = closed(surveyed, watermark, grid)", "    if i == 0:"]
        lines += ["        bounds[0] = last", "        bounds[1] = wanted"]
    else:
        lines += ["    wanted = bounds[0]"]
    for k, being in enumerate(combining):
        own = [("packed", "uint64[::1]"), ("before", "int64[::1]"), ("bits", "int64"), ("least", "int64")]
        own = [(f"cut_{name}{k}", type_) for name, type_ in (own if being else [("pane", "int64[::1]")])]
        arguments += own
        names = ", ".join(name for name, _ in own)
        lines += [
            f"    if i == {32 * k}:",
            f"        {'cut_combining' if being else 'cut'}({names}, wanted, {k}, cuts)",
        ]
    imports = "from gpuwin_kernels.cuda.watermark import closed, cut, cut_combining"
    return tuple(arguments), tuple(lines), imports


def cuts(runs: Sequence[DeviceCells | Combining], pane: int) -> DeviceArray:
    """int64[2 k], on the device: for each of k runs how many of its cells come before the pane, and the pane of the
    first that does not. Of runs that are being combined, it tells of what they will be. Does not wait.
    """
    out, besides = _cut(runs, to_device(np.array([pane])), ())
    for beside in besides:
        alone(beside)
    return out


def cuts_beside(
    runs: Sequence[DeviceCells | Combining], surveyed: DeviceArray, watermark: Watermark, panes: Panes
) -> tuple[DeviceArray, DeviceArray, list[Beside]]:
    """(int64[2]: the last window that is closed after a batch, and the oldest pane that others need; `cuts` there, of
    at least one run), on the device, and what finds both, which a kernel has to do by the way. `surveyed`: of the
    batch, as `late.survey`.
    """
    bounds = empty(2, np.int64)
    out, besides = _cut(runs, bounds, (surveyed, tuple(watermark), tuple(panes)))
    if len(besides) > 1:  # of the same names
        for beside in besides:
            alone(beside)
        besides = []
    return bounds, out, besides


def _cut(
    runs: Sequence[DeviceCells | Combining], bounds: DeviceArray, ahead: tuple[object, ...]
) -> tuple[DeviceArray, list[Beside]]:
    """Where the cuts will be, and what finds them."""
    out, besides = empty(2 * len(runs), np.int64), []
    for first in range(0, len(runs), _MOST_CUTS):
        some = runs[first : first + _MOST_CUTS]
        given: list[object] = []
        for run in some:
            given += [run.packed, run.before, run.code_bits, run.first] if isinstance(run, Combining) else [run.pane]
        source = source_of(tuple(isinstance(run, Combining) for run in some), len(ahead) > 0)
        values = out[2 * first : 2 * (first + len(some))], bounds, *ahead, *given
        besides.append(Beside(*source, values, 32 * len(some)))
    return out, besides


__all__ = ["WATERMARK", "Panes", "Watermark", "closing_instant", "cuts", "cuts_beside", "source_of"]
