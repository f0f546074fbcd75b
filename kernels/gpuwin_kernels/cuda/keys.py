"""A dictionary of int64 keys on the device: codes in the order of first appearance, as those of the host's
dictionary.

The table is open addressing with linear probing. Entering takes a ticket first, so that it is never more than half
full, and rows that get none are tried again in a larger table. Codes are given afterwards, by a scan over the first
rows of new keys: they depend on the rows alone, not on which thread came first, so cells can move between host and
device. A batch without new keys takes two launches, and waits for the device once to know that there are none: or not
at all, where the caller reads that with numbers of its own (`looked_up`, `finished`).
"""

from __future__ import annotations

from dataclasses import dataclass
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


@kernel("void(int32[::1], int64[::1])", "void(uint32[::1], int64[::1])", hot=True)
def _widen(narrow, wide):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < narrow.shape[0]:
        wide[i] = np.int64(narrow[i])


@kernel(
    "void(int64[::1], uint8[::1], int64, uint8[::1], int64[::1], int32[::1], int32[::1], int64[::1], int64, "
    "int64[::1])",
    hot=True,
)
def _enter(values, bitmap, offset, gone, table, code_of, first, counters, limit, slot):  # type: ignore[no-untyped-def]
    """slot[i]: where the key of row i is; first[slot]: the first row of a key that has no code yet."""
    i = cuda.grid(1)
    step = cuda.gridsize(1)
    while i < values.shape[0]:
        at = np.int64(table.shape[0] + 1)
        if gone.shape[0] > 0 and gone[i] != 0:
            slot[i] = table.shape[0] + 2
            i += step
            continue
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
        # No row is the first one of the rows that are gone.
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
        codes[i] = code_of[slot[i]] if slot[i] >= 0 else -1


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


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Rows whose keys were looked up. `codes` int32[n]: -1 where the key is new, or the row is gone. `counters`: what
    the host has to read before it knows whether that is all (int64[3], on the device).
    """

    codes: Any
    counters: Any
    values: Any
    valid: Any
    offset: int
    gone: Any
    slot: Any


class DeviceKeys:
    """Codes of int64 keys and of null. One thread at a time; a call that fails leaves the codes as they were."""

    def __init__(self, values: np.ndarray | None = None, null_code: int = -1) -> None:
        """`values`: int64[k], all different, the keys of the codes from 0 on; what stands at `null_code` is null."""
        self._count = 0 if values is None else len(values)
        self._null_code = null_code
        self._keys = empty(0, np.int64) if values is None else to_device(values)  # what stands for null is not read
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

    def encode(self, values: Any, bitmap: Any = None, offset: int = 0, gone: Any = None) -> Any:
        """int32[n] on the device: the codes of int64[n] (or int32, uint32), fewer than 2**31; new keys get the next
        ones in the order of their first rows. `bitmap`: Arrow validity (uint8, from bit `offset` on), None if no key is
        null. `gone`: uint8[n], rows that are passed over, and get -1. All on the device. Raises OutOfDeviceMemory, and
        ValueError for more than `MOST_KEYS` keys.
        """
        found = self.looked_up(values, bitmap, offset, gone)
        return self.finished(found, to_host(found.counters)) if len(values) else found.codes

    def looked_up(self, values: Any, bitmap: Any = None, offset: int = 0, gone: Any = None) -> LookedUp:
        """The first half of `encode`, which does not wait for the device; `finished` is the other."""
        n = len(values)
        if values.dtype != np.int64:
            narrow, values = values, empty(n, np.int64)
            launch(_widen, n, narrow, values)
        none = empty(0, np.uint8)
        if not self._sound:
            self._rebuild()
        self._sound = False
        valid, gone = none if bitmap is None else bitmap, none if gone is None else gone
        found = LookedUp(empty(n, np.int32), self._counters, values, valid, offset, gone, empty(n, np.int64))
        self._look_up(found)
        launch(_codes, n, found.slot, self._code_of, found.codes)
        return found

    def finished(self, found: LookedUp, counters: np.ndarray) -> Any:
        """int32[n]: the codes of rows that were looked up. `counters`: as they are now, on the host. New keys take two
        waits more, and one each time the table grows.
        """
        _, refused, new = counters.tolist()
        if not refused and not new:
            self._sound = True
            return found.codes
        while refused:
            if self._capacity >= 2 * MOST_KEYS:
                raise ValueError(f"more than {MOST_KEYS} keys on the device")
            self._capacity *= 4
            self._rebuild()
            self._look_up(found)
            _, refused, new = to_host(self._counters).tolist()
        if new:
            self._add(found.values, found.slot)
        launch(_codes, len(found.slot), found.slot, self._code_of, found.codes)
        self._sound = True
        return found.codes

    def _look_up(self, found: LookedUp) -> None:
        table = self._table, self._code_of, self._first, self._counters, self._capacity // 2
        rows = found.values, found.valid, found.offset, found.gone
        launch_over(_enter, len(found.slot), *rows, *table, found.slot)

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
        null_code = int(to_host(self._code_of[self._capacity + 1 : self._capacity + 2])[0])
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
        self._code_of = full(self._capacity + 3, -1, np.int32)  # the last slot is that of rows that are gone
        self._first = full(self._capacity + 3, _NO_ROW, np.int32)
        self._counters = zeros(3, np.int64)
        null_code = np.int32(self._null_code)
        launch(_reenter, self._count, self._keys, null_code, self._table, self._counters, self._code_of)

    def host_keys(self, first: int = 0) -> np.ndarray:
        """int64[len - first]: the keys of the codes from `first` on, on the host; 0 for null."""
        keys = to_host(self._keys[first:])
        if self._null_code >= first:
            keys[self._null_code - first] = 0
        return keys


__all__ = ["MOST_KEYS", "DeviceKeys", "LookedUp"]
