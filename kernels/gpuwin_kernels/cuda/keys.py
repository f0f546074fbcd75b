"""A dictionary of int64 keys on the device: codes in the order of first appearance, as those of the host's
dictionary.

The table is open addressing with linear probing. Entering takes a ticket first, so that it is never more than half
full, and rows that get none are tried again in a larger table. Codes are given afterwards, by a scan over the first
rows of new keys: they depend on the rows alone, not on which thread came first, so cells can move between host and
device. A batch without new keys takes two launches and waits for the device once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.runtime import (
    concat,
    cuda,
    empty,
    full,
    kernel,
    launch,
    launch_over,
    to_device,
    to_host,
    zeros,
)
from gpuwin_kernels.cuda.scalar import is_set, mixed

_FREE = np.int64(-(1 << 63))  # that key itself has a slot of its own, behind the table; so has null
_NO_ROW = np.int32((1 << 31) - 1)
_NO_SLOT = np.int64(-1)
_TICKETS, _REFUSED, _NEW = 0, 1, 2  # counters: keys in the table; rows that found it full; not 0 if a row has no code
_SMALLEST = 1 << 10
MOST_KEYS = 1 << 30
"""Codes are int32, and a table has twice as many slots as keys."""


@cuda.jit(device=True)
def _entered(table, counters, limit, key):  # type: ignore[no-untyped-def]
    """The slot of a key, which is entered if it is not there; -1 if there is no ticket left."""
    mask = np.uint64(table.shape[0] - 1)
    at = mixed(np.uint64(key)) & mask
    while True:
        found = table[np.int64(at)]
        if found == key:
            return np.int64(at)
        if found == _FREE:
            if cuda.atomic.add(counters, _TICKETS, 1) >= limit:
                cuda.atomic.sub(counters, _TICKETS, 1)
                return _NO_SLOT
            found = cuda.atomic.cas(table, np.int64(at), _FREE, key)
            if found == _FREE:
                return np.int64(at)
            cuda.atomic.sub(counters, _TICKETS, 1)
            if found == key:
                return np.int64(at)
        at = (at + np.uint64(1)) & mask


@kernel(
    "void(int64[::1], uint8[::1], int64, int64[::1], int32[::1], int32[::1], int64[::1], int64, int64[::1])", hot=True
)
def _enter(values, bitmap, offset, table, code_of, first, counters, limit, slot):  # type: ignore[no-untyped-def]
    """slot[i]: where the key of row i is; first[slot]: the first row of a key that has no code yet."""
    i = cuda.grid(1)
    step = cuda.gridsize(1)
    while i < values.shape[0]:
        at = np.int64(table.shape[0] + 1)
        if bitmap.shape[0] == 0 or is_set(bitmap, offset + i):
            at = np.int64(table.shape[0])
            if values[i] != _FREE:
                at = _entered(table, counters, limit, values[i])
        slot[i] = at
        if at < 0:
            cuda.atomic.add(counters, _REFUSED, 1)
        elif code_of[at] < 0:
            counters[_NEW] = 1
            if first[at] > i:
                cuda.atomic.min(first, at, np.int32(i))
        i += step


@kernel("void(int64[::1], int32[::1], int32[::1], int64[::1])", hot=True)
def _mark_first(slot, code_of, first, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < slot.shape[0]:
        flags[i] = 1 if code_of[slot[i]] < 0 and first[slot[i]] == i else 0


@kernel("void(int64[::1], int64[::1], int64[::1], int64, int32[::1], int64[::1])", hot=True)
def _name(values, slot, place, count, code_of, keys):  # type: ignore[no-untyped-def]
    """Gives the next codes to the keys whose first rows are those where `place`, a running count, goes up."""
    i = cuda.grid(1)
    if i < slot.shape[0] and place[i + 1] > place[i]:
        code_of[slot[i]] = np.int32(count + place[i])
        keys[place[i]] = values[i]


@kernel("void(int64[::1], int32[::1], int32[::1])", hot=True)
def _codes(slot, code_of, codes):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < slot.shape[0]:
        codes[i] = code_of[slot[i]]


@kernel("void(int64[::1], int32, int64[::1], int64[::1], int32[::1])")
def _reenter(keys, null_code, table, counters, code_of):  # type: ignore[no-untyped-def]
    """Enters keys with their codes into an empty table that has room for them."""
    c = cuda.grid(1)
    if c < keys.shape[0]:
        at = np.int64(table.shape[0])
        if c == null_code:
            at += 1
        elif keys[c] != _FREE:
            at = _entered(table, counters, np.int64(table.shape[0]), keys[c])
        code_of[at] = np.int32(c)


class DeviceKeys:
    """Codes of int64 keys and of null. One thread at a time; a call that fails leaves the codes as they were."""

    def __init__(self) -> None:
        self._count = 0
        self._null_code = -1
        self._keys = empty(0, np.int64)  # by code; what the null's entry holds does not matter
        self._sound = False  # whether the table holds the keys that have codes, and no others
        self._capacity = _SMALLEST

    def __len__(self) -> int:
        return self._count

    @property
    def null_code(self) -> int:
        """The code of null, -1 if it was never seen."""
        return self._null_code

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return 8 * len(self._keys) + (16 * self._capacity if self._sound else 0)

    def encode(self, values: Any, bitmap: Any = None, offset: int = 0) -> Any:
        """int32[n] on the device: the codes of int64[n], fewer than 2**31; new keys get the next ones in the order of
        their first rows. `bitmap`: Arrow validity (uint8, from bit `offset` on), None if no key is null. Both on the
        device. Raises OutOfDeviceMemory, and ValueError for more than `MOST_KEYS` keys.
        """
        n = len(values)
        codes = empty(n, np.int32)
        if n == 0:
            return codes
        slot, valid = empty(n, np.int64), empty(0, np.uint8) if bitmap is None else bitmap
        if not self._sound:
            self._rebuild()
        self._sound = False
        while True:
            args = self._table, self._code_of, self._first, self._counters, self._capacity // 2
            launch_over(_enter, n, values, valid, offset, *args, slot)
            _, refused, new = to_host(self._counters).tolist()
            if not refused:
                break
            if self._capacity >= 2 * MOST_KEYS:
                raise ValueError(f"more than {MOST_KEYS} keys on the device")
            self._capacity *= 4
            self._rebuild()
        if new:
            self._add(values, slot)
        launch(_codes, n, slot, self._code_of, codes)
        self._sound = True
        return codes

    def _add(self, values: Any, slot: Any) -> None:
        """Gives codes to the keys that have none."""
        n = len(values)
        flags = empty(n, np.int64)
        launch(_mark_first, n, slot, self._code_of, self._first, flags)
        place = primitives.exclusive_sum(flags)
        added = int(to_host(place[n:])[0])
        if self._count + added > MOST_KEYS:
            raise ValueError(f"more than {MOST_KEYS} keys on the device")
        fresh = empty(added, np.int64)
        launch(_name, n, values, slot, place, self._count, self._code_of, fresh)
        null_code = int(to_host(self._code_of[self._capacity + 1 :])[0])
        self._keys = concat([self._keys, fresh])
        self._count += added
        self._null_code = null_code
        # Null and the key that marks a free slot took no ticket: at worst the table grows two keys early.
        self._counters = to_device(np.array([self._count, 0, 0]))

    def _rebuild(self) -> None:
        """A table of the present capacity with the keys that have codes."""
        while self._count > self._capacity // 2:
            self._capacity *= 2
        self._table = full(self._capacity, _FREE, np.int64)
        self._code_of = full(self._capacity + 2, -1, np.int32)
        self._first = full(self._capacity + 2, _NO_ROW, np.int32)
        self._counters = zeros(3, np.int64)
        null_code = np.int32(self._null_code)
        launch(_reenter, self._count, self._keys, null_code, self._table, self._counters, self._code_of)

    def host_keys(self) -> np.ndarray:
        """int64[len]: the key of each code, on the host; 0 for null."""
        keys = to_host(self._keys)
        if self._null_code >= 0:
            keys[self._null_code] = 0
        return keys


__all__ = ["MOST_KEYS", "DeviceKeys"]
