"""Plan of a deduplication: numbers instead of durations."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwin.progress import WatermarkRule
from gpuwin.vocabulary.durations import INT64_MAX


@dataclass(frozen=True, slots=True)
class DeduplicatePlan:
    """Plan of a specification. `within`: microseconds after its first row for which a key is remembered; the largest
    int64: for ever.
    """

    keys: tuple[str, ...]
    time: str | None  # None: rows without event time
    within: int
    rule: WatermarkRule
    most_bytes: int | None
    collect_late: bool
    fingerprint: str  # of the specification: a snapshot belongs to one

    @property
    def forgets(self) -> bool:
        """Whether the watermark has keys forgotten."""
        return self.within < INT64_MAX
