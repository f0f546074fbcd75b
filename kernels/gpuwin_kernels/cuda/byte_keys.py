"""A dictionary of byte strings on the device. How its table works: `key_table`.

A slot is one uint64: the upper half of the hash, over the code of a key that is known, or over a row of the batch, of a
key that is new. So a string is published by one atomic, and what it says lies where nobody writes: in the batch, or in
the heap, where the strings of all codes stand one after the other. Two strings are one key if their length and their
bytes are; hashes only say where to look.

One thread hashes and compares a row, eight bytes at a step, which it puts together from aligned words. Short strings
are bound by memory as integers are; of long ones a warp waits for its longest, and its threads read from as many places
as there are rows in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpuwin_kernels.cuda import primitives
from gpuwin_kernels.cuda.device_array import DeviceArray
from gpuwin_kernels.cuda.key_table import (
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
from gpuwin_kernels.cuda.reading import read
from gpuwin_kernels.cuda.runtime import cuda, empty, kernel, launch, launch_over, stream, zeros
from gpuwin_kernels.cuda.scalar import EMPTY, is_set

_TAG = np.uint64(0xFFFFFFFF00000000)
_NEW = np.uint64(1 << 31)
_CODE = np.uint64((1 << 31) - 1)
_ONE, _ALL = np.uint64(1), np.uint64(64)
_A = np.uint64(0xFF51AFD7ED558CCD)  # the finalizer of MurmurHash3 (Appleby), whose constants mix every bit into every
_B = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)
_HASH_BITS = np.uint64((1 << 64) - 1)
_FEWEST = 1 << 10


@cuda.jit(device=True)
def eight(words, at, n):  # type: ignore[no-untyped-def]
    """The bytes from `at` on, eight or the n >= 1 that are left, in one uint64. Nothing behind them is read."""
    word = at >> 3
    behind = at & 7
    found = words[word] >> np.uint64(behind << 3)
    if behind + min(n, 8) > 8:
        found |= words[word + 1] << (_ALL - np.uint64(behind << 3))
    if n < 8:
        found &= (_ONE << np.uint64(n << 3)) - _ONE
    return found


@cuda.jit(device=True)
def _hash(words, begin, n):  # type: ignore[no-untyped-def]
    """64 bits of n bytes. Each step mixes fully, or strings that differ in two of their words would meet often."""
    h = np.uint64(n) * _B
    i = np.int64(0)
    while i < n:
        h = (h ^ eight(words, begin + i, n - i)) * _A
        h = (h ^ (h >> _HALF)) * _B
        h ^= h >> _HALF
        i += 8
    return h


@cuda.jit(device=True)
def _same(a, a_begin, b, b_begin, n):  # type: ignore[no-untyped-def]
    """Whether n bytes are equal."""
    i = np.int64(0)
    while i < n:
        if eight(a, a_begin + i, n - i) != eight(b, b_begin + i, n - i):
            return False
        i += 8
    return True


@cuda.jit(device=True)
def _stands_for(found, begin, n, strings, heap):  # type: ignore[no-untyped-def]
    """Whether a slot's key is these n bytes. `strings`: words, offsets and base of the batch; `heap`: `HeapArrays`."""
    words, offsets, base = strings
    heap_at, heap_words = heap
    at = np.int64(found & _CODE)
    if found & _NEW != np.uint64(0):
        other = np.int64(offsets[at]) - base
        same = np.int64(offsets[at + 1]) - base - other == n
        return same and _same(words, begin, words, other, n)
    other = heap_at[at]
    return heap_at[at + 1] - other == n and _same(words, begin, heap_words, other, n)


@cuda.jit(device=True)
def _entered(row, key, strings, heap, table, counters, limit):  # type: ignore[no-untyped-def]
    """The slot of a key, which is entered as that of a row if it is not there; -1 if there is no ticket left. `key`:
    where its bytes begin, how many they are, and their hash.
    """
    begin, n, h = key
    mask = np.uint64(table.shape[0] - 1)
    tag = h & _TAG
    at = h & mask
    probes = np.int64(0)
    while True:
        found = table[np.int64(at)]
        if found == EMPTY:
            if counters[TICKETS] >= limit:
                return NO_SLOT
            found = cuda.atomic.cas(table, np.int64(at), EMPTY, tag | _NEW | np.uint64(row))
            if found == EMPTY:
                return np.int64(at) if takes_ticket(counters, limit) else NO_SLOT
        if found & _TAG == tag and _stands_for(found, begin, n, strings, heap):
            return np.int64(at)
        at = (at + _ONE) & mask
        probes += 1
        if is_overrun(probes, counters, limit):
            return NO_SLOT


@kernel(
    *(
        f"void(Tuple((uint64[::1], {offsets}[::1], int64)), Tuple((uint8[::1], int64, uint8[::1])), uint64, "
        "Tuple((uint64[::1], int32[::1], int32[::1])), Tuple((int64[::1], uint64[::1])), int64[::1], int64, "
        "Tuple((int64[::1], int32[::1])))"
        for offsets in ("int32", "int64")
    ),
    hot=True,
)
def _enter(strings, valid, hash_bits, slots, heap, counters, limit, out):  # type: ignore[no-untyped-def]
    """Where the key of each row is, and its code (see `met`); first[slot]: the first row of a key that has no code
    yet. `strings` and `heap`: see `_stands_for`; `valid`: the bitmap, its first bit, and the rows that are gone.
    """
    _, offsets, base = strings
    bitmap, bit, gone = valid
    table, code_of, first = slots
    i = cuda.grid(1)
    step = cuda.gridsize(1)
    while i < out[0].shape[0]:
        if gone.shape[0] > 0 and gone[i] != 0:
            out[0][i] = table.shape[0] + GONE
            out[1][i] = -1
            i += step
            continue
        at = np.int64(table.shape[0] + NULL)
        if bitmap.shape[0] == 0 or is_set(bitmap, bit + i):
            begin = np.int64(offsets[i]) - base
            n = np.int64(offsets[i + 1]) - base - begin
            h = _hash(strings[0], begin, n) & hash_bits
            at = _entered(i, (begin, n, h), strings, heap, table, counters, limit)
        met(i, at, code_of, first, counters, out)
        i += step


@kernel(*(f"void(int64[::1], int64[::1], {kind}[::1], int64, int64[::1])" for kind in ("int32", "int64")), hot=True)
def _new_bytes(slot, place, offsets, null_slot, lengths):  # type: ignore[no-untyped-def]
    """lengths[i]: bytes that row i brings, which is the first with its key, else 0."""
    i = cuda.grid(1)
    if i < slot.shape[0]:
        comes = place[i + 1] > place[i] and slot[i] != null_slot
        lengths[i] = np.int64(offsets[i + 1]) - np.int64(offsets[i]) if comes else np.int64(0)


@kernel(
    *(
        f"void(Tuple((uint8[::1], {kind}[::1], int64)), int64[::1], int64[::1], int64[::1], UniTuple(int64, 3), "
        "Tuple((uint64[::1], int32[::1])), Tuple((int64[::1], uint8[::1])))"
        for kind in ("int32", "int64")
    ),
    hot=True,
)
def _name(strings, slot, place, before, known, slots, bytes_of):  # type: ignore[no-untyped-def]
    """Gives the next codes to the keys whose first rows are those where `place`, a running count, goes up; their bytes
    go to the heap, in that order. `known`: how many codes and bytes there are, and the slot of null.
    """
    data, offsets, base = strings
    count, top, null_slot = known
    table, code_of = slots
    heap_at, heap = bytes_of
    i = cuda.grid(1)
    if i < slot.shape[0] and place[i + 1] > place[i]:
        code = count + place[i]
        code_of[slot[i]] = np.int32(code)
        at = top + before[i]
        heap_at[code + 1] = top + before[i + 1]
        if slot[i] != null_slot:
            table[slot[i]] = (table[slot[i]] & _TAG) | np.uint64(code)
            begin = np.int64(offsets[i]) - base
            for k in range(before[i + 1] - before[i]):
                heap[at + k] = data[begin + k]


@kernel("void(uint64[::1], int64[::1], int64, int64, uint64, uint64[::1], int64[::1], int32[::1])")
def _reenter(heap, heap_at, count, null_code, hash_bits, table, counters, code_of):  # type: ignore[no-untyped-def]
    """Enters keys with their codes into an empty table that has room for them."""
    c = cuda.grid(1)
    if c < count:
        if c == null_code:
            code_of[table.shape[0] + NULL] = np.int32(c)
        else:
            h = _hash(heap, heap_at[c], heap_at[c + 1] - heap_at[c]) & hash_bits
            mask = np.uint64(table.shape[0] - 1)
            at = h & mask
            # Keys are all different, so none is compared.
            while cuda.atomic.cas(table, np.int64(at), EMPTY, (h & _TAG) | np.uint64(c)) != EMPTY:
                at = (at + _ONE) & mask
            cuda.atomic.add(counters, TICKETS, 1)
            code_of[np.int64(at)] = np.int32(c)


@dataclass(frozen=True, slots=True)
class ByteRows:
    """Strings: row i has the bytes [offsets[i] - base, offsets[i + 1] - base) of `words` (uint64, `runtime.to_words`);
    offsets int32 or int64[n + 1]. With an Arrow validity bitmap, as `IntRows`.
    """

    words: DeviceArray
    offsets: DeviceArray
    base: int
    valid: DeviceArray
    offset: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1


class HeapArrays(NamedTuple):
    """Text c is the bytes [offsets[c], offsets[c + 1]) (int64) of `words` (uint64); both may be longer than is used."""

    offsets: DeviceArray
    words: DeviceArray


class DeviceByteKeys(KeyTable[ByteRows]):
    """Codes of byte strings and of null."""

    def __init__(self, room: int = 0) -> None:
        super().__init__(room)
        self._top = 0  # bytes of the heap in use
        self._heap = empty(_FEWEST // 8, np.uint64)
        self._heap_at = zeros(max(room, _FEWEST) + 1, np.int64)  # where the string of a code begins, and the last ends

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return super().nbytes + 8 * (len(self._heap) + len(self._heap_at))

    @property
    def string_bytes(self) -> int:
        """Bytes of the strings."""
        return self._top

    @property
    def heap(self) -> HeapArrays:
        """The strings of all codes that there are; it holds those however many come later."""
        return HeapArrays(self._heap_at, self._heap)

    def host_keys(self, first: int = 0, begin: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """(uint8 bytes, int64[len - first] ends): the strings of the codes from `first` on, on the host, one after the
        other; null is empty. Ends count from the first byte of all, of which `begin` come before. Waits once.
        """
        data, ends = read(self._heap.view(np.uint8)[begin : self._top], self._heap_at[first + 1 : self._count + 1])
        return data, ends

    # -- the table ---------------------------------------------------------------------------------------------------

    def _free(self) -> np.uint64:
        return EMPTY

    def _enter(self, found: LookedUp[ByteRows], limit: int) -> None:
        rows = found.rows
        strings, valid = (rows.words, rows.offsets, rows.base), (rows.valid, rows.offset, found.gone)
        slots, heap = (self._table, self._code_of, self._first), (self._heap_at, self._heap)
        out = found.slot, found.codes
        launch_over(_enter, len(rows), strings, valid, _HASH_BITS, slots, heap, self._counters, limit, out)

    def _name(self, found: LookedUp[ByteRows], place: DeviceArray, new_keys: DeviceArray) -> tuple[int, int]:
        rows, n = found.rows, len(found.rows)
        lengths, null_slot = empty(n, np.int64), self._capacity + NULL
        launch(_new_bytes, n, found.slot, place, rows.offsets, null_slot, lengths)
        before = primitives.exclusive_sum(lengths)
        (added, null), (more,) = (numbers.tolist() for numbers in read(new_keys, before[n:]))
        self._checked(added)
        self._heap = _with_room(self._heap, -(-(self._top + more) // 8))
        self._heap_at = _with_room(self._heap_at, self._count + added + 1)
        strings = rows.words.view(np.uint8), rows.offsets, rows.base
        known, slots = (self._count, self._top, null_slot), (self._table, self._code_of)
        bytes_of = self._heap_at, self._heap.view(np.uint8)
        launch(_name, n, strings, found.slot, place, before, known, slots, bytes_of)
        self._top += more
        return added, null

    def _reenter(self) -> None:
        keys = self._heap, self._heap_at, self._count, self._null_code, _HASH_BITS
        launch(_reenter, self._count, *keys, self._table, self._counters, self._code_of)


def _with_room(array: DeviceArray, n: int) -> DeviceArray:
    """An array that begins as this one, with room for n values: it is at least twice as long if it grows."""
    if n <= len(array):
        return array
    out = empty(max(n, 2 * len(array)), array.dtype)
    beginning: Any = out[: len(array)]
    beginning.copy_to_device(array, stream=stream())
    return out


__all__ = ["ByteRows", "DeviceByteKeys", "HeapArrays", "eight"]
