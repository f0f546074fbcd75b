"""Estimate of what a load needs: memory of the service, bytes of shuffle and log, processor time, executors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwin_spark.service.protocol import LEAST_NARROWED

from .costs import Costs
from .load import Counts, Load
from .log import rewrites

#: Bytes of a cell in the state beside its aggregates: its pane and the code of its key; of a session also its end.
_CELL, _SESSION = 12, 20
#: Bytes of a key in a dictionary beside the key: its slot in the hash table, and its entry.
_KEY = 32
#: The share of its cores that a query may use in the long run, so that it catches up after a restart.
BUSY = 0.6


@dataclass(frozen=True)
class Estimate:
    """Needs of a load. Bytes and seconds are of all executors together, where nothing else is said.

    Attributes:
        counts: of a micro-batch.
        state_bytes: keys and cells of the state.
        shuffle_bytes: of a batch.
        log_bytes: of a batch, into the state store, with those of merged segments.
        jvm_seconds: processor time of a batch in Spark's tasks.
        service_seconds: processor time of a batch in the device services.
        service_memory: bytes that the device service of one executor has resident, at most.
        cores: cores that are busy `BUSY` of the time.
    """

    counts: Counts
    state_bytes: float
    shuffle_bytes: float
    log_bytes: float
    jvm_seconds: float
    service_seconds: float
    service_memory: float
    cores: float

    @property
    def seconds_per_million_rows(self) -> float:
        """Processor time of a million rows, with all that becomes of them."""
        return (self.jvm_seconds + self.service_seconds) / self.counts.rows * 1e6

    def executors(self, cores_each: int) -> int:
        """Executors of so many cores."""
        return max(1, math.ceil(self.cores / cores_each))


def estimate(load: Load, costs: Costs, executors: int) -> Estimate:
    """Needs of a load on so many executors: quantities, each times its cost.

    What keys cost that miss the processor's caches is in the costs as it was measured, with at most a million keys in
    one service.
    """
    counts = load.counts
    all_of = quantities(load, counts)
    each = {name: quantity if name == "services" else quantity / executors for name, quantity in all_of.items()}
    wide = counts.cells * load.cell_bytes
    # Sessions are logged as the service put them together, other cells as each task sent them.
    streams = load.partitions * (1 if load.slide is None else load.map_tasks)
    narrowed = wide >= LEAST_NARROWED * streams
    jvm, service = _sum(costs.jvm_seconds, all_of), _sum(costs.service_seconds, all_of)
    return Estimate(
        counts=counts,
        state_bytes=all_of["state_bytes"],
        shuffle_bytes=_sum(costs.shuffle_bytes, all_of),
        log_bytes=(_sum(costs.log_bytes, all_of) if narrowed else wide) * (1 + rewrites(counts.live_batches)),
        jvm_seconds=jvm,
        service_seconds=service,
        service_memory=_sum(costs.service_memory, each),
        cores=(jvm + service) / load.interval / BUSY,
    )


def _sum(costs: Mapping[str, float], of: Mapping[str, float]) -> float:
    return sum(cost * of[name] for name, cost in costs.items())


def quantities(load: Load, counts: Counts) -> dict[str, float]:
    """Quantities of a micro-batch that cost something, by name.

    A *value* is a row's argument of one aggregate, a *word* eight bytes of an aggregate's buffers. The columns of cells
    stand apart, with the bytes that they take in the shuffle and the log (`service/narrow.py`), since Spark's shuffle
    compresses some well (keys, panes, counts) and others not at all (sums, texts).
    """
    sessions, text = load.slide is None, load.text_keys
    values = sum(name != "count" for name in load.aggregates)
    words = load.buffer_bytes / 8
    cell = load.buffer_bytes + (_SESSION if sessions else _CELL)
    return {
        "services": 1.0,
        "partitions": load.partitions,
        "tasks": load.map_tasks + load.partitions,
        "rows": counts.rows,
        "values": counts.rows * values,
        "rows_of_text_keys": counts.rows if text else 0.0,
        "rows_of_sessions": counts.rows if sessions else 0.0,
        "row_bytes": counts.rows * load.row_bytes,
        "cell_bytes": counts.cells * load.cell_bytes,
        "cell_words": counts.cells * words,
        "cells_of_sessions": counts.cells if sessions else 0.0,
        "text_bytes": counts.cells * (load.key_bytes + 4) if text else 0.0,
        "number_bytes": 0.0 if text else counts.cells * _narrow(load.keys),
        "place_bytes": counts.cells * _place_bytes(load),
        "value_bytes": counts.cells * 8 * load.numbers,
        "count_bytes": counts.cells * load.counters,
        "state_keys": counts.state_keys,
        "state_bytes": counts.state_cells * cell + counts.state_keys * (_KEY + load.key_bytes),
        "result_words": counts.results * words,
    }


def _place_bytes(load: Load) -> int:
    """Bytes of a cell's place in time: its pane, or start and end of its session in microseconds."""
    span = load.interval + load.delay
    return 2 * _narrow(1e6 * span) if load.slide is None else _narrow(span / load.pane)


def _narrow(numbers: float) -> int:
    """Bytes of an integer that is one of so many that follow each other."""
    return next((size for size in (1, 2, 4) if numbers <= 1 << (8 * size)), 8)
