"""Ledger of open windows: what a trigger needs to know of each besides its contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuwin.vocabulary.durations import INT64_MAX, INT64_MIN

NEVER = INT64_MAX
"""Time of a trigger that does not fire by event time."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Record of each open window besides its contents; int64 arrays of one length.

    Attributes:
        count: rows since its trigger last fired by rows (all its rows, where late ones continue the count).
        timed_from: system time of its first row, then of its last firing, from which `Every` counts; the smallest int64
            before any row.
        next_time: event time at which its trigger fires next, or `NEVER`.
        closed: 1 once it has closed.
        since: arrival from which its rows count; those before were discarded.
        last: its last result, as a row of a table of results; -1: none.
    """

    count: np.ndarray
    timed_from: np.ndarray
    next_time: np.ndarray
    closed: np.ndarray
    since: np.ndarray
    last: np.ndarray

    @staticmethod
    def fresh(n: int, now: int) -> Ledger:
        zero = np.zeros(n, np.int64)
        return Ledger(zero, np.full(n, now), np.full(n, NEVER), zero, np.full(n, INT64_MIN), np.full(n, -1))

    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.count, self.timed_from, self.next_time, self.closed, self.since, self.last

    def without_last(self) -> tuple[np.ndarray, ...]:
        """All arrays but `last`."""
        return self.arrays()[:-1]

    def take(self, at: np.ndarray) -> Ledger:
        return Ledger(*(a[at] for a in self.arrays()))

    def written(self, places: np.ndarray, part: Ledger) -> Ledger:
        """Ledger with some entries replaced."""
        arrays = []
        for whole, some in zip(self.arrays(), part.arrays(), strict=True):
            copy = whole.copy()
            copy[places] = some
            arrays.append(copy)
        return Ledger(*arrays)


def without_unused(ledger: Ledger, results: list[pa.Array]) -> tuple[Ledger, list[pa.Array]]:
    """Ledger and results without the results that no window refers to any more, once these are the majority."""
    used = np.flatnonzero(ledger.last >= 0)
    if not results or len(results[0]) <= 2 * len(used) + 64:
        return ledger, results
    rows = pa.array(ledger.last[used])
    moved = np.full(len(ledger.last), -1)
    moved[used] = np.arange(len(used))
    return replace(ledger, last=moved), [column.take(rows) for column in results]


def joined_ledgers(ledger: Ledger, others: Sequence[np.ndarray], last: np.ndarray, before: int) -> Ledger:
    """Ledger with the entries of another one behind its own; the results of that one come behind `before` others."""
    whole = [np.concatenate(pair) for pair in zip(ledger.without_last(), others, strict=True)]
    return Ledger(*[*whole, np.concatenate((ledger.last, np.where(last >= 0, last + before, -1)))])
