"""The state of a running join, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from gpuwin.joins.interval import Sides
from gpuwin.joins.windows import WindowSides
from gpuwin.state.keys import KeyDictionary

COMPACT_FROM = 4096  # keys from which it is worth looking for dead ones


@dataclass(frozen=True, slots=True)
class JoinMetrics:
    """Counters since the start (rows of both sides together), and what is held now."""

    rows_in: int = 0
    rows_late: int = 0
    rows_unassigned: int = 0  # window joins: in a gap between windows
    rows_null_time: int = 0
    rows_out: int = 0
    rows_kept: int = 0  # in memory; some may already have left, and wait to be cleared away with others
    state_bytes: int = 0
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class JoinState:
    """All that a batch may change, replaced as a whole when it has succeeded."""

    sides: Sides | WindowSides
    schemas: tuple[pa.Schema | None, pa.Schema | None]
    keys: KeyDictionary
    keys_known: int = (
        0  # as of the last batch that succeeded; one that fails may leave codes without a row behind these
    )
    keys_checked: int = COMPACT_FROM  # how many there were when dead ones were last looked for
    newest: tuple[int | None, int | None] = (None, None)  # largest time seen on each side
    watermark: int | None = None
    seq: int = 0
    finished: bool = False
    metrics: JoinMetrics = field(default_factory=JoinMetrics)
