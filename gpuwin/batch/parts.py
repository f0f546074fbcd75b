"""Parts of a batch that is far larger than the caches, each of which closes what it can before the next one comes. What
a part needs, and the state, then stay in the cache.

The rows of a batch are all tested against one watermark, so a cut does not show. A window, or a session, can be emitted
before the end of the batch only if the watermark at that end closes it anyway, and no row behind the cut belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels import tuning
from gpuwin_kernels.cpu.extremes import ends_of


def is_oversized(rows: int) -> bool:
    """Whether a batch of so many rows is worth cutting."""
    return rows >= 2 * tuning.BATCH_ROWS


def parts_of(time: np.ndarray, done: Callable[[int], int], least: int) -> list[tuple[int, int, int]]:
    """Parts (lo, hi, rest) of rows: `rest` is the oldest time behind row hi - 1, the largest int64 at the end.

    `time` int64[n]. `done(rest)` is a number that rises with what may close before rows from `rest` on come. A cut is
    made where it has risen by `least` since the last cut. So rows in no order of time are not cut.
    """
    n, step = len(time), tuning.BATCH_ROWS
    if not is_oversized(n):
        return [(0, n, INT64_MAX)]
    edges = np.arange(0, n - step // 2, step)
    oldest = np.array([ends_of(part)[0] for part in np.split(time, edges[1:])])
    rest = np.minimum.accumulate(oldest[::-1])[::-1].tolist()
    parts, lo, reached = [], 0, done(rest[0])
    for edge, later in zip(edges[1:].tolist(), rest[1:], strict=True):
        upto = done(later)
        if upto - reached >= least:
            parts.append((lo, edge, later))
            lo, reached = edge, upto
    return [*parts, (lo, n, INT64_MAX)]
