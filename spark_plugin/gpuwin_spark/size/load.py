"""Load of a query: its rows, keys and windows, and what they come to in a micro-batch.

Rows arrive at a steady rate, each with a key drawn evenly from all keys, and event time goes as fast as the clock.
Under this assumption the number of rows of a key in a span of time has a Poisson distribution, and every count below is
an expected value. Where a few keys have most of the rows there are fewer cells than this says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

#: Buffers of an aggregate in a cell, of eight bytes each, as Spark has them: numbers, and counts, which take a byte or
#: two in the shuffle and the log.
BUFFERS = {
    "count": (0, 1),
    "sum": (1, 0),
    "min": (1, 0),
    "max": (1, 0),
    "avg": (1, 1),
    "stddev": (3, 0),
    "variance": (3, 0),
}

_PHASES = 16


@dataclass(frozen=True)
class Counts:
    """Expected counts of one micro-batch, of all executors together.

    Attributes:
        rows: rows of the batch.
        cells: (key, pane) cells, or sessions, that the map tasks make of them, which is what is shuffled and logged.
        state_cells: cells, or sessions, of the state after the batch.
        state_keys: keys that have any of these.
        results: windows, or sessions, that the batch closes and emits.
        live_batches: batches whose cells the state needs.
    """

    rows: float
    cells: float
    state_cells: float
    state_keys: float
    results: float
    live_batches: int


@dataclass(frozen=True)
class Load:
    """Rows, keys and windows of a query in append mode. Times in seconds.

    Attributes:
        rows_per_second: rows that arrive.
        keys: different keys, in all.
        size: of a window, or the gap of a session.
        slide: of a window; None for sessions.
        interval: of event time from one micro-batch to the next.
        delay: of the watermark.
        map_tasks: tasks of a batch before the shuffle: partitions of the source.
        partitions: of the shuffle.
        key_bytes: of a key: 8 for a number, its length for a string.
        text_keys: whether keys are strings.
        aggregates: their names, of `BUFFERS`.
    """

    rows_per_second: float
    keys: int
    size: float
    slide: float | None
    interval: float
    delay: float
    map_tasks: int
    partitions: int
    key_bytes: int = 8
    text_keys: bool = False
    aggregates: tuple[str, ...] = ("sum", "count")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float) and not (value > 0 or (field.name == "delay" and value == 0)):
                raise ValueError(f"{field.name} is {value}, and has to be above 0")
        unknown = [name for name in self.aggregates if name not in BUFFERS]
        if unknown or not self.aggregates:
            raise ValueError(f"aggregates are some of {', '.join(BUFFERS)}, and not {', '.join(unknown) or 'none'}")

    @property
    def pane(self) -> float:
        """Width of a pane: the greatest common divisor of size and slide, which are whole microseconds."""
        if self.slide is None:
            raise ValueError("sessions have no panes")
        return math.gcd(round(self.size * 1e6), round(self.slide * 1e6)) / 1e6

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the aggregates of a cell."""
        return 8 * (self.numbers + self.counters)

    @property
    def numbers(self) -> int:
        """Buffers of a cell that are no counts."""
        return sum(BUFFERS[name][0] for name in self.aggregates)

    @property
    def counters(self) -> int:
        """Buffers of a cell that are counts."""
        return sum(BUFFERS[name][1] for name in self.aggregates)

    @property
    def cell_bytes(self) -> int:
        """Bytes of a cell in the shuffle and in the log: its key, its place in time, its aggregates.
        A string has four bytes more, for where it begins."""
        return self.key_bytes + 4 * self.text_keys + (8 if self.slide is not None else 16) + self.buffer_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on its way to the service: its key, its time, a number for each aggregate but counts, and the
        number of its partition."""
        return self.key_bytes + 8 + 8 * sum(name != "count" for name in self.aggregates) + 4

    @property
    def counts(self) -> Counts:
        """Counts of one micro-batch."""
        return self._of_sessions() if self.slide is None else self._of_panes(self.slide)

    def _of_panes(self, slide: float) -> Counts:
        rate, kept = self.rows_per_second, self.size + self.delay + self.interval
        return Counts(
            rows=rate * self.interval,
            cells=self.map_tasks * self._cells(self.interval, rate / self.map_tasks),
            state_cells=self._cells(kept, rate),
            state_keys=self._keys_seen(rate * kept),
            results=self.interval / slide * self._keys_seen(rate * self.size),
            live_batches=math.ceil(kept / self.interval),
        )

    def _of_sessions(self) -> Counts:
        rate, gap = self.rows_per_second, self.size
        apart = math.exp(-rate / self.keys * gap)  # no row of the key follows within the gap
        open_sessions = self._keys_seen(rate * gap)
        waiting = rate * apart * (self.delay + self.interval)  # over, and the watermark has not passed them
        return Counts(
            rows=rate * self.interval,
            cells=self.map_tasks * self._sessions(self.interval, rate / self.map_tasks),
            state_cells=open_sessions + waiting,
            state_keys=self._keys_seen(rate * (gap + self.delay + self.interval)),
            results=rate * apart * self.interval,
            live_batches=math.ceil((gap + self.delay + self.interval) / self.interval),
        )

    def _keys_seen(self, rows: float) -> float:
        """Different keys among so many rows."""
        return self.keys * -math.expm1(-rows / self.keys)

    def _cells(self, span: float, rate: float) -> float:
        """(key, pane) cells of a span of time, on average over where in a pane it begins."""
        total = 0.0
        for phase in range(_PHASES):
            first = min(span, self.pane * (phase + 0.5) / _PHASES)
            whole, last = divmod(span - first, self.pane)
            total += sum(n * self._keys_seen(rate * t) for n, t in ((1, first), (whole, self.pane), (1, last)))
        return total / _PHASES

    def _sessions(self, span: float, rate: float) -> float:
        """Sessions of the rows of a span alone: rows that none of their key precedes by less than the gap."""
        near = min(self.size, span)
        apart = math.exp(-rate / self.keys * self.size)
        return self._keys_seen(rate * near) + rate * (span - near) * apart
