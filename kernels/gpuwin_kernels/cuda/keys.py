"""A dictionary of int64 keys on the device. How its table works: `key_table`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.key_table import (
    BESIDE,
    GONE,
    NO_SLOT,
    NULL,
    TICKETS,
    KeyTable,
    LookedUp,
    is_overrun,
    met,
    takes_ticket,
)
from gpuwin_kernels.cuda.runtime import concat, cuda, empty, kernel, launch, launch_over, to_host
from gpuwin_kernels.cuda.scalar import is_set, mixed

_FREE = np.int64(-(1 << 63))  # that key itself has the slot beside the table


@cuda.jit(device=True)
def _entered(table, counters, limit, key):  # type: ignore[no-untyped-def]
    """The slot of a key, which is entered if it is not there; -1 if there is no ticket left."""
    mask = np.uint64(table.shape[0] - 1)
    at = mixed(np.uint64(key)) & mask
    probes = np.int64(0)
    while True:
        found = table[np.int64(at)]
        if found == _FREE:
            if counters[TICKETS] >= limit:
                return NO_SLOT
            found = cuda.atomic.cas(table, np.int64(at), _FREE, key)
            if found == _FREE:
                return np.int64(at) if takes_ticket(counters, limit) else NO_SLOT
        if found == key:
            return np.int64(at)
        at = (at + np.uint64(1)) & mask
        probes += 1
        if is_overrun(probes, counters, limit):
            return NO_SLOT


@kernel(
    "void(Tuple((int64[::1], uint8[::1], int64)), uint8[::1], Tuple((int64[::1], int32[::1], int32[::1])), "
    "int64[::1], int64, Tuple((int64[::1], int32[::1])))",
    hot=True,
)
def _enter(rows, gone, slots, counters, limit, out):  # type: ignore[no-untyped-def]
    """Where the key of each row is, and its code (see `met`); first[slot]: the first row of a key without a code."""
    values, bitmap, offset = rows
    table, code_of, first = slots
    i = cuda.grid(1)
    step = cuda.gridsize(1)
    while i < values.shape[0]:
        if gone.shape[0] > 0 and gone[i] != 0:
            out[0][i] = table.shape[0] + GONE
            out[1][i] = -1
            i += step
            continue
        at = np.int64(table.shape[0] + NULL)
        if bitmap.shape[0] == 0 or is_set(bitmap, offset + i):
            at = np.int64(table.shape[0] + BESIDE)
            if values[i] != _FREE:
                at = _entered(table, counters, limit, values[i])
        met(i, at, code_of, first, counters, out)
        i += step


@kernel("void(int64[::1], int64[::1], int64[::1], int64, int32[::1], int64[::1])", hot=True)
def _name(values, slot, place, count, code_of, keys):  # type: ignore[no-untyped-def]
    """Gives the next codes to the keys whose first rows are those where `place`, a running count, goes up."""
    i = cuda.grid(1)
    if i < slot.shape[0] and place[i + 1] > place[i]:
        code_of[slot[i]] = np.int32(count + place[i])
        keys[place[i]] = values[i]


@kernel("void(int64[::1], int32, int64[::1], int64[::1], int32[::1])")
def _reenter(keys, null_code, table, counters, code_of):  # type: ignore[no-untyped-def]
    """Enters keys with their codes into an empty table that has room for them."""
    c = cuda.grid(1)
    if c < keys.shape[0]:
        at = np.int64(table.shape[0] + BESIDE)
        if c == null_code:
            at = np.int64(table.shape[0] + NULL)
        elif keys[c] != _FREE:
            at = _entered(table, counters, np.int64(table.shape[0]), keys[c])
        code_of[at] = np.int32(c)


@dataclass(frozen=True, slots=True)
class IntRows:
    """int64[n], with an Arrow validity bitmap (uint8, from bit `offset` on), which is empty if no key is null."""

    values: DeviceArray
    valid: DeviceArray
    offset: int = 0

    def __len__(self) -> int:
        return len(self.values)


class DeviceKeys(KeyTable[IntRows]):
    """Codes of int64 keys and of null."""

    def __init__(self, room: int = 0) -> None:
        super().__init__(room)
        self._keys = empty(0, np.int64)  # what stands for null is not read

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return super().nbytes + 8 * len(self._keys)

    def encode(
        self, values: DeviceArray, bitmap: DeviceArray | None = None, offset: int = 0, gone: DeviceArray | None = None
    ) -> DeviceArray:
        """int32[n] on the device: the codes of int64[n], fewer than 2**31; new keys get the next ones in the order of
        their first rows. `bitmap`: Arrow validity (uint8, from bit `offset` on), None if no key is null. `gone`:
        uint8[n], rows that are passed over, and get -1. All on the device. Raises OutOfDeviceMemory, and ValueError for
        more than `MOST_KEYS` keys.
        """
        found = self.looked_up(values, bitmap, offset, gone)
        return self.finished(found, to_host(found.counters)) if len(values) else found.codes

    def looked_up(
        self, values: DeviceArray, bitmap: DeviceArray | None = None, offset: int = 0, gone: DeviceArray | None = None
    ) -> LookedUp[IntRows]:
        """The first half of `encode`, which does not wait for the device; `finished` is the other."""
        return self.looked_up_rows(IntRows(values, empty(0, np.uint8) if bitmap is None else bitmap, offset), gone)

    def host_keys(self, first: int = 0) -> np.ndarray:
        """int64[len - first]: the keys of the codes from `first` on, on the host; 0 for null."""
        keys = to_host(self._keys[first:])
        if self._null_code >= first:
            keys[self._null_code - first] = 0
        return keys

    # -- the table ---------------------------------------------------------------------------------------------------

    def _free(self) -> np.int64:
        return _FREE

    def _enter(self, found: LookedUp[IntRows], limit: int) -> None:
        rows = found.rows.values, found.rows.valid, found.rows.offset
        slots = self._table, self._code_of, self._first
        launch_over(_enter, len(found.slot), rows, found.gone, slots, self._counters, limit, (found.slot, found.codes))

    def _name(self, found: LookedUp[IntRows], place: DeviceArray, new_keys: DeviceArray) -> tuple[int, int]:
        added, null = to_host(new_keys).tolist()
        self._checked(added)
        fresh = empty(added, np.int64)
        launch(_name, len(found.slot), found.rows.values, found.slot, place, self._count, self._code_of, fresh)
        self._keys = concat([self._keys, fresh])
        return added, null

    def _reenter(self) -> None:
        null_code = np.int32(self._null_code)
        launch(_reenter, self._count, self._keys, null_code, self._table, self._counters, self._code_of)


__all__ = ["DeviceKeys", "IntRows"]
