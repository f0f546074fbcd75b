"""Rows to proto-sessions on the device: sort by (key, time), cut where a row is not reached by the rows before it.

Packed, a row is code << bits | (time - least). With one gap for all rows, the row before decides; with a gap per row
the largest end so far does, which is a running maximum over code << bits | (end - least): a later key is larger than
every end of an earlier one, so nothing has to be reset between keys.

Rows whose code is negative, and rows outside the span that the host expects, sort behind all others and are in no
session. So everything can be launched before the host knows how many rows are late, or where the rest lies: `survey`
tells it, to be read with what came of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.admission import LATE, UNASSIGNED
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.packed import MOST_BITS, TooFarApart
from gpuwin_kernels.cuda.reductions import least_and_most
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch, to_device, to_host, together
from gpuwin_kernels.cuda.scalar import place_of

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_ROWS_EACH = 16
_BLANK_EACH = 4  # words that a thread sets to zero beside its own work


# -- which rows, and where they lie ------------------------------------------------------------------------------------


@kernel("void(int64[::1], int64[::1], int64, int64, int64, uint8[::1], int64[::1])", hot=True)
def _survey(time, gaps, one_gap, before, passed, gone, surveyed):  # type: ignore[no-untyped-def]
    least = np.int64(_MOST)
    newest = np.int64(_LEAST)
    furthest = np.int64(_LEAST)
    late = np.int64(0)
    free = np.int64(0)
    for k in range(_ROWS_EACH):  # of no constant length, the loop would be unrolled, for which it divides
        i = cuda.grid(1) + k * cuda.gridsize(1)
        if i < time.shape[0]:
            t = time[i]
            gap = gaps[i] if gaps.shape[0] > 0 else one_gap
            newest = max(newest, t)
            what = np.uint8(0)
            if gap <= 0:
                what = np.uint8(UNASSIGNED)
                free += 1
            else:
                end = t + gap if t <= _MOST - gap else np.int64(_MOST)
                if t < before or end <= passed:
                    what = np.uint8(LATE)
                    late += 1
                else:
                    least = min(least, t)
                    furthest = max(furthest, end)
            if gone.shape[0] > 0:
                gone[i] = what
    if least < surveyed[0]:  # read first: after a few threads most find nothing to do
        cuda.atomic.min(surveyed, 0, least)
    if newest > surveyed[1]:
        cuda.atomic.max(surveyed, 1, newest)
    if furthest > surveyed[2]:
        cuda.atomic.max(surveyed, 2, furthest)
    if late > 0:
        cuda.atomic.add(surveyed, 3, late)
    if free > 0:
        cuda.atomic.add(surveyed, 4, free)


def survey(time: DeviceArray, gap: int | DeviceArray, before: int, passed: int) -> tuple[DeviceArray, DeviceArray]:
    """Survey of the rows of a batch, in one pass and without a wait. `time` int64[n], n > 0;
    `gap`: microseconds, for all rows or int64[n] on the device; a row is late if its time is before `before`, or if it
    ends at or before `passed` (the smallest int64: none is), and in no session if its gap is not positive.

    Returns (gone uint8[n]: LATE, or UNASSIGNED for rows without a gap; empty where no row can be either; surveyed
    int64[5]: the least time of what is neither (the largest int64 if nothing is), the newest time of all rows, the
    furthest end of what is neither (at most the largest int64), how many rows are late, and how many have no gap).
    """
    n, one = len(time), isinstance(gap, int)
    never = one and before == _LEAST and passed == _LEAST
    gone = empty(0 if never else n, np.uint8)
    surveyed = to_device(np.array([_MOST, _LEAST, _LEAST, 0, 0]))
    gaps = empty(0, np.int64) if one else gap
    launch(_survey, -(-n // _ROWS_EACH), time, gaps, gap if one else 0, before, passed, gone, surveyed)
    return gone, surveyed


# -- rows to sessions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """No time before `least` or after `most`, and no row that ends after `end`: what lies elsewhere is passed over."""

    least: int
    most: int
    end: int

    def holds(self, least: int, most: int, end: int) -> bool:
        """Whether rows like these are all within it."""
        return self.least <= least and most <= self.most and end <= self.end

    def fits(self, codes: int) -> bool:
        """Whether times within it fit a packed word, with so many keys."""
        try:
            return bool(self.bits(codes))
        except TooFarApart:
            return False

    def bits(self, codes: int) -> tuple[int, int, int]:
        """(of a code or of `codes` itself, of a time, of an end). Raises TooFarApart."""
        code_bits = max(codes, 1).bit_length()
        bits = max(self.most - self.least, 1).bit_length()
        end_bits = max(self.end - self.least, 1).bit_length()
        if code_bits + max(bits, end_bits) > MOST_BITS or self.end >= _MOST:
            raise TooFarApart(f"times {self.end - self.least} microseconds apart of {codes} keys do not fit a word")
        return code_bits, bits, end_bits


@dataclass(frozen=True, slots=True)
class DeviceProtos:
    """`slot` int32[n]: the proto-session of each row, in the order that rows came in, -1: none; the proto-sessions,
    sorted by (code, start), `count` of them, and behind these what means nothing; and their rows: of proto-session k
    they are `place[lo[k]:hi[k]]`, in the order of time.
    """

    slot: DeviceArray
    code: DeviceArray  # int32[room]
    start: DeviceArray  # int64[room]
    last: DeviceArray  # int64[room]
    end: DeviceArray  # int64[room]
    lo: DeviceArray  # int64[room]
    hi: DeviceArray  # int64[room]
    place: DeviceArray  # int32[n]
    count: DeviceArray  # int64[1]; more than there is room for: then the rest is left out


@kernel("void(int64[::1], int32[::1], int64, int64, int64, int64, uint64[::1], int32[::1], int64[::1])", hot=True)
def _pack_rows(time, code, least, most, bits, codes, packed, place, disorder):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i == 0:
        disorder[0] = 0
    if i < time.shape[0]:
        t = time[i]
        if code[i] < 0 or t < least or t > most:
            packed[i] = np.uint64(codes) << np.uint64(bits)
        else:
            packed[i] = (np.uint64(code[i]) << np.uint64(bits)) | np.uint64(t - least)
        place[i] = i


@kernel("void(uint64[::1], int32[::1], int64, int64, int64, boolean, int64[::1], int64[::1])", hot=True)
def _cut_by_gap(packed, place, bits, codes, gap, strict, before, disorder):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < packed.shape[0]:
        code = packed[i] >> np.uint64(bits)
        head = code < np.uint64(codes)
        if head and i > 0 and packed[i - 1] >> np.uint64(bits) == code:
            if packed[i] < packed[i - 1] or place[i] < place[i - 1]:
                disorder[0] = 1
            apart = np.int64(packed[i] - packed[i - 1])
            head = apart > gap or (strict and apart == gap)
        before[i + 1] = 1 if head else 0
        if i == 0:
            before[0] = 0


@kernel("void(uint64[::1], int32[::1], int64[::1], int64, int64, int64, uint64[::1])", hot=True)
def _ends(packed, place, gap, bits, codes, end_bits, ends):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < packed.shape[0]:
        code = packed[i] >> np.uint64(bits)
        end = np.uint64(0)
        if code < np.uint64(codes):
            time = packed[i] & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
            end = time + np.uint64(gap[place[i]])
        ends[i] = (code << np.uint64(end_bits)) | end


@kernel(
    "void(uint64[::1], int32[::1], uint64[::1], UniTuple(int64, 2), int64, boolean, int64[::1], int64[::1])", hot=True
)
def _cut_by_end(packed, place, ends, all_bits, codes, strict, before, disorder):  # type: ignore[no-untyped-def]
    bits, end_bits = all_bits
    i = cuda.grid(1)
    if i < packed.shape[0]:
        code = packed[i] >> np.uint64(bits)
        head = code < np.uint64(codes)
        if head and i > 0 and packed[i - 1] >> np.uint64(bits) == code:
            if packed[i] < packed[i - 1] or place[i] < place[i - 1]:
                disorder[0] = 1
            time = packed[i] & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
            reached = ends[i - 1] & ((np.uint64(1) << np.uint64(end_bits)) - np.uint64(1))
            head = time > reached or (strict and time == reached)
        before[i + 1] = 1 if head else 0
        if i == 0:
            before[0] = 0


@kernel(
    "void(int64[::1], uint64[::1], uint64[::1], int32[::1], UniTuple(int64, 5), "
    "Tuple((int32[::1], int64[::1])), Tuple((int32[::1], int64[::1], int64[::1], int64[::1])), "
    "UniTuple(int64[::1], 2))",
    hot=True,
)
def _protos(before, packed, ends, place, span, out, bounds, rows):  # type: ignore[no-untyped-def]
    """The slot of each row; and of each proto-session that there is room for its bounds, and its `rows` [lo, hi).
    `span`: bits of times and of ends, least time, gap, codes. `blank` becomes zero, for what comes next.
    """
    bits, end_bits, least, gap, codes = span
    slot, blank = out
    for k in range(_BLANK_EACH):  # of no constant length, the loop would be unrolled, for which it divides
        at = cuda.grid(1) + k * cuda.gridsize(1)
        if at < blank.shape[0]:
            blank[at] = 0
    code, start, last, end = bounds
    lo, hi = rows
    i = cuda.grid(1)
    n = packed.shape[0]
    room = code.shape[0]
    if i < n:
        number = np.int64(-1)
        if packed[i] >> np.uint64(bits) < np.uint64(codes) and before[i + 1] <= room:
            number = before[i + 1] - 1
        slot[place[i]] = np.int32(number)
    if i < room and i >= before[n]:
        lo[i] = 0
        hi[i] = 0
    elif i < room:
        a = place_of(before, i)
        if i + 1 < before[n]:
            b = place_of(before, i + 1)
        else:  # the rows that are in no session come last
            b = a + 1
            beyond = np.int64(n)
            while b < beyond:
                middle = (b + beyond) >> 1
                if packed[middle] >> np.uint64(bits) < np.uint64(codes):
                    b = middle + 1
                else:
                    beyond = middle
        mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
        code[i] = np.int32(packed[a] >> np.uint64(bits))
        start[i] = least + np.int64(packed[a] & mask)
        last[i] = least + np.int64(packed[b - 1] & mask)
        if ends.shape[0] > 0:
            end[i] = least + np.int64(ends[b - 1] & ((np.uint64(1) << np.uint64(end_bits)) - np.uint64(1)))
        else:
            end[i] = last[i] + gap
        lo[i] = a
        hi[i] = b


@dataclass(frozen=True, slots=True)
class Cutting:
    """Rows on their way into proto-sessions: where they are cut is launched. The host reads `count`, or expects it, and
    gives it to `protos`.
    """

    span: Span
    gap: int  # 0: one per row
    bits: int
    end_bits: int
    codes: int
    packed: DeviceArray  # uint64[n], sorted
    place: DeviceArray  # int32[n]
    ends: DeviceArray  # uint64[n], or none
    before: DeviceArray  # int64[n + 1]
    disorder: DeviceArray  # int64[1]: not 0 if a row came after a newer one of its key

    @property
    def count(self) -> DeviceArray:
        """int64[1], on the device: how many proto-sessions there are."""
        return self.before[len(self.packed) :]

    def protos(self, room: int, blank: DeviceArray | None = None) -> DeviceProtos:
        """As many as there is room for. `blank`: memory that becomes zero by the way, int64[k]. Does not wait."""
        n, long = len(self.packed), (room, np.int64)
        slot, code, start, last, end, lo, hi = together((n, np.int32), (room, np.int32), *[long] * 5)
        span = self.bits, self.end_bits, self.span.least, self.gap, self.codes
        bounds, rows = (code, start, last, end), (lo, hi)
        blank = empty(0, np.int64) if blank is None else blank
        threads, out = max(n, room, -(-len(blank) // _BLANK_EACH)), (slot, blank)
        launch(_protos, threads, self.before, self.packed, self.ends, self.place, span, out, bounds, rows)
        return DeviceProtos(slot, code, start, last, end, lo, hi, self.place, self.count)


def cutting(
    code: DeviceArray,
    time: DeviceArray,
    gap: int | DeviceArray,
    strict: bool,
    codes: int,
    span: Span,
    in_order: bool = False,
) -> Cutting:
    """Launches what cuts rows, n > 0, into sessions: `code` int32[n] in [0, codes), or negative for a row that is
    passed over, `time` int64[n] microseconds; `gap`: microseconds, for all rows or int64[n], none negative but of rows
    that are passed over. All on the device.

    `strict`: rows must overlap to be one session; else it is enough that one ends where the next begins. `in_order`:
    the rows of each key are expected in the order of time, so they are sorted by the bits of the key alone; the result
    means nothing if `disorder` tells that they were not. Raises TooFarApart if keys and times do not
    fit one word, or an end would leave int64.
    """
    n = len(time)
    code_bits, bits, end_bits = span.bits(codes)
    packed, place, before, disorder = together((n, np.uint64), (n, np.int32), (n + 1, np.int64), (1, np.int64))
    launch(_pack_rows, n, time, code, span.least, span.most, bits, codes, packed, place, disorder)
    packed, place = primitives.sort_pairs(packed, place, code_bits + bits, bits if in_order else 0)
    ends = empty(0, np.uint64)
    if isinstance(gap, int):
        launch(_cut_by_gap, n, packed, place, bits, codes, gap, strict, before, disorder)
    else:
        ends = empty(n, np.uint64)
        launch(_ends, n, packed, place, gap, bits, codes, end_bits, ends)
        ends = primitives.running_max(ends)
        launch(_cut_by_end, n, packed, place, ends, (bits, end_bits), codes, strict, before, disorder)
    one_gap = gap if isinstance(gap, int) else 0
    before = primitives.running_sum(before)
    return Cutting(span, one_gap, bits, end_bits, codes, packed, place, ends, before, disorder)


def cut(code: DeviceArray, time: DeviceArray, gap: int | DeviceArray, strict: bool, codes: int) -> DeviceProtos:
    """As `cutting`, and room for exactly the proto-sessions that there are: waits for the range of times (and gaps),
    and for how many there are.
    """
    least, most = least_and_most(time)
    widest = gap if isinstance(gap, int) else least_and_most(gap)[1]
    begun = cutting(code, time, gap, strict, codes, Span(least, most, most + widest))
    return begun.protos(int(to_host(begun.count)[0]))


__all__ = ["Cutting", "DeviceProtos", "Span", "cut", "cutting", "survey"]
