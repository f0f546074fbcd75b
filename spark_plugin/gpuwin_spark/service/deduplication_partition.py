"""One partition of a deduplication: the keys that it remembers, and the first rows of those that it does not.

A key is the bytes that Spark compares. The log keeps each with the time until which it is remembered, so a segment
whose last key the watermark has passed is dropped whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gpuwin.state.keys import dead_keys
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.vocabulary.durations import INT64_MIN
from gpuwin_kernels.cpu.first_rows import FORGOTTEN, first_rows

from .cell_tables import column_of, read_chunks
from .deduplication_spec import FIRSTS, KEYS, ROWS, DeduplicationSpec
from .log_segments import Segments
from .partition import BatchTimes, Outcome, StateSize
from .plain import validity_of, values_of


@dataclass(frozen=True)
class DeduplicationPartition:
    """The keys of one partition; immutable, but for the dictionary, which only grows.

    until: int64, by code, the time until which a key is remembered, `FORGOTTEN` for those that are not. Codes beyond
    are of keys that a batch brought which was not committed. size: how many are remembered.
    """

    spec: DeduplicationSpec
    keys: KeyDictionary
    until: np.ndarray
    size: int

    @classmethod
    def rebuilt(cls, spec: DeduplicationSpec, segments: Segments, through: int | None) -> DeduplicationPartition:
        """The state that the segments of a log hold, oldest first, once the watermark `through` has passed."""
        keys = KeyDictionary([pa.binary()])
        until = np.empty(0, np.int64)
        for table in _tables(segments):
            code = keys.encode([column_of(table, 0)], table.num_rows)
            until = _longer(until, len(keys))
            until[code] = values_of(column_of(table, 1))
        return cls(spec, keys, until, int(np.count_nonzero(until != FORGOTTEN)))._evicted(through)

    @property
    def state(self) -> StateSize:
        """Size of the state."""
        return StateSize(self.size, self.keys.nbytes + self.until.nbytes)

    @property
    def is_on_device(self) -> bool:
        """Whether the state is in the memory of a GPU, where keys of bytes are never."""
        return False

    def batch(self, chunks: list[bytes], times: BatchTimes, rows: int) -> Outcome[DeduplicationPartition]:
        """Applies one batch.

        Args:
            chunks: Arrow streams of rows.
            times: the watermarks; rows up to `late` are dropped, keys up to `evict` are forgotten after the batch.
            rows: the most rows in one emitted record batch.
        """
        until, dropped = self.until.copy(), 0
        firsts: list[pa.Array] = []
        logged: list[pa.RecordBatch] = []
        last = INT64_MIN
        for chunk in chunks:
            table = read_chunks([chunk], ROWS)
            key, time, row = (column_of(table, at) for at in range(3))
            on_time = self._on_time(time, times.late)
            dropped += table.num_rows - len(on_time)
            code = self.keys.encode([key], len(key))
            until = _longer(until, len(self.keys))
            expires = self.spec.until(time)
            first = np.empty(len(on_time), np.int64)
            first = first[: first_rows(code, expires, on_time, until, first)]
            if len(first):
                places = pa.array(first)
                firsts.append(row.take(places))
                logged.append(pa.record_batch([key.take(places), pa.array(expires[first])], schema=KEYS))
                last = max(last, int(expires[first].max()))
        new = sum(len(part) for part in firsts)
        after = DeduplicationPartition(self.spec, self.keys, until, self.size + new)._evicted(times.evict)
        return Outcome(
            after._compacted(),
            _batches(firsts, rows),
            updated=new,
            removed=self.size + new - after.size,
            dropped=dropped,
            first=None if times.evict is None else times.evict + 1,
            logged=logged,
            logged_cells=new,
            logged_last=last,
        )

    @staticmethod
    def _on_time(time: pa.Array, late: int | None) -> np.ndarray:
        """Rows that are not late, int64, ascending; those without a time are not."""
        if late is None:
            return np.arange(len(time))
        return np.flatnonzero((values_of(time) > late) | (validity_of(time) == 0))

    def _evicted(self, watermark: int | None) -> DeduplicationPartition:
        """The state without the keys that are remembered until this watermark, or less."""
        if watermark is None or not self.spec.evicts:
            return self
        until = np.where(self.until <= watermark, FORGOTTEN, self.until)
        return DeduplicationPartition(self.spec, self.keys, until, int(np.count_nonzero(until != FORGOTTEN)))

    def _compacted(self) -> DeduplicationPartition:
        """The state without the keys that are forgotten, once these are the majority."""
        if not dead_keys.may_be_many(self.keys, self.size):
            return self
        used = np.flatnonzero(self.until != FORGOTTEN).astype(np.int32)
        keys, _ = self.keys.kept(used)
        return DeduplicationPartition(self.spec, keys, self.until[used], self.size)


def merge_keys(segments: Segments, first: int) -> tuple[list[pa.RecordBatch], int, int]:
    """Some segments of a log as one: (record batches, how many keys, the last time until which one is remembered),
    without keys that are remembered until before `first`.
    """
    kept = []
    for table in _tables(segments):
        mask = values_of(column_of(table, 1)) >= first
        kept += table.filter(pa.array(mask)).to_batches()
    last = max((int(values_of(batch.column(1)).max()) for batch in kept if batch.num_rows), default=INT64_MIN)
    return kept, sum(batch.num_rows for batch in kept), last


def _tables(segments: Segments) -> Iterator[pa.Table]:
    """The entries of some segments, a chunk at a time: those of a segment may be more than a column has room for."""
    for segment in segments:
        for chunk in segment.chunks:
            yield read_chunks([chunk], KEYS)


def _longer(until: np.ndarray, keys: int) -> np.ndarray:
    """The times of so many keys, the new ones forgotten."""
    more = keys - len(until)
    return np.concatenate((until, np.full(more, FORGOTTEN))) if more > 0 else until


def _batches(firsts: list[pa.Array], rows: int) -> Iterator[pa.RecordBatch]:
    for part in firsts:
        for at in range(0, len(part), rows):
            yield pa.record_batch([part.slice(at, rows)], schema=FIRSTS)
