"""Which sessions a batch made one: a row that lies between two of them bridges them, and the later ones are absorbed by
the earliest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuwin.state.sessions import PlayedSteps


@dataclass(frozen=True, slots=True)
class Bridges:
    """One row for each session that was absorbed, in order of arrival of the rows that did it. `start`, `last`, `end`
    are of the session that absorbed it, once it had; `part` the same three of the absorbed one, just before.
    """

    code: np.ndarray  # int32[m]
    start: np.ndarray  # int64[m]
    last: np.ndarray  # int64[m]
    end: np.ndarray  # int64[m]
    part: tuple[np.ndarray, np.ndarray, np.ndarray]  # int64[m] each

    def __len__(self) -> int:
        return len(self.code)


def bridges_of(code: np.ndarray, steps: PlayedSteps) -> Bridges | None:
    """What rows of these codes (int32[rows]) merged, from the steps that they were played in; None if nothing."""
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
