"""Rewrites in the state log of a partition: how often its bytes are written again as segments are merged."""

from __future__ import annotations

from functools import cache

#: Segments before the newest are merged (``spark.gpuwin.log.maxSegments``).
MOST_SEGMENTS = 24
#: Live batches that are played at most; more change the result by its logarithm only.
_MOST_BATCHES = 5_000


@cache
def rewrites(live_batches: int) -> float:
    """Bytes that a batch writes for merged segments, over those that it writes for its own, once the log is full.

    Plays the merges of ``StateLog.scala`` over batches of one size, each of which the state needs for so many batches.
    """
    live = max(1, min(live_batches, _MOST_BATCHES))
    segments: list[tuple[int, int]] = []  # cells, and the newest batch in it; the oldest segment first
    written = 0
    for now in range(3 * live):
        segments = [s for s in segments if s[1] > now - live]
        segments.append((1, now))
        merged = _to_merge([cells for cells, _ in segments])
        if merged:
            cells = sum(cells for cells, _ in segments[-merged:])
            segments[-merged:] = [(cells, now)]
            written += cells if now >= 2 * live else 0
    return written / live


def _to_merge(cells: list[int]) -> int:
    """Count of the newest segments that are merged."""
    if len(cells) <= MOST_SEGMENTS:
        return 0
    gathered = n = 0
    newest_first = cells[::-1]
    while n < len(cells) and (n < len(cells) - MOST_SEGMENTS // 2 or newest_first[n] <= 2 * gathered):
        gathered += newest_first[n]
        n += 1
    return n
