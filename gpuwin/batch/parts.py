"""Where a batch that is far larger than the caches can be cut, so that each part closes what it can before the next one
comes: what a part needs then stays in the cache, and so does the state.

The rows of a batch are all tested against one watermark, so nobody may tell that it was cut. A window, or a session,
can go early only if the end of the batch closes it anyway and no row behind the cut can reach it any more.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuwin.vocabulary.durations import INT64_MAX
from gpuwin_kernels import tuning


def is_oversized(rows: int) -> bool:
    """Whether a batch of so many rows is worth a look at its times."""
    return rows >= 2 * tuning.BATCH_ROWS


def parts_of(time: np.ndarray, done: Callable[[int], int], least: int) -> list[tuple[int, int, int]]:
    """Rows cut into parts (lo, hi, rest): `rest` is the oldest time behind row hi - 1, the largest int64 at the end.

    `time` int64[n]. `done(rest)` is a number that rises with what may close before rows from `rest` on come; a cut is
    made where it has risen by `least` since the last one. So rows in no order of time are not cut.
    """
    n, step = len(time), tuning.BATCH_ROWS
    if not is_oversized(n):
        return [(0, n, INT64_MAX)]
    edges = np.arange(0, n - step // 2, step)
    rest = np.minimum.accumulate(np.minimum.reduceat(time, edges)[::-1])[::-1].tolist()
    parts, lo, reached = [], 0, done(rest[0])
    for edge, oldest in zip(edges[1:].tolist(), rest[1:], strict=True):
        upto = done(oldest)
        if upto - reached >= least:
            parts.append((lo, edge, oldest))
            lo, reached = edge, upto
    return [*parts, (lo, n, INT64_MAX)]
