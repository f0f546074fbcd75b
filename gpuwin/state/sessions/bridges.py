"""Bridges: sessions that rows of a batch made one, found in the steps in which the rows were played."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwin.state.sessions.tiers import SessionBatch


@dataclass(frozen=True, slots=True)
class PlayedSteps:
    """Sessions of rows that were played one by one, as each row left its session: for an aggregate after each row.

    `session[i]` numbers the session of row i at that moment (-1: dropped), with its bounds then. Numbers below
    `len(old)` are the open sessions of the rows' keys, as they were: `old`. `merges` int64[*, 3] are (row, into,
    absorbed), to be applied before that row is added.
    """

    session: np.ndarray  # int64[rows]
    start: np.ndarray  # int64[rows]
    last: np.ndarray  # int64[rows]
    end: np.ndarray  # int64[rows]
    merges: np.ndarray
    old: SessionBatch
    sessions: int  # count of numbers


@dataclass(frozen=True, slots=True)
class Bridges:
    """Sessions that were absorbed by another, in order of arrival of the rows that did it. `start`, `last`, `end`:
    bounds of the session that absorbed it, afterwards. `part`: bounds of the absorbed one, just before.
    """

    code: np.ndarray  # int32[m]
    start: np.ndarray  # int64[m]
    last: np.ndarray  # int64[m]
    end: np.ndarray  # int64[m]
    part: tuple[np.ndarray, np.ndarray, np.ndarray]  # int64[m] each

    def __len__(self) -> int:
        return len(self.code)


def bridges_of(code: np.ndarray, steps: PlayedSteps) -> Bridges | None:
    """Sessions that rows of these codes (int32[rows]) made one, from the steps that they were played in; None if there
    are none.
    """
    row, _, absorbed = steps.merges.T
    if not len(row):
        return None
    # The step before the merge in which the absorbed session was last seen, or the session as the batch found it.
    numbers, times = steps.session, np.arange(len(steps.session))
    order = np.lexsort((times, numbers))
    span = len(numbers) + 1
    seen = numbers[order] * span + times[order]
    before = np.searchsorted(seen, absorbed * span + row) - 1
    at = order[np.maximum(before, 0)]
    played = (before >= 0) & (numbers[at] == absorbed)
    old = np.where(played, 0, absorbed)
    part = []
    for then, was in ((steps.start, steps.old.start), (steps.last, steps.old.last), (steps.end, steps.old.end)):
        found = then[at]
        if not played.all():
            found = np.where(played, found, was[old])
        part.append(found)
    return Bridges(code[row], steps.start[row], steps.last[row], steps.end[row], (part[0], part[1], part[2]))
