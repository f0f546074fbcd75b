"""Watermarks and late rows on the device: which rows are on time, and where those and the late ones are."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.reductions import least_and_most
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch, to_device, to_host

_SIGN = np.uint64(1 << 63)
_ROWS_EACH = 16
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
NOTHING_TOLD = (_MOST, _LEAST, 0, 0, 0, 0)
"""What `survey` begins with."""


class TooFarApart(ValueError):
    """Candidates and keys that one 64-bit word cannot hold together."""


@kernel("void(int64[::1], int64, int64, uint8[::1], int64[::1])", hot=True)
def _survey(time, limit, old, gone, told):  # type: ignore[no-untyped-def]
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
    if least < told[0]:  # read first: after a few threads most find nothing to do
        cuda.atomic.min(told, 0, least)
    if newest > told[1]:
        cuda.atomic.max(told, 1, newest)
    if late > 0:
        cuda.atomic.add(told, 2, late)
    if before > 0:
        cuda.atomic.add(told, 3, before)


def survey(time: Any, limit: int, old: int) -> tuple[Any, Any]:
    """What the host wants to know of the times of a batch, int64[n], n > 0, in one pass and without a wait.

    Returns (gone uint8[n]: 1 for rows that are late, before `limit`, or empty where no time can be; told int64[6]: the
    least time that is not late (the largest int64 if there is none), the newest of all, how many rows are late, how
    many come before `old`, and two 0 that `admission.admitted` makes use of: how many rows are in no window, and
    whether times lie too far apart to tell).
    """
    gone = empty(0 if limit == _LEAST else len(time), np.uint8)
    told = to_device(np.array(NOTHING_TOLD))
    launch(_survey, -(-len(time) // _ROWS_EACH), time, limit, old, gone, told)
    return gone, told


@kernel("void(uint8[::1], int32[::1])", hot=True)
def _pass_over(gone, code):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < gone.shape[0] and gone[i] != 0:
        code[i] = -1


def pass_over(gone: Any, code: Any) -> None:
    """Sets the codes (int32[n]) of rows that are gone (uint8[n]) to -1."""
    launch(_pass_over, len(gone), gone, code)


@kernel("void(int64[::1], int64, uint8[::1])", hot=True)
def _later_than(values, limit, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < values.shape[0]:
        flags[i] = 1 if values[i] > limit else 0


@kernel("void(int64[::1], int64[::1], uint8[::1])", hot=True)
def _later_than_each(values, limits, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < values.shape[0]:
        flags[i] = 1 if values[i] > limits[i] else 0


def later_than(values: Any, limit: Any) -> Any:
    """uint8[n]: whether each of int64[n] is later than the limit: an int for the batch, or int64[n], one for each row.
    No synchronisation.
    """
    flags = empty(len(values), np.uint8)
    one = isinstance(limit, (int, np.integer))
    launch(_later_than if one else _later_than_each, len(values), values, limit, flags)
    return flags


@kernel("void(int64[::1], uint64[::1])", hot=True)
def _unsigned(values, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < values.shape[0]:
        out[i] = np.uint64(values[i]) ^ _SIGN


@kernel("void(uint64[::1], int64, int64[::1])", hot=True)
def _at_least(ranked, known, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < ranked.shape[0]:
        out[i] = max(np.int64(ranked[i] ^ _SIGN), known)


def running_watermark(candidate: Any, known: int) -> Any:
    """int64[n]: the watermark after each row, in order of arrival: the largest of `known` and the candidates int64[n]
    so far. No synchronisation.
    """
    ranked, out = empty(len(candidate), np.uint64), empty(len(candidate), np.int64)
    launch(_unsigned, len(candidate), candidate, ranked)
    launch(_at_least, len(candidate), primitives.running_max(ranked), known, out)
    return out


@kernel("void(int32[::1], uint64[::1], int32[::1])", hot=True)
def _by_code(code, keys, row):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < code.shape[0]:
        keys[i] = np.uint64(code[i])
        row[i] = i


@kernel("void(uint64[::1], int32[::1], int64[::1], uint64, int64, uint64[::1])", hot=True)
def _with_candidate(keys, row, candidate, least, bits, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < keys.shape[0]:
        # The difference is exact modulo 2**64, however far apart the two are.
        out[i] = (keys[i] << np.uint64(bits)) | (np.uint64(candidate[row[i]]) - least)


@kernel("void(uint64[::1], int32[::1], uint64, int64, int64[::1], int64[::1], int64[::1])", hot=True)
def _of_each_key(ranked, row, least, bits, known, before, moved):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    n = ranked.shape[0]
    low = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    if i < n:
        code = ranked[i] >> np.uint64(bits)
        mark = known[np.int64(code)]
        if i > 0 and ranked[i - 1] >> np.uint64(bits) == code:
            mark = max(mark, np.int64((ranked[i - 1] & low) + least))
        before[row[i]] = mark
        mark = max(mark, np.int64((ranked[i] & low) + least))
        if i + 1 == n or ranked[i + 1] >> np.uint64(bits) != code:
            moved[np.int64(code)] = mark


def running_watermarks(code: Any, candidate: Any, known: Any) -> tuple[Any, Any]:
    """(int64[n]: the watermark of each row's key when that row comes, in order of arrival; int64[codes]: that of each
    key after all). `code` int32[n], `candidate` int64[n], `known` int64[codes] before, which is left as it is.

    Rows are sorted by key, stably, and one running maximum of (key, candidate) serves all keys. One synchronisation.
    Raises TooFarApart if key and range of candidates take more than 64 bits: the host has to do it.
    """
    n = len(code)
    moved = empty(len(known), np.int64)
    if len(known):
        moved.copy_to_device(known)
    before = empty(n, np.int64)
    if n == 0:
        return before, moved
    least, most = least_and_most(candidate)
    bits, code_bits = max(1, (most - least).bit_length()), max(len(known) - 1, 1).bit_length()
    if bits + code_bits > 64:
        raise TooFarApart(f"candidates {most - least} microseconds apart for {len(known)} keys")
    base = np.uint64(least & 0xFFFFFFFFFFFFFFFF)
    keys, row, ranked = empty(n, np.uint64), empty(n, np.int32), empty(n, np.uint64)
    launch(_by_code, n, code, keys, row)
    keys, row = primitives.sort_pairs(keys, row, code_bits)
    launch(_with_candidate, n, keys, row, candidate, base, bits, ranked)
    launch(_of_each_key, n, primitives.running_max(ranked), row, base, bits, known, before, moved)
    return before, moved


@kernel("void(uint8[::1], int64[::1])", hot=True)
def _as_counts(flags, counts):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < flags.shape[0]:
        counts[i] = 1 if flags[i] != 0 else 0


@kernel("void(uint8[::1], int64[::1], int32[::1])", hot=True)
def _part(flags, place, out):  # type: ignore[no-untyped-def]
    n = flags.shape[0]
    kept = place[n]
    i = cuda.grid(1)
    if i < n:
        to = place[i] if flags[i] != 0 else kept + i - place[i]
        out[to] = np.int32(i)


def parted(flags: Any) -> tuple[Any, Any]:
    """(int32[m], int32[n - m]): the rows whose flag (uint8[n]) is not 0, and the others, each in order of arrival. One
    scan and one synchronisation for both.
    """
    n = len(flags)
    counts, out = empty(n, np.int64), empty(n, np.int32)
    if n == 0:
        return out, out
    launch(_as_counts, n, flags, counts)
    place = primitives.exclusive_sum(counts)
    launch(_part, n, flags, place, out)
    m = int(to_host(place[n:])[0])
    return out[:m], out[m:]


__all__ = [
    "NOTHING_TOLD",
    "TooFarApart",
    "later_than",
    "parted",
    "pass_over",
    "running_watermark",
    "running_watermarks",
    "survey",
]
