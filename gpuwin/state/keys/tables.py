"""Tables of distinct values with dense codes, which key dictionaries and byte heaps are made of. Append-only."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from gpuwin.errors import LimitExceeded
from gpuwin.state.buffers import NO_BITMAP, words_on_lines
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu import byte_claims, byte_keys, hashing
from gpuwin_kernels.cpu.kept_memory import empty, full
from gpuwin_kernels.cpu.parallel import each, ranges

MOST_CODES = (1 << 31) - 2
_FIRST = 1 << 8
_MASK = (1 << 64) - 1


def _check_room(count: int) -> None:
    if count > MOST_CODES:
        raise LimitExceeded(
            f"more than {MOST_CODES} distinct keys in one state: partition the stream by key, or evict sooner"
        )


def _longer(array: np.ndarray, size: int) -> np.ndarray:
    out = empty(size, array.dtype)
    out[: len(array)] = array
    return out


def encode_in_parts(
    n: int,
    lookup: Callable[[int, int], int],
    insert: Callable[[int, int, int], int],
    few: bool,
    blind: bool = False,
    by_all: bool = False,
) -> None:
    """Calls `lookup(lo, hi)` (parallel, returns how many rows were unseen) and `insert(lo, hi, unseen)` (returns how
    many keys are new; `unseen` is 0 where nobody looked) over n rows.

    The first rows go alone: they show whether most rows bring a key, and while the table is small (`few`), they bring
    most of the keys. Where most rows do, the look before the insertion is wasted, and left out if `blind`. An insertion
    `by_all` threads has no need of small parts, and takes room for each row that was not looked up.
    """
    lo, step = 0, tuning.FIRST_KEYS if few or blind else n
    if n <= min(step, tuning.SPLIT_ROWS // 2):  # a small batch is not worth a look at how to cut it
        unseen = lookup(0, n) if n else 0
        if unseen:
            insert(0, n, unseen)
        return
    skips = False
    while lo < n:
        hi = min(n, lo + step)
        new = 0
        if skips:
            new = insert(lo, hi, 0)
        else:
            start = lo
            parts = [(start + a, start + b) for a, b in ranges(hi - lo)]
            unseen = sum(each(lambda part: lookup(*part), parts))
            if unseen:
                new = insert(lo, hi, unseen)
        skips = blind and (8 * new > 7 * (hi - lo) if by_all else 2 * new > hi - lo)
        if skips or by_all or 8 * new < hi - lo:
            step *= 8
        elif not few:
            step = n
        lo = hi


def strings_at(
    data: np.ndarray,
    offsets: np.ndarray,
    codes: np.ndarray,
    short: bool = False,
    store: byte_keys.ByteStore | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Some of many strings (data uint8, offsets int64[n + 1]; int32 where `short` and they fit). String c is
    data[offsets[c]:offsets[c + 1]]; `store`: the table that has them.
    """
    parts = ranges(len(codes))
    sizes = each(lambda part: int(byte_keys.taken_length(offsets, codes[slice(*part)])), parts)
    start = [0, *itertools.accumulate(sizes)]
    fits = short and start[-1] <= np.iinfo(np.int32).max
    bounds = empty(len(codes) + 1, np.int32 if fits else np.int64)
    bounds[-1] = start[-1]
    taken = empty(start[-1], np.uint8)

    def copy(k: int) -> None:
        part = slice(*parts[k])
        if store is None:
            byte_keys.take_bytes(data, offsets, codes[part], start[k], bounds[part], taken)
        else:
            byte_keys.take_entries(store, codes[part], start[k], bounds[part], taken)

    each(copy, range(len(parts)))
    return taken, bounds


def _first_null(bitmap: np.ndarray, offset: int, n: int) -> int:
    """First of n rows that is null by the Arrow bitmap from bit `offset` on; n if none is."""
    valid = np.unpackbits(bitmap[offset >> 3 : (offset + n + 7) >> 3], bitorder="little")[offset & 7 :][:n]
    at = int(np.argmin(valid))
    return n if valid[at] else at


class IntTable:
    """Table of distinct int64 values, and null, with dense codes. They are found by direct address while their range is
    small, else by hash.
    """

    def __init__(self) -> None:
        self.count = 0
        self.null_code = -1
        self.values = np.empty(_FIRST, np.int64)  # by code
        self._least = 0
        self._index: np.ndarray | None = np.empty(0, np.int32)  # codes by value - least; None: by hash
        self._table = np.empty(0, np.int64)
        self._torn = False  # keys were being entered when something was raised, by a signal at any moment

    def encode(
        self, values: np.ndarray, bitmap: np.ndarray = NO_BITMAP, offset: int = 0, insert: bool = True
    ) -> np.ndarray:
        """Codes of `values` (int32[n] or int64[n]; null where the Arrow bitmap from bit `offset` says so), int32[n].

        Unseen values get new codes, or -1 unless `insert`.
        """
        if self._torn:
            self._mend()
        n = len(values)
        first = _first_null(bitmap, offset, n) if n and insert and len(bitmap) and self.null_code < 0 else -1
        if first > 0:  # keys of rows before the first null have codes before it, wherever batches begin
            head = self.encode(values[:first])
            return np.concatenate((head, self.encode(values[first:], bitmap, offset + first)))
        codes = empty(n, np.int32)
        self._torn = insert
        if first == 0:
            self._make_room(1)
            self.null_code = self.count
            self.values[self.count] = 0
            self.count += 1

        def lookup(lo: int, hi: int) -> int:
            out = codes[lo:hi]
            if self._index is not None:
                base = np.uint64(self._least & _MASK)
                return int(
                    hashing.direct_lookup(values[lo:hi], bitmap, offset + lo, self.null_code, base, self._index, out)
                )
            return int(hashing.hash_lookup(values[lo:hi], bitmap, offset + lo, self.null_code, self._table, out))

        def add(lo: int, hi: int, unseen: int) -> int:
            before = self.count
            if not unseen:
                codes[lo:hi] = -1
            self._insert(values, lo, hi, bitmap, offset, codes, expected=0 if unseen else n - lo)
            return self.count - before

        if insert:
            encode_in_parts(n, lookup, add, few=self.count < tuning.FIRST_KEYS, blind=not len(bitmap))
        else:
            each(lambda part: lookup(*part), ranges(n))
        self._torn = False
        return codes

    def _mend(self) -> None:
        """Finds the keys that have been numbered anew: what was entered beyond them is forgotten."""
        if self.null_code >= self.count:
            self.null_code = -1
        self._index, self._table = np.empty(0, np.int32), np.empty(0, np.int64)
        if self.count:
            least, most = hashing.value_range(self.values[: self.count], NO_BITMAP, 0)
            self._widen(int(least), int(most), 0)
        self._torn = False

    def direct(self, values: np.ndarray) -> tuple[np.uint64, np.ndarray] | None:
        """(least, codes by value - least) for most of `values` (int32[n] or int64[n], no null), once the keys of the
        first of them are in the table; None if new keys go on coming, or keys are found by hash.
        """
        if self._torn:
            self._mend()
        known, lo, step = self.count, 0, tuning.FIRST_KEYS
        if known >= step and self._index is not None:
            unseen = int(np.count_nonzero(self.encode(values[:step], insert=False) < 0))
            if 8 * unseen > step:
                return None
        while self._index is not None and lo <= len(values) // 8:
            before = self.count
            self.encode(values[lo : lo + step])
            new = self.count - before
            if not new and (known or step > tuning.FIRST_KEYS) and self._index is not None:
                return np.uint64(self._least & _MASK), self._index
            lo += step
            if 8 * new < step:
                step = 8 * tuning.FIRST_KEYS
        return None

    def kept(self, used: np.ndarray) -> IntTable:
        """Table of the values of some codes (int32, ascending, unique) only, which are numbered in this order."""
        smaller = IntTable()
        smaller.count = len(used)
        smaller.values = empty(max(len(used), _FIRST), np.int64)
        hashing.values_of(self.values, used, smaller.values[: len(used)])
        if self.null_code >= 0:
            at = int(np.searchsorted(used, self.null_code))
            if at < len(used) and used[at] == self.null_code:
                smaller.null_code = at
                smaller.values[at] = self.values[used[at - 1]]  # that of another key, so that it widens no range
        if len(used):
            least, most = hashing.value_range(smaller.values[: len(used)], NO_BITMAP, 0)
            smaller._widen(int(least), int(most), 0)
        return smaller

    def _insert(
        self, values: np.ndarray, lo: int, hi: int, bitmap: np.ndarray, offset: int, codes: np.ndarray, expected: int
    ) -> None:
        """Gives codes to the rows [lo, hi) whose code is -1. `expected`: the keys that all rows from `lo` on may well
        bring; 0 where nobody knows.
        """
        at = lo
        while True:
            rows, some = values[:hi], codes[:hi]
            if self._index is not None:
                base = np.uint64(self._least & _MASK)
                at, self.count = hashing.direct_insert(rows, at, base, self._index, self.values, self.count, some)
            else:
                at, self.count = hashing.hash_insert(rows, at, self._table, self.values, self.count, some)
            if at == hi:
                return
            if self.count == len(self.values):
                self._make_room(hi - at if expected else 1)
                continue
            coming = values[at:] if expected else rows[at:]
            least, most = hashing.value_range(coming, bitmap, offset + at)
            if self._index is not None:
                self._widen(int(least), int(most), hi - at, expected)
            elif expected:
                self._grow_hash(hi - at, expected, int(least), int(most))
            else:
                self._grow_hash()

    def _make_room(self, more: int) -> None:
        _check_room(self.count + 1)
        if self.count + more > len(self.values):
            self.values = _longer(self.values, max(2 * len(self.values), self.count + more))

    def _may_span(self, rows: int, expected: int) -> int:
        """Values that an index may span: for the keys there are and are expected, and for rows that may bring some."""
        by_keys = tuning.DIRECT_KEYS * (self.count + expected)
        return min(max(tuning.DIRECT_ANYWAY, tuning.DIRECT_SPREAD * (self.count + rows), by_keys), tuning.DIRECT_MOST)

    def _widen(self, least: int, most: int, rows: int, expected: int = 0) -> None:
        """Makes values from `least` to `most` fit the index, or gives it up for a hash table."""
        assert self._index is not None
        size = len(self._index)
        if size:
            least, most = min(least, self._least), max(most, self._least + size - 1)
        room = most - least + 1
        if room > self._may_span(rows, expected):
            self._index = None
            self._rehash(2 * len(self.values))
            return
        # A range that grows with the stream is not copied at each batch; one that only some keys have shown so far goes
        # on a little to both sides.
        slack, little = room // 4, room >> 8
        below = (slack if least < self._least else 0) if size else little
        above = (slack if most >= self._least + size else 0) if size else little
        self._least = max(least - below, INT64_MIN)
        top = min(most + above, INT64_MAX)
        index = full(top - self._least + 1, -1, np.int32)
        hashing.fill_direct(self.values, self.count, self.null_code, np.uint64(self._least & _MASK), index)
        self._index = index

    def _grow_hash(self, rows: int = 0, expected: int = 0, least: int = INT64_MAX, most: int = INT64_MIN) -> None:
        """Makes the hash table larger, or an index again: keys that came sparsely may have filled their range by now,
        or will with those from `least` to `most` that are expected.
        """
        known = hashing.value_range(self.values[: self.count], NO_BITMAP, 0)
        least, most = min(least, int(known[0])), max(most, int(known[1]))
        if most - least < min(tuning.DIRECT_KEYS * (self.count + expected), tuning.DIRECT_MOST):
            self._index, self._table = np.empty(0, np.int32), np.empty(0, np.int64)
            self._widen(least, most, 0, expected)
        else:
            self._rehash(max(2 * self.count, self.count + rows))

    def _rehash(self, keys: int) -> None:
        """Makes a hash table that so many keys fill to the half at most."""
        slots = 1 << (2 * keys - 1).bit_length()
        self._table = full(2 * slots, -1, np.int64)
        hashing.fill_hash(self.values, self.count, self.null_code, self._table)

    @property
    def nbytes(self) -> int:
        index = 0 if self._index is None else self._index.nbytes
        return self.values.nbytes + index + self._table.nbytes


class BytesTable:
    """Table of distinct byte strings, and null, with dense codes. String c is data[offsets[c]:offsets[c + 1]]."""

    def __init__(self) -> None:
        self.count = 0
        self.null_code = -1
        self.data = np.empty(1 << 12, np.uint8)
        self.offsets = np.zeros(_FIRST + 1, np.int64)
        self._entries = words_on_lines(4 * _FIRST)
        self._table = full(4 * _FIRST, -1, np.int64)
        self._torn = False  # see `IntTable`

    def encode(
        self,
        data: np.ndarray,
        offsets: np.ndarray,
        bitmap: np.ndarray = NO_BITMAP,
        offset: int = 0,
        insert: bool = True,
    ) -> np.ndarray:
        """Codes of data[offsets[i]:offsets[i + 1]] (uint8; int32 or int64[n + 1]), int32[n]. As `IntTable.encode`."""
        if self._torn:
            self._mend()
        n = len(offsets) - 1
        first = _first_null(bitmap, offset, n) if n and insert and len(bitmap) and self.null_code < 0 else -1
        if first > 0:  # as in `IntTable.encode`
            head = self.encode(data, offsets[: first + 1])
            return np.concatenate((head, self.encode(data, offsets[first:], bitmap, offset + first)))
        codes = empty(n, np.int32)
        self._torn = insert
        if first == 0:
            self._make_room(0)
            self._make_slots()
            self.null_code = self.count
            self.offsets[self.count + 1] = self.offsets[self.count]
            self._entries[4 * self.count : 4 * self.count + 4] = 0  # no bytes
            self.count += 1

        def lookup(lo: int, hi: int) -> int:
            some = offsets[lo : hi + 1]
            return int(
                byte_keys.bytes_lookup(data, some, bitmap, offset + lo, self.null_code, self._store, codes[lo:hi])
            )

        def add(lo: int, hi: int, unseen: int) -> int:
            before = self.count
            if not unseen:
                codes[lo:hi] = -1
                unseen = hi - lo
            least = tuning.CLAIMED_KEYS
            if unseen < least or before < least or tuning.threads() == 1 or before + unseen > MOST_CODES:
                self._insert(data, offsets[lo : hi + 1], codes[lo:hi])
                return self.count - before
            while lo < hi:  # room is made for each row, of which many may have one string: so a few rows at first
                most = max(tuning.FIRST_KEYS, 2 * self.count)
                upto = hi if unseen <= most else min(hi, lo + most)
                self._insert_by_all(data, offsets[lo : upto + 1], codes[lo:upto], min(unseen, upto - lo))
                lo = upto
            return self.count - before

        if insert:
            encode_in_parts(len(codes), lookup, add, self.count < tuning.FIRST_KEYS, not len(bitmap), by_all=True)
        else:
            each(lambda part: lookup(*part), ranges(len(codes)))
        self._torn = False
        return codes

    def _mend(self) -> None:
        """Finds the strings that have been numbered anew, as `IntTable`."""
        if self.null_code >= self.count:
            self.null_code = -1
        slots = max(len(self._table), 1 << (4 * (self.count + 1) - 1).bit_length())
        self._table = full(slots, -1, np.int64)
        byte_keys.fill_bytes(self.data, self._entries, self.count, self.null_code, self._table)
        self._torn = False

    def _insert(self, data: np.ndarray, offsets: np.ndarray, codes: np.ndarray) -> None:
        at = 0
        while True:
            at, self.count = byte_keys.bytes_insert(data, offsets, at, self._store, self.count, codes)
            if at == len(codes):
                return
            self._make_room(int(offsets[at + 1]) - int(offsets[at]))
            self._make_slots()

    def _insert_by_all(self, data: np.ndarray, offsets: np.ndarray, codes: np.ndarray, unseen: int) -> None:
        """Gives codes to the rows without one, as `_insert` does, by all threads."""
        self._make_slots(unseen)
        size, threads, rows = len(self._table), tuning.threads(), len(codes)
        slots = np.empty(rows, np.int64)
        claimed, lengths = np.empty(unseen, np.int64), np.empty(unseen + 1, np.int64)
        store, before = self._store, self.count

        def claim(k: int) -> int:
            first, end = size * k // threads, size * (k + 1) // threads
            return int(byte_claims.claim(data, offsets, rows * k // threads, first, end, False, store, codes, slots))

        if sum(each(claim, range(threads))):
            byte_claims.claim(data, offsets, 0, 0, size, True, store, codes, slots)
        new = int(byte_claims.number(offsets, before, codes, claimed, lengths))
        top = int(self.offsets[before])
        try:
            self._make_room(int(lengths[new]), new)
        except MemoryError:
            self._table[slots[claimed[:new]]] = -1
            raise
        np.add(lengths[1 : new + 1], top, out=self.offsets[before + 1 : before + new + 1])
        store = self._store

        def enter(part: tuple[int, int]) -> None:
            byte_claims.enter(data, offsets, before, *part, claimed, slots, store)

        each(enter, ranges(new))
        self.count = before + new

    def _make_room(self, length: int, more: int = 1) -> None:
        """Makes room for so many more strings, of this length all together."""
        _check_room(self.count + more)
        needed = int(self.offsets[self.count]) + length
        if needed > len(self.data):
            self.data = _longer(self.data, max(needed, 2 * len(self.data)))
        if self.count + more + 1 > len(self.offsets):
            self.offsets = _longer(self.offsets, max(2 * len(self.offsets), self.count + more + 1))
        if 4 * (self.count + more) > len(self._entries):
            # An entry lies on one line.
            entries = words_on_lines(max(2 * len(self._entries), 4 * (self.count + more)))
            entries[: len(self._entries)] = self._entries
            self._entries = entries

    def _make_slots(self, more: int = 1) -> None:
        """Makes a table that is at most half full with so many more strings."""
        least = max(2 * (self.count + more), 4 * (self.count + 1))
        if least > len(self._table):
            self._table = full(1 << (least - 1).bit_length(), -1, np.int64)
            byte_keys.fill_bytes(self.data, self._entries, self.count, self.null_code, self._table)

    @property
    def _store(self) -> byte_keys.ByteStore:
        return byte_keys.ByteStore(self._table, self._entries, self.data, self.offsets)

    def take(self, codes: np.ndarray, short: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The strings of these codes; see `strings_at`."""
        return strings_at(self.data, self.offsets, codes, short, self._store)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.offsets.nbytes + self._entries.nbytes + self._table.nbytes
