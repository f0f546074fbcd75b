"""State of a running aggregation, replaced as a whole by each batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gpuwin.engines.step import RunningWindows
from gpuwin.metrics import Metrics
from gpuwin.progress import Progress


@dataclass(frozen=True, slots=True)
class Running:
    """State that a batch changes. `windows`: None before the first batch. `late`, `merges`: what nobody has asked for
    yet, and `waiting_bytes`: the memory of both, carried along, since their tables become many.
    """

    progress: Progress
    windows: RunningWindows[Any] | None = None
    seq: int = 0
    counted: Metrics = Metrics()  # noqa: RUF009 - frozen, so it can be shared
    late: tuple[pa.Table, ...] = ()
    merges: tuple[pa.RecordBatch, ...] = ()
    finished: bool = False
    waiting_bytes: int = 0


def bytes_of(tables: Iterable[pa.Table | pa.RecordBatch]) -> int:
    """Bytes of some tables, all together."""
    return sum([int(table.nbytes) for table in tables])
