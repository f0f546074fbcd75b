"""Cold windows: those that no row visits and no trigger waits for, spilled to disk until something asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.engines.triggers.ledger import Ledger
from gpuwin.engines.triggers.rule import TriggerRule, interval_of
from gpuwin.state.spill import OnDisk, in_memory
from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN
from gpuwin.vocabulary.triggers import Every
from gpuwin_kernels.cpu.distinct_codes import distinct_codes
from gpuwin_kernels.cpu.sessions import clear_positions, live_of, live_of_codes, with_bits

_WHOLE = 1 << 26  # bytes: parts of this size are not merged with others


@dataclass(frozen=True, slots=True)
class Entries:
    """Windows or sessions taken out of a state, in any order; all arrays have one length.

    `wake` int64: the watermark at which one is needed again. `clock` int64: the system time at which it is. `arrays`:
    their state. `last` int64: the row of `results` that was emitted for it last; -1: none.
    """

    code: np.ndarray
    wake: np.ndarray
    clock: np.ndarray
    arrays: tuple[np.ndarray, ...]
    last: np.ndarray
    results: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.code)

    @property
    def nbytes(self) -> int:
        arrays = (self.code, self.wake, self.clock, self.last, *self.arrays)
        return int(sum(a.nbytes for a in arrays) + sum(r.nbytes for r in self.results))

    @property
    def result_count(self) -> int:
        """Number of results."""
        return len(self.results[0]) if self.results else 0

    def take(self, at: np.ndarray) -> Entries:
        """Some entries, in this order, with the results that they refer to."""
        last = self.last[at]
        emitted = np.flatnonzero(last >= 0)
        rows = pa.array(last[emitted])
        moved = np.full(len(at), -1, np.int64)
        moved[emitted] = np.arange(len(emitted))
        arrays = tuple(a[at] for a in self.arrays)
        results = tuple(r.take(rows) for r in self.results)
        return Entries(self.code[at], self.wake[at], self.clock[at], arrays, moved, results)


def joined_entries(parts: Sequence[Entries]) -> Entries:
    """Entries of all parts, one after the other; at least one part."""
    if len(parts) == 1:
        return parts[0]
    offset, lasts = 0, []
    for part in parts:
        lasts.append(np.where(part.last >= 0, part.last + offset, -1))
        offset += part.result_count

    def whole(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)

    return Entries(
        whole([p.code for p in parts]),
        whole([p.wake for p in parts]),
        whole([p.clock for p in parts]),
        tuple(whole(same) for same in zip(*(p.arrays for p in parts), strict=True)),
        whole(lasts),
        tuple(pa.concat_arrays(same) for same in zip(*(p.results for p in parts), strict=True)),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Entries in one file, and a bit set of those that have left it."""

    entries: Entries  # by code; on disk
    gone: np.ndarray  # bit set of the places that were read back
    live: int
    wake: int  # the least wake of a live entry
    clock: int
    size: int  # bytes on disk

    @classmethod
    def written(cls, entries: Entries, folder: str) -> _Part:
        entries = entries.take(np.argsort(entries.code, kind="stable"))
        size = entries.nbytes
        places = OnDisk([entries.code, entries.wake, entries.clock, entries.last, *entries.arrays], folder)
        code, wake, clock, last = (places.numbers() for _ in range(4))
        arrays = tuple(places.numbers() for _ in entries.arrays)
        results = entries.results
        if entries.result_count:
            stored = OnDisk(results, folder)
            results = tuple(stored.array() for _ in results)
        n = len(code)
        none = np.zeros((n + 7) // 8, np.uint8)
        kept = Entries(code, wake, clock, arrays, last, results)
        return cls(kept, none, n, int(wake.min()), int(clock.min()), size)

    def alive(self) -> Entries:
        return self.entries.take(clear_positions(self.gone, len(self.entries)))

    def reached(self, watermark: int | np.ndarray, now: int) -> np.ndarray:
        """Live positions that time has reached."""
        entries = self.entries
        hit = np.zeros(len(entries), bool)
        if isinstance(watermark, np.ndarray):
            if len(watermark) and self.wake <= int(watermark.max()):
                hit |= entries.wake <= watermark[entries.code]
        elif self.wake <= watermark:
            hit |= entries.wake <= watermark
        if self.clock <= now:
            hit |= entries.clock <= now
        found: np.ndarray = live_of(self.gone, np.flatnonzero(hit)) if hit.any() else np.empty(0, np.int64)
        return found

    def without(self, positions: np.ndarray) -> _Part | None:
        live = self.live - len(positions)
        if not live:
            return None
        gone = with_bits(self.gone, positions)
        left = clear_positions(gone, len(self.entries))
        wake, clock = int(self.entries.wake[left].min()), int(self.entries.clock[left].min())
        return replace(self, gone=gone, live=live, wake=wake, clock=clock)

    @property
    def nbytes(self) -> int:
        return in_memory((self.entries.code,)) + self.gone.nbytes


@dataclass(frozen=True, slots=True)
class Cold:
    """All windows of a state that are on disk. Immutable."""

    parts: tuple[_Part, ...] = ()

    def __len__(self) -> int:
        return sum(part.live for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(part.nbytes for part in self.parts)

    def put(self, entries: Entries, folder: str) -> Cold:
        """Cold windows with these as well, at least one. Raises LimitExceeded if the folder cannot be written."""
        parts = list(self.parts)
        size = entries.nbytes
        while parts and parts[-1].live < 2 * len(entries) and parts[-1].size + size < _WHOLE:
            entries = joined_entries([parts.pop().alive(), entries])
            size = entries.nbytes
        return Cold((*parts, _Part.written(entries, folder)))

    def taken(
        self, codes: np.ndarray, watermark: int | np.ndarray, now: int, whole_keys: bool = False
    ) -> tuple[Cold, Entries | None]:
        """The windows that stay on disk, and those that are needed now: all of the keys `codes` (int32, any order), and
        those that time has reached, by the stream's watermark or one for each key code.

        whole_keys: if one window of a key is needed, all windows of the key are.
        """
        if not self.parts:
            return self, None
        wanted = distinct_codes(codes.astype(np.int32))
        reached = [part.reached(watermark, now) for part in self.parts]
        if whole_keys and any(map(len, reached)):
            visited = [part.entries.code[at] for part, at in zip(self.parts, reached, strict=True)]
            wanted = distinct_codes(wanted, *visited)
        parts, found = [], []
        for part, reached_at in zip(self.parts, reached, strict=True):
            at = np.union1d(live_of_codes(part.entries.code, part.gone, wanted), reached_at)
            left: _Part | None = part
            if len(at):
                found.append(part.entries.take(at))
                left = part.without(at)
            if left is not None:
                parts.append(left)
        return (Cold(tuple(parts)), joined_entries(found)) if found else (self, None)

    def everything(self) -> Entries | None:
        return joined_entries([part.alive() for part in self.parts]) if self.parts else None

    def used_codes(self) -> np.ndarray:
        """Key codes in use, int32, sorted, unique."""
        return distinct_codes(
            *(part.entries.code[clear_positions(part.gone, len(part.entries))] for part in self.parts)
        )

    def recoded(self, new_code: np.ndarray) -> Cold:
        """Cold windows with the codes of a new dictionary: `new_code` int32, old -> new, order preserving (-1: not in
        use).
        """
        parts = []
        for part in self.parts:
            code = new_code[part.entries.code].astype(np.int32)
            # Entries that are gone may have no code any more. They keep the order, which is searched.
            code = np.maximum.accumulate(np.maximum(code, 0))
            parts.append(replace(part, entries=replace(part.entries, code=code)))
        return Cold(tuple(parts))


def wake_times(rule: TriggerRule, ledger: Ledger, end: np.ndarray, lateness: int) -> tuple[np.ndarray, np.ndarray]:
    """Times at which windows that get no rows are needed again: (watermark, system time), int64 each. They may be too
    early, never too late.

    Windows close at their end, are evicted at their end plus the lateness (microseconds), and timers fire for them.
    """
    closed = ledger.closed != 0
    evicted = np.minimum(end, INT64_MAX - lateness) + lateness
    wake = np.minimum(np.where(closed, evicted, end), ledger.next_time)
    clock = np.full(len(end), INT64_MAX)
    for schedule, mine in ((rule.early, ~closed & (ledger.timed_from != INT64_MIN)), (rule.late, closed)):
        if isinstance(schedule, Every):
            step = interval_of(schedule)
            clock[mine] = np.minimum(ledger.timed_from[mine], INT64_MAX - step) + step
    return wake, clock
