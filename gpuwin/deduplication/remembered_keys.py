"""Keys that a deduplication remembers, each until a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.state.appended import Appended
from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary
from gpuwin_kernels.cpu.first_rows import FOR_EVER, FORGOTTEN, first_rows_ever, first_rows_within
from gpuwin_kernels.cpu.kept_memory import empty


@dataclass(frozen=True, slots=True)
class Before:
    """Keys as they were before some rows: how many there were, and of the keys of the first rows among these (int32[n])
    the times (int64[n]), where such keys were known.
    """

    keys: int
    code: np.ndarray
    until: np.ndarray


class RememberedKeys:
    """Keys by their codes, with the time until which each is remembered (int64, `FORGOTTEN` for none). It changes in
    place, so that a batch costs what its rows cost, however many keys there are.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """Raises gpuwin.SchemaError for a type whose values cannot be keys."""
        self._keys = KeyDictionary(types)
        self._until = Appended(np.empty(0, np.int64))
        self._checked = FEW_KEYS  # how many keys there were when forgotten ones were last looked for

    def put(self, columns: Sequence[pa.Array | pa.ChunkedArray], until: np.ndarray) -> None:
        """Puts keys in, all different, where there are none yet, with the times until which they are remembered."""
        self._keys.encode(columns, len(until))
        self._until = Appended(until)
        self._checked = max(FEW_KEYS, len(until))

    def first(
        self, columns: Sequence[pa.Array], rows: np.ndarray | None, time: np.ndarray | None, within: int
    ) -> tuple[np.ndarray, Before]:
        """Rows that are the first of their keys, ascending, and what `back_to` takes. From now on their keys are
        remembered until `within` microseconds after them, or for ever where that is the largest int64.

        columns, time (int64; needed unless it is for ever): of all rows of a batch. rows (int64[n], ascending; None:
        all): those that are asked about; others leave no trace.
        """
        if rows is not None:
            places = pa.array(rows)
            columns, time = [column.take(places) for column in columns], None if time is None else time[rows]
        known = len(self._keys)
        try:
            code = self._keys.encode(columns, len(columns[0]))
            if within == FOR_EVER:
                first, before = self._first_ever(code, known)
            else:
                assert time is not None
                first, before = self._first_within(code, time, within, known)
        except BaseException:
            self._with_keys(known)
            raise
        return first if rows is None else rows[first], before

    def _first_ever(self, code: np.ndarray, known: int) -> tuple[np.ndarray, Before]:
        """First rows of keys behind the first `known` ones, which are remembered already."""
        new = len(self._keys) - known
        first = np.empty(new, np.int64)
        if new:
            self._until.append(np.full(new, FOR_EVER))
            first_rows_ever(code, known, np.zeros(new, np.bool_), first)
        return first, Before(known, code[:0], self._until.values[:0])

    def _first_within(self, code: np.ndarray, time: np.ndarray, within: int, known: int) -> tuple[np.ndarray, Before]:
        """First rows of keys that are not remembered at their times."""
        self._until.append(np.full(len(self._keys) - known, FORGOTTEN))
        first, before = empty(len(code), np.int64), empty(len(code), np.int64)
        found = first_rows_within(code, time, within, self._until.values, first, before)
        first = first[:found].copy()
        return first, Before(known, code[first], before[:found].copy())

    def back_to(self, before: Before) -> None:
        """Takes the rows of one call of `first`, the last one, out again."""
        self._until.values[before.code[::-1]] = before.until[::-1]  # of a key that was first twice, the first one's
        self._with_keys(before.keys)

    def _with_keys(self, count: int) -> None:
        """Takes the keys behind the first so many out."""
        if len(self._keys) > count:
            self._keys, _ = self._keys.kept(np.arange(count, dtype=np.int32))
        self._until = Appended(self._until.values[:count])

    def without_many(self, before: int) -> RememberedKeys:
        """These keys, or, once those that are remembered until before a time have become the majority, the others. It
        is looked whether they have when there are half as many keys again as the last time. No row is before that time,
        so none finds them.
        """
        if 2 * len(self._keys) < 3 * self._checked:
            return self
        if 2 * self.count(before) < len(self._keys):
            return self.without(before)
        self._checked = max(FEW_KEYS, len(self._keys))
        return self

    def without(self, before: int) -> RememberedKeys:
        """The keys that are remembered until a time or longer; these stay as they are."""
        used = self._codes(before)
        if len(used) == len(self._keys):
            return self
        others = RememberedKeys(self._keys.types)
        others._keys, _ = self._keys.kept(used)
        others._until = Appended(self._until.values[used])
        others._checked = max(FEW_KEYS, len(used))
        return others

    def _codes(self, least: int) -> np.ndarray:
        """Codes of the keys that are remembered until a time or longer, int32, ascending."""
        until = self._until.values
        codes: np.ndarray = np.flatnonzero((until >= least) & (until != FORGOTTEN)).astype(np.int32)
        return codes

    def count(self, least: int) -> int:
        """Number of keys that are remembered until a time or longer."""
        return len(self._codes(least))

    def table(self, least: int) -> pa.Table:
        """Keys that are remembered until a time or longer: their columns, "0" and so on, and "until", int64."""
        used = self._codes(least)
        until = pa.array(self._until.values[used])
        names = [*map(str, range(len(self._keys.types))), "until"]
        parts = [[*columns, until.slice(at, len(columns[0]))] for at, columns in self._keys.parts(used)]
        batches = [pa.record_batch(columns, names=names) for columns in parts]
        schema = pa.schema(list(zip(names, [*self._keys.types, pa.int64()], strict=True)))
        return pa.Table.from_batches(batches, schema)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._keys.nbytes + self._until.nbytes
