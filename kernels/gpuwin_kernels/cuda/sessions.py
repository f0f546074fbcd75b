"""Rows to proto-sessions on the device: sort by (key, time), cut where a row is not reached by the rows before it.

Packed, a row is code << bits | (time - least). With one gap for all rows, the row before decides; with a gap per row
the largest end so far does, which is a running maximum over code << bits | (end - least): a later key is larger than
every end of an earlier one, so nothing has to be reset between keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.cells import MOST_BITS, TooFarApart, head_bounds, pack
from gpuwin_kernels.cuda.reductions import least_and_most
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch


@dataclass(frozen=True, slots=True)
class DeviceProtos:
    """`slot` int32[n]: the proto-session of each row, in the order that rows came in; and the m proto-sessions, sorted
    by (code, start).
    """

    slot: Any
    code: Any  # int32[m]
    start: Any  # int64[m]
    last: Any  # int64[m]
    end: Any  # int64[m]


@kernel("void(uint64[::1], int64, int64, boolean, uint8[::1], int64[::1])")
def _cut_by_gap(packed, bits, gap, strict, flags, ones):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < packed.shape[0]:
        head = True
        if i > 0 and packed[i - 1] >> np.uint64(bits) == packed[i] >> np.uint64(bits):
            apart = np.int64(packed[i] - packed[i - 1])
            head = apart > gap or (strict and apart == gap)
        flags[i] = 1 if head else 0
        ones[i] = 1 if head else 0


@kernel("void(uint64[::1], int32[::1], int64[::1], int64, int64, uint64[::1])")
def _ends(packed, place, gap, bits, end_bits, ends):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < packed.shape[0]:
        time = packed[i] & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
        end = time + np.uint64(gap[place[i]])
        ends[i] = ((packed[i] >> np.uint64(bits)) << np.uint64(end_bits)) | end


@kernel("void(uint64[::1], uint64[::1], int64, int64, boolean, uint8[::1], int64[::1])")
def _cut_by_end(packed, ends, bits, end_bits, strict, flags, ones):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < packed.shape[0]:
        head = True
        code = packed[i] >> np.uint64(bits)
        if i > 0 and packed[i - 1] >> np.uint64(bits) == code:
            time = packed[i] & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
            reached = ends[i - 1] & ((np.uint64(1) << np.uint64(end_bits)) - np.uint64(1))
            head = time > reached or (strict and time == reached)
        flags[i] = 1 if head else 0
        ones[i] = 1 if head else 0


@kernel("void(int64[::1], uint8[::1], int32[::1], int32[::1])")
def _number_rows(before, flags, place, slot):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < place.shape[0]:
        slot[place[i]] = np.int32(before[i] + np.int64(flags[i]) - 1)


@kernel(
    "void(int64[::1], int64[::1], uint64[::1], uint64[::1], int64, int64, int64, int64, "
    "int32[::1], int64[::1], int64[::1], int64[::1])"
)
def _describe(lo, hi, packed, ends, bits, end_bits, least, gap, code, start, last, end):  # type: ignore[no-untyped-def]
    k = cuda.grid(1)
    if k < lo.shape[0]:
        mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
        first = packed[lo[k]]
        newest = packed[hi[k] - 1]
        code[k] = np.int32(first >> np.uint64(bits))
        start[k] = least + np.int64(first & mask)
        last[k] = least + np.int64(newest & mask)
        if ends.shape[0] > 0:
            end[k] = least + np.int64(ends[hi[k] - 1] & ((np.uint64(1) << np.uint64(end_bits)) - np.uint64(1)))
        else:
            end[k] = last[k] + gap


def cut(code: Any, time: Any, gap: Any, strict: bool, codes: int) -> DeviceProtos:
    """Rows (`code` int32[n] in [0, codes), `time` int64[n] microseconds, n > 0, on the device) to proto-sessions that
    do not touch. `gap`: microseconds, for all rows or int64[n] on the device, none negative.

    `strict`: rows must overlap to be one session; else it is enough that one ends where the next begins. Raises
    TooFarApart if keys and times do not fit one word, or an end would leave int64.
    """
    n = len(time)
    least, most = least_and_most(time)
    widest = gap if isinstance(gap, int) else least_and_most(gap)[1]
    code_bits = max(codes - 1, 1).bit_length()
    bits, end_bits = max(most - least, 1).bit_length(), max(most - least + widest, 1).bit_length()
    if code_bits + end_bits > MOST_BITS or most + widest >= 1 << 63:
        raise TooFarApart(f"times {most - least + widest} microseconds apart of {codes} keys do not fit a word")
    packed, place = pack(time, code, least, bits, by_code=True)
    packed, place = primitives.sort_pairs(packed, place, code_bits + bits)
    flags, ones = empty(n, np.uint8), empty(n, np.int64)
    ends = empty(0, np.uint64)
    if isinstance(gap, int):
        launch(_cut_by_gap, n, packed, bits, gap, strict, flags, ones)
    else:
        ends = empty(n, np.uint64)
        launch(_ends, n, packed, place, gap, bits, end_bits, ends)
        ends = primitives.running_max(ends)
        launch(_cut_by_end, n, packed, ends, bits, end_bits, strict, flags, ones)
    before = primitives.exclusive_sum(ones)
    slot = empty(n, np.int32)
    launch(_number_rows, n, before, flags, place, slot)
    lo, hi = head_bounds(flags)
    m = len(lo)
    found = DeviceProtos(slot, empty(m, np.int32), empty(m, np.int64), empty(m, np.int64), empty(m, np.int64))
    one_gap = gap if isinstance(gap, int) else 0
    launch(
        _describe, m, lo, hi, packed, ends, bits, end_bits, least, one_gap,
        found.code, found.start, found.last, found.end,
    )  # fmt: skip
    return found


__all__ = ["DeviceProtos", "cut"]
