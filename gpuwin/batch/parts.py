"""Parts of a batch that is far larger than the caches, each of which closes what it can before the next one comes. What
a part needs, and the state, then stay in the cache.

The rows of a batch are all tested against one watermark, so a cut does not show. A window, or a session, can be emitted
before the end of the batch only if the watermark at that end closes it anyway, and no row behind the cut belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.extremes import ends_of


def is_oversized(rows: int) -> bool:
    """Whether a batch of so many rows is worth cutting."""
    return rows >= 2 * tuning.BATCH_ROWS


Ends = tuple[int, int]
"""The oldest and the newest time of some rows."""


def step_ends(time: np.ndarray) -> list[Ends]:
    """Ends of each step of rows at which an oversized batch may be cut; `time` int64[n], n at least 1."""
    return [ends_of(part) for part in np.split(time, _edges(len(time))[1:])]


def joined_ends(ends: Sequence[Ends]) -> Ends:
    """Ends of the rows of some steps together."""
    return min(end[0] for end in ends), max(end[1] for end in ends)


def part_ends(ends: Sequence[Ends], lo: int, rows: int) -> Ends:
    """Ends of a part of so many rows from row `lo` on, from those of all steps, the last of which may be longer or
    shorter than the others.
    """
    first, step = lo // tuning.BATCH_ROWS, tuning.BATCH_ROWS
    return joined_ends(ends[first : first + max(1, -(-(rows - step // 2) // step))])


def _edges(rows: int) -> np.ndarray:
    step = tuning.BATCH_ROWS
    return np.arange(0, max(1, rows - step // 2), step)


def parts_of(
    time: np.ndarray, done: Callable[[int], int], least: int, ends: Sequence[Ends] | None = None
) -> list[tuple[int, int, int]]:
    """Parts (lo, hi, rest) of rows: `rest` is the oldest time behind row hi - 1, the largest int64 at the end.

    `time` int64[n]. `done(rest)` is a number that rises with what may close before rows from `rest` on come. A cut is
    made where it has risen by `least` since the last cut. So rows in no order of time are not cut. `ends`: those of
    `step_ends`, if somebody has looked.
    """
    n = len(time)
    if not is_oversized(n):
        return [(0, n, INT64_MAX)]
    oldest = np.array([end[0] for end in (step_ends(time) if ends is None else ends)])
    rest = np.minimum.accumulate(oldest[::-1])[::-1].tolist()
    parts, lo, reached = [], 0, done(rest[0])
    for edge, later in zip(_edges(n)[1:].tolist(), rest[1:], strict=True):
        upto = done(later)
        if upto - reached >= least:
            parts.append((lo, edge, later))
            lo, reached = edge, upto
    return [*parts, (lo, n, INT64_MAX)]
