"""Streams of which every batch is like the last one, by shape of window: what the counts and the host's time of a warm
batch are measured with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import gpuwin as gw

SECOND = 1_000_000
FIVE = {"n": gw.count(), "s": gw.sum("v"), "m": gw.mean("v"), "lo": gw.min("v"), "hi": gw.max("v")}


@dataclass(frozen=True)
class Shape:
    """Stream of two rows of each key a batch, five seconds apart. `every`: seconds from batch to batch, 60 or, where
    nothing is to close, 0.
    """

    name: str
    window: gw.TumblingWindow | gw.SlidingWindow | gw.SessionWindow
    every: int

    def specification(self) -> gw.WindowedAggregation:
        return gw.WindowedAggregation(
            window=self.window,
            keys=["key"],
            time="ts",
            aggregates=FIVE,
            watermark=gw.BoundedOutOfOrderness("0 seconds" if self.every else "1 day"),
        )

    def batches(self, keys: int, count: int, text: bool = False) -> Iterator[pa.Table]:
        rng = np.random.default_rng(0)
        for number in range(count):
            seconds = self.every * number + np.repeat([1, 6], keys)
            code = np.concatenate((rng.permutation(keys), rng.permutation(keys)))
            key = pa.array([f"user-{c:010d}" for c in code]) if text else pa.array(code)
            times = pa.array(seconds * SECOND).view(pa.timestamp("us"))
            yield pa.table({"ts": times, "key": key, "v": rng.normal(size=2 * keys)})


_WINDOWS = {
    "tumbling": gw.TumblingWindow("1 minute"),
    "sliding": gw.SlidingWindow("5 minutes", "1 minute"),
    "sessions": gw.SessionWindow("20 seconds"),
}
SHAPES = tuple(
    Shape(f"{name}, {'closing' if every else 'open'}", window, every)
    for name, window in _WINDOWS.items()
    for every in (0, 60)
)

__all__ = ["SHAPES", "Shape"]
