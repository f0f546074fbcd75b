"""What `OnChange` must answer: every window of every key, one after the other, the empty ones too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oracle import FOR_EVER, Oracle


@dataclass
class ChangeOracle(Oracle):
    """Sliding windows that are told of where they differ from the one before."""

    before: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    looked_at: int | None = None

    def close(self, moved: bool = True) -> list[tuple[Any, ...]]:
        _, size, slide, _ = self.shape
        out, ends, watermark = list[tuple[Any, ...]](), [w.end for w in self.windows] or [0], self.watermark(None)
        last = min(watermark - (self.strict and watermark < FOR_EVER), max(ends) + slide)
        first = self.looked_at + slide if self.looked_at is not None else min(ends)
        for end in range(first, last + 1, slide):
            for key in {w.key for w in self.windows}:
                rows = tuple(v for w in self.windows if w.key == key and w.end == end for v in w.rows)
                if rows != self.before.get(key, ()):
                    out.append((key, end - size, end, rows, "", False))
                self.before[key], self.looked_at = rows, end
        return out
