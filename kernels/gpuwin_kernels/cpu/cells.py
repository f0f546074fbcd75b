"""Orders of cells: sorting and grouping them by (pane, code), merging sorted runs, and finding cells in a run."""

from __future__ import annotations

import numpy as np

from gpuwin_kernels.cpu.code_cache import njit
from gpuwin_kernels.cpu.memory import copy_items

_FEW = 1 << 12  # cells up to which a digit of 8 bits beats one of 11


@njit(nogil=True, cache=True)
def is_increasing(pane, code):  # type: ignore[no-untyped-def]
    """Whether (pane, code) is strictly increasing."""
    for i in range(1, pane.shape[0]):
        if pane[i] < pane[i - 1] or (pane[i] == pane[i - 1] and code[i] <= code[i - 1]):
            return False
    return True


@njit(nogil=True, cache=True)
def radix_sort(key, row, key_2, row_2, bits):  # type: ignore[no-untyped-def]
    """Stably sorts (key uint64, row int32) by the low `bits` of key, least significant digit first. Returns whether
    the result is in key_2, row_2.
    """
    n = key.shape[0]
    width = 8 if n <= _FEW else 11
    digits = 1 << width
    mask = np.uint64(digits - 1)
    count = np.empty(digits, np.int64)
    swapped = False
    for shift in range(0, bits, width):
        s = np.uint64(shift)
        count[:] = 0
        for i in range(n):
            count[(key[i] >> s) & mask] += 1
        at = 0
        single = False
        for d in range(digits):
            c = count[d]
            single |= c == n
            count[d] = at
            at += c
        if single:
            continue
        for i in range(n):
            d = (key[i] >> s) & mask
            to = count[d]
            count[d] = to + 1
            key_2[to] = key[i]
            row_2[to] = row[i]
        key, key_2 = key_2, key
        row, row_2 = row_2, row
        swapped = not swapped
    return swapped


@njit(nogil=True, cache=True)
def pack_cells(pane, code, least, code_bits, key, row):  # type: ignore[no-untyped-def]
    """key = (pane - least) << code_bits | code, row = 0, 1, ..."""
    base = np.uint64(least)
    shift = np.uint64(code_bits)
    for i in range(pane.shape[0]):
        key[i] = ((np.uint64(pane[i]) - base) << shift) | np.uint64(code[i])
        row[i] = i


@njit(nogil=True, cache=True)
def group_cells(pane, code, order, group, out_pane, out_code):  # type: ignore[no-untyped-def]
    """Numbers the distinct cells along `order`, which sorts them: group[i] for cell i. Returns how many there are."""
    m = 0
    for k in range(order.shape[0]):
        i = order[k]
        if m == 0 or pane[i] != out_pane[m - 1] or code[i] != out_code[m - 1]:
            out_pane[m] = pane[i]
            out_code[m] = code[i]
            m += 1
        group[i] = m - 1
    return m


@njit(nogil=True, cache=True)
def merge_positions(pane_a, code_a, pane_b, code_b, to_a, to_b, out_pane, out_code):  # type: ignore[no-untyped-def]
    """Where the cells of two sorted runs go when merged (int64). Returns how many cells there are then."""
    na = pane_a.shape[0]
    nb = pane_b.shape[0]
    i = 0
    j = 0
    m = 0
    while i < na and j < nb:
        take_a = pane_a[i] < pane_b[j] or (pane_a[i] == pane_b[j] and code_a[i] <= code_b[j])
        take_b = pane_b[j] < pane_a[i] or (pane_a[i] == pane_b[j] and code_b[j] <= code_a[i])
        if take_a:
            out_pane[m] = pane_a[i]
            out_code[m] = code_a[i]
            to_a[i] = m
            i += 1
        if take_b:
            out_pane[m] = pane_b[j]
            out_code[m] = code_b[j]
            to_b[j] = m
            j += 1
        m += 1
    while i < na:
        out_pane[m] = pane_a[i]
        out_code[m] = code_a[i]
        to_a[i] = m
        i += 1
        m += 1
    while j < nb:
        out_pane[m] = pane_b[j]
        out_code[m] = code_b[j]
        to_b[j] = m
        j += 1
        m += 1
    return m


@njit(nogil=True, cache=True)
def find_cells(pane, code, want_pane, want_code, position):  # type: ignore[no-untyped-def]
    """The positions in a run of wanted cells, which are sorted too; -1 where there is none. Costs logarithms of the
    distances.
    """
    n = pane.shape[0]
    at = 0
    for w in range(want_pane.shape[0]):
        p = want_pane[w]
        c = want_code[w]
        step = 1
        while at + step <= n and (pane[at + step - 1] < p or (pane[at + step - 1] == p and code[at + step - 1] < c)):
            at += step
            step <<= 1
        high = min(n, at + step - 1)
        while at < high:
            middle = (at + high) >> 1
            if pane[middle] < p or (pane[middle] == p and code[middle] < c):
                at = middle + 1
            else:
                high = middle
        position[w] = at if at < n and pane[at] == p and code[at] == c else -1


@njit(nogil=True, cache=True)
def cells_of_codes(code, start, wanted, number, scan):  # type: ignore[no-untyped-def]
    """The cells of wanted keys in some stretches: (position int64[k], the wanted key's number int32[k], start
    int64[stretches + 1] into these).

    `wanted` int32 sorted, unique. Either each is looked up in each stretch, or (`scan`) the stretches are read and
    `number` (int32 per code, -1 for the others) says which key a cell is of.
    """
    position = np.empty(256, np.int64)
    which = np.empty(256, np.int32)
    out_start = np.empty(start.shape[0], np.int64)
    k = 0
    for j in range(start.shape[0] - 1):
        out_start[j] = k
        most = start[j + 1] - start[j] if scan else min(start[j + 1] - start[j], wanted.shape[0])
        if k + most > position.shape[0]:
            size = max(2 * position.shape[0], k + most)
            wider = np.empty(size, np.int64)
            copy_items(position, 0, k, wider, 0)
            position = wider
            wider_32 = np.empty(size, np.int32)
            copy_items(which, 0, k, wider_32, 0)
            which = wider_32
        if scan:
            for i in range(start[j], start[j + 1]):
                w = number[code[i]]
                if w >= 0:
                    position[k] = i
                    which[k] = w
                    k += 1
            continue
        at = start[j]
        n = start[j + 1]
        for w in range(wanted.shape[0]):
            c = wanted[w]
            step = 1
            while at + step <= n and code[at + step - 1] < c:
                at += step
                step <<= 1
            high = min(n, at + step - 1)
            while at < high:
                middle = (at + high) >> 1
                if code[middle] < c:
                    at = middle + 1
                else:
                    high = middle
            if at < n and code[at] == c:
                position[k] = at
                which[k] = w
                k += 1
    out_start[start.shape[0] - 1] = k
    return position[:k].copy(), which[:k].copy(), out_start


@njit(nogil=True, cache=True)
def largest_magnitude(values):  # type: ignore[no-untyped-def]
    """max |v| as uint64; 0 for no values."""
    most = np.uint64(0)
    for i in range(values.shape[0]):
        v = values[i]
        size = np.uint64(v) if v >= 0 else np.uint64(0) - np.uint64(v)
        most = max(most, size)
    return most


@njit(nogil=True, cache=True)
def mark_codes(code, used):  # type: ignore[no-untyped-def]
    """used[c] = 1 for the codes of some cells."""
    for i in range(code.shape[0]):
        used[code[i]] = 1
