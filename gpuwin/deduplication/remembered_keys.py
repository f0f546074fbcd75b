"""Keys that a deduplication remembers, each until a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.state.appended import Appended
from gpuwin.state.keys.dictionary import FEW_KEYS, KeyDictionary
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin_kernels.cpu.first_rows import FORGOTTEN, first_rows
from gpuwin_kernels.cpu.kept_memory import empty


@dataclass(frozen=True, slots=True)
class Before:
    """Keys as they were before some rows: how many there were, and of the keys of the rows (int32[n]) the times
    (int64[n]).
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
        self, columns: Sequence[pa.Array], rows: np.ndarray, time: np.ndarray, within: int
    ) -> tuple[np.ndarray, Before]:
        """Rows that are the first of their keys, among some rows of a batch (int64[n], ascending), ascending; and what
        `back_to` takes. From now on their keys are remembered until `within` microseconds after them.

        columns, time (int64): of all rows of the batch. Those of other rows leave no trace.
        """
        each = rows
        if len(rows) < len(time):
            places, each = pa.array(rows), np.arange(len(rows))
            columns, time = [column.take(places) for column in columns], time[rows]
        known = len(self._keys)
        try:
            code = self._keys.encode(columns, len(time))
            self._until.append(np.full(len(self._keys) - len(self._until), FORGOTTEN))
            before = Before(known, code, self._until.values[code])
        except BaseException:
            self._with_keys(known)
            raise
        first = empty(len(rows), np.int64)
        found = first_rows(code, time, _after(time, within), each, self._until.values, first)
        return rows[first[:found]], before

    def back_to(self, before: Before) -> None:
        """Takes the rows of one call of `first`, the last one, out again."""
        self._until.values[before.code] = before.until
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


def _after(time: np.ndarray, within: int) -> np.ndarray:
    """Times plus `within`, at most the largest int64, and after `FORGOTTEN`."""
    if within == INT64_MAX:
        return np.full(len(time), INT64_MAX)
    later: np.ndarray = np.minimum(time, INT64_MAX - within) + within
    later = np.maximum(later, INT64_MIN + 1)
    return later
