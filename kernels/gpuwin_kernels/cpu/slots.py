"""Slots of rows, where their cells are kept: panes, and places in dense, partitioned and sorted tables."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.memory import trailing_zeros

BLOCK = 1 << 11  # rows whose slots are found before their values are read: fits the first-level cache
_FAR = np.int64((1 << 63) - 1)
_LEAST = np.int64(-(1 << 63))
_EXACT = np.uint64(1 << 51)  # differences of times below this are exact as float64, with room for one rounding


@njit(nogil=True, cache=True)
def pane_of(t, width, origin):  # type: ignore[no-untyped-def]
    """floor((t - origin) / width) for 0 <= origin < width, without the difference, which may not fit int64."""
    q = t // width
    return q if t - q * width >= origin else q - 1


@njit(nogil=True, cache=True)
def time_range(time, mask):  # type: ignore[no-untyped-def]
    """(least, most, rows) of the rows whose mask (uint8; empty for all) is not 0."""
    least = _FAR
    most = _LEAST
    if mask.shape[0] == 0:
        for i in range(time.shape[0]):
            least = min(least, time[i])
            most = max(most, time[i])
        return least, most, time.shape[0]
    rows = 0
    for i in range(time.shape[0]):
        if mask[i] != 0:
            rows += 1
            least = min(least, time[i])
            most = max(most, time[i])
    return least, most, rows


@njit(nogil=True, cache=True)
def dense_slots(code, time, mask, base, width, records, codes, slot):  # type: ignore[no-untyped-def]
    """slot[i] (uint32) = (pane - first pane) * codes + code of a block of rows; `records`, one past the last, for rows
    that are masked out. Returns whether all of them lie in one pane, and none is masked out.

    `base` is where the first pane starts, modulo 2**64. Division is by a reciprocal, mended by at most one either way;
    a block that lies in one pane needs none. Raises ValueError for a row of another pane, which has no record.
    """
    n = time.shape[0]
    low = ~np.uint64(0)
    high = np.uint64(0)
    for i in range(n):
        d = np.uint64(time[i]) - base
        low = min(low, d)
        high = max(high, d)
    size = np.uint64(width)
    pane = low // size
    panes = np.uint64(records) // np.uint64(codes)
    if high // size >= panes:  # of a row that is masked out
        if mask.shape[0] == 0:
            raise ValueError("a time lies outside of the ends of the rows")
        for i in range(n):
            q = (np.uint64(time[i]) - base) // size
            slot[i] = np.uint32(q * np.uint64(codes)) + np.uint32(code[i]) if mask[i] != 0 else np.uint32(records)
        return False
    if high // size == pane:
        first = np.uint32(pane * np.uint64(codes))
        for i in range(n):
            slot[i] = first + np.uint32(code[i])
    elif high < _EXACT:
        reciprocal = 1.0 / width
        for i in range(n):
            d = np.int64(np.uint64(time[i]) - base)
            q = np.int64(d * reciprocal)
            r = d - q * width
            q += np.int64(r >= width) - np.int64(r < 0)
            slot[i] = np.uint32(q * codes) + np.uint32(code[i])
    else:
        for i in range(n):
            q = (np.uint64(time[i]) - base) // size
            slot[i] = np.uint32(q * np.uint64(codes)) + np.uint32(code[i])
    if mask.shape[0] > 0:
        for i in range(n):
            slot[i] = slot[i] if mask[i] != 0 else np.uint32(records)
        return False
    return high // size == pane


@njit(nogil=True, cache=True)
def count_used(table, width, word, lo, hi):  # type: ignore[no-untyped-def]
    """Number of the records [lo, hi) with a word that is not 0."""
    n = 0
    for b in range(lo * width + word, hi * width, width):
        n += table[b] != 0
    return n


@njit(nogil=True, cache=True)
def cell_ids(code, time, mask, base, width, panes, code_bits, out):  # type: ignore[no-untyped-def]
    """out[i] (uint64) = (pane - first pane) << code_bits | code; all ones for rows that are masked out.

    Raises ValueError for a row that is in none of the `panes`.
    """
    masked = mask.shape[0] > 0
    shift = np.uint64(code_bits)
    left = np.uint64(0)
    right = np.uint64(0)  # the pane of the last row covers [left, right)
    pane = np.uint64(0)
    for i in range(time.shape[0]):
        if masked and mask[i] == 0:
            out[i] = ~np.uint64(0)
            continue
        d = np.uint64(time[i]) - np.uint64(base)
        if d < left or d >= right:
            pane = d // np.uint64(width)
            if pane >= np.uint64(panes):
                raise ValueError("a time lies outside of the ends of the rows")
            left = pane * np.uint64(width)
            right = left + np.uint64(width)
            if right < left:
                right = ~np.uint64(0)
        out[i] = (pane << shift) | np.uint64(code[i])


@njit(nogil=True, cache=True)
def count_parts(ids, lo, hi, slot_bits, count):  # type: ignore[no-untyped-def]
    """Rows of [lo, hi) per partition: the id without its low `slot_bits`. Masked rows (all ones) are left out."""
    none = ~np.uint64(0)
    shift = np.uint64(slot_bits)
    for i in range(lo, hi):
        if ids[i] != none:
            count[ids[i] >> shift] += 1


@njit(nogil=True, cache=True)
def scatter_parts(ids, lo, hi, slot_bits, place, slot, row):  # type: ignore[no-untyped-def]
    """Slot and number of each row of [lo, hi), written to its partition's next place."""
    none = ~np.uint64(0)
    shift = np.uint64(slot_bits)
    mask = np.uint64((1 << slot_bits) - 1)
    for i in range(lo, hi):
        x = ids[i]
        if x != none:
            p = x >> shift
            to = place[p]
            place[p] = to + 1
            slot[to] = np.uint32(x & mask)
            row[to] = np.uint32(i)


@njit(nogil=True, cache=True)
def list_cells(slot, start, part_lo, part_hi, used, cell_slot, cell_start):  # type: ignore[no-untyped-def]
    """The distinct slots of each partition, ascending, in cell_slot from where the slots of the first one begin;
    returns where they end.

    `used` is a bit set of zeros (uint64) and is left so.
    """
    at = start[part_lo]
    for p in range(part_lo, part_hi):
        cell_start[p] = at
        for k in range(start[p], start[p + 1]):
            s = slot[k]
            used[s >> 6] |= np.uint64(1) << np.uint64(s & 63)
        for w in range(used.shape[0]):
            bits = used[w]
            while bits != np.uint64(0):
                cell_slot[at] = (w << 6) + trailing_zeros(bits)
                at += 1
                bits &= bits - np.uint64(1)
            used[w] = np.uint64(0)
    return at


@njit(nogil=True, cache=True)
def name_cells(cell_slot, cell_start, parts, slot_bits, code_bits, first_pane, out_pane, out_code):  # type: ignore[no-untyped-def]
    """The pane and code of the cells of some partitions, [parts[0], parts[1])."""
    mask = (np.uint64(1) << np.uint64(code_bits)) - np.uint64(1)
    for p in range(parts[0], parts[1]):
        high = np.uint64(p) << np.uint64(slot_bits)
        for m in range(cell_start[p], cell_start[p + 1]):
            x = high | np.uint64(cell_slot[m])
            out_pane[m] = first_pane + np.int64(x >> np.uint64(code_bits))
            out_code[m] = np.int32(x & mask)


@njit(nogil=True, cache=True)
def drop_masked(ids, row):  # type: ignore[no-untyped-def]
    """Number of the rows that are not masked out, which move to the front with their numbers."""
    none = ~np.uint64(0)
    m = 0
    for i in range(ids.shape[0]):
        if ids[i] != none:
            ids[m] = ids[i]
            row[m] = i
            m += 1
    return m


@njit(nogil=True, cache=True)
def rank_ids(ids, code_bits, first_pane, slot, out_pane, out_code):  # type: ignore[no-untyped-def]
    """Number of distinct ids of a sorted list, each of which gets its rank."""
    mask = (np.uint64(1) << np.uint64(code_bits)) - np.uint64(1)
    m = 0
    for k in range(ids.shape[0]):
        x = ids[k]
        if k == 0 or x != ids[k - 1]:
            out_pane[m] = first_pane + np.int64(x >> np.uint64(code_bits))
            out_code[m] = np.int32(x & mask)
            m += 1
        slot[k] = m - 1
    return m
