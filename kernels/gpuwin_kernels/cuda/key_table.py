"""Base of the dictionaries of keys on the device, which give codes in the order of first appearance, as those of the
host do.

The table is open addressing with linear probing. A thread that has entered a key takes a ticket for it, and none enters
one once as many were taken as the table may have keys, which is half of its slots: rows that come too late are tried
again in a larger table. Of threads that find one slot free at the same time, one enters its key and takes a ticket; so
few keys fit a small table, however many rows bring them at once. Threads with different keys may together enter more
than there are tickets for. Then those beyond are refused as well, and a thread that has probed for long looks at the
tickets, so that none goes round a full table.

Codes are given afterwards, by a scan over the first rows of new keys: they depend on the rows alone, not on which
thread came first, so cells can move between host and device. A batch without new keys takes one launch, and waits for
the device once to know that there are none: or not at all, where the caller reads that with numbers of its own
(`looked_up`, `finished`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.runtime import cuda, empty, full, kept, kernel, launch, to_device, to_host, together, zeros

NO_SLOT = np.int64(-1)
TICKETS, REFUSED, NEW = 0, 1, 2
"""Counters: keys that were entered; rows that found no room; not 0 if a row has no code."""
BESIDE, NULL, GONE = 0, 1, 2
"""Slots behind the table: of a key that cannot stand in it, of null, and of rows that are gone."""
_NO_ROW = np.int32((1 << 31) - 1)
_SMALLEST = 1 << 10
PROBES = 64
"""So many slots are tried before the tickets are looked at, a power of two."""
MOST_KEYS = 1 << 30
"""Codes are int32, and a table has twice as many slots as keys."""


@cuda.jit(device=True)
def takes_ticket(counters, limit):  # type: ignore[no-untyped-def]
    """Whether there was a ticket left for a key that has been entered."""
    return cuda.atomic.add(counters, TICKETS, 1) < limit


@cuda.jit(device=True)
def is_overrun(probes, counters, limit):  # type: ignore[no-untyped-def]
    """Whether more keys were entered than there were tickets for; asked now and then by a thread that has tried many
    slots. It asks where atomics are done: a line of its own cache could say for ever what was so once.
    """
    return probes & (PROBES - 1) == 0 and cuda.atomic.add(counters, TICKETS, 0) > limit


@cuda.jit(device=True)
def met(i, at, code_of, first, counters, out):  # type: ignore[no-untyped-def]
    """Row i has its key at slot `at`, or found no room: what is counted of that, who comes first, and what goes `out`:
    the slot, and the code or -1.
    """
    slot, codes = out
    slot[i] = at
    code = np.int32(-1)
    if at < 0:
        cuda.atomic.add(counters, REFUSED, 1)
    else:
        code = code_of[at]
        if code < 0:
            counters[NEW] = 1
            if first[at] > i:
                cuda.atomic.min(first, at, np.int32(i))
    codes[i] = code


@kernel("void(int64[::1], int32[::1], int32[::1], int64[::1])", hot=True)
def _mark_first(slot, code_of, first, flags):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < slot.shape[0]:
        # No row is the first one of the rows that are gone.
        flags[i] = 1 if code_of[slot[i]] < 0 and first[slot[i]] == i else 0


@kernel("void(int64[::1], int32[::1], int32[::1], int64, int64[::1])")
def _count_new(place, code_of, first, null_slot, new_keys):  # type: ignore[no-untyped-def]
    """new_keys: how many there are, and which of them is null, -1 if none."""
    if cuda.grid(1) == 0:
        n = place.shape[0] - 1
        new_keys[0] = place[n]
        new_keys[1] = -1
        if code_of[null_slot] < 0 and first[null_slot] < n:
            new_keys[1] = place[first[null_slot]]


@kernel("void(int64[::1], int32[::1], int32[::1])", hot=True)
def _codes(slot, code_of, codes):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < slot.shape[0]:
        codes[i] = code_of[slot[i]] if slot[i] >= 0 else -1


class KeyRows(Protocol):
    """The keys of some rows, on the device."""

    def __len__(self) -> int: ...


Rows = TypeVar("Rows", bound=KeyRows)


@dataclass(frozen=True, slots=True)
class LookedUp(Generic[Rows]):
    """Rows whose keys were looked up. `codes` int32[n]: -1 where the key is new, or the row is gone. `counters`: what
    the host has to read before it knows whether that is all (int64[3], on the device). `gone`: uint8[n], or empty.
    """

    codes: DeviceArray
    counters: DeviceArray
    rows: Rows
    gone: DeviceArray
    slot: DeviceArray


class KeyTable(ABC, Generic[Rows]):
    """Codes of keys and of null. One thread at a time; a call that fails leaves the codes as they were."""

    def __init__(self, room: int = 0) -> None:
        """`room`: so many keys are expected, and take no growth of the table."""
        self._count = 0
        self._null_code = -1
        self._sound = False  # whether the table holds the keys that have codes, and no others
        self._capacity = max(_SMALLEST, 1 << max(2 * room - 1, 1).bit_length())
        self._growths = 0

    def __len__(self) -> int:
        return self._count

    @property
    def null_code(self) -> int:
        """The code of null, -1 if it was never seen."""
        return self._null_code

    @property
    def growths(self) -> int:
        """Number of times that rows found no room, and were tried again in a larger table; each time the device is
        waited for.
        """
        return self._growths

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return 16 * self._capacity if self._sound else 0

    # -- codes of rows -----------------------------------------------------------------------------------------------

    def looked_up_rows(self, rows: Rows, gone: DeviceArray | None = None) -> LookedUp[Rows]:
        """Rows whose keys are looked up on the device, which is not waited for; `finished` is the other half.

        `gone`: uint8[n], rows that are passed over, and get -1; None or empty: none.
        """
        n = len(rows)
        if not self._sound:
            with kept():
                self._rebuild()
        self._sound = False
        gone = empty(0, np.uint8) if gone is None else gone
        codes, slot = together((n, np.int32), (n, np.int64))
        found = LookedUp(codes, self._counters, rows, gone, slot)
        self._enter(found, self._capacity // 2)
        return found

    def finished(self, found: LookedUp[Rows], counters: np.ndarray) -> DeviceArray:
        """int32[n]: the codes of rows that were looked up. `counters`: as they are now, on the host. New keys take a
        wait more, and one each time the table grows. Raises OutOfDeviceMemory, ValueError for more than `MOST_KEYS`.
        """
        _, refused, new = counters.tolist()
        if not refused and not new:
            self._sound = True
            return found.codes
        with kept():
            return self._grown(found, refused, new)

    def _grown(self, found: LookedUp[Rows], refused: int, new: int) -> DeviceArray:
        """Codes as of `finished`, of rows that were `refused`, or had a `new` key."""
        while refused:
            if self._capacity >= 2 * MOST_KEYS:
                raise ValueError(f"more than {MOST_KEYS} keys on the device")
            self._capacity *= 4
            self._growths += 1
            self._rebuild()
            self._enter(found, self._capacity // 2)
            _, refused, new = to_host(self._counters).tolist()
        if new:
            self._add(found)
        launch(_codes, len(found.slot), found.slot, self._code_of, found.codes)
        self._sound = True
        return found.codes

    def _add(self, found: LookedUp[Rows]) -> None:
        """Gives codes to the keys that have none."""
        n = len(found.slot)
        flags, new_keys = empty(n, np.int64), empty(2, np.int64)
        launch(_mark_first, n, found.slot, self._code_of, self._first, flags)
        place = primitives.exclusive_sum(flags)
        launch(_count_new, 1, place, self._code_of, self._first, self._capacity + NULL, new_keys)
        added, null = self._name(found, place, new_keys)
        if null >= 0:
            self._null_code = self._count + null
        self._count += added
        # Null and a key that has its slot beside took no ticket: at worst the table grows two keys early.
        self._counters = to_device(np.array([self._count, 0, 0]))

    def _checked(self, added: int) -> None:
        if self._count + added > MOST_KEYS:
            raise ValueError(f"more than {MOST_KEYS} keys on the device")

    def _rebuild(self) -> None:
        """A table of the present capacity with the keys that have codes."""
        while self._count > self._capacity // 2:
            self._capacity *= 2
        free = self._free()
        self._table = full(self._capacity, free, free.dtype)
        self._code_of = full(self._capacity + 3, -1, np.int32)
        self._first = full(self._capacity + 3, _NO_ROW, np.int32)
        self._counters = zeros(3, np.int64)
        self._reenter()

    # -- what keys are -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _free(self) -> np.int64 | np.uint64:
        """Mark of a slot without a key: int64 or uint64."""

    @abstractmethod
    def _enter(self, found: LookedUp[Rows], limit: int) -> None:
        """Launches what calls `met` for every row, which sets `found.slot` and `found.codes`; at most `limit` keys
        stand in the table.
        """

    @abstractmethod
    def _name(self, found: LookedUp[Rows], place: DeviceArray, new_keys: DeviceArray) -> tuple[int, int]:
        """Keeps the keys whose first rows are those where `place`, a running count, goes up, and their codes, in the
        table. Reads `new_keys` of `_count_new`, and returns it. Nothing counts as kept before `_count` says so.
        """

    @abstractmethod
    def _reenter(self) -> None:
        """Launches what enters the keys that have codes into an empty table that has room for them."""


__all__ = [
    "BESIDE", "GONE", "MOST_KEYS", "NEW", "NO_SLOT", "NULL", "REFUSED", "TICKETS", "KeyTable", "LookedUp", "Rows",
    "is_overrun", "met", "takes_ticket",
]  # fmt: skip
